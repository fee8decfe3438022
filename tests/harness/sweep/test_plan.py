"""Expansion of a sweep's file into cells, and refusals of invalid files."""

import math
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.sweep import plan as plans
from moebench.harness.sweep.plan import CATALOGUE, cells_from_file, expand
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.traces.catalogue import SHIPPED
from moebench.systems.options import build, describe
from moebench.systems.registry import DECISIONS, SYSTEMS
from tests.harness.commands import call

SMALL = {"workload": "arithmetic", "prompts": 1, "new_tokens": 3, "setting": "S3"}


def cells(common: dict[str, Any] | None = None, **parts: Any) -> list[RunSpec]:
    return expand({"common": SMALL | (common or {}), **parts}, None)


def spec(**given: Any) -> RunSpec:
    return resolve(None, **SMALL | given)


def test_the_product_of_all_axes() -> None:
    found = cells(product={"system": ["gpu-only", "moe-ondemand"], "batch": [1, 2], "prompts": 4})
    assert found == [
        spec(system=system, batch=batch, prompts=4)
        for system in ("gpu-only", "moe-ondemand")
        for batch in (1, 2)
    ]


def test_zipped_lists_go_together() -> None:
    found = cells(product={"system": "gpu-only"}, zip={"batch": [1, 3], "prompts": [2, 3]})
    assert [(s.batch, s.prompts) for s in found] == [(1, 2), (3, 3)]
    twice = [{"batch": [1, 3], "prompts": [2, 3]}, {"seed": [0, 1], "new_tokens": [4, 5]}]
    found = cells(product={"system": "gpu-only"}, zip=twice)
    assert [(s.batch, s.seed, s.new_tokens) for s in found] == [
        (1, 0, 4), (1, 1, 5), (3, 0, 4), (3, 1, 5),
    ]  # fmt: skip


def test_excluded_cells_have_all_of_the_values() -> None:
    found = cells(
        product={"system": ["smoe", "gpu-only"], "alpha": [0.1, 0.2], "seed": [0, 1]},
        exclude=[{"system": "smoe", "alpha": 0.1}, {"seed": 1}],
    )
    assert found == [spec(system="smoe", alpha=0.2), spec(system="gpu-only")]


def test_an_entry_may_set_several_fields() -> None:
    lru = {"system": "smoe", "set": {"evict": "lru", "prefetch": "none"}}
    found = cells(
        {"set": {"alpha": 0.1}}, product={"system": ["smoe", lru], "set": [{}, {"scope": "layer"}]}
    )
    options = [s.overrides for s in found]
    assert options == [
        spec(system="smoe", overrides={"alpha": "0.1", **more}).overrides
        for more in (
            {},
            {"scope": "layer"},
            {"evict": "lru", "prefetch": "none"},
            {"evict": "lru", "prefetch": "none", "scope": "layer"},
        )
    ]


def test_alpha_counts_only_where_a_system_has_one() -> None:
    found = cells(product={"system": ["gpu-only", "smoe"], "alpha": [0.1, 0.2, 0.10]})
    assert found == [
        spec(system="gpu-only"),
        spec(system="smoe", alpha=0.1),
        spec(system="smoe", alpha=0.2),
    ]
    swapped = cells(product={"system": "smoe", "alpha": [0.1, 0.2], "set": {"route": "exact"}})
    assert swapped == [spec(system="smoe", overrides={"route": "exact"})]


