"""Charts for files: which are drawn, and of which rows."""

import copy
from typing import Any

import pytest

from moebench.reports.compare.tables import Matrix, comparisons, matrix
from moebench.reports.page.ablation import ablations
from moebench.reports.page.static_figures import StaticFigure, static_figures
from moebench.reports.sections.throughput import Point
from tests.reports.samples import compared, spans

Plain = dict[str, Any]
NO_MATRIX = Matrix((), (), ())


def drawn(runs: list[Plain], beside: Matrix = NO_MATRIX, **more: Any) -> dict[str, StaticFigure]:
    return {one.title: one for one in static_figures(runs, beside, **more)}


def only(rows: list[Plain], *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in fields) for row in rows]


PLACES = [f"{setting}, batch {batch}" for setting in ("S1", "S3") for batch in (1, 3)]


def test_every_chart_that_has_rows_is_drawn() -> None:
    runs = compared()
    found = drawn(runs, matrix(comparisons(runs).tables))
    assert list(found) == [
        "heat map",
        *(f"{kind} {place}" for place in PLACES for kind in ("kl", "time", "bound")),
        "ablation smoe S1, batch 1", "batch S1 qwen2-57b-a14b", "batch S3 qwen2-57b-a14b",
    ]  # fmt: skip
    assert "heat map" not in drawn(runs)
    one = Matrix(("a",), ("x", "y"), ((1.0, 2.0),))
    assert "heat map" not in drawn(runs, one)
    shapes = found["kl S1, batch 1"].shapes
    assert set(shapes) >= {"smoe", "lru", "slow", "smoe prefetch=none"}
    assert len({shapes[name] for name in ("smoe", "lru", "slow")}) == 3


def test_rows_of_the_charts_of_a_place() -> None:
    found = drawn(compared())
    kl = found["kl S1, batch 1"].rows
    # The fastest is on the front, and the next one with less loss; the slow one gains nothing.
    assert only(kl, "system", "tpot_ms", "kl", "front", "short") == [
        ("smoe", 11, 0.01, True, "smoe"), ("lru", 21, 0, True, "lru"),
        ("slow", 401, 0, False, "slow"),
    ]  # fmt: skip
    times = found["time S1, batch 1"].rows
    assert only(times[:3], "system", "part", "ms", "share", "order", "rank", "badge") == [
        ("smoe", "device busy", 2.75, 0.25, 0, 0, "estimate"),
        ("smoe", "waits for load", 6.875, 0.625, 1, 0, "estimate"),
        ("smoe", "waits for control", 1.375, 0.125, times[2]["order"], 0, "estimate"),
    ]  # fmt: skip
    assert len(times) == 9
    assert only(found["bound S1, batch 1"].rows, "system", "least") == [
        ("smoe", 5.5), ("lru", 10.5), ("slow", 200.5),
    ]  # fmt: skip
    over = found["batch S1 qwen2-57b-a14b"].rows
    assert sorted(only(over, "line", "batch", "tpot_ms")) == [
        ("lru", 1, 21), ("lru", 3, 61), ("slow", 1, 401), ("slow", 3, 1201), ("smoe", 1, 11),
        ("smoe", 3, 31),
    ]  # fmt: skip
    smoe = {row["batch"]: row for row in over if row["line"] == "smoe"}
    assert "tpot_ms_low" not in smoe[1], "11 less 12.7 is below zero"
    assert smoe[3]["tpot_ms_low"] == 18.2938
    lru = next(row for row in over if (row["line"], row["batch"]) == ("lru", 1))
    assert (lru["tpot_ms_low"], lru["tpot_ms_high"]) == (8.2938, 33.7062)


def test_the_timeline_is_of_the_two_fastest_systems_on_one_workload() -> None:
    runs = compared()
    names = ["S1-1-smoe-gsm8k", "S1-1-lru-facts", "S1-1-lru-gsm8k", "S1-1-slow-gsm8k"]
    timelines = {name: spans(1)[: n + 2] for n, name in enumerate(names)}
    (rows,) = [one.rows for title, one in drawn(runs, timelines=timelines).items()
               if title.startswith("timeline")]  # fmt: skip
    assert {row["row"].split()[0] for row in rows} == {"smoe", "lru"}
    assert len(rows) == 2 + 4
    assert rows[0] == {
        "row": "smoe device", "rank": 0, "kind": "attend", "layer": 0, "start": 0.0, "end": 140.0,
        "us": 140.0,
    }  # fmt: skip
    last = rows[-1]
    assert (last["row"], last["rank"]) == ("lru h2d", 101)
    assert last["us"] == pytest.approx(last["end"] - last["start"])
    alone = {"S1-1-smoe-gsm8k": spans(1)}
    apart = alone | {"S1-1-lru-facts": spans(1)}
    for kept in (alone, apart):
        assert not any(title.startswith("timeline") for title in drawn(runs, timelines=kept))


