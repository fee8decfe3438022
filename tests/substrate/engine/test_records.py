"""A layer's plan is checked, forms of experts are found, and times of a batch are told apart."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch, Plan, Routed
from moebench.substrate.engine.records import Generation, check, check_form, forms_of, rows_of
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.residency import InForms, Whereabouts
from tests.systems.views import active, view

# Experts 0 and 1 are there, 2 is coming; the row uses 0, 2, 4 and 5.
SEEN = view([[0.1] * 6], 4, [0, 1], in_flight=[2], own=[[0, 2, 4, 5]], layer=1)
ACTIVE = active(SEEN)
BRINGS = (Fetch(1, 4), Fetch(1, 5))


@pytest.mark.parametrize(
    "plan",
    [
        Plan([0, 2, 4, 5], load=BRINGS), Plan([5, 0], [4, 2], load=BRINGS[1:]),
        Plan([], [0, 4], [2, 5]), Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, 3)]),
        Plan([0, 2, 4, 5], load=BRINGS, again=[4, 4]),
    ],
)  # fmt: skip
def test_sound_plans(plan: Plan) -> None:
    check(plan, ACTIVE, SEEN)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan([0, 2, 4], load=BRINGS), r"layer 1: the system planned experts \[0, 2, 4\], active"),
        (Plan([0, 2, 4, 5, 5], load=BRINGS), r"\[0, 2, 4, 5\]; each must stand in the plan once"),
        (Plan([0, 2, 4, 4], load=BRINGS), "each must stand in the plan once"),
        (Plan([0, 2, 4, 3], load=BRINGS), "each must stand in the plan once"),
        (Plan([0, 2, 4, 5], [0], load=BRINGS), "each must stand in the plan once"),
        (Plan([0, 2, 4, 5], load=BRINGS[:1]), r"is to compute \[5\], which it does not have and"),
        (Plan([0, 2, 4, 5]), r"is to compute \[4, 5\], which"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, 5)]), r"fetches \[\(1, 4\), \(1, 5\), \(1, 5"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(2, 5)]), "are not of different experts of this"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, 0)]), "loads expert 0, which is on the device"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, 2)]), "or on its way already"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, None)]), "loads expert None, which is none"),
        (Plan([0, 2, 4, 5], load=[*BRINGS, Fetch(1, 3, form=1)]), "form 1 of a record; .* 0 to 0 "),
        (Plan([0, 2, 4, 5], load=BRINGS, again=[0, 4]),
         r"copies experts \[0, 4\] again; allowed: those that it loads"),
    ],
)  # fmt: skip
def test_other_plans_are_refused(plan: Plan, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check(plan, ACTIVE, SEEN)


def test_the_last_layer_defers_nothing() -> None:
    last = view([[0.1] * 6], 2, own=[[4, 5]], layer=1)
    last.next_layer = None
    check(Plan([], [4, 5]), active(last), last)
    with pytest.raises(UsageError, match=r"no layer with experts follows, .* outputs of \[5\]"):
        check(Plan([], [4], [5]), active(last), last)


def test_forms_that_a_system_declares() -> None:
    for form in (0, 1, 2):
        check_form(form, 3)
    for form in (-1, 3):
        with pytest.raises(UsageError, match=f"form {form} of a record; allowed: 0 to 2 "):
            check_form(form, 3)


def in_forms() -> tuple:
    """Return a view of two forms: 0 is complete in form 0, 1 in form 1, 2 comes in form 1."""
    seen = view([[0.1] * 6], 4, own=[[0, 1, 2, 3]], layer=1)
    full = Whereabouts([0, 99, 99, 99, 99, 99], bytes([1, 0, 0, 0, 0, 0]), 10)
    small = Whereabouts([99, 0, 50, 99, 99, 99], bytes([0, 1, 1, 0, 0, 0]), 10)
    seen.residency = InForms([full, small], 10)
    return seen


@pytest.mark.parametrize(
    ("plan", "forms"),
    [
        # Each in the best form that is there; 3 in the one that is loaded.
        (Plan([0, 1, 2, 3], load=[Fetch(1, 3)]), {1: 1, 2: 1}),
        (Plan([0, 1, 2, 3], load=[Fetch(1, 3, form=1)]), {1: 1, 2: 1, 3: 1}),
        # 1 is loaded in form 0, too, which is better than the one that is there; 2 is on its way.
        (Plan([0, 1, 2], load=[Fetch(1, 1), Fetch(1, 2)]), {}),
        # A complete record in form 0 is better than one that is loaded.
        (Plan([0, 1], load=[Fetch(1, 0, form=1)]), {1: 1}),
        (Plan([0, 1], load=[Fetch(1, 0, form=1)], forms={0: 1}), {0: 1, 1: 1}),
        # The host computes in form 0 unless the plan says otherwise.
        (Plan([0], [1, 2], [3], forms={2: 1, 3: 1}), {2: 1, 3: 1}),
    ],
)
def test_the_form_in_which_each_expert_is_computed(plan: Plan, forms: dict[int, int]) -> None:
    assert forms_of(plan, in_forms()) == forms


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan([0], forms={0: 1}), "layer 1: the plan computes expert 0 in form 1, in which it is"),
        (Plan([1], forms={1: 0}), "expert 1 in form 0"),
        (Plan([0], forms={0: 2}), "form 2 of a record; allowed: 0 to 1"),
        (Plan([0, 3], load=[Fetch(1, 3, form=2)]), "form 2 of a record"),
    ],
)
def test_a_form_that_is_not_there_is_refused(plan: Plan, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        forms_of(plan, in_forms())


def test_rows_of_experts_are_counted_without_empty_places() -> None:
    ids = np.array([[5, 2], [2, -1], [7, 2]])
    found = rows_of(Routed(ids, ids))
    assert [*found.items()] == [(2, 3), (5, 1), (7, 1)]


def test_times_of_tokens_leave_pauses_out() -> None:
    done = Generation([[1, 2, 3]], 100, [130, 150, 190])
    assert (done.ttft_ns, done.steps_ns) == (30, [20, 40])
    done.paused_ns = [5, 15]
    assert done.steps_ns == [15, 25]
    done.paused_ns = [5]
    assert done.steps_ns == [15, 40]
    assert (Generation([], 0).token_ends_ns, Generation([], 0).used) == ([], [])
