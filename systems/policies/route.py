"""Exact routing, which all lossless systems use."""

from dataclasses import dataclass

from moebench.substrate.engine.policies import Routing


@dataclass(kw_only=True)
class ExactRouting(Routing):
    """Always chooses the model's own top-k."""

    reads_scores = False
