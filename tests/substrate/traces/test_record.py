"""A recorded trace folder replays to the nanosecond, for every lossless system."""

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from moebench.substrate.engine.policies import Predictor
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import LOOKAHEADS, Lookahead
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.passes import TracedModel
from moebench.substrate.traces.record import TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.replay import Replay, routings
from moebench.substrate.traces.writer import writing
from moebench.systems.options import build
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.prefetch import NextGate
from moebench.systems.registry import SYSTEMS
from tests.substrate.engine.fakes import Rig, rig, small_shape
from tests.substrate.models.checkpoints import make_checkpoint
from tests.substrate.traces.texts import routed_text

PROMPTS = [[5, 9, 2, 44], [3], [7, 7, 20], [11, 4]]
NEW_TOKENS = 6
FAMILIES = ("qwen2_moe", "mixtral")


def lossless_systems() -> list[tuple[str, dict[str, str]]]:
    """Return all shipped systems that can run live and are lossless (α = 0), and variants."""
    found = []
    for name in SYSTEMS:
        overrides = {"alpha": "0"} if build(name).has_alpha else {}
        if build(name).policies["evict"].calibrates:
            overrides["evict.epochs"] = "2"
        if build(name, overrides).lossless and not build(name, overrides).clairvoyant:
            found.append((name, overrides))
    smoe = {"alpha": "0"}
    return [
        *found,
        ("moe-ondemand", {"evict": "score"}),
        ("moe-ondemand", {"evict": "lfu", "scope": "layer"}),
        ("smoe", smoe | {"prefetch": "next-gate", "assign": "host"}),
        ("smoe", smoe | {"prefetch.predict": "gate"}),
    ]


CASES = lossless_systems()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request, tmp_path_factory) -> Decoder:
    return decoder_of(make_checkpoint(tmp_path_factory.mktemp(request.param), request.param))


def decoder_of(path: Path) -> Decoder:
    checkpoint = Checkpoint(path)
    experts = ResidentExperts(checkpoint, torch.float32)
    return Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts, True)


def calibrated(system: System, shape: ModelShape) -> None:
    """Train a system on random routing; the trained values do not matter here."""
    with tempfile.TemporaryDirectory() as folder:
        for policy in system.policies.values():
            if policy.calibrates:
                texts = [routed_text(shape, 12, 4, policy.learns_from)]
                policy.calibrate(texts, shape, Path(folder), lambda done, total: None)


def run(model, name: str, overrides: dict[str, str], batch: int, slots: int | None = None):
    system = build(name, overrides)
    calibrated(system, model.shape)
    return generate(model, system, batch, slots)


def generate(model, system: System, batch: int, slots: int | None = None):
    every = len(model.shape.moe_layers) * model.shape.num_experts
    made = rig(system, model, slots=every if system.all_resident else slots or 12)
    tokens = []
    for first in range(0, len(PROMPTS), batch):
        tokens += made.engine.generate(PROMPTS[first : first + batch], NEW_TOKENS).tokens
    return made, tokens


def record(path: Path, decoder: Decoder, name, overrides, batch=1, precision="float16"):
    asks = build(name, overrides).lookaheads
    with writing(path, header_of(decoder.shape, "tiny", "none")) as writer:
        writer.describe(predictions=recorded_predictions(asks, name))
        return run(TraceRecorder(decoder, writer, precision), name, overrides, batch)


def replay(trace: TraceFile, decoder: Decoder, name, overrides, batch=1):
    system = build(name, overrides)
    asks, hidden = system.lookaheads, system.reads_hidden
    model = Replay(trace, decoder.shape, batch, len(PROMPTS), NEW_TOKENS, asks, hidden)
    return run(TracedModel(model), name, overrides, batch)


def facts(made: Rig) -> list[tuple]:
    return [
        (s.op, s.lane, s.start_ns, s.end_ns, s.stall_ns, s.cause, s.late_ns) for s in made.spans
    ]


@pytest.fixture(scope="module")
def alone(decoder):
    """Return a system's spans and tokens on the model itself, each computed once."""

    @cache
    def of(case: int) -> tuple[list[tuple], list]:
        made, tokens = run(decoder, *CASES[case], 1)
        return facts(made), tokens

    return of


