"""`moebench advise` from the outside, on tiny models."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from moebench.harness.advise.budget import runs
from moebench.harness.sweep.worker import Worker
from moebench.results.store import Store
from tests.harness.commands import call, refused, run

pytestmark = pytest.mark.usefixtures("tiny_models")

SHORT = ("--setting", "S3", "--workload", "arithmetic", "--prompts", "2", "--new-tokens", "4",
         "--jobs", "0", "--capacity", "0.25")  # fmt: skip
FEW = (*SHORT, "--systems", "smoe,moe-ondemand,daop", "--alphas", "0,0.3,0.6")


def advise(*arguments):
    return call("advise", *FEW, *arguments, "--json")


@pytest.mark.slow
def test_a_wide_budget_takes_the_fastest_lossless_system() -> None:
    called = advise("--tpot-ms", "100000")
    assert called.code == 0, called.err
    found = called.json
    assert {row["system"] for row in found["meeting"]} == {"smoe", "moe-ondemand", "daop"}
    assert found["others"] == []
    best = found["meeting"][0]
    assert best["lossless"]
    (smoe,) = [row for row in found["meeting"] if row["system"] == "smoe"]
    assert smoe["alpha"] == 0.0, "no α is needed"
    assert found["advice"].startswith(f"Use {best['system']}")
    assert found["commands"][0].startswith(f"moebench run --system {best['system']} --setting S3")
    # What is advised is a run of the store, as the run command makes it.
    alone = run("smoe", *SHORT[2:8], "--capacity", "0.25", "--alpha", "0")
    assert alone["run_id"] == smoe["run_id"]
    assert alone["metrics"]["tpot_ms"]["mean"] == pytest.approx(smoe["tpot"]["value"], abs=1e-5)


@pytest.mark.slow
def test_the_smallest_alpha_in_budget_is_searched_and_run() -> None:
    measured = advise("--tpot-ms", "0.001").json["alpha"]["smoe"]["measured_ms"]
    slow, fast = measured["0"], min(measured.values())
    assert fast < slow
    budget = (slow + fast) / 2
    found = advise("--tpot-ms", str(budget)).json
    (smoe,) = [row for row in found["meeting"] if row["system"] == "smoe"]
    assert smoe["tpot"]["value"] <= budget
    searched = found["alpha"]["smoe"]
    assert searched["fit"]["points"] == len(searched["measured_ms"]) >= 3
    smaller = [ms for alpha, ms in searched["measured_ms"].items() if float(alpha) < smoe["alpha"]]
    assert all(ms > budget for ms in smaller)
    assert Store(Path(".moebench")).get(smoe["run_id"])["spec"]["alpha"] == smoe["alpha"]


@pytest.mark.slow
def test_finished_cells_are_not_run_again() -> None:
    first = advise("--tpot-ms", "100000")
    assert "sweep:" in first.err
    again = advise("--tpot-ms", "100000")
    assert "sweep:" not in again.err
    assert again.json == first.json


@pytest.mark.slow
def test_how_far_the_nearest_is() -> None:
    called = advise("--tpot-ms", "0.001")
    assert called.code == 1
    found = called.json
    assert (found["meeting"], found["commands"]) == ([], [])
    nearest = found["others"][0]
    assert nearest["tpot"]["value"] == min(row["tpot"]["value"] for row in found["others"])
    assert nearest["over_ms"] == pytest.approx(nearest["tpot"]["value"] - 0.001)
    assert "The nearest is" in found["advice"]


@pytest.mark.slow
def test_a_limit_of_accuracy_loss_takes_the_fastest() -> None:
    found = advise("--accuracy-loss", "0").json
    assert all(row["loss"]["value"] == 0 for row in found["meeting"])
    times = [row["tpot"]["value"] for row in found["meeting"]]
    assert times == sorted(times)


@pytest.mark.slow
def test_scores_are_compared_with_the_lossless_models() -> None:
    called = advise("--tpot-ms", "100000", "--by", "score")
    assert called.code == 0, called.err
    assert "new_tokens" not in called.json["basis"]
    lossless = [row for row in called.json["meeting"] if row["lossless"]]
    assert {row["loss"]["value"] for row in lossless} == {0}
    assert any("by chance" in note for note in called.json["notes"]), "random weights"


@pytest.mark.slow
def test_what_is_shown() -> None:
    called = call("advise", *FEW, "--tpot-ms", "100000")
    assert called.code == 0
    header, *rows = called.out.splitlines()
    assert header.split("\t")[:3] == ["system", "α", "TPOT (ms)"]
    assert any(row.startswith("Use ") for row in rows)
    assert rows[-1].startswith("  moebench run --system ")
    assert "a quick look: prompts 2, new tokens 4, calibrate texts 16" in called.err
    assert "smoe: T(α) =" in called.err


def test_a_system_that_cannot_run_is_left_out_with_the_reason() -> None:
    found = call(
        "advise", *SHORT, "--systems", "moe-ondemand,belady", "--tpot-ms", "100000", "--json"
    ).json
    assert [row["system"] for row in found["meeting"]] == ["moe-ondemand"]
    assert "belady" in found["left_out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --tpot-ms MS, --accuracy-loss LOSS, or both"),
        (("--tpot-ms", "-3"), "--tpot-ms"),
        (("--tpot-ms", "60", "--by", "taste"), "allowed: kl, agreement, score"),
        (("--tpot-ms", "60", "--alphas", "0,,1"), "separated by single commas"),
        (("--tpot-ms", "60", "--alphas", "0,much"), "numbers separated by commas"),
        (("--tpot-ms", "60", "--alphas", "0,2"), "numbers from 0 to 1"),
        (("--tpot-ms", "60", "--systems", "smo"), "smoe"),
        (("--tpot-ms", "60", "--systems", "native-llamacpp"), "allowed: systems of our own engine"),
        (("--tpot-ms", "60", "--setting", "S9"), "unknown setting"),
        (("--tpot-ms", "60", "--workload", "nothing"), "unknown workload"),
        (("--tpot-ms", "60", "--by", "score", "--systems", "smoe", "--alphas", "0.3"), "lossless"),
    ],
)
def test_bad_input_gets_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("advise", *SHORT, *arguments)


# ------------------------------------------------------------------- while it measures


@pytest.mark.slow
def test_each_configuration_is_shown_when_it_is_measured() -> None:
    called = advise("--tpot-ms", "100000")
    lines = [line for line in called.err.splitlines() if " ms a token" in line]
    titles = [line.partition(":")[0] for line in lines]
    assert sorted(titles) == [
        "daop", "moe-ondemand", "smoe at α 0", "smoe at α 0.3", "smoe at α 0.6",
    ]  # fmt: skip
    assert all("meets it" in line for line in lines)
    assert lines[0].endswith("the best so far")
    best = [line.partition(":")[0] for line in lines if line.endswith("the best so far")][-1]
    assert called.json["advice"].startswith(f"Use {best}: ")
    over = advise("--tpot-ms", "0.001", "--seed", "1")
    lines = [line for line in over.err.splitlines() if " ms a token" in line]
    assert lines
    assert all(" ms over" in line and "best so far" not in line for line in lines)


def interrupted_at(cell: int, how: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the command when it begins to run a cell, counted from 1."""
    begun = []
    run_cell = Worker.run

    def run(self, job, code):
        begun.append(job)
        if len(begun) == cell:
            how()
        return run_cell(self, job, code)

    monkeypatch.setattr(Worker, "run", run)


