"""Which system should run on which machine: winners, ties, and what cannot run."""

import pytest

from moebench.reports.sections import field
from moebench.results.field import FieldRow
from moebench.results.published_errors import ratio_error

BOX = "rtx-3090+ryzen-9-5950x+ram=96"


def row(system: str, tpot: float | None, options: str | None = None, **more: object) -> FieldRow:
    given = {
        "machine": BOX, "model": "gpt-oss-120b", "bits": "mxfp4", "context": 2048,
        "software": "ggml", "system": system, "options": options, "tpot_ms": tpot,
        "lossless": None if tpot is None else True,
        "reason": None if tpot else f"{system} lacks room; add memory",
    }  # fmt: skip
    return FieldRow.model_validate({**given, **more})


FIT = row("llamacpp", 40.0, "place=fit")


def test_a_clear_winner() -> None:
    """20 and 31 ms: 31 / 20 = 1.55 is more than the factor of 1.5, so nothing is tied."""
    (one,) = field.verdicts([FIT, row("kt", 20.0), row("slow", 31.0)], factor=1.5)
    assert one.best is not None
    assert one.best.name == "kt"
    assert ([*one.tied], one.over_fit) == ([], 2.0)
    assert [row.name for row in one.slower] == ["slow", "llamacpp place=fit"]
    assert field._over(one, 1.5) == "2.00 (1.33 to 3.00)"


def test_a_tie() -> None:
    """40 / 30 = 1.33 is within the factor of 1.5; 46 / 30 = 1.53 is not."""
    (one,) = field.verdicts([row("late", 46.0), FIT, row("kt", 30.0)], factor=1.5)
    assert [row.name for row in one.tied] == ["llamacpp place=fit"]
    assert [row.name for row in one.slower] == ["late"]
    assert field._over(one, 1.5) == "1.33 (0.89 to 2.00), tied"


def test_fit_itself_may_be_the_best_or_missing() -> None:
    (own,) = field.lines([FIT, row("kt", 50.0)])
    assert own[field.HEADERS.index("over llama.cpp --fit")] == "it is --fit"
    without = [row("llamacpp", None, "place=fit"), row("kt", 50.0)]
    (line,) = field.lines(without)
    assert line[field.HEADERS.index("over llama.cpp --fit")] == "--fit cannot run"
    assert line[-1] == "llamacpp place=fit"
    (line,) = field.lines([row("kt", 50.0)])
    assert line[field.HEADERS.index("over llama.cpp --fit")] == "–"


def test_lossy_systems_are_named_apart() -> None:
    rows = [FIT, row("smoe", 10.0, lossless=False), row("daop", 12.0, lossless=False)]
    (one,) = field.verdicts(rows)
    assert one.best == FIT
    assert one.lossy is not None
    assert one.lossy.name == "smoe"
    (line,) = field.lines(rows)
    low, high = 4 / ratio_error(), 4 * ratio_error()
    shown = f"smoe, over the best: 4.00 ({low:.2f} to {high:.2f})"
    assert line[field.HEADERS.index("fastest lossy")] == shown
    (only,) = field.verdicts([row("smoe", 10.0, lossless=False)])
    assert (only.best, only.over_fit) == (None, None)
    (line,) = field.lines([row("smoe", 10.0, lossless=False)])
    assert line[3:6] == ["none can run", "–", "–"]


def test_a_rate_has_the_error_of_its_kind() -> None:
    """25 tokens/s; llama.cpp on desktops was checked, other systems were not."""
    error = field.error_of(FIT)
    assert error is not None
    assert error.checked
    low, high = 25 / error.factor, 25 * error.factor
    assert field._rate(FIT) == f"25 ({low:.3g} to {high:.3g})"
    assert field._rate(row("kt", 40.0)).endswith(", not checked)")
    assert field._rate(row("kt", 40.0, machine="gone.yaml")) == "25"


def test_systems_are_counted_over_places() -> None:
    more = {"context": 32768}
    rows = [FIT, row("kt", 30.0), row("late", 90.0), row("smoe", 5.0, lossless=False),
            row("llamacpp", 80.0, "place=fit", **more), row("kt", 20.0, **more),
            row("late", None, **more)]  # fmt: skip
    assert field.summary(rows) == [
        ["kt", "2", "0", "0", "0", "2.67"],
        ["llamacpp place=fit", "0", "1", "1", "0", "1.00"],
        ["late", "0", "0", "1", "1", "0.44"],
        ["≈ smoe", "0", "0", "0", "0", "8.00"],
    ]


def test_reasons_are_short_and_the_most_frequent_is_first() -> None:
    rows = [row("a", None), row("b", None), row("c", None, reason="gpt-oss-120b: no")]
    assert field.reasons(rows) == [["lacks room", "a, b", "2"], ["the model: no", "c", "1"]]


@pytest.mark.parametrize(("count", "end"), [(4, "s3"), (6, "s3 and 2 more")])
def test_long_lists_of_names_are_cut(count: int, end: str) -> None:
    assert field._names([f"s{n}" for n in range(count)]).endswith(end)


def test_no_rows_are_no_table() -> None:
    assert field.lines([]) == field.summary([]) == field.reasons([]) == []
