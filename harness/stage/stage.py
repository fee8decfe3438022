"""A stage: the engine, machine and memory of one run, and what a kind of machine must offer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from moebench.harness.stage.memory import Memory, Offer
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.runtime import Supports
from moebench.substrate.engine.system import System
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.protocol import Machine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape

if TYPE_CHECKING:
    from moebench.substrate.models.decoder import Decoder
    from moebench.substrate.models.expert_store import Weights


@dataclass(slots=True, kw_only=True)
class Stage:
    """A run's engine, machine and memory, and their entries in the run's document.

    Attributes:
        profile: None on this computer; ``ran`` is then the model that computed there.
        badge: origin of the run's times, such as ``measured``.
        slots, total: experts that fit on the device, and all experts of the model.
        memory: bytes that the run offers to any system, and bytes of this system's slots.
        load_ns: time to load non-expert weights and a number of placed experts to the device.
        card: UUID of the CUDA device that computes, if one does.
    """

    engine: Engine
    machine: Machine
    timeline: Timeline
    device: Tier
    host: Tier
    profile: HardwareProfile | None
    notes: list[str]
    slots: int
    total: int
    memory: dict[str, int]
    load_ns: Callable[[int], int]
    badge: str
    ran: str | None = None
    card: str | None = None

    def start(self) -> int:
        """Place the experts; return the model's loading time in ns."""
        before = self.machine.now_ns()
        placed = self.engine.start()
        return self.load_ns(placed) + self.machine.now_ns() - before


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """Input of a kind of machine for building a stage.

    Attributes:
        full: the model that is charged.
        longest: tokens of the longest sequence, new ones included.
        model: returns the model that the engine calls; on this computer it is given the decoder
            that computes with the experts in the slots, on a simulated machine None.
        weights: weights with which this computer computes; None on a simulated machine.
        weights_name: name of the file of expert records that are made from the weights.
        ran: name of the model that computes on this computer, for notes on measured times.
        scratch: the folder of expert records.
        keep_timeline: keep every span, not only those of the report's timeline excerpt.
        notes: sentences for the document in addition to those on machine and memory.
    """

    spec: RunSpec
    system: System
    full: ModelShape
    longest: int
    model: "Callable[[Decoder | None], Model]"
    weights: "Weights | None" = None
    weights_name: str = ""
    ran: str = ""
    scratch: Path = Path()
    keep_timeline: bool = False
    notes: Sequence[str] = ()


class StageKind(Protocol):
    """A kind of machine for runs: a simulated machine, this computer, or its GPU."""

    def supports(self, spec: RunSpec) -> Supports:
        """Return the runtime options of systems that this kind of machine supports."""

    def offer(self, spec: RunSpec) -> Offer:
        """Return the memory that the run may use.

        Raises UsageError: the spec does not determine the amount.
        """

    def build(self, request: StageRequest, memory: Memory, stack: ExitStack) -> Stage:
        """Build the stage; ``stack`` closes the files, threads and memory that it opens.

        Raises:
            UsageError: the machine cannot do what the run asks for.
            BudgetError: its memory is too small.
        """


def on_this_computer(
    precision: str, source: str, more: Mapping[str, object] = MappingProxyType({})
) -> Supports:
    """Return the runtime options of this computer, which computes with whole stored records.

    Args:
        precision: precision of its experts.
        source: where experts are loaded from, in words.
        more: further attributes of `Runtime` that can have one value only.
    """
    allowed = {"expert_precision": None, "host_experts": None, **more}
    takes = f"takes {precision} experts from {source}"
    finished = "computes with finished copies only, unlike a simulated machine"
    hookless = "copies experts without hooks of their modules"
    return Supports(
        where="--machine local",
        forms=False,
        only={
            "reads_unfinished": (False, finished),
            "module_hooks": (False, hookless),
            "threads": (None, "computes experts on the host with PyTorch's threads"),
        }
        | {name: (value, takes) for name, value in allowed.items()},
    )
