"""Runs the fuzzing tests on the tiny models."""

from tests.harness.conftest import plain_output, tiny_catalogue, tiny_models

__all__ = ["plain_output", "tiny_catalogue", "tiny_models"]
