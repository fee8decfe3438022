"""Checks the content of host memory by spans alone: against a plain LRU cache and by counting."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from moebench.harness.conformance.invariants import BrokenError, must, times
from moebench.substrate.machines.protocol import Lane, OpKind, Span

#: Form, layer and expert of a record.
Expert = tuple[int, int, int]


def check_host_memory(spans: Sequence[Span], placed: Iterable[Expert], records: int) -> None:
    """Check that records are read before use, that no more than fit are held, and that LRU is kept.

    Args:
        spans: in the order of submission.
        placed: experts that were in host memory before the run, in order.
        records: number of records that fit at once.

    Raises BrokenError: a condition does not hold.
    """
    _check_occupancy(spans, records)
    if all(span.op.chunk is None for span in spans):  # a record that is copied in chunks stays
        _check_least_recently_used(spans, placed, records)


def _expert(span: Span) -> Expert:
    return span.op.form, span.op.layer, span.op.experts[0]


def _uses(span: Span) -> bool:
    return span.op.kind is OpKind.LOAD or (span.op.kind is OpKind.EXPERT and span.lane is Lane.HOST)


def _check_occupancy(spans: Sequence[Span], records: int) -> None:
    """Check that no more records than fit are held, each from its read to its last use."""
    stays: dict[Expert, list[list[int]]] = defaultdict(list)  # by read: start, ready, last use
    for span in spans:
        if span.op.kind is OpKind.READ:
            start, end = times(span)
            stays[_expert(span)].append([start, end, end])
        elif _uses(span):
            start, end = times(span)
            of_one = stays[_expert(span)]
            if not of_one:  # it was in host memory before the run
                of_one.append([0, 0, 0])
            stay = of_one[-1]
            if start < stay[1]:
                raise BrokenError(f"{span!r} before its record is read")
            stay[2] = max(stay[2], end)
    every = [stay for of_one in stays.values() for stay in of_one]
    changes = sorted([(s[0], 1) for s in every] + [(s[2], -1) for s in every])
    held = 0
    for _, change in changes:
        held += change
        must(held <= records, "more records in host memory than fit")


def _check_least_recently_used(
    spans: Sequence[Span], placed: Iterable[Expert], records: int
) -> None:
    held: list[Expert] = []  # longest unused first

    def use(expert: Expert) -> bool:
        there = expert in held
        if there:
            held.remove(expert)
        held.append(expert)
        if len(held) > records:
            held.pop(0)
        return there

    for expert in placed:
        use(expert)
    read: Expert | None = None
    for span in spans:
        if span.op.kind is OpKind.READ:
            read = _expert(span)
        elif _uses(span):
            if use(_expert(span)) != (read != _expert(span)):
                raise BrokenError(f"{span!r}: read though it was there, or not though it was not")
            read = None
