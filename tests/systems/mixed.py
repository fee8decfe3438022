"""A system of mixed precision for tests of forms: missing experts with low scores come as int4."""

from dataclasses import dataclass, field
from typing import ClassVar

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, split
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.models.shape import Form
from moebench.systems.baselines import MoEOnDemand


@dataclass(kw_only=True)
class LowScoresInInt4(Assignment):
    """Loads a missing expert in form 1 if its score is low, otherwise in form 0.

    Attributes:
        below: the part of the layer's best score below which a score is low.
    """

    below: float = 0.8

    def assign(self, view: LayerView, active: Active) -> Plan:
        low = self.below * max(active.best)
        load = [Fetch(view.layer, e, form=int(active.best[e] < low)) for e in active.absent]
        return split(active, load)


@dataclass(kw_only=True)
class MixedPrecision(MoEOnDemand):
    """Keeps records of both forms in slots of their own, the least recently used leaves."""

    forms: ClassVar[tuple[Form, ...]] = (Form(), Form("int4", "int4", pool=0.2))

    assign: Assignment = field(default_factory=LowScoresInInt4)