@pytest.fixture(scope="module")
def resident(decoder, tmp_path_factory) -> TraceFile:
    """Return a trace recorded with every expert resident."""
    path = tmp_path_factory.mktemp("resident") / "t"
    record(path, decoder, "gpu-only", {}, precision="float32")
    return open_trace(path)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("case", range(len(CASES)), ids=[name for name, _ in CASES])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_replay_is_the_recorded_run_span_for_span(
    decoder, case, batch, precision, alone, tmp_path
):
    name, overrides = CASES[case]
    live, tokens = record(tmp_path / "t", decoder, name, overrides, batch, precision)
    replayed, again = replay(open_trace(tmp_path / "t"), decoder, name, overrides, batch)
    assert facts(replayed) == facts(live)
    assert replayed.claims == live.claims
    assert replayed.counts == live.counts
    assert again == tokens
    if precision == "float32" and batch == 1:
        assert (facts(replayed), again) == alone(case), "full scores: the model's own run"


@pytest.mark.parametrize("case", range(len(CASES)), ids=[name for name, _ in CASES])
def test_full_scores_replay_as_the_model_alone_whoever_recorded_them(
    decoder, case, alone, resident
):
    """Only predictions of partly computed layers are the recording system's own."""
    spans, tokens = alone(case)
    replayed, again = replay(resident, decoder, *CASES[case])
    assert again == tokens
    if Lookahead.LAYER not in build(*CASES[case]).lookaheads:
        assert facts(replayed) == spans


def test_recording_changes_no_token_and_no_span(decoder, tmp_path):
    plain, tokens = run(decoder, "smoe", {"alpha": "0"}, 2)
    recorded, again = record(
        tmp_path / "t", decoder, "smoe", {"alpha": "0"}, 2, precision="float32"
    )
    assert facts(recorded) == facts(plain)
    assert again == tokens


def test_sequences_recorded_together_replay_alone_and_in_other_batches(decoder, tmp_path):
    """Batches are formed at replay: a trace is stored by sequence."""
    record(tmp_path / "two", decoder, "gpu-only", {}, batch=2, precision="float32")
    trace = open_trace(tmp_path / "two")
    for batch in (1, 4):
        live, tokens = run(decoder, "moe-ondemand", {}, batch)
        replayed, again = replay(trace, decoder, "moe-ondemand", {}, batch)
        assert (facts(replayed), again) == (facts(live), tokens)


def test_what_is_stored_of_each_token(decoder, tmp_path):
    _, tokens = record(tmp_path / "t", decoder, "gpu-only", {}, batch=2)
    trace = open_trace(tmp_path / "t")
    assert len(trace.sequences) == len(PROMPTS)
    assert trace.prompts == [len(p) for p in PROMPTS]
    for s, (rows, prompt) in enumerate(zip(trace.sequences, PROMPTS, strict=True)):
        assert trace.arrays["position"][rows].tolist() == list(range(len(rows)))
        assert (trace.arrays["sequence"][rows] == s).all()
        text = [*prompt, *tokens[s]]
        assert trace.chosen[rows].tolist() == text[1:], "what follows each token"
        assert trace.arrays["phase"][rows].sum() == NEW_TOKENS - 1
    scores = np.asarray(trace.scores_TLE, np.float32)
    assert np.allclose(scores.sum(2), 1, atol=2e-3), "a softmax over all experts"
    chosen = np.take_along_axis(scores, trace.ids_TLK.astype(int), 2)
    assert (np.diff(chosen, axis=2) <= 0).all(), "best first"
    assert np.allclose(chosen[..., -1], np.sort(scores, 2)[..., -trace.header.top_k], atol=1e-6)


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("name", ["daop", "moebench.systems.daop_shipped:ShippedDAOP"])
def test_daop_replays_what_it_recorded_of_itself(decoder, name, precision, tmp_path):
    """It is not lossless: gates and predictions are of the text that it wrote."""
    overrides = {"place": "by-id", "route.first": "1"}
    live, tokens = record(tmp_path / "t", decoder, name, overrides, precision=precision)
    trace = open_trace(tmp_path / "t")
    assert trace.header.predictions[Lookahead.NORMED].made == f"as {name} saw it"
    again, chosen = replay(trace, decoder, name, overrides)
    assert (facts(again), chosen) == (facts(live), tokens)
    assert live.counts["decode"].routed_ahead > 0
    assert live.counts["decode"].host > 0


