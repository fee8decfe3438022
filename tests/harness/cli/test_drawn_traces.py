"""Drawn traces, and those that ship: on the shipped catalogue, whose figures they hold."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import trace
from moebench.harness.one_run import prepare, run
from moebench.harness.run import replay, rules
from moebench.harness.sweep.plan import cells_from_file
from moebench.harness.sweep.worker import group_of
from moebench.results.store import Store
from moebench.substrate.analysis import targets as all_targets
from moebench.substrate.analysis.targets import Target, judge, targets
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines import profile as profiles
from moebench.substrate.models.catalogue import scale_names
from moebench.substrate.traces import fit, published, recipes
from moebench.substrate.traces.catalogue import SHIPPED, trace_names
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.synthesis import Topology
from tests.harness.commands import Called, call, refused

SHIPPED_RECIPES = recipes.RECIPES

SMOE = ("--system", "smoe", "--alpha", "0")


def draw(*arguments: str) -> Called:
    small = ("--sequences", "2", "--prompt-tokens", "4", "--new-tokens", "12", "--out", "drawn")
    return call("trace", "synthesize", "--model", "mixtral-8x7b", *small, "--json", *arguments)


@pytest.mark.slow
def test_a_drawn_trace_is_compared_and_replays() -> None:
    statistics = draw("--like", "mixtral-8x7b").json["statistics"]
    target = targets("mixtral-8x7b")["lag_overlap.1"]
    assert statistics["lag_overlap.1"]["target"] == [target.low, target.high]
    drawn = statistics["prediction.gate"]["drawn"]
    assert drawn == pytest.approx(0.84, abs=0.05)
    assert statistics["prediction.gate"]["judgement"] == judge(
        drawn, targets("mixtral-8x7b")["prediction.gate"]
    )
    assert "used.64" not in statistics, "texts of 15 tokens"
    document = call("run", "--trace", "drawn", "--setting", "D1", *SMOE, "--json").json
    assert document["spec"]["new_tokens"] == 12, "the setting's 512 are more than there are"
    assert any("drawn, not recorded" in note for note in document["notes"])


def test_what_was_asked_stands_in_place_of_a_target() -> None:
    asked = ("--static", "0.4", "--recall", "0.7", "--prefill-similarity", "0.6")
    statistics = draw(*asked).json["statistics"]
    assert statistics["prediction.gate"]["target"] == [0.7, 0.7]
    assert statistics["prefill_decode_similarity"]["target"] == [0.6, 0.6]


def test_the_table_of_a_drawn_trace() -> None:
    called = call(
        "trace", "synthesize", "--model", "gpt-oss-20b", "--like", "gpt-oss-20b", "--sequences",
        "2", "--prompt-tokens", "2", "--new-tokens", "40", "--out", "drawn",
    )  # fmt: skip
    assert called.out.splitlines()[0] == "statistic\ttarget\tdrawn\tjudgement"
    assert [line.split("\t")[1] for line in called.out.splitlines()[1:]].count("-") > 10


def test_a_recipe_is_a_familys_with_what_was_typed() -> None:
    family = recipes.family("mixtral-8x7b")
    assert trace._recipe("mixtral-8x7b", None, None, static=None, rho=None) == family
    assert trace._recipe("mixtral-8x7b", None, "0.5,1,1.5", spread=2.0) == replace(
        family, depth=(0.5, 1.0, 1.5), spread=2.0
    )
    assert trace._recipe(None, None, None, static=0.4, ar1=0.3) == SynthesisRecipe(
        static=0.4, ar1=0.3
    )
    for noise in (0.3, 0.304, 0.296):
        assert trace._recipe(None, noise, None, static=0.4, ar1=0.3).static == 0.4
    for noise in (0.306, 0.294):
        with pytest.raises(UsageError, match=r"must sum to 1, static and ar1 leave 0\.3$"):
            trace._recipe(None, noise, None, static=0.4, ar1=0.3)


def test_values_are_shown_as_text() -> None:
    nested = {"a": {"b": 0.123456, "c": {"d": [1.0, None]}}, "e": []}
    assert trace._lines(trace._flat(nested)) == [
        ["a.b", "0.1235"], ["a.c.d", "1, -"], ["e", "-"],
    ]  # fmt: skip
    assert trace._lines({"x": {"k": 2.5, "l": None}, "y": {}, "z": "text"}) == [
        ["x", "k 2.5, l -"], ["y", "-"], ["z", "text"],
    ]  # fmt: skip


def test_typed_figures_replace_a_models_targets() -> None:
    shipped = targets("mixtral-8x7b")
    assert trace._asked("mixtral-8x7b", None, None) == shipped
    found = trace._asked("mixtral-8x7b", None, 0.7)
    assert found == {**shipped, "prediction.gate": Target(0.7, 0.7, "asked")}
    assert trace._asked("gpt-oss-20b", 0.5, None) == {
        "prefill_decode_similarity": Target(0.5, 0.5, "asked")
    }


# ----------------------------------------------------------------------------- fitting


def test_what_stays_outside_its_target_is_said_of_each_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"used.32": Target(0.4, 0.6, ""), "used.64": Target(0.4, 0.6, ""),
             "used.8": Target(0.4, 0.6, ""), "used.16": Target(0.4, 0.6, ""),
             "absent": Target(0, 1, "")}  # fmt: skip
    drawn = {"used.32": 0.65, "used.64": 0.4, "used.8": 0.1, "used.16": 0.6, "gini": 9.0}
    monkeypatch.setattr(all_targets, "targets", lambda model: known)
    monkeypatch.setattr(fit, "fit", lambda recipe, *rest: recipe)
    monkeypatch.setattr(fit, "drawn_statistics", lambda recipe, topology: drawn)
    written: list[str] = []
    monkeypatch.setattr(recipes, "write_recipe", lambda model, recipe: written.append(model))
    called = call("trace", "fit", "mixtral-8x7b")
    assert called.code == 0, called.err
    assert called.err.splitlines() == [
        "mixtral-8x7b: used.32 0.650, target 0.4 to 0.6: near",
        "mixtral-8x7b: used.8 0.100, target 0.4 to 0.6: off",
    ]
    assert written == []
    called = call("trace", "fit", "--write")
    assert [line.split(":")[0] for line in called.out.splitlines()] == scale_names()
    assert written == scale_names()


@pytest.mark.slow
def test_a_fit_finds_variances_as_those_that_texts_were_drawn_with() -> None:
    """Targets are what another recipe draws, so the fit has a truth to find."""
    topology = Topology(3, 16, 2)
    truth = SynthesisRecipe(static=0.4, ar1=0.2, rho=0.9, common=0.5, prefill=0.8)
    figures = fit.drawn_statistics(truth, topology)
    wanted = {name: Target(figures[name], figures[name], "drawn") for name in fit_names(figures)}
    start = fit.loss(SynthesisRecipe(static=0.05), topology, wanted)
    found = fit.fit(SynthesisRecipe(static=0.05, spread=2), topology, wanted, steps=15)
    assert found.spread == 2
    assert fit.loss(found, topology, wanted) < start / 4
    assert fit.loss(truth, topology, wanted) == 0


def fit_names(figures: dict[str, float]) -> list[str]:
    kinds = ("used.", "lag_overlap.", "hit_rates.quarter", "popularity_within.")
    return [name for name in figures if name.startswith(kinds)]


def test_fitted_recipes_are_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "recipes.yaml"
    shutil.copy(recipes.RECIPES, file)
    monkeypatch.setattr(recipes, "RECIPES", file)
    other = replace(recipes.family("phi-3.5-moe"), static=0.6)
    monkeypatch.setattr(fit, "fit", lambda *given: other)
    called = call("trace", "fit", "phi-3.5-moe")
    assert called.code == 0, called.err
    assert called.out.startswith("phi-3.5-moe: {static: 0.6, ")
    assert "phi-3.5-moe: used.32 " in called.err, "popularity is not that uneven"
    assert recipes.recipes(file)["phi-3.5-moe"].static != 0.6
    recipes.recipes.cache_clear()
    assert call("trace", "fit", "phi-3.5-moe", "--write").code == 0
    assert recipes.recipes(file)["phi-3.5-moe"] == other
    before, after = (path.read_text().splitlines() for path in (SHIPPED_RECIPES, file))
    assert len(before) == len(after)
    assert [b for b, a in zip(before, after, strict=True) if b != a] == [
        line for line in before if line.startswith("phi-3.5-moe:")
    ]
    recipes.recipes.cache_clear()


def test_a_model_without_targets_cannot_be_fitted() -> None:
    assert "no targets of its routing" in refused("trace", "fit", "gpt-oss-20b")
    assert "unknown family 'gpt-oss'" in refused("trace", "fit", "gpt-oss")


# ----------------------------------------------------------------------------- sweeps


@pytest.mark.slow
def test_a_sweep_opens_a_trace_once_and_runs_it_as_a_run_does() -> None:
    draw("--like", "mixtral-8x7b")
    plan = {
        "common": {"trace": "drawn", "setting": "D1"},
        "product": {"system": ["moe-ondemand", "gpu-only"], "allow_overcommit": True},
        "zip": {"batch": [1, 2], "prompts": [1, 2], "new_tokens": [12, 5]},
    }
    Path("s.yaml").write_text(json.dumps(plan))
    specs = cells_from_file(Path("s.yaml"), None)
    assert len({group_of(spec) for spec in specs}) == 1
    cells = call("sweep", "s.yaml", "--jobs", "0", "--json").json["cells"]
    alone = [run(prepare(spec, None), Path("alone")).document for spec in specs]
    assert sorted(c["run_id"] for c in cells) == sorted(d["run_id"] for d in alone)
    stored = {run_["run_id"]: run_ for run_ in Store(Path(".moebench")).runs()}
    for document in alone:
        assert stored[document["run_id"]]["metrics"] == document["metrics"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give --like NAME, or --static"),
        (("--like", "olmo"), "olmoe-1b-7b"),
        (("--static", "0.9", "--ar1", "0.3"), "sum may be 1"),
        (("--static", "0.4", "--noise", "0.3"), "the variances must sum to 1"),
        (("--static", "0.4", "--depth", "1,2"), "expected three numbers"),
    ],
)
def test_an_impossible_draw_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    called = draw(*arguments)
    assert called.code == 2
    assert says in called.err
    assert not Path("drawn").exists()


# ----------------------------------------------------------------------------- what ships


@pytest.mark.slow
@pytest.mark.parametrize("name", trace_names())
def test_shipped_traces_are_small_and_replay_by_name(name: str) -> None:
    assert sum(f.stat().st_size for f in (SHIPPED / name).iterdir()) < 2e6
    model = open_trace(SHIPPED / name).header.model
    called = call(
        "run", "--trace", name, "--model", model, "--machine", "a6000", *SMOE, "--json",
        "--new-tokens", "3",
    )  # fmt: skip
    assert called.code == 0, called.err


def test_one_ships() -> None:
    assert trace_names()


# ----------------------------------------------------------------------------- imported traces


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Errors of machines by their names; others replay a trace.  ``names`` has those tried."""
    errors: dict[str, Any] = {"names": []}

    def resolve(data_dir: Any, **given: Any) -> str:
        assert given["system"] == "moe-ondemand"
        assert given["trace"] == "a b"
        errors["names"].append(given["machine"])
        if given["machine"] in errors:
            raise errors[given["machine"]]
        return str(given["machine"])

    monkeypatch.setattr(rules, "resolve", resolve)
    monkeypatch.setattr(
        replay, "prepare", lambda spec, data_dir: SimpleNamespace(check_memory=lambda: None)
    )
    monkeypatch.setattr(profiles, "profile_names", lambda: ["a100", "h100"])
    return errors


