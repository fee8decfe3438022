"""`moebench trace` and `moebench run --trace`: recorded and imported routing, replayed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.api import trace as api
from moebench.harness.cli import trace as command
from moebench.harness.one_run import Outcome, prepare, run
from moebench.harness.run import execute, live
from moebench.harness.run.learn import learners
from moebench.harness.run.recording import Recorded
from moebench.harness.run.rules import resolve
from moebench.substrate.engine.system import System
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.record import TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.replay import routings
from moebench.substrate.traces.writer import writing
from moebench.systems.options import build
from moebench.systems.registry import SYSTEMS
from tests.harness.commands import SCALE_MODEL, Called, call, refused
from tests.harness.tiny import EXPERTS, LAYERS, NAMES, TOP_K

pytestmark = pytest.mark.usefixtures("tiny_models")

TOKENS = 10
SMOE = ("--system", "smoe", "--alpha", "0")


def replayed(trace: Path | str, *arguments: str) -> dict[str, Any]:
    called = call("run", "--trace", trace, "--setting", "S3", "--json", *arguments)
    assert called.code == 0, called.err
    document: dict[str, Any] = called.json
    return document


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    """Three prompts of different length, as the command records them."""
    out = tmp_path_factory.mktemp("traces") / "t"
    called = call(
        "trace", "record", "--setting", "S3", "--workload", "arithmetic", "--prompts", "3",
        "--new-tokens", "6", "--out", out,
    )  # fmt: skip
    assert called.code == 0, called.err
    return out


# ----------------------------------------------------------------------------- equal decisions


def systems() -> list[tuple[str, dict[str, str]]]:
    """Every system that ships and can compute, lossless."""
    found = []
    for name in SYSTEMS:
        overrides = {"alpha": "0"} if build(name).has_alpha else {}
        if build(name, overrides).lossless and not build(name, overrides).clairvoyant:
            found.append((name, overrides))
    return found


def facts(outcome: Outcome) -> list[tuple[Any, ...]]:
    return [
        (s.op, s.lane, s.start_ns, s.end_ns, s.stall_ns, s.cause, s.late_ns)
        for s in outcome.timeline.spans
    ]


def learning_from(texts: list[RoutedSequence]) -> Callable[..., dict[str, Any]]:
    """In place of `calibrate`: a live run and its replay would learn from different texts."""

    def calibrate(
        system: System, full: ModelShape, learnable: Any, scratch: Path, progress: Any
    ) -> dict[str, Any]:
        for policy in learners(system).values():
            if hasattr(policy, "epochs"):
                policy.epochs = 1
            policy.calibrate(texts, full, scratch, progress)
        return {}

    return calibrate


def everything_happened(outcome: Outcome) -> bool:
    """Whether experts were found, awaited, loaded and computed on the host."""
    decode = outcome.document["metrics"]["experts"]["decode"]
    return all(decode[what] for what in ("hits", "in_flight", "loads", "host"))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("system", "overrides"), systems())
def test_a_replay_is_the_live_run_span_for_span(
    system: str, overrides: dict[str, str], batch: int, recorded: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Prefetch, host assist and score eviction are on; so few slots that all of them matter."""
    texts = routings(open_trace(recorded), also={"hidden", "embedding"})[:2]
    monkeypatch.setattr(execute, "calibrate", learning_from(texts))
    common = {
        "system": system, "overrides": overrides, "setting": "S3", "new_tokens": TOKENS,
        "batch": batch, "allow_overcommit": True,
        "cache_ratio": None if build(system).all_resident else 0.3,
    }  # fmt: skip
    spec = resolve(None, **common, workload="arithmetic", prompts=2)
    session = live.prepare(spec, None)
    asks = session.system.lookaheads
    outcomes = {}
    for scores in ("float16", "float32"):
        header = header_of(session.weights.checkpoint.shape, SCALE_MODEL, "arithmetic")
        recording = session.varied(spec)
        with writing(tmp_path / scores, header) as writer:
            writer.describe(predictions=recorded_predictions(asks, system))
            recording.wrap = lambda m, w=writer, s=scores: TraceRecorder(m, w, s)
            computed = run(recording, tmp_path, keep_timeline=True)
        replay = resolve(None, **common, trace=str(tmp_path / scores))
        again = run(prepare(replay, None), tmp_path, keep_timeline=True)
        assert facts(again) == facts(computed)
        assert again.document["metrics"] == computed.document["metrics"]
        assert again.document["bound"] == computed.document["bound"]
        outcomes[scores] = again
    plain = run(session.varied(spec), tmp_path, keep_timeline=True)
    assert facts(outcomes["float32"]) == facts(plain), "nobody need have recorded"
    if system == "smoe":
        assert everything_happened(plain)