def test_speeds_are_over_portions_of_the_tokens() -> None:
    curve = [Point(*([0] * (len(Point._fields) - 1)), 0.0)._replace(tokens_per_s=10.0 + n)
             for n in range(3)]  # fmt: skip
    found = drawn(compared(), curves={"S1-1-lru-facts": curve})
    assert found["throughput S1, batch 1"].rows == [
        {"system": "lru", "line": "lru", "badge": "estimate", "speed": 10.0 + n,
         "run": "S1-1-lru-facts", "workload": "facts", "portion": n / 2}
        for n in range(3)
    ]  # fmt: skip


def varied(*ones: tuple[str, float, float, float | None]) -> list[Plain]:
    """Return runs by system, capacity, TPOT and α."""
    found = []
    for n, (system, ratio, tpot, alpha) in enumerate(ones):
        one = copy.deepcopy(compared()[0]) | {"run_id": str(n)}
        one["spec"] |= {"system": system, "cache_ratio": ratio, "alpha": alpha}
        one["metrics"]["tpot_ms"]["mean"] = tpot
        one["memory"]["offered_device_bytes"] = int(1e10 * ratio)
        one["metrics"]["cache_ratio"] = ratio / 2
        found.append(one)
    return found


def test_lines_over_capacities_and_alphas() -> None:
    runs = varied(("a", 0.25, 10, None), ("a", 0.5, 8, None), ("b", 0.25, 20, None))
    found = drawn(runs)
    (title,) = [one for one in found if one.startswith("ratio")]
    assert only(found[title].rows, "line", "ratio", "tpot_ms") in (
        [("a", 0.25, 10), ("a", 0.5, 8)], [("a", 0.5, 8), ("a", 0.25, 10)],
    )  # fmt: skip
    assert found[title.replace("ratio", "hits", 1)].rows == found[title].rows
    alphas = varied(("a", 0.25, 10, 0.1), ("a", 0.25, 8, 0.3), ("b", 0.25, 20, None))
    (title,) = [one for one in drawn(alphas) if one.startswith("alpha")]
    rows = drawn(alphas)[title].rows
    assert sorted(only(rows, "line", "alpha", "short")) == [
        ("a", 0.1, "a α=0.1"), ("a", 0.3, "a α=0.3"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------ ablations


def step(system: str, tpot: float, changes: dict[str, str], **more: Any) -> Plain:
    return {"system": system, "base": "s", "tpot_ms": tpot, "changes": changes, "usual": 1,
            "alpha": None, "badge": "estimate", "v": {"tpot_ms": {"text": f"{tpot:.1f}"}},
            **more}  # fmt: skip


ALL = {"evict": "lru", "place": "by-id", "prefetch": "none"}


def test_steps_of_an_ablation_by_hand() -> None:
    rows = [
        step("s", 10, {}, usual=2), step("s other", 11, {}, usual=1),
        step("s -1", 20, {"prefetch": "none"}), step("s -3", 19, ALL),
        step("s x", 50, {"evict": "score"}), step("s α", 5, {"prefetch": "x"}, alpha=0.3),
        step("t", 1, {}, base="t"), step("t -1", 2, ALL, base="t"), {"base": "s", "changes": {}},
    ]  # fmt: skip
    ((base, steps),) = ablations(rows)
    assert base == "s"
    assert [tuple(one.values()) for one in steps] == [
        ("other base: evict=score", 50, "50.0 ms", "base", "s x", "estimate", 0),
        ("evict=lru place=by-id|prefetch=none", 19, "19.0 ms", "base", "s -3", "estimate", 1),
        ("+ its own evict and place", 20, "20.0 ms, +5.3 %", "slower", "s -1", "estimate", 2),
        ("+ its own prefetch", 10, "10.0 ms, −50.0 %", "faster", "s", "estimate", 3),
    ]  # fmt: skip
    assert list(steps[0]) == ["step", "tpot", "text", "kind", "system", "badge", "rank"]


def test_two_steps_are_no_ablation_and_neither_is_a_chain_without_the_whole_system() -> None:
    assert list(ablations([step("s", 10, {}), step("s -1", 20, ALL)])) == []
    parts = [step("s -1", 20, {"prefetch": "none"}), step("s -3", 19, ALL)]
    assert list(ablations(parts)) == []
    same = [step("s", 10, {}), step("a", 10, {"prefetch": "none"}), step("b", 10, ALL)]
    ((_, steps),) = ablations(same)
    assert [one["kind"] for one in steps] == ["base", "faster", "faster"]
    assert steps[1]["text"] == "10.0 ms, −0.0 %"
