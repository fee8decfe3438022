"""What a prefetching policy is asked, and for which layer its requests count."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moebench.substrate.engine.decisions import Fetch, fetches
from moebench.substrate.engine.policies import Prefetching
from moebench.substrate.engine.prefetches import Prefetches
from tests.substrate.engine.fakes import small_shape

SHAPE = small_shape(layers=3)
FIRST = SHAPE.moe_layers[0]


class Wants(Prefetching):
    """Requests an expert of the layer after the next."""

    def prefetch(self, view: Any, forecast: Any) -> list[Fetch]:
        return list(fetches(2, (1,)))


class WantsSurely(Wants):
    discipline = "committed"


class Asked:
    """Prefetches of a policy whose surroundings note their calls."""

    def __init__(self, policy: Prefetching) -> None:
        self.calls: list[tuple[Any, ...]] = []
        machine = SimpleNamespace(lock=nullcontext())
        transfers = SimpleNamespace(
            machine=machine,
            speculate=lambda wanted, *of: self.calls.append(("speculate", list(wanted), *of)),
            commit=lambda wanted: self.calls.append(("commit", list(wanted))),
        )
        tally = SimpleNamespace(ask=lambda *of: self.calls.append(("count", *of)))
        ops = SimpleNamespace(forecast=self._forecast)
        parts = cast(Any, (ops, transfers, tally))
        self.prefetches = Prefetches(policy, SHAPE, *parts)

    def _forecast(self, predicted: Any, waits: bool) -> str:
        self.calls.append(("forecast", predicted, waits))
        return "forecast"

    def of(self, next_layer: int | None, predicted: Any) -> list[tuple[Any, ...]]:
        self.calls.clear()
        view = cast(Any, SimpleNamespace(next_layer=next_layer))
        self.prefetches.ask(view, predicted)
        return self.calls


@pytest.mark.parametrize(("next_layer", "counted"), [(1, 1), (2, 2), (None, FIRST)])
def test_requests_count_for_the_next_layer_which_after_the_last_is_the_first(
    next_layer: int | None, counted: int
) -> None:
    predicted = SimpleNamespace(end_ns=70)
    wanted = list(fetches(2, (1,)))
    assert Asked(Wants()).of(next_layer, predicted) == [
        ("forecast", predicted, False),
        ("speculate", wanted, 1, 70),  # in one piece, not before the prediction is there
        ("count", wanted, counted, "speculative"),
    ]
    assert Asked(WantsSurely()).of(next_layer, predicted) == [
        ("forecast", predicted, True),
        ("commit", wanted),
        ("count", wanted, counted, "committed"),
    ]


def test_without_a_prediction_nothing_is_asked_after_the_last_layer() -> None:
    assert Asked(Wants()).of(None, None) == []
    assert ("speculate", list(fetches(2, (1,))), 1, 0) in Asked(Wants()).of(1, None)


def test_a_policy_that_prefetches_nothing_is_not_asked() -> None:
    assert not Asked(Prefetching()).prefetches.speculative
    assert not Asked(Prefetching()).prefetches.committed
    assert Asked(Wants()).prefetches.speculative
    assert Asked(WantsSurely()).prefetches.committed


def test_opening_fetches_begin_a_pass() -> None:
    class Opens(Wants):
        def opening(self, phase: Any, first: int) -> list[Fetch]:
            return list(fetches(first, (0,))) if phase == "decode" else []

    asked, opening = Asked(Opens()), list(fetches(FIRST, (0,)))
    asked.prefetches.open("decode")
    assert asked.calls == [
        ("speculate", opening, 1), ("count", opening, FIRST, "speculative"),
    ]  # fmt: skip
    asked.calls.clear()
    asked.prefetches.open("prefill")  # queued ones are for a pass that did not happen
    assert asked.calls == [("speculate", [], 1), ("count", [], FIRST, "speculative")]
    none = Asked(Wants())
    none.prefetches.open("decode")
    assert none.calls == []


def test_opening_fetches_of_a_committed_discipline_are_loads() -> None:
    class OpensSurely(WantsSurely):
        def opening(self, phase: Any, first: int) -> list[Fetch]:
            return list(fetches(first, (0,)))

    asked, opening = Asked(OpensSurely()), list(fetches(FIRST, (0,)))
    asked.prefetches.open("prefill")
    assert asked.calls == [("commit", opening), ("count", opening, FIRST, "committed")]
