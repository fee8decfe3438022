"""Every measure that reads runs alone, on invented runs of its own cells.

On a computer on which everything takes twice as long, times double, rates halve, and all other
figures (ratios, shares, scores, orders) stay as they are.
"""

import copy
import hashlib
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import generated_texts
from moebench.harness.reproduce.claim import Claim, PaperClaims
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError
from moebench.results.claims import PAPERS, Exhibit, Form, read
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.systems.options import build_any, describe

BASE = json.loads((Path(__file__).parents[3] / "benchmarks" / "page.json").read_text())

#: How a figure of a unit changes if everything takes twice as long.
SLOWER = {"ms": 2.0, "s": 2.0, "us": 2.0, "h": 2.0, "tokens/s": 0.5, "J": 2.0,
          "tokens/kJ": 0.5}  # fmt: skip

#: Claims that compute, which takes seconds: routing is drawn, caches are replayed, a network is
#: timed.
COMPUTED = ("S-6 ", "S-10 ", "F-1 ", "F-5 ", "F-8 ", "F-9 ",
            "F-11 features")  # fmt: skip
#: Exhibits that do.
DRAWN = {("smoe", "_fig_15"), ("duoserve", "_fig_4"), ("flashmoe", "figure_6")}

ENERGIES = ("gpu, idle", "gpu, at work", "host, idle", "host, at work")

REGISTRIES = [
    pytest.param(import_module(f"moebench.harness.reproduce.{name}").PAPER, id=name)
    for name in PAPERS
]


def number(*key: object) -> float:
    """Return a number from 0.5 to 1.5 that depends on the key alone."""
    text = json.dumps(key, sort_keys=True, default=str).encode()
    return 0.5 + int(hashlib.sha256(text).hexdigest()[:12], 16) / 2**48


def invented(spec: RunSpec, slower: float) -> dict[str, Any]:
    """Return the document of a run whose times are its own, and ``slower`` times as long."""
    run = copy.deepcopy(BASE)
    run["spec"] = spec.model_dump() | {"options": describe(build_any(
        spec.system, spec.overrides, spec.variant))}  # fmt: skip
    run["spec"]["slots"] = spec.slots or 648  # a document says how many there were
    alpha = spec.overrides.get("alpha")
    run["spec"]["alpha"] = None if alpha is None else float(alpha)
    key = spec.model_dump_json()
    run["run_id"] = hashlib.sha256(key.encode()).hexdigest()[:12]

    def times(values: Any, *name: str) -> Any:
        if isinstance(values, dict):
            return {part: times(value, *name, part) for part, value in values.items()}
        return None if values is None else values * slower * number(key, *name)

    metrics = run["metrics"]
    for name in ("tpot_ms", "ttft_ms", "e2e_ms", "load_ms", "lanes", "stall_ms"):
        metrics[name] = times(metrics[name], name)
    for name in ("lanes", "stall_ms"):
        metrics["decode"][name] = times(metrics["decode"][name], "decode", name)
    parts = {name: 100 * slower * number(key, name) for name in ENERGIES}
    metrics["energy"] = {"source": "simulated", "parts_j": parts, "reason": None}
    metrics["energy_j"] = sum(parts.values())
    metrics["tokens_per_kj"] = 1e6 / metrics["energy_j"]
    metrics["tokens_per_s"] *= number(key) / slower
    metrics["cache_ratio"] = 0.5 * number(key, "ratio")
    metrics["cache_ratio_begun"] = metrics["cache_ratio"] * 1.1
    run["accuracy"]["score"] = 50 * number(key, "score")
    run["accuracy"]["items"] = {"value": [float(number(key, f"item {n}") > 1) for n in range(8)]}
    run["provenance"]["learnt"] = {"prefetch": {"best_epoch": str(int(20 * number(key, "epoch")))}}
    return run


class Invented(Evidence):
    """Evidence whose runs are invented; texts, models and recordings are missing."""

    slower = 1.0

    def _documents(self, experiment: Experiment) -> Iterator[dict[str, Any]]:
        return (invented(spec, self.slower) for spec in self.specs(experiment))


class OfASlowComputer(Invented):
    """The same on a computer on which everything takes twice as long."""

    slower = 2.0


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Evidence, Evidence]:
    def missing(*_: object, **__: object) -> None:
        raise MissingEvidenceError("no model computes here")

    monkeypatch.setattr(generated_texts, "open_weights", missing)
    return tuple(
        kind(Store(tmp_path), None, tmp_path, True) for kind in (Invented, OfASlowComputer)
    )


def measured(claim: Claim, evidence: Evidence) -> Any:
    assert claim.measure is not None
    try:
        return claim.measure(evidence)
    except MissingEvidenceError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("paper", REGISTRIES)
def test_a_slower_computer_changes_times_and_rates_alone(
    paper: PaperClaims, both: tuple[Evidence, Evidence]
) -> None:
    compared = 0
    for claim in paper.claims:
        if claim.measure is None or claim.id.startswith(COMPUTED):
            continue
        one, other = (measured(claim, evidence) for evidence in both)
        assert (one is None) == (other is None), claim.id
        if one is None:
            continue
        # Without a run, a time is one of the cost model or a published one.
        factor = SLOWER.get(claim.unit, 1.0) if claim.needs else 1.0
        assert math.isfinite(one.value), claim.id
        assert other.value == pytest.approx(factor * one.value, rel=1e-4, abs=1e-4), claim.id
        assert len(one.samples) == len(other.samples) >= 1
        assert one.conditions == other.conditions
        compared += 1
    assert compared >= LEAST[paper.paper]


