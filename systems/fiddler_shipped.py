"""Fiddler as its authors' code runs it (efeslab/fiddler 227715b, src/fiddler/mixtral.py).

    code                                  here
    ────                                  ────
    experts on the GPU: a list            PlacePopular, as published
    latency_cpu = 7, latency_gpu = 70     LoadOrComputeAsShipped: literals without a unit, "TODO:
                                            find this value based on device config"
    the least sum over 2^E divisions      least_sum
    load_state_dict of a placeholder      Fetch(keep=False); ``blocking_copies`` of pageable memory
    GPU experts, then CPU experts         no ``overlap``

An expert that is on the GPU costs 0 there, whatever its tokens, one that is not 70; on the CPU it
costs 7 a token.  So one that is not there is copied from 10 tokens on: at 10 both sides are equal,
and the first best division that is found has it on the GPU.  The constants are the code's own, for
a Mixtral expert on its authors' computer; as there, they decide for every model and machine.

Not modelled:

- The search over 2^E divisions: its code stands no more than Mixtral's 8 experts.  Here it is free.
- Host experts run before those of the device here; nothing overlaps, so the sum is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import Active, LayerView, Plan
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.models.shape import ModelShape
from moebench.systems.fiddler import Fiddler, Latency, Objective, divided
from moebench.systems.policies.checks import require_above_zero

#: What the code thinks that a token takes on the host, and a copy.
TOKEN_COST, LOAD_COST = 7.0, 70.0


@dataclass(kw_only=True)
class LoadOrComputeAsShipped(Assignment):
    """Divides a layer by the latency model with the constants of the code.

    Attributes:
        minimise: the sum of all costs, or the larger side.
        token_cost, load_cost: of a token on the host, and of an expert that is copied.
    """

    minimise: Objective = "sum"
    token_cost: float = TOKEN_COST
    load_cost: float = LOAD_COST

    reads_scores = False
    uses_host = True

    def __post_init__(self) -> None:
        require_above_zero("assign", self, "token_cost", "load_cost")

    def assign(self, view: LayerView, active: Active) -> Plan:
        """The same in both phases."""
        takes = Latency(token=self.token_cost, device=0, load=self.load_cost)
        return divided(view, active, self.minimise, takes)


@dataclass(kw_only=True)
class ShippedFiddler(Fiddler):
    """The complete system of the authors' code."""

    assign: Assignment = field(default_factory=LoadOrComputeAsShipped)
    overlap: bool = False
    blocking_copies: bool = True
    pinned_copies: bool | None = False

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Where the costs are from that decide."""
        if not isinstance(self.assign, LoadOrComputeAsShipped):
            return ()
        takes = self.assign
        return (
            f"its division goes by the constants of its code, {takes.token_cost:g} a token on the "
            f"host and {takes.load_cost:g} a copy, whatever these take here",
        )
