"""Comparison of published times of components with the cost model's times of their operations.

``catalogue/components.yaml`` has a row for each component: operations with their sizes, a machine,
a kind of software, a model and a precision, and how the published figure was measured.  A row
outside `TOLERANCE` has the reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from moebench.substrate.machines.costs import NETWORK_VALUE_BYTES, CostModel
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.quantity import Inert
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import Precision

CATALOGUE = Path(__file__).parents[1] / "catalogue" / "components.yaml"

#: Largest deviation of a charge from the published figure that needs no reason: 15 %.
TOLERANCE = 0.15

#: How a figure was measured: ``lanes``: the sum of the operations' times on their lanes;
#: ``elapsed``: from the first submission to the last end, one after the other; ``control``: the
#: control thread's time to submit them; ``bytes``: the bytes that they move or read.
Measure = Literal["lanes", "elapsed", "control", "bytes"]

Unit = Literal["us", "ms", "KB", "MB", "1"]

#: Nanoseconds or bytes of each unit.  A ratio of two figures has unit 1.
_UNITS: dict[Unit, float] = {"us": 1e3, "ms": 1e6, "KB": 1e3, "MB": 1e6, "1": 1.0}

_TRANSFERS = {
    OpKind.LOAD: Lane.H2D, OpKind.STREAM: Lane.H2D, OpKind.READ: Lane.DISK,
    OpKind.WRITE_BACK: Lane.D2H, OpKind.RETURN: Lane.D2H,
}  # fmt: skip


class Operation(Inert):
    """An operation of a component, with sizes as in `Op`; the default lane depends on its kind."""

    op: OpKind
    lane: Lane | None = None
    rows: tuple[int, ...] = (1,)
    context: int = 0
    network: tuple[int, ...] = ()

    @property
    def where(self) -> Lane:
        """Lane to which the operation is submitted."""
        return self.lane or _TRANSFERS.get(self.op, Lane.DEVICE)

    def built(self) -> Op:
        """Return the cost model's `Op`, with one query that attends to each cached token."""
        experts = tuple(range(len(self.rows))) if self.op is OpKind.EXPERT else ()
        return Op(self.op, 0, self.rows, experts, self.context, self.context, self.network)


class Component(Inert):
    """A published time or size of a component, with the operations that the cost model charges.

    Attributes:
        source: paper and section, or file and line of its code.
        published: one number, or the lowest and the highest published number, in `unit`.
        over: operations whose charge divides the charge of ``ops``.
        why: reason of a charge outside `TOLERANCE`, or None.
    """

    what: str = Field(min_length=1)
    source: str = Field(min_length=1)
    published: tuple[float, ...] = Field(min_length=1, max_length=2)
    unit: Unit
    machine: str
    software: str = DEFAULT_SOFTWARE
    model: str
    precision: Precision = "bf16"
    measure: Measure = "lanes"
    ops: tuple[Operation, ...] = Field(min_length=1)
    over: tuple[Operation, ...] = ()
    why: str | None = None

    @model_validator(mode="after")
    def _sensible(self) -> "Component":
        if self.published != tuple(sorted(self.published)) or self.published[0] <= 0:
            raise ValueError(f"published {self.published}: allowed: [figure] or [lowest, highest]")
        if (self.unit == "1") != bool(self.over):
            raise ValueError("unit 1 is for a ratio of operations, and only for it")
        return self


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published component with the cost model's charge and the ratio of the two.

    Attributes:
        charged: in the component's unit.
        ratio: charged over published; for a published range, over its nearer end, and 1 inside.
    """

    component: Component
    charged: float
    ratio: float

    @property
    def agrees(self) -> bool:
        """Whether the charge is within `TOLERANCE` of the published figure."""
        return abs(self.ratio - 1) <= TOLERANCE


@cache
def components() -> tuple[Component, ...]:
    """Return all published components, in the order of the catalogue."""
    import yaml

    rows = yaml.safe_load(CATALOGUE.read_text(encoding="utf-8"))
    return tuple(Component.model_validate(row) for row in rows)


def compare(component: Component) -> Comparison:
    """Return the cost model's charge for a component, compared with the published figure."""
    profile = load_profile(component.machine, component.software)
    costs = CostModel(profile, model_shape(component.model), component.precision)
    charged = _charge(costs, component.measure, component.ops) / _UNITS[component.unit]
    if component.over:
        charged /= _charge(costs, component.measure, component.over)
    low, high = component.published[0], component.published[-1]
    return Comparison(component, charged, charged / min(max(charged, low), high))


def documents() -> list[dict[str, Any]]:
    """Return all components as plain dictionaries, with charge, ratio and agreement."""
    return [
        {
            **one.component.model_dump(mode="json", exclude={"ops", "over"}),
            "charged": one.charged,
            "ratio": one.ratio,
            "agrees": one.agrees,
        }
        for one in map(compare, components())
    ]


def _charge(costs: CostModel, measure: Measure, operations: Iterable[Operation]) -> float:
    """Return the cost model's charge for operations, in ns or bytes."""
    ops = [(operation.built(), operation.where) for operation in operations]
    match measure:
        case "lanes":
            return sum(costs.ns(op, lane) for op, lane in ops)
        case "control":
            return sum(costs.control_ns(op, lane) for op, lane in ops)
        case "bytes":
            return sum(_bytes(costs, op) for op, _ in ops)
        case "elapsed":
            return _elapsed(costs, ops)


def _elapsed(costs: CostModel, ops: Iterable[tuple[Op, Lane]]) -> float:
    machine = SimulatedMachine(costs, Timeline(keep_all=False))
    after: tuple[Span, ...] = ()
    for op, lane in ops:
        after = (machine.submit(op, lane, after),)
    end = after[0].end_ns
    assert end is not None, "only queued prefetches have no end"
    return end


def _bytes(costs: CostModel, op: Op) -> int:
    if op.network:
        return NETWORK_VALUE_BYTES * sum(a * b + b for a, b in pairwise(op.network))
    return costs.moved_bytes(op)
