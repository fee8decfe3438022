"""Rates of copies, on a card whose clock each copy moves by its own time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moebench.harness.machines import copies

#: ns that the card needs for a byte, from the host and to it.
NS_A_BYTE = 2


class Event:
    def __init__(self, card: "Card") -> None:
        self.ns, self._card = card.ns, card

    def synchronize(self) -> None:
        self._card.waits += 1


class Card:
    """A card that notes which copies it makes, and what is page-locked."""

    def __init__(self) -> None:
        self.ns, self.waits, self.inside = 0, 0, 0
        self.copied: list[tuple[Any, Any]] = []
        self.locked: list[str] = []

    def allocate(self, count: int, size: int) -> list[Any]:
        return [("device", n, size) for n in range(count)]

    def pin(self, host: Any) -> None:
        self.locked.append("pin")

    def unpin(self, host: Any) -> None:
        self.locked.append("unpin")

    def stream(self) -> str:
        return "stream"

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        assert stream == "stream"
        self.inside += 1
        yield
        self.inside -= 1

    def record(self, stream: str) -> Event:
        assert self.inside == 1
        return Event(self)

    def copy(self, target: Any, source: Any) -> None:
        assert self.inside == 1
        self.copied.append((target, source))
        self.ns += NS_A_BYTE * target[2]

    def elapsed_ns(self, began: Event, ended: Event) -> int:
        return ended.ns - began.ns


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(copies, "LEAST_BYTES", 600)
    monkeypatch.setattr(
        copies, "rows", lambda count, size, what: [("host", n, size) for n in range(count)]
    )
    return Card()


@pytest.mark.parametrize("back", [False, True])
def test_records_are_copied_one_after_another_into_two_buffers_in_turn(
    back: bool, card: Any
) -> None:
    assert copies.copy_rates(card, 100, True, back=back, rounds=2) == [1 / NS_A_BYTE] * 2
    one_round = [(("device", n % 2, 100), ("host", n, 100)) for n in range(6)]
    pairs = [(source, target) for target, source in one_round] if back else one_round
    assert card.copied == pairs * 2
    assert card.waits == 2 * (6 + 1), "for each copy, and for the end of each round"
    assert card.locked == ["pin", "unpin"]


def test_large_records_are_copied_four_times_a_round_and_not_page_locked(card: Any) -> None:
    assert copies.copy_rates(card, 500, False, rounds=1) == [1 / NS_A_BYTE]
    assert len(card.copied) == 4
    assert card.locked == []


def test_rounds_go_on_as_long_as_is_asked(card: Any) -> None:
    more = iter([True, True, False])
    assert len(copies.copy_rates(card, 300, False, rounds=1, go_on=lambda: next(more))) == 3


def test_memory_is_unlocked_if_a_copy_fails(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(target: Any, source: Any) -> None:
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(card, "copy", fails)
    with pytest.raises(RuntimeError, match="gone"):
        copies.copy_rates(card, 100, True)
    assert card.locked == ["pin", "unpin"]


def test_the_best_of_five_rounds_counts(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed = iter([100, 50, 200, 300, 400])
    monkeypatch.setattr(card, "elapsed_ns", lambda began, ended: next(elapsed))
    assert copies.copy_rate(card, 100, False) == 600 / 50


def test_copies_inside_the_card_count_reads_and_writes(card: Any) -> None:
    assert copies.device_rates(card, 100) == [2 / NS_A_BYTE] * 5
    assert card.copied == [(("device", 1, 100), ("device", 0, 100))] * 5
    assert card.waits == 5
