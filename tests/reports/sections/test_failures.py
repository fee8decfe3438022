"""Cells without a run: those that failed, and those that are not possible here by reason."""

from moebench.reports.sections.failures import lines, reasons
from moebench.results.store import Cell


def cell(name: str, system: str, error: str, traceback: str | None = None) -> Cell:
    spec = {"system": system, "setting": "S1", "workload": "gsm8k", "batch": 1}
    return Cell(name, "failed", spec, None, error, traceback)


CELLS = [
    cell("1", "finemoe", "too small"), cell("2", "smoe", "ZeroDivisionError", "failures/2.txt"),
    cell("3", "belady", "belady must know"), cell("4", "pregated-moe", "pregated-moe must know"),
    *(cell(str(n), f"s{n}", "the link is missing") for n in range(5, 9)),
]  # fmt: skip


def test_what_failed_has_a_row_each() -> None:
    assert lines(CELLS) == [["2", "smoe S1 gsm8k ×1", "ZeroDivisionError", "failures/2.txt"]]


def test_what_is_not_possible_is_folded_by_reason_most_frequent_first() -> None:
    assert reasons(CELLS) == [
        ["the link is missing", "4", "s5 S1 gsm8k ×1; s6 S1 gsm8k ×1; s7 S1 gsm8k ×1; ..."],
        ["the system must know", "2", "belady S1 gsm8k ×1; pregated-moe S1 gsm8k ×1"],
        ["too small", "1", "finemoe S1 gsm8k ×1"],
    ]


def test_equally_frequent_reasons_are_in_the_order_of_the_alphabet() -> None:
    cells = [cell("1", "s1", "the disk"), cell("2", "s2", "a link"), cell("3", "s3", "no host"),
             cell("4", "s4", "no host")]  # fmt: skip
    assert [(why, count) for why, count, _ in reasons(cells)] == [
        ("no host", "2"), ("a link", "1"), ("the disk", "1"),
    ]  # fmt: skip