# ----------------------------------------------------------------------------- record and replay


def test_a_replay_says_that_nothing_was_computed(recorded: Path) -> None:
    document = replayed(recorded, "--system", "moe-ondemand")
    accuracy = document["accuracy"]
    assert accuracy["n"] == 0
    assert all(accuracy[name] is None for name in ("score", "stderr", "agreement", "kl", "metric"))
    assert document["spec"]["workload"] == "arithmetic"
    assert document["spec"]["prompts"] == 3
    assert document["spec"]["new_tokens"] == 6
    assert any(n.startswith("routing replayed from trace") for n in document["notes"])
    assert document["provenance"]["trace_hash"] == open_trace(recorded).hash
    assert "replayed" in document["provenance"]["weights"]
    assert document["metrics"]["ttft_ms"] is not None


@pytest.mark.slow
def test_figures_are_those_of_the_live_run(recorded: Path) -> None:
    live = call(
        "run", "--system", "moe-ondemand", "--setting", "S3", "--workload", "arithmetic",
        "--prompts", "3", "--new-tokens", "6", "--json",
    ).json  # fmt: skip
    assert replayed(recorded, "--system", "moe-ondemand")["metrics"] == live["metrics"]


@pytest.mark.slow
def test_bounds_by_linear_programs_are_computed_where_they_are_asked_for(recorded: Path) -> None:
    plain = replayed(recorded, "--system", "moe-ondemand")["bound"]
    assert plain["programs"] is plain["clairvoyant_ms"] is plain["information_ms"] is None
    found = replayed(recorded, "--system", "moe-ondemand", "--clairvoyant")["bound"]
    assert {**plain, **found} == found
    programs = found["programs"]
    assert programs["tokens"] == 3 * 5
    assert programs["window"] == 5
    assert 0 < programs["gap_ms"] < 1e-4 * found["clairvoyant_ms"]
    assert 0 < found["clairvoyant_ms"] < found["information_ms"] <= programs["tpot_ms"]


@pytest.mark.slow
def test_a_system_that_computes_on_unfinished_copies_has_no_such_bounds(recorded: Path) -> None:
    shipped = ("--system", "smoe", "--variant", "shipped", "--set", "prefetch=none")
    found = replayed(recorded, *shipped, "--clairvoyant")["bound"]
    assert found["programs"] is found["clairvoyant_ms"] is None
    assert found["tpot_ms"] > 0


def test_these_bounds_are_refused_on_this_computer() -> None:
    line = refused("run", *SMOE, "--model", "olmoe-1b-7b", "--machine", "local", "--clairvoyant")
    assert "--clairvoyant and --machine local" in line


@pytest.mark.slow
def test_less_than_the_trace_holds_can_be_asked_for(recorded: Path) -> None:
    document = replayed(recorded, *SMOE, "--prompts", "2", "--new-tokens", "3", "--batch", "2")
    assert document["metrics"]["experts"]["decode"]["active"] <= 2 * LAYERS * TOP_K * 2
    whole = replayed(recorded, *SMOE)
    assert whole["metrics"]["experts"]["decode"]["active"] == 3 * 5 * LAYERS * TOP_K


