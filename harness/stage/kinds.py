"""Chooses the kind of machine that a run names, and builds its stage."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from moebench.harness.stage.memory import Memory, count_memory
from moebench.results.spec import RunSpec
from moebench.substrate.engine.runtime import refuse
from moebench.substrate.engine.system import System
from moebench.substrate.models.shape import ModelShape

if TYPE_CHECKING:
    from moebench.harness.stage.stage import Stage, StageKind, StageRequest


def kind_of(spec: RunSpec) -> "StageKind":
    """Return the kind of machine that a run names."""
    # Only this computer's need torch, which takes a second to import.
    if spec.machine != "local":
        from moebench.harness.stage.simulated import SimulatedKind

        return SimulatedKind()
    if spec.device == "cuda":
        from moebench.harness.stage.card import CardKind

        return CardKind()
    from moebench.harness.stage.local import LocalKind

    return LocalKind()


def memory_of(spec: RunSpec, system: System, full: ModelShape, longest: int) -> Memory:
    """Count what fits into the memory that a run is offered.

    Args:
        longest: tokens of the longest sequence, new ones included.

    Raises:
        UsageError: no option determines the offered memory.
        BudgetError: the model does not fit.
    """
    return count_memory(spec, system, full, longest, kind_of(spec).offer(spec))


def check_machine(spec: RunSpec, system: System) -> None:
    """Refuse a system whose runtime options or forms of records its machine does not support.

    Raises UsageError: names the first such option.
    """
    refuse(spec.title, system.runtime, kind_of(spec).supports(spec))


def open_stage(request: "StageRequest", stack: ExitStack) -> "Stage":
    """Build the machine, memory and engine of a run.

    Args:
        stack: closes the files, threads and memory that are opened.

    Raises:
        UsageError: the machine does not support what the system or the run asks for.
        BudgetError: the model does not fit.
    """
    spec, system = request.spec, request.system
    memory = memory_of(spec, system, request.full, request.longest)
    check_machine(spec, system)
    return kind_of(spec).build(request, memory, stack)
