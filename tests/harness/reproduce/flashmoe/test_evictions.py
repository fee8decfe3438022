"""Shares of evictions, by hand; replays are in `tests.harness.reproduce.test_evictions`."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.reproduce.flashmoe.evictions import Duel, _Rivals, regret_of


def test_a_share_is_of_the_evictions_whose_victims_are_used_at_different_times() -> None:
    assert Duel(3, 1, 9).share == 0.75
    assert Duel(1, 3, 0).share == 0.25
    assert Duel(0, 0, 4).share == 0


def test_regret_counts_tokens_of_a_layer() -> None:
    """Two layers of three experts, whose steps alternate; keys of the second begin at 3.

    Expert 0 of layer 1 (key 3) is used by tokens 0 and 3 and evicted at token 2: it was idle for
    two tokens and is used again one token later.  Key 1 is evicted at token 3 and never used again.
    """
    layers = [[[0], [1], [2], [0]], [[0], [1], [2], [0]]]
    steps = [(layer, layers[layer][token]) for token in range(4) for layer in (0, 1)]
    shape: Any = SimpleNamespace(num_layers=2, num_experts=3)
    done: Any = SimpleNamespace(evicted=[(5, 3, None), (6, 1, None)])
    found = regret_of(done, [steps[:4], steps[4:]], shape, within=1)
    assert (found.evictions, found.refetched, found.idle) == (2, 0.5, 2)
    assert regret_of(done, [steps], shape, within=0).refetched == 0
    none = regret_of(SimpleNamespace(evicted=[]), [steps], shape)  # type: ignore[arg-type]
    assert none.evictions == 0
    assert none.idle != none.idle
    assert none.refetched == pytest.approx(float("nan"), nan_ok=True)


def test_rivals_and_their_judge_are_told_all_that_happens() -> None:
    """Both choose a victim, and the first one's leaves; the judge says whose is used later."""

    class Noting:
        def __init__(self, victim: int | None = None) -> None:
            self.told: list[Any] = []
            self.chosen = victim

        def __getattr__(self, name: str) -> Any:
            return lambda *given: self.told.append((name, *given))

        def victim(self, allowed: Any, incoming: int) -> int | None:
            return self.chosen

        def next_use(self, key: int) -> int:
            return {1: 10, 2: 20, 3: 20}[key]

    first, second, judge = Noting(1), Noting(2), Noting()
    policies: Any = (first, second)
    rivals: Any = _Rivals(*policies)
    rivals.all, rivals.oracle = (first, second, judge), judge
    rivals.set_future("steps", True)
    assert judge.told.pop() == ("set_future", "steps", True)
    rivals.start("a shape", "a cache")
    rivals.begin_sequences("prompts")
    rivals.used(3, [4, 5])
    rivals.arrived(6)
    rivals.left(7)
    for one in (first, second, judge):
        assert one.told == [
            ("start", "a shape", "a cache"), ("begin_sequences", "prompts"), ("used", 3, [4, 5]),
            ("arrived", 6), ("left", 7),
        ]  # fmt: skip
    for mine, theirs, won in ((1, 2, ([0, 1], 0)), (2, 1, ([1, 1], 0)), (2, 3, ([1, 1], 1)),
                            (1, 1, ([1, 1], 1)), (None, 1, ([1, 1], 1))):  # fmt: skip
        first.chosen, second.chosen = mine, theirs
        assert rivals.victim("allowed", 9) == mine
        assert (rivals.won, rivals.equal) == won, (mine, theirs)