def test_system_all_expands_to_every_system() -> None:
    assert {s.system for s in cells(product={"system": "all"})} == set(SYSTEMS)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ({"products": {}}, "unknown sweep key 'products'; nearest: product"),
        ({"product": {"systems": ["smoe"]}}, "unknown field in product 'systems'; nearest: system"),
        ({"common": {"settings": "S3"}}, "unknown field in common 'settings'; nearest: setting"),
        ({"exclude": [{"sistem": "smoe"}]}, "unknown field in exclude 'sistem'; nearest: system"),
        ({"product": {"system": ["smooe"]}}, "unknown system 'smooe'; nearest: smoe"),
        ({"product": {"system": [7]}}, "product: system 7: Input should be a valid string"),
        ({"product": {"batch": ["x"]}}, "product: batch 'x': Input should be a valid integer"),
        ({"product": {"alpha": ["x"]}}, "product: alpha 'x': Input should be a valid number"),
        ({"product": {"system": "smoe", "alpha": math.nan}}, "alpha nan: allowed: a finite number"),
        ({"product": {"system": "smoe", "workload": "no"}}, "unknown workload 'no'"),
        ({"product": {"system": "smoe", "machine": "a600"}}, "unknown machine 'a600'; nearest: a6"),
        ({"product": {"system": "smoe", "model": "mixtrl"}}, "unknown model 'mixtrl'; nearest: m"),
        ({"product": {"system": "smoe", "setting": "S9"}}, "unknown setting 'S9'"),
        ({"product": {"system": "smoe", "set": {"evikt": "lru"}}}, "unknown option 'evikt'"),
        ({"product": {"system": "smoe", "set": "evict=lru"}}, "expected `key: value` lines, found"),
        ({"product": ["smoe"]}, "product: expected `key: value` lines, found ['smoe']"),
        ({"zip": {"batch": [1], "seed": [1, 2]}}, "equally long; found batch 1, seed 2"),
        ({"product": {"system": []}}, "the sweep has no cell"),
        ({}, "no system: give `system: [smoe, ...]` or --systems smoe,..."),
        ({"product": {"system": "smoe", "batch": 2}}, "--prompts 1 does not fill batches of 2"),
    ],
)
def test_invalid_plan_is_rejected_with_one_line(plan: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MoeBenchError) as caught:
        expand({"common": SMALL} | plan, None)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("product: [", "not valid YAML"),
        ("- smoe", "expected `key: value` lines"),
        ("", "expected `key: value` lines"),
        ("product: {sistem: smoe}", "nearest: system"),
    ],
)
def test_a_bad_file_is_named(here: Path, text: str, complaint: str) -> None:
    Path("s.yaml").write_text(text)
    called = call("sweep", "s.yaml")
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert "s.yaml" in called.err
    assert complaint in called.err


def test_missing_sweep_file_lists_shipped_sweeps() -> None:
    called = call("sweep", "no.yaml")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert (
        "no such file; sweeps that ship: daop, duoserve, field, flashmoe, routing, smoe-ablation, "
        "smoe-window, standard" in called.err
    )


def test_the_ablation_has_both_bases_and_adds_one_decision_a_step() -> None:
    specs = cells_from_file(Path("smoe-ablation"), None)
    assert len(specs) == 3 * 6 * 2
    assert {(spec.setting, spec.batch) for spec in specs} == {
        (setting, batch) for setting in ("S1", "S2", "S3") for batch in (1, 3)
    }
    alone = [spec for spec in specs if (spec.setting, spec.batch) == ("S3", 1)]
    steps = [describe(spec.make_system()) for spec in alone]
    on_host, loaded, *ladder, whole = steps

    def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
        return {d for d in DECISIONS if before[d] != after[d]}

    assert changed(on_host, loaded) == {"assign"}
    pairs = [changed(a, b) for a, b in pairwise([loaded, *ladder, whole])]
    assert pairs == [{"evict"}, {"route"}, {"prefetch"}, {"assign"}]
    assert whole == describe(build("smoe"))


def test_smoe_window_sweep_covers_settings_and_windows() -> None:
    specs = cells_from_file(Path("smoe-window"), None)
    windows = [(spec.setting, spec.overrides["evict.window"]) for spec in specs]
    assert windows == [(s, n) for s in ("S1", "S2", "S3") for n in ("2", "4", "8", "16", "32")]


def test_optional_cells_are_left_out_where_they_cannot_be() -> None:
    plan = {
        "common": {"setting": "S3", "new_tokens": 3},
        "product": {
            "system": ["smoe", "gpu-only"],
            "routing": [
                {"routing": "model", "workload": "arithmetic", "prompts": 1},
                {"routing": "real"},
                {"weights": "elsewhere/{model}"},
            ],
        },
        "optional": [{"routing": "real"}, {"weights": "elsewhere/{model}"}],
    }
    said: list[str] = []
    found = expand(plan, None, said.append)
    assert [(s.system, s.routing, s.weights) for s in found] == [
        ("smoe", "model", None), ("gpu-only", "model", None),
    ]  # fmt: skip
    assert len(said) == 2, "once, not for each system"
    assert "left out: --routing real: needs a data folder" in said[0]
    assert "left out: weights elsewhere/qwen2-57b-a14b: no such folder" in said[1]
    del plan["optional"]
    with pytest.raises(UsageError, match="needs a data folder"):
        expand(plan, None)


