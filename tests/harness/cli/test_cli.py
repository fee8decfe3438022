"""The commands from outside: what stands on which stream, exit codes, and the run's document."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import Store
from moebench.substrate.machines.profile import MACHINES
from moebench.systems.smoe import SMoE
from tests.harness.commands import SMALL, call, refused, run
from tests.harness.tiny import EXPERTS, LAYERS, TOP_K
from tests.reports.trace_format import check_trace

pytestmark = pytest.mark.usefixtures("tiny_models")

ROOT = Path(__file__).parents[3]

SPREAD = ("mean", "p50", "p90", "p99")
LANES = ("device", "h2d", "d2h", "host", "disk", "predict")

#: The JSON contract, path by path.
PATHS = (
    *("run_id", "badge", "simulated", "lossless", "notes"),
    *(f"spec.{key}" for key in (
        "system", "setting", "machine", "model", "weights", "precision", "workload", "batch",
        "prompts", "new_tokens", "cache_ratio", "allow_overcommit", "free_host_gb", "overrides",
        "seed", "alpha", "slots", "options", "software", "device_memory_gib",
    )),
    *(f"metrics.tpot_ms.{key}" for key in SPREAD),
    *(f"metrics.ttft_ms.{key}" for key in SPREAD),
    *(f"metrics.{key}" for key in (
        "e2e_ms", "tokens_per_s", "cache_ratio", "cache_ratio_begun", "bytes_h2d", "bytes_disk",
        "host_memory", "stall_ms", "peak_device_bytes", "peak_host_bytes", "energy_j",
        "tokens_per_kj", "load_ms",
    )),
    *(f"metrics.prefetch.{key}" for key in ("issued", "top_score", "active", "used")),
    *(f"metrics.lanes.{lane}" for lane in LANES),
    *(f"metrics.experts.{phase}.{key}" for phase in ("prefill", "decode")
      for key in ("active", "hits", "in_flight", "begun", "loads", "host", "replaced")),
    *(f"metrics.decode.lanes.{lane}" for lane in LANES), "metrics.decode.stall_ms",
    *(f"accuracy.{key}" for key in ("score", "n", "stderr", "metric", "agreement", "kl")),
    *("bound.tpot_ms", "bound.ratio", "oracle"),
    *(f"memory.{key}" for key in (
        "offered_device_bytes", "offered_host_bytes", "expert_bytes", "room_bytes", "slot_bytes",
    )),
    *("metrics.decode.bytes_h2d", "metrics.decode.bytes_disk", "metrics.decoded_tokens"),
    *(f"provenance.versions.{key}" for key in ("moebench", "torch", "numpy", "python")),
    *(f"provenance.{key}" for key in (
        "commit", "code_hash", "machine", "profile", "profile_hash", "profile_error", "weights",
        "weights_hash", "data", "data_hash", "created", "wall_s",
    )),
)  # fmt: skip


def has(document: Any, path: str) -> bool:
    for step in path.split("."):
        if not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    return True


def without(document: dict[str, Any], *paths: str) -> dict[str, Any]:
    """A copy without some entries of its second level."""
    copy = json.loads(json.dumps(document))
    for path in paths:
        part, key = path.split(".")
        del copy[part][key]
    return copy


def module(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python -m moebench` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "moebench", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def counted_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs that were really carried out."""
    from moebench.harness import one_run

    carried_out: list[str] = []
    true_run: Callable[..., Any] = one_run.run

    def counting(session: Any, *arguments: Any, **options: Any) -> Any:
        carried_out.append(session.run_id)
        return true_run(session, *arguments, **options)

    monkeypatch.setattr(one_run, "run", counting)
    return carried_out


# --------------------------------------------------------------------------- run: the document


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout() -> None:
    called = call("run", "--system", "smoe", *SMALL, "--json")
    assert called.code == 0
    assert called.out.count("\n") == 1
    missing = [path for path in PATHS if not has(called.json, path)]
    assert missing == []
    assert called.json["run_id"] not in called.err
    assert "smoe on qwen2-57b-a14b: 1/1" in called.err


def test_figures_without_json_go_to_stdout_and_notes_to_stderr() -> None:
    called = call("run", "--system", "smoe", *SMALL, "--no-interval")
    assert called.code == 0
    lines = dict(line.split("\t") for line in called.out.splitlines())
    for latency in ("TPOT", "TTFT", "TPOT bound", "throughput"):
        assert "[estimate]" in lines[latency]
    assert "note: simulated on a6000 with hf-eager software: no such hardware ran" in called.err
    assert "moebench report --html" in called.err
    assert "moebench" not in called.out


