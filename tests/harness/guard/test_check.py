"""The guard on real cells: equal arithmetic, other arithmetic, and a damaged router."""

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moebench.harness.guard import check
from moebench.harness.guard.check import EXIT_CODES, SUBJECT, read_references, subset
from moebench.harness.guard.golden import GOLDEN, check_golden
from moebench.harness.guard.verdicts import Finding, Verdict, compare
from moebench.substrate.engine.decisions import LayerView, Routed
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.systems.smoe import ExpertCacheRouter
from tests.harness.guard.other_arithmetic import in_another_order

pytestmark = pytest.mark.usefixtures("tiny_models")

Cells = dict[str, dict[str, Any]]


def test_every_verdict_has_its_exit_code():
    assert [EXIT_CODES[v] for v in Verdict] == [0, 4, 3, 1]


def test_the_subset_covers_every_family_in_every_setting_of_smoe():
    specs = subset().values()
    computed = [spec for spec in specs if spec.routing == "model" and spec.trace is None]
    smoe = {(spec.setting, spec.workload) for spec in computed if spec.system == "smoe"}
    assert len(smoe) == 15
    assert all(spec.scoring == "generation" for spec in computed)


def test_the_references_that_ship_are_those_of_the_subset():
    known = read_references(check.REFERENCES, "")
    assert known.keys() == subset().keys()
    for name, spec in subset().items():
        written = spec.model_dump(mode="json")
        assert known[name]["subject"] == {one: written[one] for one in SUBJECT}, name
        if spec.routing == "model" and spec.trace is None:
            assert (spec.prompts, spec.seed) == (12, 0)
            assert spec.allow_overcommit is (spec.system == "gpu-only"), name
    # Each cell that computes has a twin, in which nothing is computed.
    replayed = [cell["subject"] for cell in known.values() if cell["arithmetic"] == "none"]
    assert all(cell["subject"] in replayed for cell in known.values())


# ----------------------------------------------------------------------------- real cells

#: Changes the program until the patch is undone.
Change = Callable[[pytest.MonkeyPatch], None]
Measured = Callable[[Change], Cells]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a plan of one cell, whose two prompts can show more than rounding changes."""
    file = tmp_path_factory.mktemp("plan") / "check.yaml"
    cells = [{"system": "smoe", "settings": ["D1"], "workloads": ["inflection"]}]
    file.write_text(json.dumps({"prompts": 2, "seed": 0, "cells": cells, "replayed": []}))
    return file


@pytest.fixture(scope="module")
def measured(plan: Path, tiny_models: None) -> Measured:
    """Return a function that measures the cell under a change, once for all tests."""
    known: dict[Change, Cells] = {}

    def measure(change: Change) -> Cells:
        if change not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(check, "SUBSET", plan)
                check._arithmetic.cache_clear()
                change(patch)
                known[change] = check.measure(jobs=0)
        return known[change]

    return measure


def unchanged(patch: pytest.MonkeyPatch) -> None:
    """Leave the program unchanged."""


def again(patch: pytest.MonkeyPatch) -> None:
    """Leave the program unchanged, for a second measurement."""


def in_fp64(patch: pytest.MonkeyPatch) -> None:
    """Change the arithmetic: compute products in twice the precision."""
    common, record = Checkpoint.common, Checkpoint.expert_record

    def common_64(self: Checkpoint, dtype: torch.dtype) -> dict[str, Tensor]:
        return common(self, torch.float64)

    def record_64(self: Checkpoint, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        return record(self, layer, expert, torch.float64)

    patch.setattr(Checkpoint, "common", common_64)
    patch.setattr(Checkpoint, "expert_record", record_64)


#: Prints the cell as a process of two threads computes it.
WITH_TWO_THREADS = """
import json, pathlib, sys, torch
from moebench.harness.guard import check
set_num_threads = torch.set_num_threads
torch.set_num_threads = lambda threads: set_num_threads(2)
check.SUBSET = pathlib.Path(sys.argv[1])
print(json.dumps(check.measure(jobs=0)))
"""


@pytest.fixture(scope="module")
def elsewhere(plan: Path, tiny_models: None) -> Cells:
    """Return the cell computed with two threads and the kernels of other processors."""
    kernels = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
    # Threads that spin while waiting need minutes on busy cores.
    done = subprocess.run(
        [sys.executable, "-c", WITH_TWO_THREADS, str(plan)],
        env={**os.environ, **kernels, "OMP_WAIT_POLICY": "passive"},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def thrice_alpha(patch: pytest.MonkeyPatch) -> None:
    route = ExpertCacheRouter.route

    def corrupted(self: ExpertCacheRouter, view: LayerView) -> Routed:
        bolder = copy.copy(view)
        bolder.alpha = min(1.0, 3 * view.alpha)
        return route(self, bolder)

    patch.setattr(ExpertCacheRouter, "route", corrupted)


def two_experts_swapped(patch: pytest.MonkeyPatch) -> None:
    route = ExpertCacheRouter.route

    def corrupted(self: ExpertCacheRouter, view: LayerView) -> Routed:
        routed = route(self, view)
        swapped = np.arange(view.shape.num_experts)
        swapped[[0, 1]] = [1, 0]
        ids_TK = swapped[routed.ids_TK]
        return routed._replace(ids_TK=ids_TK, weigh_as_TK=ids_TK)

    patch.setattr(ExpertCacheRouter, "route", corrupted)


def best_choice_lost(patch: pytest.MonkeyPatch) -> None:
    """Damage the router: in decode, replace each token's best expert by its worst."""
    route = ExpertCacheRouter.route

    def corrupted(self: ExpertCacheRouter, view: LayerView) -> Routed:
        routed = route(self, view)
        if view.phase == "prefill":
            return routed
        ids_TK = routed.ids_TK.copy()
        ids_TK[:, 0] = view.scores_TE.argmin(axis=1)
        return routed._replace(ids_TK=ids_TK, weigh_as_TK=ids_TK)

    patch.setattr(ExpertCacheRouter, "route", corrupted)