def test_weights_may_name_their_cells_fields(here: Path) -> None:
    (here / "before" / "qwen2-57b-a14b").mkdir(parents=True)
    (found,) = cells(product={"system": "smoe", "weights": "before/{model}"})
    assert found.weights == "before/qwen2-57b-a14b"
    with pytest.raises(UsageError, match=r"weights before/\{name\}: no field 'name'"):
        cells(product={"system": "smoe", "weights": "before/{name}"})


def test_the_routing_sweep_needs_neither_recordings_nor_other_weights() -> None:
    found = cells_from_file(Path("routing"), None)
    assert Counter((s.setting, s.routing) for s in found) == {
        (setting, routing): 6
        for setting in ("S1", "S2", "S3", "D1", "F1")
        for routing in ("model", "drawn")
    }


@pytest.mark.parametrize("part", ["common", "product"])
def test_a_system_that_is_null_is_a_missing_one(part: str) -> None:
    with pytest.raises(UsageError, match="no system: give"):
        expand({"common": SMALL, "product": {}} | {part: SMALL | {"system": None}}, None)


def test_a_trace_of_each_cell_replaces_what_it_says_itself(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "qwen2-57b-a14b__arithmetic", tmp_path / "qwen2-57b-a14b__arithmetic")
    place = {"trace": f"{tmp_path}/{{model}}__{{workload}}", "few_shot": 2, "batch": 1}
    found = cells(place, product={"system": ["moe-ondemand", "smoe"], "cache_ratio": [0.3, 0.5]})
    traced = {"trace": str(tmp_path / "qwen2-57b-a14b__arithmetic"), "setting": "S3"}
    assert found == [
        resolve(None, system=name, cache_ratio=ratio, prompts=1, new_tokens=3, **traced)
        for name in ("moe-ondemand", "smoe")
        for ratio in (0.3, 0.5)
    ]
    assert {one.workload for one in found} == {"arithmetic"}


def test_the_standard_sweep_says_how_to_record_its_traces() -> None:
    with pytest.raises(UsageError, match="is missing; record it: moebench trace record --all"):
        cells_from_file(Path("standard"), None)


def test_daops_sweep_has_the_lengths_of_its_figures() -> None:
    """Fig. 10 is [256, 256] at every ratio, Fig. 9 [256, 512] at one; tables are Mixtral's."""
    found = cells_from_file(Path("daop"), None)
    speed = [spec for spec in found if spec.scoring == "fixed-length"]
    each = [(setting, title) for setting in ("D1", "D2") for title in DAOPS]
    assert Counter((s.setting, s.title, s.new_tokens) for s in speed) == {
        **{(*one, 256): 5 for one in each},
        **{(*one, 512): 1 for one in each},
    }
    assert {s.cache_ratio for s in speed if s.new_tokens == 512} == {0.469}
    assert {s.few_shot for s in speed} == {5}
    assert {s.setting for s in found if s not in speed} == {"D1"}


DAOPS = ("daop", "daop (shipped)", "moe-ondemand")


@pytest.mark.slow
def test_the_field_has_llamacpps_fit_at_every_place() -> None:
    cells = cells_from_file(Path("field"), None)
    places = {(one.machine, one.model, one.quant, one.context) for one in cells}
    fits = [one for one in cells if one.overrides == {"place": "fit"}]
    assert len(fits) == len(places) == 6 * 5 * 2
    assert {one.context for one in cells} == {2048, 32768}
    assert {one.batch for one in cells} == {1}


def test_a_sweep_with_an_unknown_system_is_refused(tmp_path: Path) -> None:
    text = (CATALOGUE / "field.yaml").read_text("utf-8")
    (tmp_path / "f.yaml").write_text(text.replace("system: fiddler", "system: fidler"), "utf-8")
    with pytest.raises(UsageError, match="nearest: fiddler"):
        cells_from_file(tmp_path / "f.yaml", None)


