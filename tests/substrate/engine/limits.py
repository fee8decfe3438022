"""What no run can beat, by a second implementation."""

from collections.abc import Iterable, Sequence

from moebench.harness.run.bound import bound, waits_for_gates
from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import OpKind
from tests.substrate.engine.cases import Case, steps_of
from tests.substrate.engine.fakes import Rig


def fewest_loads(steps: Iterable[Iterable[int]], capacity: int) -> int:
    """The least a cache of this capacity can load when every step needs its keys at once.

    Between two steps it keeps those it holds or has just used whose next use comes first; the first
    ``capacity`` loads are free, as if it had held the best content from the start.
    """
    asked = [set(step) for step in steps]
    kept: set[int] = set()
    loads = 0
    for now, keys in enumerate(asked):
        loads += len(keys - kept)

        def next_use(key: int, now: int = now) -> int:
            return next((t for t in range(now + 1, len(asked)) if key in asked[t]), len(asked))

        again = [k for k in kept | keys if next_use(k) < len(asked)]
        kept = set(sorted(again, key=lambda k: (next_use(k), k))[:capacity])
    return max(0, loads - capacity)


def check_loads(made: Rig, generations: Sequence[Generation]) -> None:
    """No policy brings fewer experts to the device, or computes fewer off it, than it must."""
    counts = made.counts["decode"]
    slots = made.cache.slots
    least = sum(fewest_loads(steps_of(g), slots) for g in generations)
    assert counts.loads + counts.prefetched + counts.host >= least


def check_reads(made: Rig, generations: Sequence[Generation]) -> None:
    """No policy reads fewer experts from the disk than device and host memory together miss."""
    memory = made.machine.host_memory
    if memory is None:
        return
    held = made.cache.slots + memory.capacity
    least = sum(fewest_loads(steps_of(g), held) for g in generations)
    assert sum(span.op.kind is OpKind.READ for span in made.spans) >= least


def check_belady(made: Rig, generations: Sequence[Generation]) -> None:
    """On demand, nobody loads less than Belady."""
    slots = made.cache.slots
    least = sum(belady_misses([*steps_of(g)], slots) for g in generations)
    assert made.counts["decode"].loads >= least


def check_bound(case: Case, made: Rig, generations: Sequence[Generation]) -> None:
    """No run is faster than the bounds that are printed beside it."""
    printed = bound(made.engine, generations, clairvoyant=True)
    if case.passes == 1:
        assert set(printed.values()) == {None}
        return
    assert printed["tpot_ms"] > 0
    assert printed["ratio"] >= 1
    if waits_for_gates(made.engine):
        clairvoyant, information = printed["clairvoyant_ms"], printed["information_ms"]
        ran = printed["programs"]["tpot_ms"]
        assert 0 < clairvoyant <= information * (1 + 1e-5)
        assert clairvoyant <= ran
        if not made.counts["decode"].prefetched and not made.counts["decode"].uploaded:
            assert information <= ran
    else:
        assert printed["programs"] is None
