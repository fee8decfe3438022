"""The choice of α and the ranking, on made-up points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.advise.budget.choose import (
    STEP,
    UNITS,
    Candidate,
    Demand,
    excess,
    fit,
    measured,
    rank,
    sentence,
    smallest_alpha,
)
from moebench.results.intervals import Estimate

ALPHAS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def line(start, slope, alphas=ALPHAS):
    return {a: start + slope * a for a in alphas}


def one(system, tpot, loss, alpha=None, lossless=None):
    known = None if loss is None else Estimate(loss, loss, loss, 4)
    exact = loss == 0 if lossless is None else lossless
    return Candidate(system, alpha, Estimate(tpot, tpot - 1, tpot + 1, 4), known, exact, "r", "b")


# ----------------------------------------------------------------------------- T(α)


@given(st.floats(20, 200), st.floats(-150, 0))
def test_fit_of_a_line_has_degree_one(start, slope):
    """The paper's observation: T falls linearly with α."""
    found = fit(line(start, slope))
    assert found.degree == 1
    assert found.coefficients == pytest.approx((start, slope), abs=1e-6)
    assert found.error_ms == pytest.approx(0, abs=1e-6)
    assert (found.low, found.high, found.points) == (0.0, 0.6, 7)


def test_a_curve_takes_a_higher_degree():
    found = fit({a: 100 - 80 * a + 60 * a**2 for a in ALPHAS})
    assert found.degree == 2
    assert found.at(0.35) == pytest.approx(100 - 28 + 60 * 0.35**2)


def test_the_error_is_that_of_points_left_out():
    """Three points on a line but for the middle one, 3 too high, by hand.

    Each predicted from the line through the two others: the middle is 3 off, either end 6.
    """
    found = fit({0.0: 10.0, 0.1: 13.0, 0.2: 10.0})
    assert found.degree == 1
    assert found.worst_ms == pytest.approx(6)
    assert found.error_ms == pytest.approx(((3**2 + 6**2 + 6**2) / 3) ** 0.5)


def test_two_points_give_no_fit_but_can_be_chosen():
    assert fit({0.0: 100.0, 0.5: 50.0}) is None
    assert smallest_alpha({0.0: 100.0, 0.5: 50.0}, 75) == 0.5, "what was measured"
    assert smallest_alpha({0.0: 100.0, 0.5: 50.0}, 40) is None


# ----------------------------------------------------------------------------- the smallest α


def test_the_smallest_alpha_of_a_line():
    measured = line(100, -100)
    assert smallest_alpha(measured, 65.5) == 0.35
    assert smallest_alpha(measured, 100) == 0.0
    assert smallest_alpha(measured, 200) == 0.0
    assert smallest_alpha(measured, 39.9) is None, "α beyond 0.6 was never measured"


def test_a_measurement_goes_before_a_prediction():
    measured = line(100, -100)
    asked = smallest_alpha(measured, 65.5)
    again = smallest_alpha({**measured, asked: 66.0}, 65.5)
    assert again > asked
    assert smallest_alpha({**measured, asked: 65.0}, 65.5) == asked


@given(st.dictionaries(st.sampled_from(ALPHAS), st.floats(10, 200), min_size=3), st.floats(5, 250))
def test_what_is_chosen_is_in_budget_and_nothing_measured_below_it_is(measured, budget):
    chosen = smallest_alpha(measured, budget)
    if chosen is None:
        assert min(measured.values()) > budget
        return
    assert min(measured) <= chosen <= max(measured)
    assert all(ms > budget for a, ms in measured.items() if a < chosen)
    expected = measured[chosen] if chosen in measured else fit(measured).at(chosen)
    assert expected <= budget


@given(st.floats(50, 200), st.floats(-200, -1), st.floats(-60, 60), st.floats(10, 200))
def test_measuring_what_is_chosen_ends_at_a_measured_alpha(start, slope, bend, budget):
    def truth(alpha):
        return start + slope * alpha + bend * alpha**3

    measured = {a: truth(a) for a in ALPHAS}
    for _ in range(round(0.6 / STEP) + 1):
        chosen = smallest_alpha(measured, budget)
        if chosen is None or chosen in measured:
            break
        measured[chosen] = truth(chosen)
    assert chosen is None or measured[chosen] <= budget


# ----------------------------------------------------------------------------- ranking


