"""`moebench trace` and `moebench run --trace`: recorded, drawn and imported routing, replayed."""

import json
from pathlib import Path

import numpy as np
import pytest

from moebench.harness.run import runner
from moebench.harness.run.calibration import learners
from moebench.harness.run.inputs import prepare as prepare_live
from moebench.harness.run.runner import prepare, run
from moebench.harness.run.spec import resolve
from moebench.harness.sweep.plan import cells_from_file
from moebench.harness.sweep.worker import group_of
from moebench.results.store import Store
from moebench.substrate.traces.catalogue import SHIPPED, find_trace, trace_names
from moebench.substrate.traces.file import open_trace, writing
from moebench.substrate.traces.record import TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.replay import routings
from moebench.systems.options import build
from moebench.systems.registry import SYSTEMS
from tests.harness.commands import SCALE_MODEL, Called, call

TOKENS = 10
SMOE = ("--system", "smoe", "--alpha", "0")


def replayed(trace: Path | str, *arguments: str) -> dict:
    called = call("run", "--trace", trace, "--setting", "S3", "--json", *arguments)
    assert called.code == 0, called.err
    return called.json


def refused(*arguments: str | Path) -> str:
    called = call(*arguments)
    assert (called.code, called.out) == (2, "")
    (line,) = [text for text in called.err.splitlines() if text.startswith("moebench: ")]
    assert "Traceback" not in called.err
    return line


# ----------------------------------------------------------------------------- equal decisions


def systems() -> list[tuple[str, dict[str, str]]]:
    """Every system that ships, lossless."""
    found = []
    for name in SYSTEMS:
        settings = {"route.alpha": "0"} if hasattr(build(name).route, "alpha") else {}
        if build(name, settings).lossless:
            found.append((name, settings))
    return found


def facts(outcome) -> list[tuple]:
    return [
        (s.op, s.lane, s.start_ns, s.end_ns, s.stall_ns, s.cause, s.late_ns)
        for s in outcome.timeline.spans
    ]


def learn_from_the_shipped_trace(system, inputs, shared, scratch, progress) -> None:
    """A live run and its replay would learn from different texts."""
    texts = routings(open_trace(find_trace("qwen2-57b-a14b__arithmetic")))[:2]
    for policy in learners(system):
        if hasattr(policy, "epochs"):
            policy.epochs = 1
        policy.calibrate(texts, inputs.full, scratch, progress)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("system", "settings"), systems())
def test_the_scale_models_replay_is_the_live_run_span_for_span(
    system, settings, batch, tmp_path, monkeypatch
):
    """Prefetch, host assist and score eviction are on; so few slots that all of them matter."""
    monkeypatch.setattr(runner, "calibrate", learn_from_the_shipped_trace)
    common = {
        "system": system, "settings": settings, "setting": "S3", "new_tokens": TOKENS,
        "batch": batch, "allow_overcommit": True,
        "cache_ratio": None if build(system).all_resident else 0.3,
    }  # fmt: skip
    inputs = prepare_live(resolve(None, **common, workload="arithmetic", prompts=2), None)
    asks = build(system, settings).prefetch.lookahead
    outcomes = {}
    for scores in ("float16", "float32"):
        header = header_of(inputs.checkpoint.shape, SCALE_MODEL, "arithmetic")
        with writing(tmp_path / scores, header) as writer:
            writer.describe(predictions=recorded_predictions(asks, system))
            live = run(
                inputs,
                tmp_path,
                keep_timeline=True,
                wrap=lambda m, w=writer, s=scores: TraceRecorder(m, w, s, asks),
            )
        spec = resolve(None, **common, trace=str(tmp_path / scores))
        again = run(prepare(spec, None), tmp_path, keep_timeline=True)
        assert facts(again) == facts(live)
        assert again.document["metrics"] == live.document["metrics"]
        assert again.document["bound"] == live.document["bound"]
        outcomes[scores] = again
    plain = run(inputs, tmp_path, keep_timeline=True)
    assert facts(outcomes["float32"]) == facts(plain), "nobody need have recorded"


