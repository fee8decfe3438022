"""Histories by hand: the order of versions, what each is compared with, and what is a step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.compare.history import FIGURES, Commit, History, Placed, histories, steps
from moebench.reports.figures.history import history_chart
from moebench.reports.sections.history import Since, document, records, table, verdict
from moebench.results.metrics import metric_of
from tests.reports.samples import HOSTILE, run

COMMITS = [Commit(f"{at:x}" * 40, 1_700_000_000 + at, f"Change {at}") for at in range(6)]
TPOT = metric_of("tpot_ms")
LINK = "link.pinned_h2d"


def made(
    at: int, tpot_ms: float = 50.0, committed: bool = True,
    effect: tuple[float, float] | None = None,
    libraries: dict[str, str] | None = None, torch: str = "2", system: str = "mine:MySystem",
    created: int = 0, measured: str = "", **spec: Any,
) -> Placed:  # fmt: skip
    """Return a placed run; ``effect``: changes in percent at the ends of the link's range."""
    name = f"{at}{committed}{created}{torch}{sorted(spec.items())}{tpot_ms}"
    one = run("r" + "".join(filter(str.isalnum, name)), system=system, **spec)
    one["metrics"]["tpot_ms"]["mean"] = tpot_ms
    one["interval"] = None if effect is None else {
        "tpot_ms": {"low": tpot_ms * (1 + min(effect) / 100),
                    "high": tpot_ms * (1 + max(effect) / 100)},
        "fields": [{"field": LINK, "tpot_ms": [*effect]}],
    }  # fmt: skip
    one["provenance"] |= {"system_hash": f"{at}{committed}", "code_hash": "c0de",
                          "created": f"2026-01-01T00:00:{created:02}+00:00",
                          "versions": {"torch": torch}}  # fmt: skip
    if measured:
        one |= {"simulated": False, "badge": "measured"}
        one["provenance"] |= {"machine": measured, "threads": 1}
    return Placed(one, system, at, committed, libraries or {})


def only(*placed: Placed, figure: str = "tpot_ms") -> History:
    (found,) = histories(placed, COMMITS, metric_of(figure))
    return found


def verdicts(*placed: Placed) -> list[str]:
    found = only(*placed)
    return [verdict(found, row) for row in found.rows]


# ----------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "3"}, "torch 2 → 3"),
        ({"prompts": 8}, "prompts 32 → 8"),
        ({"workload": "arithmetic"}, "workload gsm8k → arithmetic"),
        ({"seed": 4}, "seed 0 → 4"),
        ({"libraries": {"moebench.systems.smoe": "bb" * 8, "x": "c"}},
         "systems of moebench moebench.systems.smoe aaaaaaaa → bbbbbbbb"),
    ],
)  # fmt: skip
def test_a_difference_under_a_changed_condition_is_no_step(
    change: dict[str, Any], said: str
) -> None:
    before = {"moebench.systems.smoe": "aa" * 8, "y": "c"}
    found = only(made(0, 50.0, libraries=before), made(1, 75.0, **change))
    assert verdict(found, found.rows[1]) == (
        f"slower, no step of the system; changed conditions: {said}"
    )
    assert not [*steps(found)]
    tied = verdicts(made(0, 50.0, libraries=before), made(1, 50.0, **change))
    assert tied == ["first", f"tied; changed conditions: {said}"]
    assert verdicts(made(0, 50.0, libraries=before), made(1, 75.0)) == ["first", "step: slower"]


def test_a_processor_is_a_condition_of_measured_runs_alone() -> None:
    assert verdicts(made(0, 50.0, measured="A"), made(1, 25.0, measured="B")) == [
        "first", "faster, no step of the system; changed conditions: processor A → B",
    ]  # fmt: skip
    assert verdicts(made(0, 50.0, measured="A"), made(1, 25.0, measured="A"))[1] == "step: faster"