def test_prompts_that_fill_no_batch_are_left_out(recorded: Path) -> None:
    assert replayed(recorded, *SMOE, "--batch", "2")["spec"]["prompts"] == 2


def test_a_trace_of_a_substituting_system_says_so() -> None:
    out = "lossy"
    called = call(
        "trace", "record", "--setting", "S3", "--workload", "arithmetic", "--prompts", "1",
        "--new-tokens", "3", "--system", "smoe", "--out", out,
    )  # fmt: skip
    assert called.code == 0, called.err
    header = open_trace(Path(out)).header
    assert not header.lossless
    assert header.predictions["layer"].made == "as smoe saw it"
    notes = replayed(out, "--system", "moe-ondemand")["notes"]
    assert any("the recorded system substituted" in note for note in notes)


def test_a_substituting_system_runs_with_a_note(recorded: Path) -> None:
    document = replayed(recorded, "--system", "smoe")
    assert not document["lossless"]
    assert any("does not follow the text" in note for note in document["notes"])


@pytest.mark.slow
def test_identity_is_the_content_not_the_place(recorded: Path, tmp_path: Path) -> None:
    first = replayed(recorded, *SMOE)["run_id"]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in recorded.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert replayed(moved, *SMOE)["run_id"] == first
    header = json.loads((moved / "trace.json").read_text())
    (moved / "trace.json").write_text(json.dumps(header | {"notes": ["another"]}))
    assert replayed(moved, *SMOE)["run_id"] != first


@pytest.mark.slow
def test_the_report_shows_a_replay(recorded: Path) -> None:
    replayed(recorded, *SMOE)
    called = call("report", "--html", "out.html")
    assert called.code == 0, called.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--new-tokens", "7"), "holds 6 new tokens"),
        (("--prompts", "4"), "holds 3 prompts"),
        (("--batch", "2", "--prompts", "3"), "holds 2 prompts"),
        (("--batch", "4"), "holds 3 prompts"),
        (("--batch", "0"), "--batch 0"),
        (("--prompts", "0"), "--prompts 0"),
        (("--workload", "gsm8k"), "a trace has its own"),
        (("--weights", "x"), "a trace has its own"),
        (("--scoring", "generation"), "a trace has its own"),
        (("--seed", "1"), "a trace has its own"),
        (("--setting", "F1"), "the model charged for has 16 MoE layers of 64 experts"),
        (("--reconstruct-scores",), "has gate scores"),
    ],
)
def test_what_a_trace_cannot_do_is_one_line(
    recorded: Path, arguments: tuple[str, ...], says: str
) -> None:
    line = refused("run", "--trace", recorded, "--system", "smoe", "--setting", "S3", *arguments)
    assert says in line


def test_no_trace_is_one_line(tmp_path: Path) -> None:
    run_it = ("run", "--system", "smoe", "--setting", "S3", "--trace")
    assert "no such folder" in refused(*run_it, "nowhere")
    assert "not a trace" in refused(*run_it, tmp_path)
    assert "--trace" in refused(*run_it[:-1], "--reconstruct-scores")


def test_a_recording_does_not_overwrite(recorded: Path) -> None:
    line = refused("trace", "record", "--setting", "S3", "--out", recorded)
    assert "exists; give another --out" in line


@pytest.mark.slow
def test_several_traces_go_into_one_folder_and_what_exists_stays() -> None:
    arguments = (
        "trace", "record", "--all", "--workloads", "arithmetic,facts", "--prompts", "1",
        "--new-tokens", "2", "--out", "many",
    )  # fmt: skip
    assert call(*arguments).code == 0
    found = {path.name for path in Path("many").iterdir()}
    assert found == {
        f"{name}__{workload}" for name in NAMES for workload in ("arithmetic", "facts")
    }
    before = {path: path.stat().st_mtime_ns for path in Path("many").rglob("*.npy")}
    again = call(*arguments)
    assert again.code == 0
    assert "exists" in again.err
    assert {path: path.stat().st_mtime_ns for path in Path("many").rglob("*.npy")} == before
    assert "leave --setting" in refused(*arguments, "--setting", "S3")


