"""What policies answer unless they say otherwise, of the smallest possible subclasses."""

from typing import Any

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Plan
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Op, OpKind
from tests.substrate.engine.fakes import small_shape
from tests.systems.views import view

SHAPE = small_shape(layers=3)


class Nowhere(Placement):
    def place(self, shape: Any, slots: int, scope: Any) -> Any:
        return ()


class Nothing(Assignment):
    def assign(self, view: Any, active: Any) -> Plan:
        return Plan()


class Nobody(Eviction):
    def __init__(self) -> None:
        self.came: list[int] = []

    def arrived(self, key: int) -> None:
        self.came.append(key)

    def victim(self, allowed: Any, incoming: int) -> None:
        return None


class Later(Predictor):
    def op(self, view: Any) -> Op:
        return Op(OpKind.PREDICT, 0, (1,))

    def forecast(self, view: Any, model: Any, done: Any) -> Any:
        return {}


EVERY = (Nowhere, Routing, Nothing, Prefetching, Admission, Nobody)


@pytest.mark.parametrize("kind", EVERY)
def test_a_policy_learns_and_needs_nothing(kind: Any) -> None:
    one = kind()
    assert (one.device_bytes, one.learnt, one.reserve) == (0, {}, 0)
    assert (one.calibrates, one.needs_host, one.learns_from) == (False, False, frozenset())
    assert one.calibrate([], SHAPE, None, None) is None
    expected = {Routing: True, Nothing: True, Prefetching: True}
    assert one.reads_scores is expected.get(kind, False)


def test_a_policy_that_observes_reads_scores() -> None:
    class Watching(Nowhere):
        def observe(self, *of: Any, **more: Any) -> None:
            pass

    assert Watching().reads_scores
    assert not Nowhere().reads_scores


def test_placements() -> None:
    one = Nowhere()
    assert [*one.homes(SHAPE, None)] == ["device"] * 3  # type: ignore[arg-type]
    assert one.slots(SHAPE, 5) is None
    assert one.chosen_forms(SHAPE) is None
    assert [*one.own_forms, *one.keep_on_host(SHAPE, 5), *one.after_prefill()] == []


def test_routings() -> None:
    one = Routing()
    assert one.lossless_at(0.5)
    assert one.exact_prefill
    assert (one.predictor, one.routes_passes, one.routes_ahead(1)) == (None, False, False)
    assert one.plan_pass(None, None) is None  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="Routing routes passes at their start and has no `pass_op`"
    ):
        one.pass_op(3)
    seen = view([[0.1, 0.9, 0.5]])
    ids, weigh_as, *others = one.route(seen)
    assert np.array_equal(ids, seen.topk_ids_TK)
    assert np.array_equal(weigh_as, seen.topk_ids_TK)
    assert not any(one is not None for one in others)


def test_assignments() -> None:
    one = Nothing()
    assert (one.whole_layers(SHAPE), one.host_copies(4), one.uses_host) == (False, 0, False)
    assert [[*texts] for texts in one.micro_batches([7, 8, 9])] == [[0, 1, 2]]
    assert one.waited(None, None, 1, 2) is None  # type: ignore[arg-type]


def test_prefetching_and_predictors() -> None:
    one = Prefetching()
    assert (one.predictor, one.chunks, one.paged, one.staged) == (None, 1, True, True)
    assert [*one.opening("decode", 1), *one.leaving("decode"), *one.pages(1)] == []
    assert [*one.prefetch(None, {})] == []  # type: ignore[arg-type]

    class InPrefill(Later):
        in_prefill = True

    for phase, asked in (("decode", (True, True)), ("prefill", (False, True))):
        seen = view([[0.1, 0.9, 0.5]], phase=phase)  # type: ignore[arg-type]
        assert (Later().asked(seen), InPrefill().asked(seen)) == asked


def test_admissions() -> None:
    one = Admission()
    assert (one.queue, one.admits(None, 3)) == (None, True)  # type: ignore[arg-type]
    assert [*one.uploads(None, [1]), *one.pass_ends("decode")] == []  # type: ignore[arg-type]
    assert one.uploaded(3) is None


def test_evictions() -> None:
    one = Nobody()
    assert (one.transient, one.writes_back, one.purpose) == (0, False, "needed")
    assert one.grows(3)
    assert one.lingering([1, 2]) == 0
    one.placed(4)
    assert one.came == [4], "what is placed arrives"
    calls = (one.set_future([]), one.foresee({}), one.used(1, [2]), one.left(3))
    assert calls == (None,) * 4