def test_within_a_budget_the_least_loss_comes_first():
    ranking = rank(
        [one("fast", 40, 0.1), one("exact", 58, 0), one("slow", 70, 0), one("lossy", 30, 0.5)],
        Demand(60, None), {},
    )  # fmt: skip
    assert [c.system for c in ranking.meeting] == ["exact", "fast", "lossy"]
    assert [c.system for c in ranking.others] == ["slow"]
    assert ranking.lossless.system == "exact"


def test_the_fastest_lossless_candidate_is_named_whatever_its_order() -> None:
    points = [one("slow", 90, 0), one("quick", 70, 0), one("lossy", 40, 0.1), one("mid", 80, 0)]
    for given_ in (points, points[::-1]):
        assert rank(given_, Demand(60, None), {}).lossless.system == "quick"
    assert rank([one("lossy", 40, 0.1)], Demand(60, None), {}).lossless is None


def test_what_lacks_the_demand_is_ordered_by_loss_then_time() -> None:
    points = [one("late", 90, 0.1), one("lossy", 50, 0.3), one("near", 70, 0.1)]
    ranking = rank(points, Demand(60, 0.2), {})
    assert [c.system for c in ranking.others] == ["near", "late", "lossy"]


def test_a_measured_configuration_is_one_line() -> None:
    best, late, lossy = one("a", 50, 0.1, 0.3), one("b", 61.5, 0.1), one("c", 70, 0.5)
    demand = Demand(60, 0.2)
    ranking = rank([best, late, lossy], demand, {})
    cost = "0.1 ± 0 nats of KL a token"
    assert measured(best, ranking, demand, "kl") == (
        f"a at α 0.3: 50 ms a token, {cost}; meets it, the best so far"
    )
    assert measured(late, ranking, demand, "kl") == f"b: 61.5 ms a token, {cost}; 1.5 ms over"
    assert excess(lossy, demand) == "10 ms over, loss 0.3 over"
    second = one("d", 55, 0.15)
    ranking = rank([best, second], demand, {})
    assert measured(second, ranking, demand, "kl").endswith("; meets it")


def test_a_limit_that_the_interval_exceeds_is_warned_of() -> None:
    def warned(tpot: float, loss: float, demand: Demand) -> str:
        found = sentence(rank([one("a", tpot, loss)], demand, {}), demand, "kl")
        return found.partition("may take it over")[2]

    assert warned(59, 0.1, Demand(60, 0.2)) == "", "the interval ends at the limit"
    assert warned(59.5, 0.1, Demand(60, None)) == ": its interval ends at 60.5 ms."
    wide = one("a", 50, 0.1)._replace(loss=Estimate(0.1, 0.0, 0.25, 4))
    for demand, ends in ((Demand(60, 0.2), "0.25 nats of KL a token"), (Demand(60, 0.25), None)):
        said = sentence(rank([wide], demand, {}), demand, "kl")
        assert said.endswith(f"ends at {ends}." if ends else f"{UNITS['kl']}.")
    bare = one("a", 59.5, 0.1)._replace(tpot=Estimate(59.5, None, None, 1))
    assert "may take" not in sentence(rank([bare], Demand(60, None), {}), Demand(60, None), "kl")


def test_an_unknown_loss_and_a_partial_search_are_said() -> None:
    demand = Demand(None, 0.1)
    found = rank([one("a", 20, None, lossless=False)], demand, {})
    assert sentence(found, demand, "kl") == (
        "No system meets this.  The nearest is a: 20 ms a token, its accuracy loss is not known; "
        "and its loss is not known, for the limit of 0.1 nats of KL a token."
    )
    assert sentence(found, demand, "kl", complete=False).startswith(
        "No system measured so far meets this."
    )
    assert sentence(rank([], demand, {}), demand, "kl", False) == "No system was measured yet."
    over = rank([one("a", 75, 0)], Demand(60, None), {})
    assert "15 ms (25%) over the budget." in sentence(over, Demand(60, None), "kl")


def test_lossless_systems_rank_before_measured_zero_loss():
    points = [one("seen none", 40, 0, lossless=False), one("exact", 50, 0), one("slower", 55, 0)]
    ranking = rank(points, Demand(60, None), {})
    assert [c.system for c in ranking.meeting] == ["exact", "slower", "seen none"]