def test_the_document_agrees_with_itself() -> None:
    document = run("smoe", "--prompts", "2")
    metrics, bound = document["metrics"], document["bound"]
    for phase in ("prefill", "decode"):
        n = metrics["experts"][phase]
        assert n["hits"] + n["in_flight"] + n["loads"] + n["host"] == n["active"]
    decode = metrics["experts"]["decode"]
    steps = 2 * (3 - 1)
    assert decode["active"] == LAYERS * TOP_K * steps
    assert metrics["cache_ratio"] == pytest.approx(decode["hits"] / decode["active"], abs=1e-6)
    begun = decode["begun"] / decode["active"]
    assert metrics["cache_ratio_begun"] == pytest.approx(begun, abs=1e-6)
    assert metrics["cache_ratio"] <= begun <= 1
    assert (
        1
        <= bound["ratio"]
        == pytest.approx(metrics["tpot_ms"]["mean"] / bound["tpot_ms"], rel=1e-3)
    )
    prefetch = metrics["prefetch"]
    assert max(prefetch["active"], prefetch["used"], prefetch["top_score"]) <= prefetch["issued"]
    spec = document["spec"]
    assert spec["cache_ratio"] == pytest.approx(spec["slots"] / (LAYERS * EXPERTS), abs=1e-6)
    # 48 GiB of device memory and 3.1 GB an expert.
    assert spec["slots"] * 3 * 3584 * (2560 * 56) * 2 < metrics["peak_device_bytes"] <= 48 * 2**30
    assert spec["options"]["alpha"] == "0.25" == str(spec["alpha"])
    assert document["accuracy"]["n"] == 2


@pytest.mark.slow
def test_one_new_token_has_no_tpot_and_says_so_with_null() -> None:
    document = run("smoe", "--new-tokens", "1")
    assert document["metrics"]["tpot_ms"] is None
    assert set(document["bound"].values()) == {None}
    assert document["accuracy"]["agreement"] is None
    assert document["metrics"]["cache_ratio"] is None
    called = call("run", "--system", "smoe", *SMALL, "--new-tokens", "1")
    assert called.code == 0
    assert "TPOT" not in called.out
    assert call("report").code == 0
    assert call("report", "--html", "out.html").code == 0


def test_the_same_command_twice_gives_the_same_document() -> None:
    first, second = (run("smoe", "--prompts", "2", "--force") for _ in range(2))
    varies = ("provenance.created", "provenance.wall_s")
    assert without(first, *varies) == without(second, *varies)


def test_another_seed_draws_other_prompts() -> None:
    first, second = run("smoe"), run("smoe", "--seed", "1")
    assert first["run_id"] != second["run_id"]
    assert first["provenance"]["data_hash"] != second["provenance"]["data_hash"]


def test_batches_are_whole() -> None:
    document = run("smoe", "--batch", "3", "--prompts", "6")
    assert document["spec"]["batch"] == 3
    assert document["accuracy"]["n"] == 6
    decode = document["metrics"]["experts"]["decode"]
    # Two batches, two decoded steps each; a layer's experts are counted once for all its rows.
    assert LAYERS * TOP_K * 4 <= decode["active"] <= LAYERS * TOP_K * (3 + 3) * 2
    assert document["bound"]["ratio"] >= 1
    called = call("run", "--system", "smoe", *SMALL, "--batch", "3", "--prompts", "4")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "--prompts 4 does not fill batches of 3" in called.err


@pytest.mark.slow
def test_the_default_workload_is_generated_whatever_data_there_is(here: Path) -> None:
    line = {"id": "a", "prompt": "What is 1 + 1?", "choices": None, "answer": "2", "answers": None}
    for folder in (here / "data", here.parent / "shared" / "data"):
        (folder / "gsm8k").mkdir(parents=True)
        (folder / "gsm8k" / "test.jsonl").write_text(json.dumps(line | {"split": "test"}))
    bare = ("run", "--system", "smoe", "--setting", "s3", "--prompts", "1", "--new-tokens", "2")
    plain, beside = (call(*bare, *more, "--json").json for more in ((), ("--data-dir", "data")))
    assert plain["spec"]["workload"] == beside["spec"]["workload"] == "passages"
    assert plain["spec"]["setting"] == "S3"
    assert plain["provenance"]["data"].startswith("generated")
    assert plain["run_id"] == beside["run_id"]
    named = call(*bare, "--data-dir", "data", "--workload", "gsm8k", "--json").json
    assert named["provenance"]["data"].startswith("gsm8k")


