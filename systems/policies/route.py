"""Routing that every lossless system shares."""

from dataclasses import dataclass

from moebench.substrate.engine.system import Routing


@dataclass(kw_only=True)
class ExactRouting(Routing):
    """The model's own top-k, always."""
