"""Scores of predictions: cases computed by hand, and what no scale may change."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.published.prediction import Prediction
from moebench.harness.published.score import by_group, summary, worst
from tests.harness.published.made import predicted, row

KEYS = {
    "absolute_rows", "median_error", "p90_ratio", "prefill_absolute_rows", "prefill_median_error",
    "prefill_p90_ratio", "kendall_tau", "pairs_in_order", "slopes_within_30", "coverage_80",
    "predicted_share",
}  # fmt: skip


def decode(one, value, low=None, high=None) -> Prediction:
    return Prediction(one.id, "decode", one.decode_tok_s, value, low, high)


def test_errors_of_decode_and_prefill_are_of_absolute_rows_alone() -> None:
    rows = [
        row("a", 10, prefill_tok_s=100),
        row("b", 10),
        row("c", 10),
        row("weak", 10, prefill_tok_s=5, abs_class="weak"),
        row("unlisted", 10, listed=False),
    ]
    found = summary(rows, [
        decode(rows[0], 11), decode(rows[1], 8), decode(rows[2], 20),
        Prediction("a", "prefill", 100, 150), decode(rows[3], 1000), decode(rows[4], 1000),
        Prediction("weak", "prefill", 5, 1000),
    ])  # fmt: skip
    assert set(found) == KEYS
    # |ln| is ln 1.1, ln 1.25 and ln 2; the 90th percentile is 0.8 of the way between the last two.
    assert found["absolute_rows"] == 3
    assert found["median_error"] == pytest.approx(0.25)
    assert found["p90_ratio"] == pytest.approx(1.25**0.2 * 2**0.8)
    assert found["prefill_absolute_rows"] == 1
    assert found["prefill_median_error"] == pytest.approx(0.5)
    assert found["prefill_p90_ratio"] == pytest.approx(1.5)
    assert found["predicted_share"] == 1


def test_predicted_share_counts_figures_and_unpredicted_ones_do_not_move_errors() -> None:
    rows = [row("a", 10, prefill_tok_s=100), row("b", 10), row("bound", decode_lo=3)]
    found = summary(rows, [
        decode(rows[0], 20), Prediction("a", "prefill", 100, reason="no rule"),
        Prediction("b", "decode", 10, reason="no rule"), Prediction("of no row", "decode", 1, 9),
    ])  # fmt: skip
    assert (found["absolute_rows"], found["prefill_absolute_rows"]) == (2, 1)
    assert found["median_error"] == pytest.approx(1)
    assert found["prefill_median_error"] is None
    assert found["predicted_share"] == pytest.approx(1 / 3)


def test_nothing_to_score_is_none() -> None:
    for rows in ([], [row("a", 10)], [row("a", 10, abs_class="")]):
        found = summary(rows, [])
        counts = {"absolute_rows", "prefill_absolute_rows"}
        share = found.pop("predicted_share")
        assert share == (0 if rows and rows[0].absolute else None)
        assert {value for key, value in found.items() if key not in counts} == {None}
    assert by_group([row("a", 10)], []) == []
    assert worst([row("a", 10)], []) == []


def test_coverage_is_the_share_of_absolute_figures_within_their_interval() -> None:
    rows = [row(name, 10) for name in "abcde"]
    rows.append(row("weak", 10, abs_class=""))
    found = summary(rows, [
        decode(rows[0], 9, 8, 10), decode(rows[1], 9, 10, 11), decode(rows[2], 9, 8, 9.9),
        decode(rows[3], 9, 10.1, 12), decode(rows[4], 9), decode(rows[5], 9, 1, 2),
    ])  # fmt: skip
    assert found["coverage_80"] == pytest.approx(2 / 4)


def test_tau_compares_the_median_of_each_machine() -> None:
    # Medians of three machines: measured 1, 20, 30; predicted 5, 3, 9: two of three pairs agree.
    rows = [
        row("a1", 1, gpu="A"), row("b1", 10, gpu="B"), row("b2", 20, gpu="B"),
        row("b3", 100, gpu="B"), row("c1", 30, gpu="C"), row("d", 1000, gpu="D", abs_class=""),
        row("p", prefill_tok_s=9, gpu="P"),
    ]  # fmt: skip
    guesses = [decode(r, v) for r, v in zip(rows[:6], (5, 2, 3, 50, 9, 0.1), strict=True)]
    found = summary(rows, [*guesses, Prediction("p", "prefill", 9, 1)])
    assert found["kendall_tau"] == pytest.approx(1 / 3)
    assert summary(rows[1:4], guesses[1:4])["kendall_tau"] is None  # one machine
    equal = [decode(r, 7) for r in rows[:5]]
    assert summary(rows[:5], equal)["kendall_tau"] is None  # no order at all
    other = [row("x", 1, where="one/r", gpu="A"), row("y", 2, where="two/r", gpu="A")]
    assert summary(other, predicted(other))["kendall_tau"] == 1  # authors are told apart


def test_pairs_are_of_one_group_and_apart_by_more_than_five_percent() -> None:
    rows = [
        row("a", 100), row("b", 104.9), row("c", 120, abs_class=""), row("other", 1, group="h"),
        row("alone", 2, group=""), row("alone2", 3, group=""),
    ]  # fmt: skip
    # a and b are too close; a < c is predicted in order, b and c are predicted as equal.
    guesses = [decode(r, v) for r, v in zip(rows, (5, 9, 9, 50, 2, 1), strict=True)]
    assert summary(rows, guesses)["pairs_in_order"] == pytest.approx(1 / 2)
    first, second = by_group(rows, guesses)
    assert (first.group, first.phase, first.rows) == ("g", "decode", 3)
    assert (first.pairs, first.in_order) == (2, 1)
    assert (second.group, second.pairs, second.in_order) == ("h", 0, 0)
    assert first.median_error == pytest.approx(120 / 9 - 1)


@pytest.mark.parametrize(("measured", "pairs"), [(105.0, 0), (105.2, 1), (95.3, 0), (95.2, 1)])
def test_pair_at_the_edge(measured, pairs) -> None:
    rows = [row("a", 100), row("b", measured)]
    assert by_group(rows, predicted(rows))[0].pairs == pairs


def test_span_is_the_difference_of_times_between_slowest_and_fastest_row() -> None:
    rows = [row("a", 10), row("b", 20), row("c", 12.5)]
    # Measured 100 and 50 ms: a span of 50 ms.  Predicted 125 and 62.5 ms: 62.5 ms, 1.25 times it.
    guesses = [decode(rows[0], 8), decode(rows[1], 16), decode(rows[2], 99)]
    (group,) = by_group(rows, guesses)
    assert group.spans == (("s", pytest.approx(1.25)),)
    assert summary(rows, guesses)["slopes_within_30"] == 1
    guesses[0] = decode(rows[0], 7)  # 142.9 - 62.5 ms: 1.61 times it
    assert summary(rows, guesses)["slopes_within_30"] == 0


@pytest.mark.parametrize(
    ("rates", "systems", "spans"),
    [
        ((10, 11, 12), "sss", 1),
        ((10, 11, 11.5), "sss", 0),  # 15 % and no more
        ((10, 20), "ss", 0),
        ((10, 20, 15), "sst", 0),
        ((10, 20, 15, 1, 2, 3), "ssstut", 1),
        ((10, 20, 15, 1, 2, 3), "sssttt", 2),
    ],
)
def test_spans_need_three_rows_of_one_system_and_fifteen_percent(rates, systems, spans) -> None:
    rows = [
        row(f"{at}", rate, system=system)
        for at, (rate, system) in enumerate(zip(rates, systems, strict=True))
    ]
    assert len(by_group(rows, predicted(rows))[0].spans) == spans


def test_phases_of_a_group_are_scored_apart() -> None:
    rows = [row("a", 10, prefill_tok_s=50), row("b", 20, prefill_tok_s=40)]
    both = by_group(rows, predicted(rows))
    assert [(one.phase, one.pairs, one.in_order) for one in both] == [
        ("decode", 1, 1), ("prefill", 1, 1),
    ]  # fmt: skip
    wrong = [Prediction(one.id, "prefill", one.measured("prefill") or 0, v)
             for one, v in zip(rows, (1, 2), strict=True)]  # fmt: skip
    assert summary(rows, wrong)["pairs_in_order"] is None  # decode alone


def test_worst_figures_come_first_in_both_directions() -> None:
    rows = [row("a", 10), row("b", 10), row("c", 10), row("weak", 10, abs_class="")]
    guesses = [decode(r, v) for r, v in zip(rows, (15, 2, 40, 900), strict=True)]
    assert [one.id for _, one in worst(rows, guesses)] == ["b", "c", "a"]
    assert [one.id for one, _ in worst(rows, guesses, n=1)] == ["b"]


RATE = st.floats(0.01, 1e5)
ROWS = st.lists(
    st.tuples(RATE, RATE, st.sampled_from("gh"), st.sampled_from("st"), st.sampled_from("ABCD")),
    min_size=1, max_size=12,
).map(
    lambda many: [
        row(f"{at}", decode, prefill_tok_s=prefill, group=group, system=system, gpu=gpu)
        for at, (decode, prefill, group, system, gpu) in enumerate(many)
    ]
)  # fmt: skip


@given(ROWS)
def test_perfect_predictions_have_perfect_scores(rows) -> None:
    found = summary(rows, predicted(rows))
    assert found["median_error"] == found["prefill_median_error"] == 0
    assert found["p90_ratio"] == found["prefill_p90_ratio"] == 1
    assert found["coverage_80"] == found["predicted_share"] == 1
    assert found["kendall_tau"] in (None, pytest.approx(1))
    assert found["pairs_in_order"] in (None, 1)
    assert found["slopes_within_30"] in (None, 1)
    assert found["absolute_rows"] == found["prefill_absolute_rows"] == len(rows)


@given(ROWS, st.sampled_from([2.0, 0.5]))
def test_factor_of_two_moves_errors_and_leaves_order(rows, factor) -> None:
    perfect, found = summary(rows, predicted(rows)), summary(rows, predicted(rows, factor))
    for name in ("median_error", "prefill_median_error"):
        assert found[name] == pytest.approx(1.0)
    for name in ("p90_ratio", "prefill_p90_ratio"):
        assert found[name] == pytest.approx(2.0)
    assert found["coverage_80"] == 0
    for name in ("kendall_tau", "pairs_in_order", "predicted_share"):
        assert found[name] == perfect[name]
    # Times per token are halved or doubled, and spans with them.
    assert found["slopes_within_30"] in (None, 0)


@given(ROWS, st.lists(RATE, min_size=12, max_size=12), st.randoms())
def test_order_of_rows_does_not_move_scores(rows, values, random) -> None:
    guesses = [decode(one, value) for one, value in zip(rows, values, strict=False)]
    mixed, shuffled = list(rows), list(guesses)
    random.shuffle(mixed)
    random.shuffle(shuffled)
    one, other = summary(rows, guesses), summary(mixed, shuffled)
    for key in KEYS:
        assert one[key] == (other[key] if one[key] is None else pytest.approx(other[key])), key
        assert one[key] is None or math.isfinite(one[key])
