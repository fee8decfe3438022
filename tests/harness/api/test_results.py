"""Stored runs as a sequence and as data frames, from documents made by hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from moebench.harness.api import compare, results
from moebench.harness.api.results import Runs, documents_of
from moebench.results.samples import TokenSample, write_samples
from tests.reports.samples import run

A, B = "0a" * 8, "0b" * 8


@pytest.fixture
def runs(here: Path) -> Runs:
    return Runs((run(A), run(B, system="lru")), here)


def test_runs_are_a_sequence(runs: Runs, here: Path) -> None:
    assert len(runs) == 2
    assert [one["run_id"] for one in runs] == [A, B]
    assert runs[-1]["run_id"] == B
    part = runs[1:]
    assert (part.documents, part.store, part.failures) == (runs.documents[1:], here, ())


def test_a_frame_has_specs_facts_and_figures(runs: Runs) -> None:
    frame = runs.frame()
    assert list(frame.run_id) == [A, B]
    assert list(frame.system) == ["smoe", "lru"]
    assert list(frame.tpot_ms) == [one["metrics"]["tpot_ms"]["mean"] for one in runs]
    assert list(frame.commit) == [one["provenance"]["commit"] for one in runs]
    assert list(frame.simulated) == [one["simulated"] for one in runs]
    assert {"badge", "lossless", "hit_ratio"} <= {*frame.columns}


def test_a_notebook_shows_the_main_columns_that_are_known(runs: Runs) -> None:
    html = runs._repr_html_()
    assert html.startswith("<table")
    names = ["run_id", "system", "setting", "tpot_ms"]
    places = [html.index(f"<th>{name}</th>") for name in names]
    assert places == sorted(places)
    assert "<th>commit</th>" not in html
    assert "<th>lossless</th>" not in html
    frame = runs.frame().dropna(axis="columns", how="all")
    assert ("<th>kl</th>" in html) == ("kl" in frame)


def test_samples_are_those_that_are_stored(runs: Runs, here: Path) -> None:
    write_samples(here, B, [TokenSample(0, 0, 1_500_000, None), TokenSample(0, 1, 2_000, [3])])
    frame = runs.samples()
    assert frame.to_numpy().tolist() == [[B, 0, 0, 1.5], [B, 0, 1, 0.002]]
    assert list(frame.columns) == ["run_id", "batch", "step", "ms"]
    assert list(runs[:1].samples().columns) == ["run_id", "batch", "step", "ms"]
    assert len(runs[:1].samples()) == 0


def test_runs_are_compared_with_the_conditions_that_may_differ(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "tabulated", lambda *given: given)
    assert runs.compare(["software"]) == (runs.documents, ["software"])  # type: ignore[comparison-overlap]
    assert runs.compare() == (runs.documents, ())  # type: ignore[comparison-overlap]


def test_documents_are_those_that_the_store_has() -> None:
    store = SimpleNamespace(get={"a": {"run_id": "a"}}.get)
    assert list(documents_of(store, ["b", "a"])) == [{"run_id": "a"}]
    assert results.Runs((), Path()).documents == ()
