"""`moebench advise` from the outside, on tiny models."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import advice
from moebench.harness.advise.budget import runs
from moebench.harness.advise.budget.choose import Candidate, Demand, Fit, rank
from moebench.harness.cli import advise as command
from moebench.harness.cli import advise_machine
from moebench.harness.sweep.worker import Worker
from moebench.results.intervals import Estimate
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
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


# ------------------------------------------------------------------- words


def candidate(
    system: str, tpot: float, loss: float | None, alpha: float | None = None
) -> Candidate:
    known = None if loss is None else Estimate(loss, loss - 0.5, loss + 0.5, 4)
    return Candidate(system, alpha, Estimate(tpot, tpot - 1, tpot + 1, 4), known, loss == 0,
                     f"run {system}", "estimate")  # fmt: skip


FIT = Fit((100.0, -50.0, 12.345), 0.0, 0.6, 0.1234, 0.5678, 7)
DEMAND = Demand(60.0, 2.0)


def answered(**more: Any) -> Any:
    points = [candidate("smoe", 50, 1.0, 0.3), candidate("daop", 40, 0), candidate("x", 70, None)]
    found = {
        "ranking": rank(points, DEMAND, {}), "fits": {"smoe": FIT, "new": None},
        "measured": {"smoe": {0.0: 100.0, 0.3: 50.0}, "new": {0.5: 9.0}},
        "left_out": {"belady": "[red]knows the future"}, "notes": ["[1] no better than chance"],
    }  # fmt: skip
    return runs.Advice(**{**found, **more})


def test_the_ranking_and_the_next_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    place = {"setting": "S3", "cache_ratio": 0.25}
    command.show(answered(), DEMAND, "kl", place, {"prompts": 2, "new_tokens": 4}, False)
    out, err = capsys.readouterr()
    table, said = out.splitlines()[:4], out.splitlines()[4:]
    assert [line.split("\t") for line in table] == [
        ["system", "α", "TPOT (ms)", "loss (nats of KL a token)", "meets it", "badge", "run"],
        ["daop", "-", "40 ± 1", "lossless", "yes", "estimate", "run daop"],
        ["smoe", "0.3", "50 ± 1", "1 ± 0.5", "yes", "estimate", "run smoe"],
        ["x", "-", "70 ± 1", "-", "no: 10 ms over, loss inf over", "estimate", "run x"],
    ]
    assert said == [
        "Use daop: 40 ms a token of 60 allowed, lossless.",
        "  moebench run --system daop --setting S3 --cache-ratio 0.25",
        "  moebench run --system smoe --setting S3 --cache-ratio 0.25 --alpha 0.3",
    ]
    lines = err.splitlines()
    assert lines[:4] == [
        "smoe: T(α) = 100 -50 α +12.35 α^2 ms for α from 0 to 0.6; each of 7 points predicted from "
        "the others: 0.123 ms off (root mean square), 0.568 at most",
        "new: 1 α measured; three are needed to fit T(α)",
        "left out: belady: [red]knows the future",
        "note: [1] no better than chance",
    ]
    assert lines[4].startswith("a quick look: prompts 2, new tokens 4; ± is a 95 % t interval")


def test_the_ranking_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(interrupted=True, missing=["smoe at α 0.6"])
    command.show(found, DEMAND, "kl", {"setting": "S3"}, {"prompts": 2}, True)
    document = json.loads(capsys.readouterr().out)
    assert document["demand"] == {"tpot_ms": 60.0, "loss": 2.0}
    assert (document["by"], document["unit"]) == ("kl", "nats of KL a token")
    assert [one["system"] for one in document["meeting"]] == ["daop", "smoe"]
    (other,) = document["others"]
    assert (other["system"], other["over_ms"], other["over_loss"]) == ("x", 10.0, None)
    assert (other["loss"], other["tpot"]["value"]) == (None, 70.0)
    assert document["alpha"] == {
        "smoe": {
            "measured_ms": {"0": 100.0, "0.3": 50.0},
            "fit": {"coefficients": [100.0, -50.0, 12.345], "low": 0.0, "high": 0.6, "degree": 2,
                    "error_ms": 0.1234, "worst_ms": 0.5678, "points": 7},
        },
        "new": {"measured_ms": {"0.5": 9.0}, "fit": None},
    }  # fmt: skip
    assert (document["partial"], document["missing"]) == (True, ["smoe at α 0.6"])
    assert document["advice"].startswith(
        "Partial answer, interrupted; not measured: smoe at α 0.6.  The same command goes on.  Use "
    )
    assert document["basis"] == {"setting": "S3", "prompts": 2}
    assert len(document["commands"]) == 2
    assert document["left_out"] == found.left_out
    assert document["notes"] == found.notes
    assert command._partial(answered()) == ""
    assert "; the search of α had not ended.  " in command._partial(answered(interrupted=True))


def test_three_commands_are_named_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    points = [candidate(f"s{n}", 10 + n, 1.0) for n in range(5)]
    command.show(answered(ranking=rank(points, DEMAND, {})), DEMAND, "kl", {}, {}, False)
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert commands == [f"  moebench run --system s{n}" for n in range(3)]


def test_prompts_fill_whole_batches() -> None:
    assert [command._whole_batches(prompts, 4) for prompts in (1, 4, 5, 8)] == [4, 4, 8, 8]
    assert command._whole_batches(3, 0) == 3


def test_alphas_are_from_zero_to_one() -> None:
    assert command._alphas(None) == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    assert command._alphas("0,0.25,1") == [0.0, 0.25, 1.0]
    for text, said in (("0,x", "numbers separated by commas"), ("-0.1", "from 0 to 1"),
                       ("1.01", "from 0 to 1"), ("nan", "from 0 to 1")):  # fmt: skip
        with pytest.raises(UsageError, match=f"--alphas {text}: allowed: numbers.*"):
            command._alphas(text)
        with pytest.raises(UsageError, match=said):
            command._alphas(text)


def test_sigterm_ends_like_ctrl_c_in_the_main_thread_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with command._ended_by_sigterm():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before
    done: list[Any] = []

    def elsewhere() -> None:
        with command._ended_by_sigterm():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done == [before]


@pytest.fixture
def found_by(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the search of a budget was given."""
    given: list[Any] = []
    monkeypatch.setattr(runs, "advise", lambda *what: given.append(what) or answered())
    return given


