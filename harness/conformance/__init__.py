"""Conformance checks that every system must pass: `moebench doctor --system NAME`."""
