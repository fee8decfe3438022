"""The loader's queues and copies, one by one on this thread: order, chunks, and what is told."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.machines.loader import Job, Loader, start_thread
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.models.expert_store import ALIGNMENT
from tests.substrate.machines.clients import Client, load_op

#: A record of five aligned blocks less 100 bytes of padding.
STRIDE, RECORD = 5 * ALIGNMENT, 5 * ALIGNMENT - 100


class Rig:
    """A loader whose copies take 10 ns of a clock by hand, and everything that it does."""

    def __init__(self) -> None:
        self.ns = 100
        self.copies: list[tuple[int, int, int, int]] = []
        self.awaited: list[Span] = []
        self.ended: list[tuple[Span, bool]] = []
        self.rows = torch.zeros(4, STRIDE, dtype=torch.uint8)
        records = SimpleNamespace(
            format=SimpleNamespace(record_bytes=RECORD), stride_bytes=STRIDE, lane=Lane.DISK,
            copy=self._copy,
        )  # fmt: skip
        self.changed = threading.Condition(threading.RLock())
        self.loader = Loader(
            records, self.rows, self.changed, lambda *said: self.ended.append(said),
            self.awaited.append, self._timed,
        )  # fmt: skip
        self.client = Client(slots={expert: expert % 4 for expert in range(8)})

    def _copy(self, layer: int, expert: int, slot: torch.Tensor, first: int, beyond: int) -> None:
        assert slot.data_ptr() == self.rows[self.client.slots[expert]].data_ptr()
        self.copies.append((layer, expert, first, beyond))

    def _timed(self, span: Span, copy: Callable[[], int]) -> tuple[int, int, int]:
        start = self.ns
        moved = copy()
        self.ns += 10
        return moved, start, self.ns

    def job(self, expert: int, chunks: int = 1, **of: Any) -> Job:
        return Job(load_op(1, expert), self.client, Lane.DISK, chunks, **of)

    def step(self) -> int | None:
        """Carry the next job; return its expert."""
        job = self.loader.next_job()
        if job is None:
            return None
        self.loader.carry(job)
        return job.op.experts[0]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_needed_transfers_come_first_then_uploads_then_prefetches(rig: Rig) -> None:
    loader = rig.loader
    assert loader.idle
    assert loader.waiting == 0
    assert loader.prefetch([load_op(2, 0), load_op(2, 1)], rig.client, 1) == []
    loader.upload(rig.job(2))
    loader.upload(rig.job(3))
    loader.need(rig.job(4))
    loader.need(rig.job(5))
    assert loader.waiting == 2
    assert [rig.step() for _ in range(6)] == [4, 5, 2, 3, 0, 1]
    assert loader.idle
    assert [of for what, of, *_ in rig.client.diary if what == "claim"] == [0, 1]


def test_a_whole_record_is_copied_and_told(rig: Rig) -> None:
    after = (Span(load_op(0), Lane.DISK), Span(load_op(0, 1), Lane.DISK))
    job = rig.job(6, after=after)
    rig.ns = 70
    rig.loader.need(job)
    assert rig.step() == 6
    assert rig.copies == [(1, 6, 0, STRIDE)]
    assert rig.awaited == [*after]
    assert rig.ended == [(job.span, True)]
    assert (job.span.start_ns, job.span.end_ns, job.span.moved_bytes) == (70, 80, RECORD)
    assert job.span.lane is Lane.DISK
    assert rig.client.diary == [("arrived", 6, 70, 80)]
    assert (job.done, job.start_ns) == (1, 70)


def test_chunks_are_aligned_parts_of_the_record(rig: Rig) -> None:
    rig.loader.prefetch([load_op(1, 3)], rig.client, 2)
    assert rig.step() == 3
    assert not rig.loader.idle, "half of it is left"
    assert [kind for kind, *_ in rig.client.about(3)] == ["claim"]
    assert rig.step() == 3
    half = 2 * ALIGNMENT  # of 2.5 blocks
    assert rig.copies == [(1, 3, 0, half), (1, 3, half, STRIDE)]
    (first, whole), (last, _) = rig.ended
    assert whole is False
    assert first.moved_bytes == half
    assert last.moved_bytes == RECORD - half
    assert rig.client.spans[1, 3] is last
    assert rig.client.about(3)[-1] == ("arrived", first.start_ns, last.end_ns)
    assert rig.loader.idle


def test_a_chunk_of_padding_alone_moves_nothing(rig: Rig) -> None:
    """Of nine chunks some have no aligned block of their own."""
    rig.loader.prefetch([load_op(1, 3)], rig.client, 9)
    assert [rig.step() for _ in range(9)] == [3] * 9
    assert all(beyond > first for _, _, first, beyond in rig.copies)
    assert len(rig.copies) == 5
    assert sum(span.moved_bytes for span, _ in rig.ended) == RECORD


def test_a_prefetch_that_is_refused_is_skipped(rig: Rig) -> None:
    rig.client.refused = {0}
    rig.loader.prefetch([load_op(1, 0), load_op(1, 1)], rig.client, 1)
    assert rig.step() == 1
    assert rig.copies == [(1, 1, 0, STRIDE)]


def test_a_prefetch_waits_for_what_its_claim_says(rig: Rig) -> None:
    back = Span(Op(OpKind.WRITE_BACK, 0), Lane.D2H)
    rig.client.claimed = lambda op, now_ns: (back,)
    rig.loader.prefetch([load_op(1, 0)], rig.client, 1)
    rig.step()
    assert rig.awaited == [back]


def test_a_new_request_replaces_prefetches_that_have_not_begun(rig: Rig) -> None:
    rig.loader.prefetch([load_op(1, 0), load_op(1, 1), load_op(1, 2)], rig.client, 2)
    assert rig.step() == 0
    dropped = rig.loader.prefetch([load_op(1, 2), load_op(1, 3)], rig.client, 1)
    assert dropped == [load_op(1, 1)], "one has begun, and one is asked for again"
    assert [rig.step() for _ in range(3)] == [0, 2, 3]


def test_prefetches_up_to_a_layer_are_cancelled_unless_they_have_begun(rig: Rig) -> None:
    ops = [load_op(1, 0), load_op(1, 1), load_op(2, 2), load_op(3, 3)]
    rig.loader.prefetch(ops, rig.client, 2)
    rig.step()
    assert rig.loader.cancel(2) == ops[1:3]
    assert rig.loader.cancel(0) == []
    assert [rig.step() for _ in range(3)] == [0, 3, 3]


def test_an_upload_goes_behind_a_prefetch_that_has_begun(rig: Rig) -> None:
    rig.loader.prefetch([load_op(1, 0), load_op(1, 1)], rig.client, 2)
    rig.step()
    rig.loader.upload(rig.job(2))
    assert [rig.step() for _ in range(4)] == [0, 2, 1, 1]


def test_finishing_an_upload_takes_those_before_it_along(rig: Rig) -> None:
    for expert in (1, 2, 3):
        rig.loader.upload(rig.job(expert))
    rig.loader.need(rig.job(4))
    rig.loader.finish(load_op(1, 2))
    assert rig.loader.waiting == 3
    assert [rig.step() for _ in range(4)] == [1, 2, 4, 3]
    rig.loader.finish(load_op(1, 7))  # nobody waits for it: nothing changes
    assert rig.loader.idle


def test_finishing_a_prefetch_copies_its_rest_before_needed_loads(rig: Rig) -> None:
    rig.loader.prefetch([load_op(1, 0), load_op(1, 1)], rig.client, 3)
    rig.step()
    rig.loader.need(rig.job(4))
    rig.loader.finish(load_op(1, 0))
    assert [rig.step() for _ in range(4)] == [0, 0, 4, 1]


def test_finishing_a_chunk_under_way_copies_the_following_ones_at_once(rig: Rig) -> None:
    rig.loader.prefetch([load_op(1, 0)], rig.client, 3)
    job = rig.loader.next_job()
    assert job is not None
    rig.loader.need(rig.job(4))
    rig.loader.finish(load_op(1, 1))  # another one
    assert job.finishing is False
    rig.loader.finish(load_op(1, 0))
    rig.loader.carry(job)
    assert [rig.step() for _ in range(3)] == [0, 0, 4]


def test_streamed_weights_are_copied_by_their_own_function(rig: Rig) -> None:
    streamed: list[int] = []

    def stream(layer: int) -> int:
        streamed.append(layer)
        return 9

    job = Job(Op(OpKind.STREAM, 2), None, Lane.H2D, stream=stream)
    rig.loader.need(job)
    found = rig.loader.next_job()
    assert found is job
    rig.loader.carry(job)
    assert streamed == [2]
    assert rig.copies == []
    assert (job.span.moved_bytes, job.span.op, job.span.lane) == (9, job.op, Lane.H2D)


def test_a_loader_under_way_is_not_idle_and_a_closing_one_copies_nothing(rig: Rig) -> None:
    rig.loader.need(rig.job(1))
    job = rig.loader.next_job()
    assert job is not None
    assert rig.loader.waiting == 0
    assert not rig.loader.idle
    rig.loader.closing = True
    rig.loader.carry(job)
    assert rig.copies == []
    assert rig.loader.next_job() is None


def test_a_thread_works_until_there_is_nothing_or_it_fails() -> None:
    items, done, failures = iter([1, 2, 3]), list[int](), list[Exception]()
    modes: list[bool] = []

    def work(item: int) -> None:
        modes.append(torch.is_inference_mode_enabled())
        done.append(item)

    thread = start_thread("one", lambda: next(items, None), work, failures.append)
    thread.join(20)
    assert (done, failures, modes) == ([1, 2, 3], [], [True] * 3)
    assert (thread.name, thread.daemon) == ("one", True)

    def broken(item: int) -> None:
        raise ZeroDivisionError

    thread = start_thread("two", lambda: 1, broken, failures.append)
    thread.join(20)
    assert [type(one) for one in failures] == [ZeroDivisionError]


def test_a_thread_computes_with_as_many_threads_as_its_starter() -> None:
    threads, found = torch.get_num_threads(), list[int]()
    turns = iter([1])

    def work(_: int) -> None:
        found.append(torch.get_num_threads())

    try:
        torch.set_num_threads(3)
        start_thread("one", lambda: next(turns, None), work, lambda failure: None).join(20)
    finally:
        torch.set_num_threads(threads)
    assert found == [3]