def only(cells: Cells) -> dict[str, Any]:
    (found,) = cells.values()
    return found


def finding(now: Cells, reference: Cells) -> Finding:
    (found,) = compare(now, reference)
    return found


@pytest.mark.slow
def test_the_same_arithmetic_computes_the_same_bits(measured):
    assert measured(again) == measured(unchanged)
    assert finding(measured(again), measured(unchanged)).reason == "equal to the last bit"


@pytest.mark.parametrize("other", [in_fp64, in_another_order])
def test_other_arithmetic_is_told_by_its_hash_and_passes(measured, other):
    now, reference = measured(other), measured(unchanged)
    assert only(now)["arithmetic"] != only(reference)["arithmetic"]
    assert finding(now, reference).verdict is Verdict.PASS


@pytest.mark.slow
def test_two_threads_and_another_processors_kernels_pass(measured, elsewhere):
    assert only(elsewhere)["arithmetic"] != only(measured(unchanged))["arithmetic"]
    assert finding(elsewhere, measured(unchanged)).verdict is Verdict.PASS


@pytest.mark.slow
@pytest.mark.parametrize("reference", [unchanged, in_fp64, in_another_order])
@pytest.mark.parametrize("corrupt", [thrice_alpha, two_experts_swapped, best_choice_lost])
def test_a_corrupted_router_is_a_regression(measured, corrupt, reference):
    # A router is no part of the arithmetic, so its damage cannot pass for rounding.
    assert only(measured(corrupt))["arithmetic"] == only(measured(unchanged))["arithmetic"]
    assert finding(measured(corrupt), measured(reference)).verdict is Verdict.REGRESSED


# ----------------------------------------------------------------------------- the command


def test_a_broken_reference_file_is_one_line(measured, tmp_path):
    file = tmp_path / "check.json"
    assert read_references(file, "check --update") == {}
    whole = measured(unchanged)
    file.write_text(json.dumps(whole))
    assert read_references(file, "check --update") == whole
    texts = ["{", "[]"]
    for damage in (
        lambda cell: cell["accuracy"].pop("items"),
        lambda cell: cell["accuracy"]["items"]["kl"].pop(),
        lambda cell: cell["accuracy"].update(kl=math.nan),
        lambda cell: cell["accuracy"]["items"]["kl"].append(math.inf),
        lambda cell: cell["latency"].update(tpot_ms=math.nan),
        lambda cell: cell["latency"].update(e2e_ms="12"),
        lambda cell: cell.update(arithmetic=None),
        lambda cell: cell.update(alpha="0.3"),
    ):
        damaged = copy.deepcopy(whole)
        damage(only(damaged))
        texts.append(json.dumps(damaged))
    for text in texts:
        file.write_text(text)
        with pytest.raises(InputError, match=r"check.json: not a reference .*check --update"):
            read_references(file, "check --update")