# ------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ({"product": {"system": [{}]}}, "product: system {}: expected a value, or the fields"),
        ({"common": {"system": "smoe", "set": {"a": {}}}}, "common: set: a {}: allowed: a value"),
        ({"common": {"set": {"a": math.inf}}}, "common: set: a inf: allowed: a finite number"),
        ({"common": {"batch": True}}, "common: batch True: allowed: no truth value"),
        ({"common": {"alpha": True}}, "common: alpha True: allowed: no truth value"),
        ({"product": {"batch": 1}, "zip": {"batch": [1]}}, "batch is in product and in zip"),
        ({"zip": [{"seed": [1]}, {"seed": [2]}]}, "seed is in zip and in zip; allowed: in one"),
        ({"record": ["x"]}, "record is ['x']; allowed: a command, as text"),
        ({"products": {}}, "unknown sweep key 'products'; nearest: product"),
        ({"product": {"system": "smoe"}, "exclude": [{}]}, "the sweep has no cell"),
        ({"common": {"weights": "w/{sistem}"}, "product": {"system": "smoe"}}, "no field 'sistem'"),
        ({"common": {"weights": "w/{0}"}, "product": {"system": "smoe"}}, "w/{0}: no field"),
        ({"common": {"weights": "w/{model}"}, "product": {"system": "smoe"}}, "no such folder"),
    ],
)
def test_values_that_no_field_has_are_refused(plan: dict[str, Any], complaint: str) -> None:
    common = SMALL | plan.get("common", {})
    with pytest.raises(MoeBenchError) as caught:
        expand({**plan, "common": common}, None)
    assert complaint in str(caught.value)


def test_options_of_a_system_are_spelled_as_they_are_typed() -> None:
    spelled = [
        plans._spelled("k", value, "x") for value in (True, False, None, 3, 0.5, "a", [1, 2])
    ]
    assert spelled == ["true", "false", "null", "3", "0.5", "a", "[1, 2]"]


def test_options_of_rows_are_merged_and_later_fields_count() -> None:
    rows: list[dict[str, Any]] = [
        {"batch": 1, "set": {"a": "1", "b": "1"}},
        {"batch": 2},
        {"set": {"b": "2"}},
    ]
    assert plans._merged(rows) == {"batch": 2, "set": {"a": "1", "b": "2"}}
    given = {"batch": 2, "seed": 1, "set": {"a": "1", "b": "2"}}
    assert plans._matches({"batch": 2, "set": {"a": "1"}}, given)
    assert plans._matches({}, given)
    for other in ({"batch": 1}, {"set": {"a": "2"}}, {"set": {"c": "1"}}, {"prompts": 1},
                  {"batch": 2, "set": {"a": "2"}}, {"batch": 1, "set": {"a": "1"}}):  # fmt: skip
        assert not plans._matches(other, given)


def test_progress_counts_combinations_and_equal_cells_are_one() -> None:
    steps: list[tuple[int, int]] = []
    plan = {"common": SMALL, "product": {"system": ["gpu-only", "gpu-only"], "seed": [0, 1, 1]}}
    found = expand(plan, None, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(n, 6) for n in range(1, 7)]
    assert [one.seed for one in found] == [0, 1]


def test_reasons_for_omitted_cells_are_said_once() -> None:
    said: list[str] = []
    plan = {
        "common": SMALL, "optional": [{"batch": 2}],
        "product": {"system": ["gpu-only", "moe-ondemand"], "batch": [1, 2]},
    }  # fmt: skip
    assert [one.batch for one in expand(plan, None, said.append)] == [1, 1]
    (line,) = said
    assert line.startswith("left out: ")
    assert "does not fill batches of 2" in line


def test_seeds_share_a_resolved_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[Any] = []
    own = plans._cell
    monkeypatch.setattr(plans, "_cell", lambda *given: resolved.append(given[0]) or own(*given))
    found = cells(product={"system": ["gpu-only", "moe-ondemand"], "seed": [3, 4, 5]})
    assert [(one.system, one.seed) for one in found] == [
        (system, seed) for system in ("gpu-only", "moe-ondemand") for seed in (3, 4, 5)
    ]
    assert [one["seed"] for one in resolved] == [3, 3]
    with pytest.raises(MoeBenchError, match="seed"):
        cells(product={"system": "gpu-only", "seed": [3, -1]})
    assert [plans._is_seed(value) for value in (0, 7, -1, True, "3", 1.5)] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def test_equal_cells_are_one_whichever_of_their_seeds_is_resolved_first() -> None:
    """Without α, both entries are one system; of the second one, seed 1 is resolved first."""
    entries = [{"system": "gpu-only", "alpha": alpha} for alpha in (0.1, 0.2)]
    found = cells(product={"system": entries, "seed": [0, 1]}, exclude=[{"alpha": 0.2, "seed": 0}])
    assert [one.seed for one in found] == [0, 1]