#: How many claims of each paper can be measured on runs alone, at least.
LEAST = {"smoe": 75, "daop": 28, "duoserve": 38, "flashmoe": 20, "field": 12}


@pytest.mark.slow
@pytest.mark.parametrize("paper", REGISTRIES)
def test_tables_and_figures_have_a_row_for_each_run_and_finite_numbers(
    paper: PaperClaims, both: tuple[Evidence, Evidence]
) -> None:
    made: list[Exhibit] = []
    for show in paper.exhibits:
        if (paper.paper, show.make.__name__) in DRAWN:
            continue
        try:
            made.append(show.make(both[0]))
        except MissingEvidenceError:
            continue
    assert made
    for one in made:
        fields = {axis.field for axis in (*one.columns, one.x, one.y, one.colour) if axis}
        assert one.rows or one.id == "duoserve-fig-6"  # of samples, which no invented run has
        assert fields
        for row in (*one.rows, *one.paper_rows):
            assert fields & row.keys()
            assert all(math.isfinite(v) for v in row.values() if isinstance(v, float)), one.id
        assert one.form in Form.__args__


#: Claims that compute on all cells.
OF_MODELS = (*COMPUTED, "S-13 ", "S-15 ", "S-16 ", "F-11 epochs")


@pytest.fixture
def full(both: tuple[Evidence, Evidence], tmp_path: Path) -> Evidence:
    return Invented(Store(tmp_path), None, tmp_path, quick=False)


def check_claims(paper: PaperClaims, full: Evidence) -> None:
    """Check that claims read as many runs, and say the same, as those of the results that ship."""
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    compared = 0
    for claim, result in zip(paper.claims, shipped.claims, strict=True):
        if result.measured is None or claim.id.startswith(OF_MODELS):
            continue
        seen = full.watched()
        found = measured(claim, seen)
        if found is None:
            continue
        if claim.control is not None:
            claim.control(seen)
        expected = result.measured
        assert (len(found.samples), found.over, found.conditions, len(seen.used)) == (
            len(expected.samples), expected.over, expected.conditions, len(result.runs),
        ), claim.id  # fmt: skip
        assert (found.badge == "counted") == (expected.badge == "counted"), claim.id
        compared += 1
    assert compared >= LEAST[paper.paper]


def check_exhibits(paper: PaperClaims, full: Evidence) -> None:
    """Check all of tables and figures but measured numbers: axes, captions, fields of rows."""
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    known = {one.id: one for one in shipped.exhibits}
    compared = 0
    for show in paper.exhibits:
        if (paper.paper, show.make.__name__) in DRAWN | WATCHED:
            continue
        seen = full.watched()
        try:
            found = show.make(seen)
        except MissingEvidenceError:
            continue
        expected = known[found.id]
        numbers = {"rows": (), "badge": "", "runs": ()}
        assert found.model_copy(update=numbers) == expected.model_copy(update=numbers)
        assert len(seen.used) == len(expected.runs), found.id
        if found.id in OF_SAMPLES:
            continue
        if seen.used:
            ours, theirs = (list(map(shape, one.rows)) for one in (found, expected))
            assert ours == theirs, found.id
        else:  # nothing was run: numbers are counted, or those of cost models
            assert len(found.rows) == len(expected.rows), found.id
            for ours, theirs in zip(found.rows, expected.rows, strict=True):
                near = {key: pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
                        for key, value in theirs.items()}  # fmt: skip
                assert ours == near, found.id
        compared += 1
    assert compared >= 4


#: Exhibits that compute with models on all prompts, which takes a quarter of a minute.
WATCHED = {("smoe", name) for name in ("_table_1", "_batches", "_fig_4", "_fig_6")}

#: A figure of samples, which no invented run has, and a table of what times imply.
OF_SAMPLES = ("duoserve-fig-6", "smoe-host-bandwidth")


def shape(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a mark in place of its measured numbers."""
    return {key: "a number" if isinstance(value, float) else value for key, value in row.items()}


@pytest.mark.slow
@pytest.mark.parametrize("paper", REGISTRIES)
def test_figures_without_runs_are_those_of_the_results_that_ship(
    paper: PaperClaims, both: tuple[Evidence, Evidence]
) -> None:
    """Times of the cost model and published numbers, of claims and of their counter-experiments."""
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    compared = []
    for claim, result in zip(paper.claims, shipped.claims, strict=True):
        if claim.timed_here or claim.id.startswith(OF_MODELS) or result.measured is None:
            continue
        made = {one.name: one for one in result.counters}
        asked = [(claim.measure, result.measured)]
        asked += [(one.measure, made[one.name].measured)
                  for one in claim.counters if one.measure and one.name in made]  # fmt: skip
        for measure, expected in asked:
            seen = both[0].watched()
            try:
                found = measure(seen) if measure else None
            except MissingEvidenceError:
                continue
            if found is None or seen.used:
                continue
            assert found.samples == pytest.approx(expected.samples, rel=1e-5), claim.id
            told = [(one.over, one.badge, one.conditions) for one in (found, expected)]
            assert told[0] == told[1], claim.id
            compared.append(claim.id)
    assert len(compared) >= WITHOUT_RUNS[paper.paper], len(compared)


#: How many figures of each paper need no run, at least, and without the data of the papers.
WITHOUT_RUNS = {"smoe": 20, "daop": 11, "duoserve": 12, "flashmoe": 8, "field": 0}
