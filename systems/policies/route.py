"""Routing that every lossless system shares."""

from dataclasses import dataclass

from moebench.substrate.engine.policies import Routing


@dataclass(kw_only=True)
class ExactRouting(Routing):
    """The model's own top-k, always."""

    reads_scores = False