def test_other_machines_batches_and_options_are_other_histories() -> None:
    found = histories(
        [made(0), made(1), made(0, batch=4), made(1, batch=4), made(0, machine="h100"),
         made(0, overrides={"evict": "lru"}), made(1, overrides={"evict": "lru"})],
        COMMITS, TPOT,
    )  # fmt: skip
    assert [one.title for one in found] == [
        "mine:MySystem, S3, batch 1", "mine:MySystem, S3, batch 4",
        "mine:MySystem evict=lru, S3, batch 1",
    ]  # fmt: skip


def test_one_version_damaged_runs_and_evaluations_are_no_history() -> None:
    assert histories([made(0), made(0, torch="3")], COMMITS, TPOT) == []
    evaluated, damaged, without = made(1), made(1), made(1)
    evaluated.run["evaluation"] = {}
    del damaged.run["spec"]["model"]
    without.run["metrics"]["tpot_ms"] = None
    assert histories([made(0), evaluated, damaged, without], COMMITS, TPOT) == []
    assert histories([], COMMITS, TPOT) == []


# ----------------------------------------------------------------------------- intervals


def test_what_moves_both_versions_alike_cancels() -> None:
    both = (14.0, -22.0)
    assert verdicts(made(0, 100.0, effect=both), made(1, 103.0, effect=both))[1] == "step: slower"
    assert verdicts(made(0, 100.0, effect=both), made(1, 103.0, effect=(1.0, -1.0)))[1] == "tied"


def test_three_workloads_give_an_interval() -> None:
    names = ("a", "b", "c")
    first = [made(0, ms, workload=name) for name, ms in zip(names, (10.0, 20.0, 30.0), strict=True)]
    second = [
        made(1, ms, workload=name) for name, ms in zip(names, (12.0, 22.0, 32.0), strict=True)
    ]
    found = only(*first, *second)
    row = found.rows[1]
    # As in test_times: t(2 degrees, 95 %) = 4.3027, residuals .05, 0 and -.05.
    half = 4.30265 * 0.05 / 3**0.5
    assert row.change.interval == pytest.approx((1.1 - half, 1.1 + half), abs=1e-5)
    assert verdict(found, row) == "tied"
    # That of the mean itself, 22 - 24.8, reaches below zero, and is not shown.
    assert row.interval is None
    close = [made(2, ms, workload=name) for name, ms in zip(names, (21.0, 22.0, 23.0), strict=True)]
    half = 4.30265 / 3**0.5
    assert only(*first, *close).rows[1].interval == pytest.approx((22 - half, 22 + half), abs=1e-4)
    assert only(*first[:2], *second[:2]).rows[1].change.step


@pytest.mark.parametrize("figure", FIGURES[1:])
def test_other_figures_are_compared_too(figure: str) -> None:
    one, other = made(0), made(1)
    parts = {"ttft_ms": ("metrics", {"ttft_ms": {"mean": 100.0}}, {"ttft_ms": {"mean": 90.0}}),
             "hit_ratio": ("metrics", {"cache_ratio": 0.5}, {"cache_ratio": 0.6}),
             "kl": ("accuracy", {"kl": 0.0}, {"kl": 0.25})}  # fmt: skip
    part, before, after = parts[figure]
    assert only(one, other, figure=figure).rows[1].change.step is False
    one.run[part] |= before
    other.run[part] |= after
    found = only(one, other, figure=figure)
    row = found.rows[1]
    assert row.change.value == pytest.approx({"ttft_ms": 0.9, "hit_ratio": 0.1, "kl": 0.25}[figure])
    said = {"ttft_ms": "faster", "hit_ratio": "better", "kl": "worse"}[figure]
    assert verdict(found, row) == f"step: {said}"
    text = table(found, "v1").rows[1]
    assert {"ttft_ms": "-10 %", "hit_ratio": "+10 points", "kl": "+0.25 nats/token"}[figure] in text


