"""What is seen of a run from outside: slots, repeated copies and deferred experts."""

from types import SimpleNamespace
from typing import Any

from moebench.harness.conformance.watch import (
    Again,
    Claim,
    LetGo,
    WatchedModel,
    watch_again,
    watch_slots,
)


def test_slots_are_noted_with_the_next_span() -> None:
    """An expert gets slot 5 in place of another before the third span, and leaves it later."""
    asked: list[Any] = []

    def claim(key: int, victim: int | None) -> int:
        asked.append((key, victim))
        return 5

    cache: Any = SimpleNamespace(claim=claim, let_go=lambda key, last: asked.append((key, last)))
    timeline: Any = SimpleNamespace(spans=["a", "b"])
    events = watch_slots(cache, timeline)
    assert cache.claim(7, None) == 5
    timeline.spans.append("c")
    assert cache.claim(8, 7) == 5
    timeline.spans.append("d")
    cache.let_go(8, "the last use")
    assert events == [
        Claim(before=2, key=7, slot=5, victim=None, placed=False),
        Claim(before=3, key=8, slot=5, victim=7, placed=False), LetGo(before=4, key=8),
    ]  # fmt: skip
    assert asked == [(7, None), (8, 7), (8, "the last use")]


def test_a_repeated_copy_is_noted_with_its_own_span() -> None:
    """Copies of a record's parts may follow the span that is returned."""
    timeline: Any = SimpleNamespace(spans=[])
    asked: list[Any] = []

    def again(layer: int, expert: int, form: int = 0) -> Any:
        asked.append((layer, expert, form))
        made = object()
        timeline.spans += [object(), made, *(object() for _ in range(form))]
        return made

    transfers: Any = SimpleNamespace(again=again)
    events: list[Any] = []
    watch_again(transfers, timeline, events)
    first = transfers.again(1, 2)
    second = transfers.again(3, 4, 2)
    assert asked == [(1, 2, 0), (3, 4, 2)]
    assert events == [Again(1), Again(3)]
    assert [timeline.spans[one.at] for one in events] == [first, second]


def test_each_sum_has_the_experts_that_were_deferred_before_it() -> None:
    calls: list[Any] = []
    inner: Any = SimpleNamespace(
        defer=lambda layer, experts: calls.append(("defer", layer, experts)),
        combine=lambda layer: calls.append(("combine", layer)), shape="a shape",
    )  # fmt: skip
    model = WatchedModel(inner)
    assert model.shape == "a shape"
    model.combine(0)
    model.defer(1, [4, 2])
    model.combine(1)
    model.combine(2)
    model.defer(3, [1])
    model.defer(3, [5])
    model.combine(3)
    assert model.deferred == [(), (4, 2), (), (5,)]
    assert calls == [
        ("combine", 0), ("defer", 1, [4, 2]), ("combine", 1), ("combine", 2), ("defer", 3, [1]),
        ("defer", 3, [5]), ("combine", 3),
    ]  # fmt: skip
