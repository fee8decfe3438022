"""What was in host memory, from spans alone: by a slow cache, and counted at every instant."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from moebench.substrate.machines.protocol import Lane, OpKind, Span

Expert = tuple[int, int]


def check_host_memory(spans: Sequence[Span], placed: Iterable[Expert], records: int) -> None:
    """Records are read before they are used, never more than fit, and those that LRU lacks.

    Args:
        spans: in the order of submission.
        placed: experts that passed through before the run, in order.
        records: that fit at once.
    """
    _check_occupancy(spans, records)
    if all(span.op.share == 1 for span in spans):  # a record that is copied in chunks stays
        _check_least_recently_used(spans, placed, records)


def _expert(span: Span) -> Expert:
    return span.op.layer, span.op.experts[0]


def _uses(span: Span) -> bool:
    return span.op.kind is OpKind.LOAD or (span.op.kind is OpKind.EXPERT and span.lane is Lane.HOST)


def _check_occupancy(spans: Sequence[Span], records: int) -> None:
    """A record occupies memory from the start of its read to its last use before the next read."""
    stays: dict[Expert, list[list[int]]] = defaultdict(list)  # of each read: start, ready, last use
    for span in spans:
        if span.op.kind is OpKind.READ:
            stays[_expert(span)].append([span.start_ns, span.end_ns, span.end_ns])
        elif _uses(span):
            of_one = stays[_expert(span)]
            if not of_one:  # it was there before the run
                of_one.append([0, 0, 0])
            stay = of_one[-1]
            assert span.start_ns >= stay[1], f"{span!r} before its record is read"
            stay[2] = max(stay[2], span.end_ns)
    every = [stay for of_one in stays.values() for stay in of_one]
    changes = sorted([(s[0], 1) for s in every] + [(s[2], -1) for s in every])
    held = 0
    for _, change in changes:
        held += change
        assert held <= records


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
            assert use(_expert(span)) == (read != _expert(span)), f"{span!r}: read or not"
            read = None