def test_predictions_that_nobody_asked_for_know_no_routed_expert(decoder, resident):
    """They are what the decoder says with nothing done; those of the gate do not depend on it."""
    trace = resident
    layers = decoder.shape.moe_layers

    class Asking:
        """Model that also computes the same predictions during the run."""

        def __init__(self):
            self.said = {kind: [] for kind in LOOKAHEADS}

        def __getattr__(self, name):
            return getattr(decoder, name)

        def combine(self, layer):
            if layer + 1 in layers:
                for kind, said in self.said.items():
                    said.append(decoder.predict(layer, layer + 1, (), kind).copy())
            decoder.combine(layer)

    asking = Asking()
    run(asking, "gpu-only", {}, 1)
    steps, ahead = NEW_TOKENS, len(layers) - 1
    for kind, said in asking.said.items():
        # The prefill's are not recorded.
        decoded = [
            said[(s * steps + step) * ahead + i][0]
            for s, step, i in product(range(len(PROMPTS)), range(1, steps), range(ahead))
        ]
        stored = trace.predicted(kind)
        assert stored.shape == (len(PROMPTS) * (steps - 1), ahead, decoder.shape.num_experts)
        assert np.array_equal(stored.reshape(len(decoded), -1), decoded)


def test_statistics_read_the_same_sequences(resident):
    trace = resident
    found = routings(trace)
    assert [r.prefill for r in found] == [len(p) for p in PROMPTS]
    for routing, rows in zip(found, trace.sequences, strict=True):
        assert np.array_equal(routing.ids_TLK, trace.ids_TLK[rows])
        guessed = routing.predicted_TLE["gate"]
        assert np.isnan(guessed[: routing.prefill]).all(), "nothing is predicted in prefill"
        assert np.isnan(guessed[:, -1]).all(), "nothing follows the last layer"
        assert not np.isnan(guessed[routing.prefill :, :-1]).any()
    assert len(routings(trace, tokens=1)) == 2


def test_another_model_is_refused(decoder, resident):
    other = decoder.shape.model_copy(update={"num_experts": 9})
    with pytest.raises(UsageError, match=r"the model charged for has .* of 9 experts"):
        Replay(resident, other, 1, 1, 1)


# ----------------------------------------------------------------------------- what a file can hold


@dataclass(kw_only=True)
class TwoLayersAhead(NextGate):
    @property
    def predictor(self) -> Predictor:
        """Gates two layers ahead, also in prefill, where a file has no predictions."""
        return NextGates(layers=2, in_prefill=True)


def two_ahead() -> System:
    return replace(build("moe-ondemand"), prefetch=TwoLayersAhead())


def test_a_file_holds_predictions_of_decoded_tokens_alone(decoder, tmp_path):
    """A system that asks for more is recorded as it runs; its predictions are not all kept."""
    plain, tokens = generate(decoder, two_ahead(), 1)
    with writing(tmp_path / "t", header_of(decoder.shape, "tiny", "none")) as writer:
        writer.describe(predictions=recorded_predictions({Lookahead.GATE}, "own"))
        recorder = TraceRecorder(decoder, writer, "float32")
        recorded, again = generate(recorder, two_ahead(), 1)
    assert (facts(recorded), again) == (facts(plain), tokens)
    trace, layers = open_trace(tmp_path / "t"), decoder.shape.moe_layers
    asks = dict.fromkeys(Lookahead, 3)
    model = Replay(trace, decoder.shape, 2, len(PROMPTS), NEW_TOKENS, asks)
    ahead = {Lookahead.GATE: 2, Lookahead.NORMED: 1, Lookahead.LAYER: 1}
    for batch in model.batches:
        prefill, *decoded = batch
        assert prefill.predicted == {}
        for one in decoded:
            assert set(one.predicted) == set(LOOKAHEADS)
            for kind, predicted in one.predicted.items():
                assert set(predicted) == {
                    pair
                    for n in range(1, ahead[kind] + 1)
                    for pair in zip(layers[:-n], layers[n:], strict=True)
                }
                assert not any(np.isnan(scores_TE).any() for scores_TE in predicted.values())
    with pytest.raises(UsageError, match="no predictions of kind gate that layer"):
        generate(TracedModel(model), two_ahead(), 2)