def test_hardware_of_ones_own(here: Path) -> None:
    """A file is a machine like any other; what it says, not its name, decides the result."""
    text = (MACHINES / "a6000.yaml").read_text()
    (here / "box.yaml").write_text(text)
    budget = ("--device-memory", "41.56")  # S3's, which is that of its own machine
    theirs, same = run("smoe"), run("smoe", "--machine", "box.yaml", *budget)
    assert same["metrics"] == theirs["metrics"]
    assert same["provenance"]["profile_hash"] == theirs["provenance"]["profile_hash"]
    halved = text.replace("value: 26, unit: GB/s, range: [26, 27.5]", "value: 13, unit: GB/s")
    (here / "box.yaml").write_text(halved)
    slower = run("smoe", "--machine", "box.yaml", *budget)
    assert slower["run_id"] != same["run_id"]
    assert slower["metrics"]["ttft_ms"]["mean"] > 1.2 * same["metrics"]["ttft_ms"]["mean"]


# --------------------------------------------------------------------------- run: the store


def test_a_stored_result_is_reused_and_says_so(counted_runs: list[str]) -> None:
    first = run("smoe")
    again = call("run", "--system", "smoe", *SMALL, "--no-interval", "--json")
    assert len(counted_runs) == 1
    assert again.json == first
    assert f"run {first['run_id']} was stored; --force runs it again" in again.err
    run("smoe", "--force")
    assert counted_runs == [first["run_id"]] * 2
    assert len(Store(Path(".moebench")).runs()) == 1


def test_store_elsewhere(here: Path) -> None:
    document = run("moe-ondemand", "--store", "deep/er")
    assert Store(Path("deep/er")).get(document["run_id"]) == document
    assert not (here / ".moebench").exists()


@pytest.mark.slow
def test_timeline_is_a_chrome_trace(here: Path, counted_runs: list[str]) -> None:
    run("smoe")
    called = call("run", "--system", "smoe", *SMALL, "--timeline", "trace.json")
    assert called.code == 0
    assert len(counted_runs) == 2, "a stored result has no timeline"
    assert "timeline in trace.json" in called.err
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    check_trace({"traceEvents": events})
    drawn = {e["cat"] for e in events if e["ph"] == "X"}
    assert drawn >= {"attend", "gate", "expert", "load", "combine", "head"}
    tokens = [e["name"] for e in events if e["ph"] == "i" and e["cat"] == "token"]
    assert tokens == ["token 1", "token 2", "token 3"]


def test_a_stored_runs_timeline(here: Path) -> None:
    run_id = run("smoe", "--new-tokens", "12")["run_id"]
    called = call("timeline", run_id[:6])
    assert (called.code, called.out) == (0, "")
    assert f"timeline in {run_id}.trace.json (simulated, token 9 of a batch)" in called.err
    trace = json.loads((here / f"{run_id}.trace.json").read_text())
    check_trace(trace)
    assert trace["otherData"]["run"] == run_id
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "s"} == {"uses"}
    assert call("timeline", run_id, "--out", "b.json").code == 0
    assert json.loads((here / "b.json").read_text()) == trace


def test_a_run_without_a_timeline_says_how_to_make_one(here: Path) -> None:
    run_id = run("smoe", "--new-tokens", "1")["run_id"]  # a decoded token is kept
    assert "kept no timeline; run it again" in refused("timeline", run_id)
    assert "this is a folder" in refused("timeline", run("smoe", "--new-tokens", "12")["run_id"],
                                         "--out", here)  # fmt: skip
    assert "unknown run" in refused("timeline", "000000")


# --------------------------------------------------------------------------- run: systems


def test_gpu_only_does_not_fit_and_can_be_overcommitted(here: Path) -> None:
    refused = call("run", "--system", "gpu-only", *SMALL)
    assert refused.code == 2
    assert refused.out == ""
    assert len(refused.err.splitlines()) == 1
    assert refused.err.startswith("moebench: ")
    assert "--allow-overcommit" in refused.err
    assert not (here / ".moebench").exists()

    document = run("gpu-only", "--allow-overcommit")
    assert any(note.startswith("overcommitted:") for note in document["notes"])
    assert document["metrics"]["cache_ratio"] == 1
    assert document["metrics"]["bytes_h2d"] == 0
    assert document["metrics"]["peak_device_bytes"] > 48 * 2**30
    assert document["spec"]["allow_overcommit"] is True