def test_a_damaged_golden_file_is_one_line(tmp_path):
    golden_file = tmp_path / "golden.npz"
    golden_file.write_bytes(GOLDEN.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"golden\.npz"):
        check_golden(["mixtral-8x7b"], golden_file)
    with np.load(GOLDEN) as known:
        arrays = dict(known)
    arrays["mixtral-8x7b.forced"][0, 0, 0] = np.nan
    np.savez(golden_file, **arrays)
    with pytest.raises(
        InputError, match=r"golden\.npz: mixtral-8x7b has a logit that is not a num"
    ):
        check_golden(["mixtral-8x7b"], golden_file)


@pytest.fixture
def run_check(measured: Measured, tmp_path: Path) -> Callable[..., int]:
    """Return a function that runs the command on the cell as measured under a change."""

    def run(change: Change = unchanged, update: bool = False, as_json: bool = False) -> int:
        cells = measured(change)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check, "measure", lambda jobs, guarded: cells)
            guarded = check.Guarded({}, references=tmp_path / "check.json")
            return check.check_command(update, 0, as_json, guarded)

    return run


def test_accepted_then_equal_then_deleted(run_check, tmp_path, capsys):
    assert run_check() == 3
    assert "no reference; moebench check --update" in capsys.readouterr().out
    assert run_check(update=True) == 0
    assert "1 references written" in capsys.readouterr().err
    assert run_check(again) == 0
    assert "equal to the last bit" in capsys.readouterr().out
    (tmp_path / "check.json").write_text("{}")
    assert run_check() == 3


