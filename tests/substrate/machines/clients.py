"""A transfer client that writes down what a machine tells it, and a simulated machine for it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from tests.substrate.engine.fakes import FlatCosts, host_memory, prices


def load_op(layer: int, expert: int = 0) -> Op:
    return Op(OpKind.LOAD, layer, (), (expert,))


@dataclass
class Client:
    """Gives every prefetch a slot but those of ``refused`` experts.

    Attributes:
        claimed: what it does when a prefetch claims; its result is what the transfer waits for.
        diary: (what, expert, times), in order.
        spans: of transfers under way, by layer and expert.
    """

    refused: set[int] = field(default_factory=set)
    claimed: Callable[[Op, int], tuple[Span, ...]] = lambda op, now_ns: ()
    diary: list[tuple] = field(default_factory=list)
    spans: dict[tuple[int, int], Span] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        self.diary.append(("claim", op.experts[0], now_ns))
        return None if op.experts[0] in self.refused else self.claimed(op, now_ns)

    def under_way(self, op: Op, span: Span) -> None:
        self.spans[op.layer, op.experts[0]] = span

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        self.diary.append(("arrived", op.experts[0], start_ns, end_ns))

    def slot_of(self, op: Op) -> int:
        return self.slots[op.experts[0]]

    def about(self, expert: int) -> list[tuple]:
        """What happened to an expert."""
        return [(what, *times) for what, of, *times in self.diary if of == expert]


def cancelled(machine: SimulatedMachine | LocalMachine) -> list[int]:
    """The experts whose prefetches were noted as dropped, in order; the machine keeps all."""
    notes = machine.timeline.records()
    return [row["experts"][0] for row in notes if row["kind"] == "cancel"]


def simulated(
    host_records: int | None = None, blocking_copies: bool = False, overlap: bool = True,
    parallel_reads: bool = True, lost_together: float = 0.0, **control: int,
) -> SimulatedMachine:  # fmt: skip
    """A load takes 40 ns, after 60 on a disk, 50 behind another read.

    Attention takes 30, an expert 10, on the host 55.
    """
    table = prices(expert=10, attend=30, load=40, read=60, queued=50, host=55, back=4)
    costs = FlatCosts(table, lost_together=lost_together, **control)
    return SimulatedMachine(
        costs, Timeline(keep_all=True), host_memory(host_records),
        parallel_reads=parallel_reads, overlap=overlap, blocking_copies=blocking_copies,
    )  # fmt: skip


ATTEND = Op(OpKind.ATTEND, 0, (1,))


def attend(m: SimulatedMachine, times: int = 1) -> None:
    """Let the clock run for 30 ns, so many times."""
    for _ in range(times):
        m.wait(m.submit(ATTEND, Lane.DEVICE))


def times(span: Span) -> tuple[int, int]:
    return span.start_ns, span.end_ns