def test_options_of_a_budget_reach_its_runs(found_by: list[Any]) -> None:
    called = call(
        "advise", "--setting", "S3", "--batch", "4", "--prompts", "6", "--tpot-ms", "60",
        "--accuracy-loss", "2", "--systems", "smoe,daop", "--alphas", "0,0.5", "--jobs", "3",
        "--store", "mine", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    made, systems, alphas, demand, by, _ = found_by[0]
    assert (systems, alphas, demand, by) == (["smoe", "daop"], [0.0, 0.5], DEMAND, "kl")
    assert made.given == {"setting": "S3", "batch": 4, "prompts": 8, "new_tokens": 32}
    assert (made.texts, made.jobs, made.directory, made.data_dir) == (16, 3, Path("mine"), None)
    assert called.json["basis"] == {
        "setting": "S3", "batch": 4, "store": "mine", "prompts": 8, "new_tokens": 32,
        "calibrate_texts": 16,
    }  # fmt: skip
    called = call("advise", "--setting", "S3", "--accuracy-loss", "1", "--by", "score",
                  "--workload", "gsm8k", "--data-dir", ".", "--json")  # fmt: skip
    made, systems, alphas, demand, by, _ = found_by[1]
    assert (demand, by, len(alphas)) == (Demand(None, 1.0), "score", 7)
    assert made.given == {"setting": "S3", "workload": "gsm8k", "scoring": "generation",
                          "prompts": 4}  # fmt: skip
    assert "new_tokens" not in called.json["basis"]
    assert called.json["basis"]["data_dir"] == "."
    assert "store" not in called.json["basis"]


def test_the_exit_code_says_whether_the_budget_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("advise", "--setting", "S3", "--tpot-ms", "60", "--json")
    none = answered(ranking=rank([candidate("x", 99, 0)], DEMAND, {}))
    for found, code in ((answered(), 0), (none, 1), (answered(interrupted=True), 130)):
        monkeypatch.setattr(runs, "advise", lambda *what, found=found: found)
        called = call(*options)
        assert called.code == code
        assert called.json["partial"] == (code == 130)


def test_the_page_is_written_and_a_question_answered_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(advise_machine, "write_page", written.append)
    assert call("advise", "--html", "x.html").code == 0
    assert written == [Path("x.html")]
    assert "--html no/x.html: no such folder no" in refused("advise", "--html", "no/x.html")
    line = refused("advise", "--html", "x.html", "--model", "none.gguf")
    assert "none.gguf" in line
    assert len(written) == 2


def test_every_option_of_a_machine_reaches_the_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All that `advise` has an option for is among what `advice.advise` is asked."""
    asked: list[dict[str, Any]] = []

    def answer(model: str, **options: Any) -> Any:
        asked.append({"model": model, **options})
        return SimpleNamespace(document={}, answers=[{"fits": "fits"}], cached=False)

    monkeypatch.setattr(advice, "advise", answer)
    texts = {
        "model": "gpt-oss-20b", "machine": "desk", "quant": "mxfp4", "gpu": "rtx-3090",
        "cpu": "ryzen-9-5950x", "ram": "64", "memory": "ddr4-2666*2", "bandwidth": "40",
        "link": "pcie4x16", "copies": "20", "disk": "nvme4", "context": "32k", "prompt": "300",
        "tokens": "40", "config": "llama.cpp -ncmoe 28",
    }  # fmt: skip
    lines = [word for name, value in texts.items() for word in (f"--{name}", value)]
    more = ("--batch", "2", "--bits", "4.5", "--engines", "vllm,ollama", "--store", tmp_path)
    called = call("advise", *lines, *more, "--lossless", "--buy", "--fresh", "--json")
    assert called.code == 0, called.err
    (one,) = asked
    assert one.pop("told")
    assert one == texts | {
        "batch": 2, "bits": 4.5, "bandwidth": 40, "copies": 20, "engines": ["vllm", "ollama"],
        "store": tmp_path, "lossless": True, "buy": True, "fresh": True,
    }  # fmt: skip