def test_ttft_has_the_intervals_of_ttft() -> None:
    both = made(0), made(1)
    for one, ms in zip(both, (100.0, 103.0), strict=True):
        one.run["metrics"]["ttft_ms"]["mean"] = ms
        one.run["interval"] = {
            "ttft_ms": {"low": ms * 0.78, "high": ms * 1.14}, "tpot_ms": {"low": 1, "high": 9e9},
            "fields": [{"field": LINK, "ttft_ms": [14.0, -22.0], "tpot_ms": [1, -50]}],
        }  # fmt: skip
    change = only(*both, figure="ttft_ms").rows[1].change
    assert change.interval == pytest.approx((1.03, 1.03))
    both[1].run["interval"]["fields"] = []
    assert not only(*both, figure="ttft_ms").rows[1].change.differs


def test_hit_ratios_of_three_workloads_have_the_interval_of_their_differences() -> None:
    placed = [made(at, workload=name) for at in (0, 1) for name in "abc"]
    for one, value in zip(placed, (0.1, 0.2, 0.3, 0.2, 0.31, 0.39), strict=True):
        one.run["metrics"]["cache_ratio"] = value
    change = only(*placed, figure="hit_ratio").rows[1].change
    # Differences .1, .11 and .09: standard deviation .01.
    half = 4.30265 * 0.01 / 3**0.5
    assert change.interval == pytest.approx((0.1 - half, 0.1 + half), abs=1e-6)
    assert change.step


# ----------------------------------------------------------------------------- properties

VERSIONS = st.lists(
    st.builds(
        made, st.integers(0, 5), st.sampled_from([50.0, 50.0, 60.0, 70.0]), st.booleans(),
        torch=st.sampled_from("23"), created=st.integers(0, 3), prompts=st.sampled_from([8, 32]),
    ),
    max_size=12, unique_by=lambda one: one.run["run_id"],
)  # fmt: skip


def key(one: Placed) -> tuple[Any, ...]:
    """Return what makes a row: version and conditions."""
    return (one.at, not one.committed, one.run["provenance"]["versions"]["torch"],
            one.run["spec"]["prompts"])  # fmt: skip


@given(VERSIONS, st.randoms())
def test_rows_are_in_the_order_of_commits_whatever_the_order_of_runs(
    placed: list[Placed], random: Any
) -> None:
    found = histories(placed, COMMITS, TPOT)
    if len({key(one)[:2] for one in placed}) < 2:
        assert found == []
        return
    (history,) = found
    rows = [(row.at, not row.committed, row.conditions["torch"], int(row.conditions["prompts"]))
            for row in history.rows]  # fmt: skip
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
    assert {*rows} == {key(one) for one in placed}
    assert len({*rows}) == len(rows)
    starts = {k: min(one.run["provenance"]["created"] for one in placed if key(one) == k)
              for k in rows}  # fmt: skip
    assert [(*k[:2], starts[k]) for k in rows] == sorted((*k[:2], starts[k]) for k in rows)
    shuffled = [*placed]
    random.shuffle(shuffled)
    assert document(Since("v1", histories(shuffled, COMMITS, TPOT))) == document(
        Since("v1", [history])
    )


@given(VERSIONS)
def test_a_step_is_a_difference_from_the_latest_version_under_equal_conditions(
    placed: list[Placed],
) -> None:
    for history in histories(placed, COMMITS, TPOT):
        rows = history.rows
        for index, row in enumerate(rows):
            version = (row.at, row.committed)
            equal = [at for at in range(index) if rows[at].conditions == row.conditions
                     and (rows[at].at, rows[at].committed) != version]  # fmt: skip
            if index == 0:
                assert row.change is None
            elif equal:
                assert row.change.before == equal[-1]
                assert row.change.conditions == {}
                assert row.change.step == (abs(rows[equal[-1]].value - row.value) > 1e-9)
            else:
                assert row.change.before == index - 1
                assert row.change.conditions
                assert not row.change.step


ENDS = st.tuples(st.integers(-40, 40), st.integers(-40, 40))