def test_damage_fails_until_it_is_accepted(run_check, capsys):
    assert run_check(update=True) == 0
    assert run_check(in_fp64) == 0
    assert "check: pass" in capsys.readouterr().err
    assert run_check(thrice_alpha) == 1
    assert "check: regressed" in capsys.readouterr().err
    assert run_check(thrice_alpha, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "regressed"
    assert [set(row) for row in said["cells"]] == [{"cell", "verdict", "reason"}] * 2
    answers, latencies = (row["cell"] for row in said["cells"])
    assert latencies == f"{answers}: latency"
    assert run_check(thrice_alpha, update=True) == 0
    assert "kl" in capsys.readouterr().err
    assert run_check(thrice_alpha) == 0


# ----------------------------------------------------------------------------- words


def made(score: float = 50.0, tpot_ms: float = 10.0, **more: Any) -> dict[str, Any]:
    accuracy = {"score": score, "agreement": 100.0, "kl": 0.0, "items": {}}
    latencies = {"tpot_ms": tpot_ms, "ttft_ms": 1.0, "e2e_ms": 2.0, "profile_hash": "p"}
    return {"accuracy": accuracy, "latency": latencies, "arithmetic": "none", "data_hash": "d",
            "weights_hash": None, **more}  # fmt: skip


def test_accepted_changes_are_said_cell_by_cell(capsys, monkeypatch):
    monkeypatch.setattr(check, "difference", lambda pairs: f"differs {len(pairs)}")
    now = {"same": made(), "new": made(12.5), "score": made(49.0), "late": made(tpot_ms=11.0)}
    known = {"same": made(), "score": made(), "late": made(), "old": made()}
    check._say_changes(now, known)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "new: new, score 12.5"
    assert lines[1] == "score: differs 1"
    assert lines[2].startswith("late: latency: ")
    assert lines[3:] == ["old: gone", "4 references written"]


def test_conditions_are_options_and_hashes_that_are_known():
    (name, spec), *_ = subset().items()
    found = check._conditions({name: spec}, {name: made()})
    assert found.keys() == {name}
    assert {"data_hash": "d", "profile_hash": "p", "system": spec.system} == {
        key: found[name][key] for key in ("data_hash", "profile_hash", "system")
    }
    assert "weights_hash" not in found[name]
    assert all(found[name].values())
    (bare,) = check._conditions({name: spec}, {name: made(latency=None)}).values()
    assert "profile_hash" not in bare


def test_what_computed_a_run_is_its_weights_and_threads(monkeypatch):
    monkeypatch.setattr(check, "scale_path", lambda model: Path("scale") / model)
    spec = {"trace": None, "routing": "model", "weights": None, "model": "m"}
    document = {"spec": spec, "provenance": {"threads": 3}}
    assert check._computed_by(document) == ("scale/m", 3)
    assert check._computed_by({**document, "spec": {**spec, "weights": "w"}}) == ("w", 3)
    for replayed in ({"trace": "t"}, {"routing": "drawn"}):
        assert check._computed_by({**document, "spec": {**spec, **replayed}}) is None


def test_scale_models_are_checked_that_cells_compute_with(monkeypatch):
    def one(**fields: Any) -> Any:
        plain = {"trace": None, "routing": "model", "weights": None, "model": "b"}
        return SimpleNamespace(**{**plain, **fields})

    specs = {
        "1": one(), "2": one(model="a"), "3": one(model="c", trace="t"),
        "4": one(model="d", routing="drawn"), "5": one(model="e", weights="w"), "6": one(),
    }  # fmt: skip
    monkeypatch.setattr("moebench.harness.guard.golden.check_golden", lambda names: names)
    guarded = check.Guarded(specs)
    monkeypatch.setattr(check, "ships", lambda: True)
    assert check._golden(guarded) == ["a", "b"]
    monkeypatch.setattr(check, "ships", lambda: False)
    assert check._golden(guarded) == []


def test_the_shipped_references_are_accepted_with_their_models(monkeypatch, tmp_path, capsys):
    accepted: list[str] = []
    monkeypatch.setattr("moebench.harness.guard.golden.write_golden", lambda: accepted.append("w"))
    cells = {"new": made(), "later": made()}
    monkeypatch.setattr(check, "measure", lambda jobs, guarded: cells)
    monkeypatch.setattr(check, "REFERENCES", tmp_path / "check.json")
    passed = Finding("a", Verdict.PASS, "equal")
    worse = Finding("b", Verdict.REGRESSED, "other logits")
    for references, models, times in (
        ("check.json", [passed, worse], 1), ("check.json", [passed], 0), ("own.json", [worse], 0)
    ):  # fmt: skip
        accepted.clear()
        (tmp_path / "check.json").unlink(missing_ok=True)
        monkeypatch.setattr(check, "_golden", lambda guarded, models=models: models)
        guarded = check.Guarded({}, references=tmp_path / references)
        assert check.check_command(True, 0, False, guarded) == 0
        assert len(accepted) == times
        said = capsys.readouterr().err.splitlines()
        assert ("b: other logits" in said) == bool(times)
    text = (tmp_path / "own.json").read_text()
    assert json.loads(text) == cells
    assert text == json.dumps(cells, indent=1, sort_keys=True) + "\n"


def test_the_gravest_verdict_is_the_command_s(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "measure", lambda jobs, guarded: {})
    found = [Finding(v.value, v, "why") for v in (Verdict.PASS, Verdict.IMPROVED)]
    monkeypatch.setattr(check, "_golden", lambda guarded: found)
    guarded = check.Guarded({}, references=tmp_path / "mine.json")
    assert check.check_command(False, 0, False, guarded) == 4
    assert capsys.readouterr().err.splitlines()[-1] == "check: improved"
    assert check.check_command(False, 0, True, guarded) == 4
    assert capsys.readouterr().out == (
        '{"cells": [{"cell": "pass", "reason": "why", "verdict": "pass"}, '
        '{"cell": "improved", "reason": "why", "verdict": "improved"}], "verdict": "improved"}\n'
    )
    found.append(Finding("m", Verdict.NOT_MEASURED, "why"))
    assert check.check_command(False, 0, False, guarded) == 3
    found.insert(0, Finding("r", Verdict.REGRESSED, "why"))
    assert check.check_command(False, 0, False, guarded) == 1
    found.clear()
    with pytest.raises(UsageError, match="mine: no cell has anything to compare"):
        check.check_command(False, 0, False, guarded)


def test_a_guard_of_ones_own_names_its_update(monkeypatch, tmp_path):
    spec = next(iter(subset().values()))
    monkeypatch.setattr(check, "cells_from_file", lambda file, data_dir, say: [spec])
    guarded = check.own(Path("my sweep.yaml"), tmp_path / "refs", Path("data"))
    assert guarded.references == tmp_path / "refs" / "my sweep.json"
    assert guarded.update == (
        f"moebench check --file 'my sweep.yaml' --references {tmp_path / 'refs'} --data-dir data "
        "--update"
    )
    assert (list(guarded.specs.values()), guarded.data_dir) == ([spec], Path("data"))
    assert "--data-dir" not in check.own(Path("s.yaml"), tmp_path, None).update
    for own in (check.REFERENCES.parent, check.REFERENCES.parents[1] / "new"):
        with pytest.raises(UsageError, match="moebench's own; give a folder of your own"):
            check.own(Path("s.yaml"), own, None)