# ----------------------------------------------------------------------------- record and replay


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Three prompts of different length, as the command records them."""
    out = tmp_path_factory.mktemp("traces") / "t"
    called = call(
        "trace", "record", "--setting", "S3", "--workload", "arithmetic", "--prompts", "3",
        "--new-tokens", "6", "--out", out,
    )  # fmt: skip
    assert called.code == 0, called.err
    return out


def test_a_replay_says_that_nothing_was_computed(recorded):
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


def test_figures_are_those_of_the_live_run(recorded):
    live = call(
        "run", "--system", "moe-ondemand", "--setting", "S3", "--workload", "arithmetic",
        "--prompts", "3", "--new-tokens", "6", "--json",
    ).json  # fmt: skip
    assert replayed(recorded, "--system", "moe-ondemand")["metrics"] == live["metrics"]


def test_less_than_the_trace_holds_can_be_asked_for(recorded):
    document = replayed(recorded, *SMOE, "--prompts", "2", "--new-tokens", "3", "--batch", "2")
    assert document["metrics"]["experts"]["decode"]["active"] <= 2 * 28 * 8 * 2
    whole = replayed(recorded, *SMOE)
    assert whole["metrics"]["experts"]["decode"]["active"] == 3 * 5 * 28 * 8


def test_prompts_that_fill_no_batch_are_left_out(recorded):
    assert replayed(recorded, *SMOE, "--batch", "2")["spec"]["prompts"] == 2


def test_a_trace_of_a_substituting_system_says_so():
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


def test_a_substituting_system_runs_with_a_note(recorded):
    document = replayed(recorded, "--system", "smoe")
    assert not document["lossless"]
    assert any("does not follow the text" in note for note in document["notes"])


def test_identity_is_the_content_not_the_place(recorded, tmp_path):
    first = replayed(recorded, *SMOE)["run_id"]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in recorded.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert replayed(moved, *SMOE)["run_id"] == first
    header = json.loads((moved / "trace.json").read_text())
    (moved / "trace.json").write_text(json.dumps(header | {"notes": ["another"]}))
    assert replayed(moved, *SMOE)["run_id"] != first


def test_the_report_shows_a_replay(recorded):
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
        (("--workload", "gsm8k"), "a trace has its own"),
        (("--weights", "x"), "a trace has its own"),
        (("--scoring", "generation"), "a trace has its own"),
        (("--seed", "1"), "a trace has its own"),
        (("--machine", "local"), "simulated machine only"),
        (("--setting", "D1"), "the model charged for has 32 MoE layers of 8 experts"),
        (("--reconstruct-scores",), "has gate scores"),
    ],
)
def test_what_a_trace_cannot_do_is_one_line(recorded, arguments, says):
    line = refused("run", "--trace", recorded, "--system", "smoe", "--setting", "S3", *arguments)
    assert says in line


def test_no_trace_is_one_line(tmp_path):
    run_it = ("run", "--system", "smoe", "--setting", "S3", "--trace")
    assert "no such folder" in refused(*run_it, "nowhere")
    assert "not a trace" in refused(*run_it, tmp_path)
    assert "--trace" in refused(*run_it[:-1], "--reconstruct-scores")


def test_a_recording_does_not_overwrite(recorded):
    line = refused("trace", "record", "--setting", "S3", "--out", recorded)
    assert "exists; give another --out" in line


def test_several_traces_go_into_one_folder_and_what_exists_stays():
    arguments = (
        "trace", "record", "--all", "--workloads", "arithmetic,facts", "--prompts", "1",
        "--new-tokens", "2", "--out", "many",
    )  # fmt: skip
    assert call(*arguments).code == 0
    found = {path.name for path in Path("many").iterdir()}
    assert {f"{SCALE_MODEL}__arithmetic", f"{SCALE_MODEL}__facts"} <= found
    before = {path: path.stat().st_mtime_ns for path in Path("many").rglob("*.npy")}
    again = call(*arguments)
    assert again.code == 0
    assert "exists" in again.err
    assert {path: path.stat().st_mtime_ns for path in Path("many").rglob("*.npy")} == before
    assert "leave --setting" in refused(*arguments, "--setting", "S3")


# ----------------------------------------------------------------------------- info


def test_info(recorded):
    document = call("trace", "info", recorded, "--json").json
    assert (document["num_moe_layers"], document["num_experts"], document["top_k"]) == (28, 64, 8)
    assert document["tokens"]["decode"] == 3 * 5
    assert document["source"]["system"] == "gpu-only"
    assert document["statistics"]["random_overlap"] == 0.125
    text = call("trace", "info", recorded).out
    assert "lag_overlap.1" in text


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


def test_an_imported_trace_says_its_model_and_runs_without_a_prompt(ids_only):
    document = replay_ids(ids_only, "--system", "moe-ondemand").json
    assert document["spec"]["model"] == "olmoe-1b-7b"
    assert document["metrics"]["ttft_ms"] is None
    assert document["metrics"]["tpot_ms"] is not None
    # The first decoded token of each sequence stands for its prompt.
    assert document["metrics"]["experts"]["decode"]["active"] == (4 + 6) * 16 * 8
    assert any("TTFT is not known" in note for note in document["notes"])
    assert any("ends with its shortest" in note for note in document["notes"])
    assert call("report", "--html", "out.html").code == 0, "no workload of ours, no prompt"


def test_systems_that_read_scores_say_so_or_take_reconstructed_ones(ids_only):
    line = refused(
        "run", "--trace", ids_only, "--machine", "rtx4060ti", *SMOE, "--set", "prefetch=none"
    )
    assert "evict=score" in line
    assert "--reconstruct-scores" in line
    arguments = (*SMOE, "--set", "prefetch=none", "--reconstruct-scores")
    document = replay_ids(ids_only, *arguments).json
    assert any("reconstructed by rank" in note for note in document["notes"])


def test_predictions_cannot_be_reconstructed(ids_only):
    line = refused("run", "--trace", ids_only, "--machine", "rtx4060ti", *SMOE)
    assert "holds no predictions of kind layer" in line
    assert "--set prefetch=none" in line


def test_a_prefill_alone_has_a_ttft_and_no_tpot():
    source = publish(Path("olmoe-1b-7b__read"), 16, 64, 8, phase=0)
    assert call("trace", "import", source, "--out", "read").code == 0
    metrics = replay_ids(Path("read"), "--system", "moe-ondemand").json["metrics"]
    assert metrics["tpot_ms"] is None
    assert metrics["ttft_ms"] is not None


def test_a_trace_with_fewer_chosen_experts_replays_as_it_ran():
    source = publish(Path("qwen3-30b-a3b-k6__explain"), 48, 128, 6, phase=1)
    assert call("trace", "import", source, "--out", "k6").code == 0
    document = replay_ids(Path("k6"), "--system", "moe-ondemand").json
    assert any("top-6, the model has top-8" in note for note in document["notes"])


def test_what_cannot_be_imported_is_one_line(tmp_path):
    assert "meta.json" in refused("trace", "import", tmp_path, "--out", "x")
    assert "No such file" in refused("trace", "import", "nowhere", "--out", "x")


# ----------------------------------------------------------------------------- drawn


def draw(*arguments: str) -> Called:
    small = ("--sequences", "2", "--prompt-tokens", "4", "--new-tokens", "12", "--out", "drawn")
    return call("trace", "synthesize", "--model", "mixtral-8x7b", *small, "--json", *arguments)


def test_a_drawn_trace_is_compared_and_replays():
    statistics = draw("--like", "mixtral-8x7b").json["statistics"]
    assert statistics["first_layer"]["asked"] == 0.26
    assert statistics["recall"]["drawn"] == pytest.approx(0.84, abs=0.05)
    document = call("run", "--trace", "drawn", "--setting", "D1", *SMOE, "--json").json
    assert document["spec"]["new_tokens"] == 12, "the setting's 512 are more than there are"
    assert any("drawn, not recorded" in note for note in document["notes"])


def test_a_sweep_opens_a_trace_once_and_runs_it_as_a_run_does():
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
def test_an_impossible_draw_is_one_line(arguments, says):
    called = draw(*arguments)
    assert called.code == 2
    assert says in called.err
    assert not Path("drawn").exists()


# ----------------------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", trace_names())
def test_shipped_traces_are_small_and_replay_by_name(name):
    assert sum(f.stat().st_size for f in (SHIPPED / name).iterdir()) < 2e6
    model = open_trace(SHIPPED / name).header.model
    called = call(
        "run", "--trace", name, "--model", model, "--machine", "a6000", *SMOE, "--json",
        "--new-tokens", "3",
    )  # fmt: skip
    assert called.code == 0, called.err


def test_one_ships():
    assert trace_names()