def test_without_a_budget_the_fastest_within_the_loss_comes_first():
    points = [one("a", 90, 0), one("a", 60, 0.01, 0.3), one("a", 40, 0.2, 0.6), one("b", 70, 0.0)]
    ranking = rank(points, Demand(None, 0.05), {})
    assert [(c.system, c.alpha) for c in ranking.meeting] == [("a", 0.3), ("b", None)]


def test_system_is_ranked_by_its_chosen_alpha():
    points = [one("a", 58, 0.02, 0.3), one("a", 40, 0.01, 0.6), one("a", 90, 0, 0.0)]
    ranking = rank(points, Demand(60, None), {"a": 0.3})
    assert [c.alpha for c in ranking.meeting] == [0.3]
    assert ranking.lossless.alpha == 0.0


def test_a_loss_that_is_not_known_meets_no_limit():
    points = [one("unknown", 20, None, lossless=False), one("far", 200, 0.9)]
    ranking = rank(points, Demand(None, 0.1), {})
    assert ranking.meeting == []
    assert [c.system for c in ranking.others] == ["far", "unknown"]
    assert [c.system for c in rank(points, Demand(60, None), {}).meeting] == ["unknown"]


candidates = st.builds(
    one, st.sampled_from("abcdef"), st.floats(1, 100), st.none() | st.floats(0, 1)
)
limits = st.none() | st.floats(0, 1)


@given(st.lists(candidates), st.none() | st.floats(1, 100), limits)
def test_every_system_is_ranked_once_and_on_the_right_side(found, tpot_ms, loss):
    demand = Demand(tpot_ms, loss)
    ranking = rank(found, demand, {})
    names = [c.system for c in (*ranking.meeting, *ranking.others)]
    assert sorted(names) == sorted({c.system for c in found})
    assert all(c.meets(demand) for c in ranking.meeting)
    assert not any(c.meets(demand) for c in ranking.others)
    assert sentence(ranking, demand, "kl").endswith(".")


# ----------------------------------------------------------------------------- words


def test_advice_sentence_names_system_alpha_and_lossless_alternative():
    found = rank([one("smoe", 59.5, 0.001, 0.31), one("daop", 80, 0)], Demand(60, None), {})
    said = sentence(found, Demand(60, None), "kl")
    assert said.startswith("Use smoe at α 0.31: 59.5 ms a token of 60 allowed, 0.001")
    assert "The fastest lossless one, daop, takes 80 ms a token, 20 ms over the budget." in said
    assert said.endswith("Other prompts may take it over: its interval ends at 60.5 ms.")
    sure = rank([one("daop", 50, 0)], Demand(60, 0), {})
    assert sentence(sure, Demand(60, 0), "kl").endswith("allowed, lossless.")


def test_advice_without_a_match_states_distance_to_the_nearest():
    found = rank([one("smoe", 66, 0.001, 0.6), one("daop", 80, 0)], Demand(60, None), {})
    said = sentence(found, Demand(60, None), "kl")
    assert "The nearest is smoe at α 0.6: 66 ms a token" in said
    assert "6 ms (10%) over the budget" in said
    both = sentence(rank([one("a", 66, 3)], Demand(60, 1), {}), Demand(60, 1), "score")
    assert "over the budget and 2 over the limit of 1 points of score" in both
    assert sentence(rank([], Demand(60, None), {}), Demand(60, None), "kl") == (
        "No system could be run here."
    )


def test_the_fastest_of_those_that_meet_the_demand_is_named_beside_the_best():
    found = rank(
        [one("smoe", 55, 0.001, 0.3), one("daop", 45, 0.002), one("finemoe", 50, 0.003)],
        Demand(60, None), {},
    )  # fmt: skip
    said = sentence(found, Demand(60, None), "kl")
    assert said.startswith("Use smoe at α 0.3")
    assert "The fastest, daop, takes 45 ms a token" in said


def test_a_measured_alpha_replaces_the_step_beside_it_alone():
    """On the line 14 - 20 α, 0.2 would do; the measured 0.203 is beside it and counts for both."""
    measured = {0.1: 12.0, 0.203: 9.94, 0.3: 8.0, 0.4: 6.0}
    assert smallest_alpha(measured, 10.01) == 0.203
    assert smallest_alpha(measured, 10.21) == 0.19, "a step that is beside none"