def by_ctrl_c() -> None:
    raise KeyboardInterrupt


def by_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("how", [by_ctrl_c, by_sigterm])
def test_an_interrupted_command_answers_from_what_was_finished_and_goes_on(how) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    whole = advise("--tpot-ms", "100000", "--store", "whole").json
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(3, how, patch)
        called = advise("--tpot-ms", "100000")
    assert signal.getsignal(signal.SIGTERM) is handler
    assert called.code == 130
    found = called.json
    assert found["partial"]
    assert not whole["partial"]
    assert whole["missing"] == []
    stored = Store(Path(".moebench")).runs()
    assert len(stored) == 2
    measured = {(d["spec"]["system"], d["spec"]["alpha"]) for d in stored}
    asked = {("smoe", 0.0), ("smoe", 0.3), ("smoe", 0.6), ("moe-ondemand", None), ("daop", None)}
    missing = {name if a is None else f"{name} at α {a:g}" for name, a in asked - measured}
    assert set(found["missing"]) == missing
    ranked = {row["run_id"] for row in (*found["meeting"], *found["others"])}
    assert ranked <= {d["run_id"] for d in stored}
    assert ranked
    assert found["advice"].startswith("Partial answer, interrupted; not measured: ")
    assert found["advice"].partition(": ")[2].split(".  ")[0].split(", ") == found["missing"]
    again = advise("--tpot-ms", "100000")
    assert again.code == 0
    assert "2 of 5 configurations are stored" in again.err
    for kept in ("advice", "meeting", "others", "alpha", "partial", "missing"):
        assert again.json[kept] == whole[kept]


def test_an_interruption_before_the_first_result_says_that_nothing_was_measured() -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(1, by_ctrl_c, patch)
        called = call("advise", *FEW, "--tpot-ms", "100000")
    assert called.code == 130
    assert "No system was measured yet." in called.out
    assert len(Store(Path(".moebench")).runs()) == 0


@pytest.mark.slow
def test_an_interrupted_search_of_alpha_says_so() -> None:
    first = advise("--tpot-ms", "100000").json
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "smallest_alpha", lambda measured, budget_ms: 0.13)
        interrupted_at(1, by_ctrl_c, patch)
        called = advise("--tpot-ms", "100000")
    assert called.code == 130
    assert called.json["missing"] == ["smoe at α 0.13"]
    assert called.json["meeting"] == first["meeting"]


@pytest.mark.slow
def test_an_interruption_without_a_lossless_run_leaves_scores_uncompared() -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(2, by_ctrl_c, patch)
        called = advise("--tpot-ms", "100000", "--by", "score", "--systems", "daop,moe-ondemand")
    assert called.code == 130
    (row,) = called.json["meeting"]
    assert (row["system"], row["loss"]) == ("daop", None)