def test_a_trace_of_an_earlier_version_of_this_program_replays():
    """The one that ships was recorded when a prediction could be of the next layer only."""
    trace = open_trace(find_trace("qwen2-57b-a14b__arithmetic"))
    h = trace.header
    shape = small_shape(layers=h.num_moe_layers, experts=h.num_experts, top_k=h.top_k)
    model = Replay(trace, shape, 1, 1, 3, dict.fromkeys(Lookahead, 1))
    (batch,) = model.batches
    rows = trace.sequences[0][batch.prompts[0] :]
    for kind in (Lookahead.GATE, Lookahead.LAYER):
        stored = trace.arrays[f"predicted_{kind}"][trace.decoded_row[rows[:2]]]
        for step in (1, 2):
            predicted = batch[step].predicted[kind]
            assert list(predicted) == [(i, i + 1) for i in range(h.num_moe_layers - 1)]
            assert np.array_equal(np.stack([s[0] for s in predicted.values()]), stored[step - 1])
    for name, overrides in (("smoe", {"alpha": "0"}), ("moe-ondemand", {"prefetch": "next-gate"})):
        made = rig(build(name, overrides), TracedModel(model), slots=200)
        made.engine.generate([[0] * batch.prompts[0]], 3)
        assert made.counts["decode"].prefetched > 0
        assert made.counts["decode"].active == 2 * h.num_moe_layers * h.top_k


def test_gates_are_predicted_across_a_dense_layer_too(tmp_path):
    """Layers 0 and 2 have experts: the one between cannot be run ahead, 2's gate can be asked."""
    path = make_checkpoint(tmp_path / "model", "qwen2_moe", mlp_only_layers=[1])
    model = decoder_of(path)
    record(tmp_path / "t", model, "gpu-only", {}, precision="float32")
    trace = open_trace(tmp_path / "t")
    for kind in (Lookahead.GATE, Lookahead.NORMED):
        assert not np.isnan(trace.predicted(kind)).any()
    assert np.isnan(trace.predicted(Lookahead.LAYER)).all()
    overrides = {"prefetch": "next-gate"}
    live, tokens = run(model, "moe-ondemand", overrides, 1)
    replayed, again = replay(trace, model, "moe-ondemand", overrides)
    assert (facts(replayed), again) == (facts(live), tokens)
    assert live.counts["decode"].prefetched_used > 0


def test_predictions_are_made_as_a_system_sees_them_or_as_their_kind_says() -> None:
    found = recorded_predictions({Lookahead.NORMED}, "daop")
    assert [*found] == [Lookahead.GATE, Lookahead.NORMED, Lookahead.LAYER]
    gate, normed, layer = found.values()
    assert (gate.array, gate.further) == (
        "predicted_gate", ("predicted_gate_2", "predicted_gate_3"),
    )  # fmt: skip
    assert (normed.array, normed.further) == ("predicted_normed", ())
    assert (layer.array, layer.further) == ("predicted_layer", ())
    assert normed.made == "as daop saw it"
    assert gate.made == "later norms and gates on each layer's post-attention state"
    assert layer.made == "shared experts, next attention, next gate; no routed expert computed"
    asked = {Lookahead.GATE, Lookahead.SHARED, Lookahead.EXACT}
    with pytest.raises(UsageError, match="mine asks for predictions of kind exact, which traces do "
                                         "not hold; record another system"):  # fmt: skip
        recorded_predictions(asked, "mine")


def test_the_header_of_a_recording_has_the_models_dimensions() -> None:
    shape = small_shape(layers=4, experts=6, dense_layers=(0,))
    header = header_of(shape, "olmoe", "gsm8k")
    assert (header.model, header.workload, header.num_moe_layers) == ("olmoe", "gsm8k", 3)
    assert (header.num_experts, header.top_k) == (6, shape.top_k)
    assert header.scores == f"what the {shape.gate} gate ranks experts by"
