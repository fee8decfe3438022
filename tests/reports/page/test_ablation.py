"""Ablations by hand: chains of decisions that are restored, other bases, and changes in percent."""

from typing import Any

from moebench.reports.page.ablation import ablations

Plain = dict[str, Any]


def row(tpot_ms: float, changes: dict[str, str], **of: Any) -> Plain:
    base = {
        "base": "smoe", "system": "smoe", "badge": "estimate", "alpha": None, "usual": 3,
        "tpot_ms": tpot_ms, "changes": changes, "v": {"tpot_ms": {"text": f"{tpot_ms:.2f}"}},
    }  # fmt: skip
    return base | of


ALL = {"evict": "lru", "prefetch": "none", "route": "exact"}
TWO = {"evict": "lru", "prefetch": "none"}
ONE = {"prefetch": "none"}


def test_each_step_restores_decisions_and_says_by_how_much_it_changes() -> None:
    rows = [row(10.0, {}), row(12.0, ONE), row(40.0, ALL), row(50.0, {"evict": "fifo"})]
    ((base, steps),) = ablations(rows)
    assert base == "smoe"
    assert steps == [
        {"step": "other base: evict=fifo", "tpot": 50.0, "text": "50.00 ms", "kind": "base",
         "system": "smoe", "badge": "estimate", "rank": 0},
        {"step": "evict=lru prefetch=none|route=exact", "tpot": 40.0, "text": "40.00 ms",
         "kind": "base", "system": "smoe", "badge": "estimate", "rank": 1},
        {"step": "+ its own evict and route", "tpot": 12.0, "text": "12.00 ms, −70.0 %",
         "kind": "faster", "system": "smoe", "badge": "estimate", "rank": 2},
        {"step": "+ its own prefetch", "tpot": 10.0, "text": "10.00 ms, −16.7 %",
         "kind": "faster", "system": "smoe", "badge": "estimate", "rank": 3},
    ]  # fmt: skip


def test_a_step_may_be_slower_or_change_nothing() -> None:
    ((_, steps),) = ablations([row(10.0, {}), row(8.0, ONE), row(8.0, TWO)])
    assert [(one["text"], one["kind"]) for one in steps] == [
        ("8.00 ms", "base"), ("8.00 ms, −0.0 %", "faster"), ("10.00 ms, +25.0 %", "slower")
    ]  # fmt: skip


def test_two_rows_are_no_chain_and_neither_are_rows_without_the_whole_system() -> None:
    assert [*ablations([row(10.0, {}), row(12.0, ONE)])] == []
    assert [*ablations([row(1.0, ONE), row(2.0, TWO), row(3.0, ALL)])] == []
    # Decisions that another row does not have are no part of its chain.
    apart = [row(10.0, {}), row(11.0, {"evict": "lru"}), row(12.0, {"route": "exact"})]
    assert [*ablations(apart)] == []
    # The same decision with another choice is none either.
    other = [row(10.0, {}), row(11.0, {"evict": "lru"}), row(12.0, {**TWO, "evict": "fifo"})]
    assert [*ablations(other)] == []


def test_rows_without_a_time_and_of_other_systems_are_apart() -> None:
    rows = [row(10.0, {}), row(12.0, ONE), row(14.0, TWO)]
    more = [one | {"base": "daop", "system": "daop"} for one in rows]
    without = {k: v for k, v in row(99.0, ALL).items() if k != "tpot_ms"}
    found = dict(ablations([*rows, without, *more]))
    assert [*found] == ["smoe", "daop"]
    assert [len(steps) for steps in found.values()] == [3, 3]
    assert {one["system"] for one in found["daop"]} == {"daop"}


def test_the_whole_system_is_the_one_with_most_cells_then_the_least_alpha() -> None:
    """Its steps have its α, or none where they route exactly."""
    whole = [row(9.0, {}, alpha=0.3, usual=9), row(8.0, {}, alpha=0.2, usual=9),
             row(7.0, {}, alpha=0.1, usual=3)]  # fmt: skip
    steps = [row(12.0, ONE, alpha=0.2), row(14.0, TWO), row(20.0, ONE, alpha=0.3)]
    ((_, found),) = ablations([*whole, *steps])
    assert [one["tpot"] for one in found] == [14.0, 12.0, 8.0]
