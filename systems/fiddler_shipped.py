"""Fiddler as its authors' code runs it (efeslab/fiddler 227715b, src/fiddler/mixtral.py).

    code                                  moebench
    ────                                  ────────
    experts on the GPU: a list            PlacePopular, as published
    latency_cpu = 7, latency_gpu = 70     LoadOrComputeAsShipped: literals without a unit, "TODO:
                                            find this value based on device config"
    the least sum over 2^E divisions      least_sum
    load_state_dict of a placeholder      Fetch(keep=False); ``blocking_copies``, pageable memory
    GPU experts, then CPU experts         no ``overlap``

An expert costs 0 on the GPU if it is resident, else 70, whatever its tokens; on the CPU it costs 7
a token.  So an absent expert is copied if it has 10 tokens or more: at 10 both sides are equal, and
the first best division that the code finds has it on the GPU.  The constants are those of a Mixtral
expert on the authors' computer; the code, and moebench, use them for every model and machine.

Not modelled:

- The search over 2^E divisions, which is feasible only up to Mixtral's 8 experts, is free.
- In moebench, host experts run before device experts; nothing overlaps, so the sum is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import Active, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.models.shape import ModelShape
from moebench.systems.fiddler import Fiddler, Latency, Objective, divided

#: The code's constants for the time of a token on the host and of a copy, without a unit.
TOKEN_COST, LOAD_COST = 7.0, 70.0


@dataclass(kw_only=True)
class LoadOrComputeAsShipped(Assignment):
    """Divides a layer between host and device by the constant times of the authors' code.

    Attributes:
        minimise: ``sum`` minimises the sum of all costs, ``max`` the larger side.
        token_cost, load_cost: cost of a token on the host, and of a copied expert.
    """

    minimise: Objective = option("sum", searched=True)
    token_cost: float = option(TOKEN_COST, low=0, above=True)
    load_cost: float = option(LOAD_COST, low=0, above=True)

    loads = "passing"

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Divide the layer by the constant costs, in both phases."""
        takes = Latency(token=self.token_cost, device=0, load=self.load_cost)
        return divided(view, active, self.minimise, takes)


@dataclass(kw_only=True)
class ShippedFiddler(Fiddler):
    """Fiddler with its authors' constants and blocking copies, without overlap."""

    assign: Assignment = field(default_factory=LoadOrComputeAsShipped)
    overlap: bool = False
    blocking_copies: bool = True
    pinned_copies: bool | None = False

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note that the division uses the code's constants, not measured times."""
        if not isinstance(self.assign, LoadOrComputeAsShipped):
            return ()
        takes = self.assign
        return (
            f"its division goes by the constants of its code, {takes.token_cost:g} a token on the "
            f"host and {takes.load_cost:g} a copy, whatever these take here",
        )
