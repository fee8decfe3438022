"""Routing that every lossless system shares."""

from dataclasses import dataclass

from substrate.system import Routing


@dataclass(kw_only=True)
class ExactRouting(Routing):
    """The model's own top-k, always."""
