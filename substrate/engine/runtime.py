"""Runtime options that a system needs from its machine, and those that a machine supports."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moebench.substrate.choices import HostKernels
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import Form, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How the transfers and computations of a system are carried out, apart from its decisions.

    `System.runtime` collects these values from the system's attributes of the same names.

    Attributes:
        overlap: False lets no operation start before the one submitted before it has ended.
        blocking_copies: the control thread waits for every needed load, and for the streamed
            non-expert weights of every layer; None is where copies are from pageable memory, since
            such a copy returns to the thread that submits it when the data have been staged.
        parallel_reads: several experts are read from the disk at the same time.
        synchronises: the control thread waits for the host's outputs and for a layer's transfers
            before it launches the operations that use them, and for the layer's sum before it goes
            on.
        reads_unfinished: an expert is computed while its copy is under way.  The results of such
            a system are wrong; its time is not.
        pinned_copies: whether experts are copied from page-locked host memory; None is as the
            machine's profile says.
        module_hooks: each tensor that is not on the device is copied on its own, by a hook of its
            module, which costs Python time.
        expert_precision: the precision of stored and moved experts; None is the run's.
        host_experts: how many routed experts host memory keeps, the others are on the disk; None
            is all that fit.
        host_kernels: how quantised experts are multiplied on the host.
        prediction_python: a prediction that runs the next layer's attention pays the Python of a
            layer, under software that pays it (`Software.layer`).
        forms: the forms in which the system holds records; form 0 is the whole record.
        host_together: the host computes a layer's experts as one operation, with one
            hand-over, as the graph of a C++ engine does.
        threads: of the host, which compute experts; None is one for each core.
        divides: decode passes are divided into micro-batches, with the KV cache on the host; see
            `Assignment.divides`.
    """

    overlap: bool = True
    blocking_copies: bool | None = None
    parallel_reads: bool = True
    synchronises: bool = False
    reads_unfinished: bool = False
    pinned_copies: bool | None = None
    module_hooks: bool = False
    expert_precision: Precision | None = None
    host_experts: int | None = None
    host_kernels: HostKernels = "unpacking"
    prediction_python: bool = True
    forms: tuple[Form, ...] = (Form(),)
    host_together: bool = False
    threads: int | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Supports:
    """The runtime options that a kind of machine supports.

    Attributes:
        where: the machine, as the command line names it.
        forms: whether it holds records in other forms than the whole one.
        divides: whether it computes divided passes.
        only: attributes of `Runtime` for which it takes one value: that value, and the reason, as
            a clause whose subject is the machine.
    """

    where: str
    forms: bool = True
    divides: bool = False
    only: Mapping[str, tuple[object, str]] = field(default_factory=dict)


def check_forms(forms: Sequence[Form], one_each: bool = False) -> None:
    """Check the forms of records that a system declares.

    Args:
        one_each: each expert has one record, so that no form has slots of its own.

    Raises UsageError: names the first that it cannot have.
    """
    first, *more = forms or (None,)
    if first is None or not first.full:
        raise UsageError(f"form 0 is {first}; allowed: the whole record, Form()")
    if one_each:
        return
    for form in more:
        if not (0 < form.share <= 1 and 0 < form.pool < 1):
            raise UsageError(f"{form}; allowed: share more than 0 to 1, pool between 0 and 1")
    if sum(form.pool for form in more) >= 1:
        raise UsageError("the pools of further forms leave no slot to form 0; allowed: less than 1")


def refuse(system: str, runtime: Runtime, supports: Supports) -> None:
    """Refuse a system whose runtime options or forms a machine does not support.

    Args:
        system: its name, for the message.

    Raises UsageError: names the first such attribute, its value and the allowed one.
    """
    if runtime.divides and not supports.divides:
        raise UsageError(
            f"{supports.where}: has no KV cache in host memory and computes passes whole, but "
            f"{system} divides them into micro-batches; allowed: a simulated machine without "
            "measured times"
        )
    for name, (allowed, why) in supports.only.items():
        given = getattr(runtime, name)
        if given != allowed:
            raise UsageError(
                f"{supports.where}: {why}, but {system} has {name}={json.dumps(given)}; "
                f"allowed: --set {name}={json.dumps(allowed)}"
            )
    other = [form.name for form in runtime.forms if not form.full]
    if other and not supports.forms:
        raise UsageError(
            f"{supports.where}: holds whole records only, but {system} has the form {other[0]}; "
            "allowed: a simulated machine without measured times"
        )
