"""What α does: hand-worked changes, verdicts and tables."""

import math
from pathlib import Path

import pytest

from moebench.reports.figures.accuracy import curves
from moebench.reports.sections import accuracy as module
from moebench.reports.sections.accuracy import (
    CLAIMED_ALPHA,
    VERDICT_HEADERS,
    Change,
    change,
    load,
    paper_change,
    paper_scores,
    series,
    summary,
    verdict,
    verdict_cells,
    views,
)
from moebench.results.accuracy_table import write_items, write_table
from moebench.substrate.errors import InputError
from tests.reports.alpha import ALPHAS, ITEMS, ROWS, generated, gsm8k
from tests.results.tables import row

# ---------------------------------------------------------------------- changes


def test_a_paired_change_counts_only_what_differs() -> None:
    start, end = row(alpha=0.0, run_id="a", n=4), row(alpha=0.3, run_id="b", n=4)
    found = change(start, end, {"a": "1100", "b": "1010"})
    # Differences 0, -1, +1, 0: mean 0, variance 1/2, standard error 100 sqrt(1/8).
    assert found == Change(0.3, 0.0, pytest.approx(100 * math.sqrt(1 / 8)), True)
    assert change(start, end, {"a": "1100", "b": "1100"}) == Change(0.3, 0.0, 0.0, True)
    lost = change(start, end, {"a": "1100", "b": "1000"})
    assert (lost.points, lost.stderr) == (-25.0, pytest.approx(100 * math.sqrt(3 / 16 / 4)))


def test_without_the_same_questions_errors_add_up() -> None:
    start = row(alpha=0.0, run_id="a", n=4, score=50.0, stderr=3.0)
    end = row(alpha=0.3, run_id="b", n=4, score=40.0, stderr=4.0)
    unpaired = Change(0.3, -10.0, 5.0, False)
    assert change(start, end, {}) == unpaired
    assert change(start, end, {"a": "1100"}) == unpaired
    assert change(start, end, {"a": "1100", "b": "110"}) == unpaired
    other = row(alpha=0.3, run_id="b", n=4, score=40.0, stderr=4.0, data_hash="other")
    assert change(start, other, {"a": "1100", "b": "1010"}) == unpaired


@pytest.mark.parametrize(
    ("points", "stderr", "negligible"),
    [(0.0, 0.0, True), (-1.9, 1.0, True), (2.0, 1.0, False), (-2.1, 1.0, False), (1.0, 0.0, False)],
)
def test_negligible_is_within_two_standard_errors(
    points: float, stderr: float, negligible: bool
) -> None:
    assert Change(0.1, points, stderr, True).negligible is negligible


# ---------------------------------------------------------------------- verdicts


def test_the_verdict_on_gsm8k() -> None:
    (one,) = series(gsm8k())
    found = verdict(one, ITEMS)
    # -1 ± 0.70 is within 2 standard errors, -3 ± 1.21 is not, nor is -15 ± 2.52.
    assert [step.points for step in found.changes] == pytest.approx([-1, -3, -15])
    errors = [100 * math.sqrt(d * (1 - d) / 200) for d in (0.01, 0.03, 0.15)]
    assert [step.stderr for step in found.changes] == pytest.approx(errors)
    assert found.negligible_up_to == 0.25
    assert found.visible == pytest.approx(2 * errors[-1])
    assert found.falls == (0.25, 0.6)
    assert not found.at_floor
    # Unpaired, ± 4.95 hides the first two changes.
    assert verdict(one, {}).negligible_up_to == 0.35


def test_verdicts_that_never_or_always_fall() -> None:
    facts, passages = (verdict(one, {}) for one in series(generated()))
    assert facts.negligible_up_to == 0
    assert passages.negligible_up_to == 0.6
    assert (facts.at_floor, passages.at_floor) == (False, True)
    assert passages.falls == (None, None)


def test_a_later_return_does_not_count() -> None:
    scores = {0.0: 50.0, 0.1: 49.0, 0.2: 20.0, 0.3: 50.0}
    rows = [row(alpha=a, score=s, stderr=2.0, run_id=f"{a}") for a, s in scores.items()]
    assert verdict(series(rows)[0], {}).negligible_up_to == 0.1


def test_without_alpha_0_there_is_no_verdict() -> None:
    found = verdict(series(gsm8k()[1:])[0], ITEMS)
    assert (found.start, found.changes, found.negligible_up_to) == (None, (), None)
    assert found.falls == (0.25, 0.6)
    assert len(verdict_cells(found)) == len(VERDICT_HEADERS)
    assert summary([found]) == (
        f"No workload that scores above guessing was run at α = 0 and up to α = {CLAIMED_ALPHA:g}."
    )


def test_what_holds_up_to_just_the_papers_alpha_holds() -> None:
    """Without answers, standard errors hide what falls up to α = .35, the paper's own."""
    (one,) = series(gsm8k())
    assert "in 1 of 1 real datasets" in summary([verdict(one, {})])
    assert "in 0 of 1 real datasets" in summary([verdict(one, ITEMS)])