@pytest.mark.parametrize("system", ["gpu-only", "moe-ondemand", "smoe"])
def test_on_this_machine(system: str) -> None:
    overcommit = ["--allow-overcommit"] if system == "gpu-only" else []
    simulated = run(system, *overcommit)
    called = call("run", "--system", system, *SMALL, "--machine", "local", "--json")
    assert called.code == 0, called.err
    document = called.json
    assert document["badge"] == "measured"
    assert document["simulated"] is False
    assert document["provenance"]["profile"] is None
    assert document["metrics"]["energy_j"] is None
    assert document["spec"]["cache_ratio"] == simulated["spec"]["cache_ratio"]
    assert document["spec"]["slots"] == simulated["spec"]["slots"]
    assert document["metrics"]["bytes_h2d"] == 0
    assert (document["metrics"]["bytes_disk"] == 0) == (system == "gpu-only")
    assert document["metrics"]["experts"]["decode"]["host"] == 0
    assert document["bound"]["ratio"] >= 1
    assert f"{document['spec']['slots']} slots" in document["notes"][0]
    off = [note for note in document["notes"] if "host assist is off" in note]
    assert len(off) == (system == "smoe")
    if system == "smoe":
        assert document["spec"]["options"]["assign"] == "load"
        assert "host assist is off" in call("report", "--json").out


def test_every_local_run_is_a_measurement_of_its_own() -> None:
    shown = call("run", "--system", "moe-ondemand", *SMALL, "--machine", "local")
    assert "ms [measured on qwen2-57b-a14b's scale model, 0.0289 M parameters]" in shown.out
    assert "host assist" not in shown.err
    assert "ms [computed]" in shown.out, "a bound is never measured"
    assert "was stored" not in call("run", "--system", "moe-ondemand", *SMALL,
                                    "--machine", "local").err  # fmt: skip
    assert len(Store(Path(".moebench")).runs()) == 2


def ablations() -> Iterator[tuple[str, list[str]]]:
    """The ablation table of the SMoE class, as it is written there."""
    for line in (SMoE.__doc__ or "").splitlines():
        if found := re.match(r"\s+(base|\+\w+)\s+(.*)", line):
            yield found[1], re.findall(r"\w+=\S+", found[2])


@pytest.mark.slow
def test_the_ablation_of_the_docstring() -> None:
    documents = {}
    for name, changes in ablations():
        settings = [part for change in changes for part in ("--set", change)]
        documents[name] = run("smoe", "--new-tokens", "12", *settings)
    assert list(documents) == ["base", "+CE", "+CR", "+Pre", "+BA"]
    assert len({d["run_id"] for d in documents.values()}) == 5
    assert len({d["metrics"]["tpot_ms"]["mean"] for d in documents.values()}) == 5
    decode = {name: d["metrics"]["experts"]["decode"] for name, d in documents.items()}
    assert decode["base"]["loads"] == 0 < decode["base"]["host"]
    assert decode["+CE"]["host"] == 0 < decode["+CE"]["loads"]
    assert [name for name, n in decode.items() if not n["replaced"]] == ["base", "+CE"]
    for name, document in documents.items():
        assert document["lossless"] == (name in ("base", "+CE"))
        assert (document["metrics"]["prefetch"]["issued"] > 0) == (name in ("+Pre", "+BA"))
        if document["lossless"]:
            assert document["accuracy"]["agreement"] == 1
            assert document["accuracy"]["kl"] == pytest.approx(0, abs=1e-5)


def test_a_borrowed_decision() -> None:
    """Any system may use another's policy, with its options and with the setting's α."""
    document = run("moe-ondemand", "--set", "route=expert-cache", "--set", "evict=lfu",
                   "--set", "evict.survive=true")  # fmt: skip
    options = document["spec"]["options"]
    assert options["route"] == "expert-cache"
    assert options["alpha"] == "0.25"
    assert options["evict.survive"] == "True"
    assert document["lossless"] is False


def test_an_interrupt_ends_with_130(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moebench.harness import one_run

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(one_run, "run", interrupted)
    called = call("run", "--system", "smoe", *SMALL)
    assert called.code == 130
    assert called.out == ""
    assert "Traceback" not in called.err
    assert not (here / ".moebench").exists()


# --------------------------------------------------------------------------- as a process


@pytest.mark.slow
def test_as_a_process(here: Path) -> None:
    done = module("run", "--system", "smoe", *SMALL, "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [path for path in PATHS if not has(document, path)] == []
    assert "Traceback" not in done.stderr
    # Another process, another hash seed and another call give the same document.
    varies = ("provenance.created", "provenance.wall_s")
    again = call("run", "--system", "smoe", *SMALL, "--force", "--json").json
    assert without(document, *varies) == without(again, *varies)


def test_a_refusal_as_a_process(here: Path) -> None:
    done = module("run", "--system", "daopp", *SMALL, cwd=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("moebench: unknown system 'daopp'; nearest: daop")
    assert done.stderr.endswith("; see: moebench list systems\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("run", "--help")])
def test_help(arguments: tuple[str, ...]) -> None:
    called = call(*arguments)
    assert (called.code, called.err) == (0, "")
    assert called.out.startswith("Usage: moebench")