def test_an_imported_trace_is_used_on_the_first_machine_that_replays_it(
    tried: dict[str, Any],
) -> None:
    use = "use it: moebench run --trace 'a b' --system moe-ondemand --machine "
    assert trace._how_to_use(Path("a b"), "m") == f"{use}a6000"
    tried["a6000"] = UsageError("too large")
    tried["a100"] = UsageError("too large, too")
    assert trace._how_to_use(Path("a b"), "m") == f"{use}h100"
    tried["h100"] = UsageError("no")
    said = trace._how_to_use(Path("a b"), "m")
    assert said == "no machine of the catalogue replays it: too large"
    assert tried["names"][-3:] == ["a6000", "a100", "h100"]
    tried["a6000"] = UnknownNameError("model", "m", ["other"])
    assert trace._how_to_use(Path("a b"), "m") == (
        "m is not in the catalogue: moebench run --trace 'a b' --system moe-ondemand --machine "
        "a6000 --model config.json, the path of its shape"
    )


def test_an_import_says_notes_and_how_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def import_trace(*what: Any) -> Any:
        given.append(what)
        return SimpleNamespace(notes=("one", "two"), model="m")

    monkeypatch.setattr(published, "import_trace", import_trace)
    monkeypatch.setattr(trace, "_how_to_use", lambda out, model: f"use {out} of {model}")
    called = call("trace", "import", "src", "--out", "new", "--model", "x", "--prompt-tokens", "3")
    assert (called.code, called.out) == (0, "")
    assert called.err.splitlines() == ["note: one", "note: two", "use new of m"]
    assert given == [(Path("src"), Path("new"), "x", 3)]
    Path("new").mkdir()
    assert "new: exists; give another --out" in refused("trace", "import", "src", "--out", "new")
    assert len(given) == 1