def test_the_summary_counts() -> None:
    (view,) = views(ROWS, ITEMS)
    assert view.summary == (
        "No visible change of the score up to α = 0.35 in 0 of 1 real datasets and in 0 of 1 "
        "generated families. Not counted, as they are at chance level at α = 0: passages."
    )


# ---------------------------------------------------------------------- beside the paper


def test_the_papers_change_at_the_same_alpha() -> None:
    (one,) = series(gsm8k())
    assert paper_change(one, 0.6) == pytest.approx(48.8 - 51.4)
    assert paper_change(one, 0.61) is None
    assert paper_change(series([row(generated=True)])[0], 0.6) is None
    assert paper_scores("S3")["race_middle"][0.0] == 80.0
    assert paper_scores("D1") == {}


def test_a_paper_with_two_values_has_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"gsm8k": {0.0: 50.0, 0.6: 48.0}}
    monkeypatch.setattr(module, "paper_scores", lambda setting: said)
    (one,) = series(gsm8k())
    assert paper_change(one, 0.6) == -2.0
    assert paper_change(one, 0.25) is None
    said["gsm8k"] = {0.6: 48.0}
    assert paper_change(one, 0.6) is None
    said.clear()
    assert paper_change(one, 0.6) is None


def test_a_view_has_ours_apart_and_the_papers_below() -> None:
    (view,) = views(ROWS, ITEMS)
    real, made, paper = view.blocks
    assert view.alphas == list(ALPHAS)
    assert [line.name for line in real.lines] == ["gsm8k", "", ""]
    assert [line.name for line in made.lines if line.name] == ["facts", "passages"]
    names = ["gaokao", "wic", "triviaqa", "race_middle", "gsm8k"]
    assert [line.name for line in paper.lines] == names
    score, agreement, kl = real.lines
    assert score.texts == ["45.0 ± 3.5", "44.0 ± 3.5", "42.0 ± 3.5", "30.0 ± 3.5"]
    assert agreement.texts == ["100.0", "98.5", "96.0", "81.0"]
    assert kl.texts == ["0", "0.0101", "0.0202", "0.13"]
    assert made.lines[-1].texts == ["–"] * 4
    assert paper.lines[-1].texts == ["51.4", "51.9", "50.2", "48.8"]
    lines = [line for block in view.blocks for line in block.text_lines]
    assert {len(line) for line in lines} == {len(view.headers)}
    assert {len(line) for line in view.verdict_lines} == {len(VERDICT_HEADERS)}


def test_settings_and_systems_have_views_and_scorings_have_lines() -> None:
    others = [row(setting="S2"), row(system="other"), row(scoring="prefill")]
    found = views([row(), *others], {})
    assert len(found) == 3
    measures = [line.measure for line in found[1].blocks[0].lines if line.name]
    assert measures == ["score (%), generation", "score (%), prefill"]
    drawn = curves(found[1].series, "score")
    assert drawn is not None
    values = drawn[1]
    assert [v["workload"] for v in values] == ["gsm8k · generation", "gsm8k · prefill"]
    assert len(series([row(), row(scoring="prefill")])) == 2


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "alpha.csv"
    with pytest.raises(InputError, match="cannot be read"):
        load(path)
    write_table(path, ROWS)
    write_items(path, ITEMS)
    assert load(path) == views(ROWS, ITEMS, str(path))


def test_a_table_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "alpha.csv"
    write_table(path, ROWS)
    (own,) = load(path)
    assert own.origin == f"{path}: {len(ROWS)} cells computed by code code; torch 2.13.0"
    assert all(view.origin.startswith("shipped with moebench: ") for view in load())


@pytest.mark.parametrize(("score", "chance"), [(0.0, None), (26.0, 25.0), (20.0, 25.0)])
def test_a_score_at_its_floor_shows_no_change_and_counts_for_nothing(
    score: float, chance: float | None
) -> None:
    rows = [
        row(alpha=a, score=score, stderr=3.0 * (score > 0), chance=chance, run_id=f"{a}")
        for a in ALPHAS
    ]
    (view,) = views(rows, {})
    assert "No workload that scores above guessing" in view.summary
    assert "at chance level at α = 0: gsm8k" in view.summary
    (line,) = view.verdict_lines
    assert line[VERDICT_HEADERS.index("negligible up to α")] == "at chance level"


def test_cut_answers_have_a_line_where_there_are_any() -> None:
    (cut,) = views([row(alpha=a, cut=n, run_id=f"{a}") for a, n in ((0.0, 0), (0.3, 3))], {})
    assert cut.blocks[0].lines[-1][:2] == ("", "answers cut")
    assert cut.blocks[0].lines[-1].texts == ["0", "3"]
    (whole,) = views([row(cut=0)], {})
    assert whole.blocks[0].lines[-1].measure == "KL (nats/token)"
