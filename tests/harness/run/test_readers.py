"""Systems that read or learn from states and embeddings: live, replayed, beside others, refused."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from moebench.harness.one_run import prepare, run
from moebench.harness.run import learn
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.record import TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.replay import routings
from moebench.substrate.traces.writer import writing
from moebench.systems.options import build
from moebench.workloads.prompts import build_prompt
from tests.harness.commands import call, refused
from tests.harness.readers import LearningPrefetch
from tests.substrate.engine.fakes import rig

pytestmark = pytest.mark.usefixtures("tiny_models")

READERS = "tests.harness.readers"
SETTING = (
    "--setting", "S3", "--capacity", "0.4", "--allow-overcommit", "--no-interval", "--json",
)  # fmt: skip
LIVE = ("--workload", "arithmetic", "--prompts", "4", "--new-tokens", "6")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    """Four prompts as the command records them, unrounded."""
    out = tmp_path_factory.mktemp("traces") / "t"
    called = call("trace", "record", "--setting", "S3", *LIVE, "--scores", "float32", "--out", out)
    assert called.code == 0, called.err
    return out


@pytest.fixture
def old(trace: Path, tmp_path: Path) -> Path:
    """The same as a version before this one wrote it."""
    folder = shutil.copytree(trace, tmp_path / "old")
    header = json.loads((folder / "trace.json").read_text()) | {"version": 1}
    later = ("hidden", "embedding", "predicted_gate_2", "predicted_gate_3")
    for name in later:
        del header["arrays"][name]
        (folder / f"{name}.npy").unlink()
    for prediction in header["predictions"].values():
        del prediction["further"]
    (folder / "trace.json").write_text(json.dumps(header))
    return folder


def document(*arguments: str | Path) -> dict[str, Any]:
    called = call("run", *SETTING, *arguments)
    assert called.code == 0, called.err
    found: dict[str, Any] = called.json
    return found


# --------------------------------------------------------------------------- live and replayed


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["1", "2"])
@pytest.mark.parametrize("name", ["ByState", "ByEmbedding", "ThreeAhead"])
def test_a_replay_has_the_figures_of_the_live_run(name: str, batch: str, trace: Path) -> None:
    system = ("--system", f"{READERS}:{name}", "--batch", batch)
    live, replay = document(*system, *LIVE), document(*system, "--trace", trace)
    assert replay["metrics"] == live["metrics"]
    assert live["metrics"]["prefetch"]["issued"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ByState", "ByEmbedding", "ThreeAhead"])
def test_a_replay_has_an_interval(name: str, trace: Path) -> None:
    called = call(
        "run", "--setting", "S3", "--system", f"{READERS}:{name}", "--trace", trace, "--json"
    )
    found = called.json["interval"]["tpot_ms"]
    assert found["low"] < called.json["metrics"]["tpot_ms"]["mean"] < found["high"]


@pytest.mark.parametrize("name", ["ByState", "InPrefill"])
def test_beside_other_runs_of_the_same_weights(name: str, tmp_path: Path) -> None:
    """Prefills are remembered then: states are, predictions are not."""
    given: dict[str, Any] = {
        "setting": "S3", "workload": "arithmetic", "prompts": 2, "new_tokens": 4,
        "cache_ratio": 0.4, "allow_overcommit": True, "system": f"{READERS}:{name}",
    }  # fmt: skip
    alone = run(prepare(resolve(None, **given), None), tmp_path).document
    first = prepare(resolve(None, **given | {"system": "moe-ondemand"}), None)
    shared = first.share(None)
    run(first, tmp_path)
    beside = prepare(resolve(None, **given), None)
    beside.share(shared)
    assert run(beside, tmp_path).document["metrics"] == alone["metrics"]


# --------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ByState", "holds no hidden states, prefetch=StatePrefetch reads them; swap it with"),
        ("ByEmbedding", "holds no embeddings, prefetch=EmbeddingPrefetch reads them; swap it"),
        ("ThreeAhead", "kind gate 1 MoE layer(s) ahead; prefetch=FarPrefetch reads 3; use --set "
                       "prefetch=none, or record the trace again"),
        ("LearnsStates", "holds no hidden states, prefetch=StatesPrefetch learns from them"),
    ],
)  # fmt: skip
def test_a_trace_without_what_is_read_is_one_line(name: str, says: str, old: Path) -> None:
    line = refused("run", "--setting", "S3", "--system", f"{READERS}:{name}", "--trace", old)
    assert says in line
    if "states" in says or "embeddings" in says:
        assert "run without --trace, or record a trace that holds them: moebench trace" in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("FourAhead", "gate 3 MoE layer(s) ahead; prefetch=FarPrefetch reads 4; use --set "
                      "prefetch=none, or run without --trace"),
        ("InPrefill", "decoded tokens only; prefetch=PrefillPrefetch predicts in prefill"),
    ],
)  # fmt: skip
def test_what_no_trace_holds_is_one_line(name: str, says: str, trace: Path) -> None:
    assert says in refused(
        "run", "--setting", "S3", "--system", f"{READERS}:{name}", "--trace", trace
    )


def test_a_drawn_trace_has_no_states() -> None:
    line = refused("run", "--setting", "S3", "--system", f"{READERS}:ByState", "--routing", "drawn")
    assert "prefetch=StatePrefetch reads them; swap it with --set, run without --routing" in line


def test_an_old_trace_replays_what_it_holds(old: Path, trace: Path) -> None:
    for system in (("--system", "smoe", "--alpha", "0"), ("--system", "moe-ondemand")):
        before, now = (document(*system, "--trace", path) for path in (old, trace))
        assert before["metrics"] == now["metrics"]
    holds = [call("trace", "info", path, "--json").json["holds"] for path in (old, trace)]
    assert set(holds[1]) - set(holds[0]) == {
        "hidden states", "embeddings", "gate predictions 3 ahead",
    }  # fmt: skip


def test_states_are_left_out_on_request(tmp_path: Path) -> None:
    called = call("trace", "record", "--setting", "S3", *LIVE, "--no-states", "--out", "t")
    assert called.code == 0, called.err
    assert not {"hidden", "embedding"} & set(open_trace(Path("t")).header.arrays)


# --------------------------------------------------------------------------- learning


def learning(name: str, **given: Any) -> LiveSession:
    """A live run that learns from three texts."""
    spec = resolve(
        None, system=f"{READERS}:{name}", setting="S3", workload="arithmetic", prompts=1,
        new_tokens=3, calibrate_texts=3, **given,
    )  # fmt: skip
    session = prepare(spec, None)
    assert isinstance(session, LiveSession)
    return session


def calibrate(session: LiveSession, scratch: Path) -> None:
    learnable = partial(session.learnable, scratch, lambda done, total: None)
    learn.calibrate(session.system, session.full, learnable, scratch, lambda done, total: None)


def shown(session: LiveSession, scratch: Path) -> list[RoutedSequence]:
    calibrate(session, scratch)
    return list(LearningPrefetch.shown)


def kept(scratch: Path) -> set[str]:
    """What was kept of the first text, in all files."""
    found: set[str] = set()
    for file in (scratch / "calibration").iterdir():
        with safe_open(file, "np") as arrays:
            found |= {name for name in arrays.keys() if name.endswith(".0")}  # noqa: SIM118
    return found


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("LearnsIds", set()),
        ("LearnsScores", {"scores"}),
        ("LearnsStates", {"hidden", "embedding"}),
        ("LearnsPredictions", {"gate", "sensitivity"}),
    ],
)
def test_what_is_asked_for_is_given_and_kept(name: str, asks: set[str], tmp_path: Path) -> None:
    for again in range(2):  # from the file the second time
        texts = shown(learning(name), tmp_path)
        assert len(texts) == 3
        for text in texts:
            assert (text.scores_TLE is not None) == ("scores" in asks), again
            assert (text.hidden_TLH is not None) == ("hidden" in asks)
            assert (text.embedding_H is not None) == ("embedding" in asks)
            assert (text.sensitivity_L is not None) == ("sensitivity" in asks)
            assert text.predicted_TLE.keys() == asks & {"gate"}
    assert kept(tmp_path) == {f"{what}.0" for what in {"ids", "prefill"} | asks}
    assert len(list((tmp_path / "calibration").iterdir())) == 1


def test_a_recording_holds_predictions_and_no_sensitivity(trace: Path) -> None:
    name = ("--system", f"{READERS}:LearnsPredictions")
    document(*name, "--trace", trace, "--prompts", "2")
    assert len(LearningPrefetch.shown) == 2
    for text in LearningPrefetch.shown:
        assert "gate" in text.predicted_TLE
        assert text.sensitivity_L is None


@pytest.mark.slow
def test_a_live_run_and_a_replay_learn_the_same(tmp_path: Path) -> None:
    """The texts that the live run was shown, recorded; a trace lacks each text's last token."""
    session = learning("LearnsStates")
    live = shown(session, tmp_path)
    sample = learn.texts(session.spec, session.system, None)
    chosen = learn.source(session.spec)
    shape = session.weights.checkpoint.shape
    with writing(tmp_path / "t", header_of(shape, "tiny", "none")) as writer:
        writer.describe(predictions=recorded_predictions((), "gpu-only"))
        model = TraceRecorder(session.weights.sharing().decoder(), writer)
        every = len(shape.moe_layers) * shape.num_experts
        engine: Engine = rig(build("gpu-only"), model, slots=every).engine
        for example in sample.examples:
            prompt = session.weights.tokenizer.encode(build_prompt(chosen, example)).ids
            engine.generate([prompt[: learn.PROMPT_TOKENS]], learn.NEW_TOKENS)
    recorded = learn.recorded(
        LearningPrefetch(trace=str(tmp_path / "t")), session.full, "prefetch"
    ).sequences
    assert all(text.hidden_TLH is None for text in recorded)
    asked = routings(open_trace(tmp_path / "t"), also={"hidden", "embedding"})
    assert len(live) == len(asked) == 3
    for own, other in zip(live, asked, strict=True):
        assert own.prefill == other.prefill
        fed = len(other.ids_TLK)
        assert fed == len(own.ids_TLK) - 1
        assert np.array_equal(own.ids_TLK[:fed], other.ids_TLK)
        assert own.hidden_TLH is not None
        assert other.hidden_TLH is not None
        close = {"rtol": 2e-3, "atol": 2e-3}
        np.testing.assert_allclose(own.hidden_TLH[:fed], other.hidden_TLH, **close)
        np.testing.assert_allclose(own.embedding_H, other.embedding_H, **close)


def test_a_replay_learns_from_the_sequences_that_it_does_not_replay(trace: Path) -> None:
    document("--system", f"{READERS}:LearnsStates", "--trace", trace, "--prompts", "1")
    opened = open_trace(trace)
    assert len(LearningPrefetch.shown) == 3
    for s, text in enumerate(LearningPrefetch.shown, 1):
        rows = opened.sequences[s]
        assert opened.hidden_TLH is not None
        assert opened.embedding_SH is not None
        np.testing.assert_array_equal(text.hidden_TLH, opened.hidden_TLH[rows])
        np.testing.assert_array_equal(text.embedding_H, opened.embedding_SH[s])
    document("--system", f"{READERS}:LearnsIds", "--trace", trace, "--prompts", "1")
    assert {text.hidden_TLH is None for text in LearningPrefetch.shown} == {True}


def test_a_named_trace_without_what_is_learnt_from_is_one_line(old: Path, tmp_path: Path) -> None:
    session = learning("LearnsStates", overrides={})
    session.system.prefetch.trace = str(old)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"holds no embeddings, which prefetch learns from; name"):
        calibrate(session, tmp_path)