# ----------------------------------------------------------------------------- info


def test_info(recorded: Path) -> None:
    document = call("trace", "info", recorded, "--json").json
    assert (document["num_moe_layers"], document["num_experts"], document["top_k"]) == (
        LAYERS, EXPERTS, TOP_K,
    )  # fmt: skip
    assert document["tokens"]["decode"] == 3 * 5
    assert document["source"]["system"] == "gpu-only"
    assert document["statistics"]["random_overlap"] == TOP_K / EXPERTS
    text = call("trace", "info", recorded).out
    assert "lag_overlap.1" in text
    named = [line.split("\t")[0] for line in text.splitlines()]
    assert {"model", "source: system", "array: ids"} <= {*named}
    assert not {"arrays", "statistics", "source"} & {*named}, "they have lines of their own"


@pytest.mark.slow
def test_info_reads_arrays_that_not_every_run_reads(recorded: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(recorded, tmp_path / "broken")
    file = broken / "predicted_layer.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    run_it = ("run", "--trace", broken, "--setting", "S3", "--system")
    assert call(*run_it, "moe-ondemand").code == 0  # which predicts nothing
    for arguments in (("trace", "info", broken), (*run_it, "smoe")):
        assert "predicted_layer.npy is not what was written" in refused(*arguments)


# ----------------------------------------------------------------------------- ids only


def publish(folder: Path, layers: int, experts: int, k: int, phase: int) -> Path:
    """Chosen experts alone, as others publish them."""
    folder.mkdir()
    random = np.random.default_rng(0)
    ids = np.argsort(random.random((12, layers, experts)), 2)[..., :k].astype(np.uint8)
    arrays = {"ids": ids, "seq": np.repeat([0, 1], (5, 7)), "phase": np.full(12, phase)}
    np.savez(folder / "trace.npz", **arrays)
    meta = {"num_experts": experts, "workload": "prose", "ids_order": "by score"}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture
def ids_only() -> Path:
    """OLMoE's topology, decode only."""
    source = publish(Path("olmoe-1b-7b__prose"), 16, 64, 8, phase=1)
    assert call("trace", "import", source, "--out", "imported").code == 0
    return Path("imported")


def replay_ids(trace: Path, *arguments: str) -> Called:
    return call("run", "--trace", trace, "--machine", "rtx4060ti", "--json", *arguments)


@pytest.mark.slow
def test_an_imported_trace_says_its_model_and_runs_without_a_prompt(ids_only: Path) -> None:
    document = replay_ids(ids_only, "--system", "moe-ondemand").json
    assert document["spec"]["model"] == "olmoe-1b-7b"
    assert document["metrics"]["ttft_ms"] is None
    assert document["metrics"]["tpot_ms"] is not None
    # The first decoded token of each sequence stands for its prompt.
    assert document["metrics"]["experts"]["decode"]["active"] == (4 + 6) * 16 * 8
    assert any("TTFT is not known" in note for note in document["notes"])
    assert any("ends with its shortest" in note for note in document["notes"])
    assert call("report", "--html", "out.html").code == 0, "no workload of ours, no prompt"


@pytest.mark.slow
def test_systems_that_read_scores_say_so_or_take_reconstructed_ones(ids_only: Path) -> None:
    line = refused(
        "run", "--trace", ids_only, "--machine", "rtx4060ti", *SMOE, "--set", "prefetch=none"
    )
    assert "evict=score" in line
    assert "--reconstruct-scores" in line
    arguments = (*SMOE, "--set", "prefetch=none", "--reconstruct-scores")
    document = replay_ids(ids_only, *arguments).json
    assert any("reconstructed by rank" in note for note in document["notes"])


def test_predictions_cannot_be_reconstructed(ids_only: Path) -> None:
    line = refused("run", "--trace", ids_only, "--machine", "rtx4060ti", *SMOE)
    assert "holds no predictions of kind layer" in line
    assert "--set prefetch=none" in line


def test_a_trace_from_before_daops_predictions_were_recorded_is_refused_in_one_line(
    recorded: Path,
) -> None:
    old = shutil.copytree(recorded, Path("old"))
    header = json.loads((old / "trace.json").read_text())
    del header["predictions"]["normed"], header["arrays"]["predicted_normed"]
    (old / "trace.json").write_text(json.dumps(header))
    arguments = ("--trace", old, "--setting", "S3", "--system", "daop", "--set", "place=by-id")
    line = refused("run", *arguments)
    assert call("run", *arguments, "--set", "route=exact").code == 0
    assert "holds no predictions of kind normed (it holds: gate, layer)" in line
    assert "route=predicted reads them; use --set route=exact, or record the trace again" in line


@pytest.mark.slow
def test_a_prefill_alone_has_a_ttft_and_no_tpot() -> None:
    source = publish(Path("olmoe-1b-7b__read"), 16, 64, 8, phase=0)
    assert call("trace", "import", source, "--out", "read").code == 0
    metrics = replay_ids(Path("read"), "--system", "moe-ondemand").json["metrics"]
    assert metrics["tpot_ms"] is None
    assert metrics["ttft_ms"] is not None


@pytest.mark.slow
def test_a_trace_with_fewer_chosen_experts_replays_as_it_ran() -> None:
    source = publish(Path("qwen3-30b-a3b-k6__explain"), 48, 128, 6, phase=1)
    assert call("trace", "import", source, "--out", "k6").code == 0
    document = replay_ids(Path("k6"), "--system", "moe-ondemand").json
    assert any("top-6, the model has top-8" in note for note in document["notes"])


def test_what_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    assert "meta.json" in refused("trace", "import", tmp_path, "--out", "x")
    assert "no such folder" in refused("trace", "import", "nowhere", "--out", "x")


# ----------------------------------------------------------------------------- options


def test_what_is_recorded_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(api, "record", lambda *what: given.append(what))
    assert call("trace", "record", "--setting", "S3", "--out", "t").code == 0
    asked = ("trace", "record", "--all", "--workloads", "facts,passages", "--scores", "float32",
             "--states", "--data-dir", ".", "--prompts", "3", "--system", "smoe",
             "--out", "many")  # fmt: skip
    assert call(*asked).code == 0
    assert call(*asked, "--no-states").code == 0
    first, second, third = given
    assert first[:6] == (
        {"system": "gpu-only", "setting": "S3"}, [None], None, Path("t"), False,
        Recorded("float16", None),
    )  # fmt: skip
    assert second[:6] == (
        {"system": "smoe", "prompts": 3}, ["facts", "passages"], Path(), Path("many"), True,
        Recorded("float32", True),
    )  # fmt: skip
    assert third[5] == Recorded("float32", False)
    assert first[6:] == (command.console.progress, command.console.say)


def test_info_measures_the_first_sequences(recorded: Path) -> None:
    whole = call("trace", "info", recorded, "--json").json
    part = call("trace", "info", recorded, "--json", "--tokens", "1").json
    assert (whole["sequences"], whole["measured_sequences"]) == (3, 3)
    assert (part["sequences"], part["measured_sequences"]) == (3, 2)
    assert whole["trace"] == str(recorded)
    assert whole["hash"] == open_trace(recorded).hash
    opened = open_trace(recorded)
    assert whole["tokens"]["prefill"] == sum(opened.prompts)
    lines = [line.split("\t") for line in call("trace", "info", recorded).out.splitlines()]
    assert lines[0] == ["what", "value"]
    shown = {name: rest for name, *rest in lines}
    ids = opened.header.arrays["ids"]
    assert shown["array: ids"] == [f"{ids.dtype} {list(ids.shape)}"]
    assert "source: spec" not in shown
    assert ["statistic", "value"] in lines