@given(ENDS, ENDS, st.sampled_from([50.0, 51.0, 60.0, 100.0]))
def test_a_step_is_beyond_the_interval_of_the_ratio(
    one: tuple[int, int], other: tuple[int, int], tpot_ms: float
) -> None:
    """One number moves both versions: the ratio at both ends of its range is the interval."""
    covered = [(min(*both, 0), max(*both, 0)) for both in (one, other)]  # nothing is left unnamed
    first, second = (tuple(map(float, both)) for both in covered)
    found = only(made(0, 50.0, effect=first), made(1, tpot_ms, effect=second))
    ratios = [tpot_ms / 50 * (100 + b) / (100 + a) for a, b in zip(first, second, strict=True)]
    low, high = min(*ratios, tpot_ms / 50), max(*ratios, tpot_ms / 50)
    change = found.rows[1].change
    assert change.interval == pytest.approx((low, high), abs=1e-6)
    if min(abs(low - 1), abs(high - 1)) > 1e-6:
        assert change.step == (not low <= 1 <= high)


# ----------------------------------------------------------------------------- outputs


def test_texts_of_commits_are_shown_as_text() -> None:
    commits = [Commit("a" * 40, 1, HOSTILE), Commit("b" * 40, 2, "=1+1")]
    (found,) = histories([made(0), made(1, 60.0)], commits, TPOT)
    assert table(found, "v1").rows[0][2] == HOSTILE
    assert [row["subject"] for row in records(Since("v1", [found]))] == [HOSTILE, "=1+1"]
    spec, rows = history_chart(found)
    assert [row["subject"] for row in rows] == [HOSTILE, "=1+1"]
    assert HOSTILE not in str(spec)


def test_the_chart_has_a_place_for_each_row() -> None:
    found = only(made(0, effect=(5.0, -5.0)), made(1, 60.0), made(1, 70.0, torch="3"),
                 made(1, 90.0, committed=False))  # fmt: skip
    _, rows = history_chart(found)
    assert [(row["version"], row["kind"]) for row in rows] == [
        ("0" * 10, "no step"), ("1" * 10, "step"),
        ("1" * 10 + " (2)", "other conditions"), ("1" * 10 + " + uncommitted", "step"),
    ]  # fmt: skip
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((47.5, 52.5))
    assert "low" not in rows[1]


def test_an_interval_that_begins_at_zero_is_shown() -> None:
    """No hit in any of three workloads: the interval of the mean is 0 itself."""
    placed = [made(at, workload=name) for at in (0, 1) for name in "abc"]
    for one, value in zip(placed, (0.0, 0.0, 0.0, 0.1, 0.1, 0.1), strict=True):
        one.run["metrics"]["cache_ratio"] = value
    first, second = only(*placed, figure="hit_ratio").rows
    assert first.interval == (0, 0)
    assert second.interval == pytest.approx((0.1, 0.1))
    assert second.change is not None
    assert second.change.value == pytest.approx(0.1)
    assert second.change.differs
    assert second.change.better


def test_figures_that_are_equal_but_for_rounding_do_not_differ() -> None:
    both = made(0), made(1)
    for one, value in zip(both, (0.1 + 0.2, 0.3), strict=True):
        one.run["metrics"]["cache_ratio"] = value
    change = only(*both, figure="hit_ratio").rows[1].change
    assert change is not None
    assert (change.value, change.differs, change.better) == (0.0, False, None)


def test_commits_that_made_versions_without_runs_are_named() -> None:
    placed = [made(0), made(3, 60.0), made(4, 70.0, committed=False)]
    versions = {"mine:MySystem": [3, 0, 5, 4, 2], "another": [1]}
    (found,) = histories(placed, COMMITS, TPOT, versions)
    assert found.untested == (2, 4, 5), "an uncommitted version is none of its commit"


def test_versions_are_compared_on_the_texts_that_both_read() -> None:
    placed = [made(0, 10.0, workload="a"), made(0, 20.0, workload="b"),
              made(1, 40.0, workload="b"), made(1, 99.0, workload="c")]  # fmt: skip
    (first, second) = only(*placed).rows
    assert (first.value, second.value) == (15.0, 69.5)
    assert second.change is not None
    assert second.change.value == 2.0
    for one, value in zip(placed, (0.1, 0.2, 0.5, 0.9), strict=True):
        one.run["metrics"]["cache_ratio"] = value
    change = only(*placed, figure="hit_ratio").rows[1].change
    assert change is not None
    assert change.value == pytest.approx(0.3)
