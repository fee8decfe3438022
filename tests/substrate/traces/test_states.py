"""Trace data that few systems read: states, embeddings, predictions three layers ahead.

The truth is the decoder itself: asked along the way, or its whole pass over a text.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Prompts, fetches
from moebench.substrate.engine.policies import Predictor, Prefetching
from moebench.substrate.engine.system import System
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.observe import read
from moebench.substrate.traces.passes import TracedModel
from moebench.substrate.traces.record import TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.replay import Replay, routing
from moebench.substrate.traces.writer import writing
from moebench.systems.options import build
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.prefetch import NextGate
from tests.substrate.engine.fakes import Rig, rig
from tests.substrate.models.checkpoints import make_checkpoint

PROMPTS = [[5, 9, 2, 44], [3], [7, 7, 20], [11, 4], [8, 8]]
NEW_TOKENS, SLOTS = 5, 20
#: Six layers; of the first family's, one in the middle has no experts.
MODELS = {
    "qwen2_moe": {"num_hidden_layers": 6, "mlp_only_layers": [2]},
    "mixtral": {"num_hidden_layers": 6},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    return Checkpoint(make_checkpoint(folder, request.param, **MODELS[request.param]))


@pytest.fixture(scope="module")
def decoder(checkpoint) -> Decoder:
    experts = ResidentExperts(checkpoint, torch.float32)
    return Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts, True)


# ----------------------------------------------------------------------------- systems that read


@dataclass(kw_only=True)
class ByState(Prefetching):
    """Prefetching of the next layer's experts that the first entries of the state name."""

    reads_scores = False
    reads_hidden = True

    def prefetch(self, view: LayerView, forecast: Forecast) -> list[Fetch]:
        assert view.next_layer is not None
        assert view.hidden_TH is not None
        order = np.argsort(view.hidden_TH.sum(0)[: view.shape.num_experts]).tolist()
        return fetches(view.next_layer, order[:2])


@dataclass(kw_only=True)
class ByNorm(Prefetching):
    """Prefetching of two experts of the next layer that the digits of the state's norm name."""

    reads_scores = False
    reads_token_norms = True

    def prefetch(self, view: LayerView, forecast: Forecast) -> list[Fetch]:
        assert view.next_layer is not None
        assert view.norm_T is not None
        first = int(1000 * view.norm_T.sum()) % view.shape.num_experts
        return fetches(view.next_layer, [first, (first + 1) % view.shape.num_experts])


@dataclass(kw_only=True)
class ByEmbedding(Prefetching):
    """Prefetching for each layer of the experts that the first prompt's embedding names."""

    reads_scores = False
    reads_embedding = True
    order: list[int] = field(default_factory=list)

    def begin_sequences(self, prompts: Prompts) -> None:
        assert prompts.embedding_BH is not None
        assert len(prompts.embedding_BH) == len(prompts.lengths)
        self.order = np.argsort(prompts.embedding_BH.sum(0)[:8]).tolist()

    def prefetch(self, view: LayerView, forecast: Forecast) -> list[Fetch]:
        assert view.next_layer is not None
        return fetches(view.next_layer, self.order[:2])


@dataclass(kw_only=True)
class ThreeAhead(NextGate):
    """Prefetching of the experts that the gates of the next three layers predict."""

    @property
    def predictor(self) -> Predictor:
        return NextGates(layers=3)


def system_of(prefetch: type[Prefetching]) -> System:
    return replace(build("moe-ondemand"), prefetch=prefetch())


READERS = (ByState, ByNorm, ByEmbedding, ThreeAhead)


def generate(model, system: System, batch: int) -> tuple[list, list, int]:
    """Return spans and tokens of all prompts in whole batches, and the timely prefetches."""
    made: Rig = rig(system, model, slots=SLOTS)
    tokens = []
    for first in range(0, len(PROMPTS) // batch * batch, batch):
        tokens += made.engine.generate(PROMPTS[first : first + batch], NEW_TOKENS).tokens
    spans = [(s.op, s.lane, s.start_ns, s.end_ns, s.stall_ns, s.late_ns) for s in made.spans]
    return spans, tokens, made.counts["decode"].prefetched_used


def record(path: Path, model, system, precision="float16", batch=1, states=True):
    with writing(path, header_of(model.shape, "tiny", "none")) as writer:
        writer.describe(predictions=recorded_predictions(system.lookaheads, "own"))
        return generate(TraceRecorder(model, writer, precision, states), system, batch)


def replayed(trace: TraceFile, decoder: Decoder, system: System, batch: int) -> TracedModel:
    sequences = len(PROMPTS) // batch * batch
    asks, hidden = system.lookaheads, system.reads_hidden or system.reads_token_norms
    return TracedModel(Replay(trace, decoder.shape, batch, sequences, NEW_TOKENS, asks, hidden))


@pytest.mark.parametrize("prefetch", READERS)
@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_replay_is_the_recorded_run_span_for_span(decoder, prefetch, precision, batch, tmp_path):
    system = system_of(prefetch)
    live = record(tmp_path / "t", decoder, system, precision, batch)
    trace = open_trace(tmp_path / "t")
    again = generate(replayed(trace, decoder, system, batch), system, batch)
    assert again == live
    assert live[2] > 0, "prefetches came in time"
    if precision == "float32":
        assert again == generate(decoder, system, batch), "nobody need have recorded"


@pytest.mark.parametrize("prefetch", READERS)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_replay_equals_the_live_run_for_any_batch_size(decoder, prefetch, batch, resident):
    system = system_of(prefetch)
    live = generate(decoder, system, batch)
    assert generate(replayed(resident["float32"], decoder, system, batch), system, batch) == live


# ----------------------------------------------------------------------------- what is stored


class Asking:
    """Model that computes all data of a trace during the run, in the trace's order."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.shape = decoder, decoder.shape
        self.states: list[list[np.ndarray]] = []
        self.predicted: dict[int, list[list[np.ndarray]]] = {n: [] for n in (1, 2, 3)}

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def embed(self, phase):
        self._phase = phase
        self.states.append([])
        for said in self.predicted.values():
            said.extend([[]] if phase == "decode" else [])
        return self._decoder.embed(phase)

    def combine(self, layer):
        layers = self.shape.moe_layers
        self.states[-1].append(self._decoder.hidden(layer).copy())
        for n, said in self.predicted.items() if self._phase == "decode" else ():
            for later in layers[layers.index(layer) + n :][:1]:
                said[-1].append(self._decoder.predict(layer, later, (), Lookahead.GATE).copy())
        self._decoder.combine(layer)


@pytest.fixture(scope="module")
def asked(decoder) -> Asking:
    asking = Asking(decoder)
    generate(asking, build("gpu-only"), 1)
    return asking


@pytest.fixture(scope="module")
def resident(decoder, tmp_path_factory) -> dict[str, TraceFile]:
    """Return traces recorded with every expert resident."""
    found = {}
    for precision in ("float16", "float32"):
        path = tmp_path_factory.mktemp("resident") / precision
        record(path, decoder, build("gpu-only"), precision)
        found[precision] = open_trace(path)
    return found


def test_states_and_predictions_are_what_the_decoder_answers(decoder, asked, resident):
    states = np.concatenate([np.stack(layers, 1) for layers in asked.states])
    layers = len(decoder.shape.moe_layers)
    for precision, trace in resident.items():
        assert np.array_equal(trace.hidden_TLH, states.astype(precision))
        for n, said in asked.predicted.items():
            expected = np.concatenate([np.stack(of_pass, 1) for of_pass in said])
            assert expected.shape[1] == layers - n
            assert np.array_equal(trace.predicted(Lookahead.GATE, n), expected.astype(precision))
        assert trace.predicted(Lookahead.GATE, 4) is None
        assert trace.predicted(Lookahead.NORMED, 2) is None


def test_embeddings_are_means_of_the_prompts_rows(checkpoint, resident):
    rows = checkpoint.common(torch.float32)["embed"].numpy()
    means = np.stack([rows[prompt].mean(0) for prompt in PROMPTS])
    for precision, trace in resident.items():
        np.testing.assert_allclose(trace.embedding_SH, means, atol=1e-3)
        assert trace.embedding_SH.dtype == precision


@pytest.mark.parametrize("batch", [1, 2])
def test_a_replay_answers_rows_of_several_sequences(decoder, resident, batch):
    """The verbs of a trace, beside the decoder's on the same prompts and tokens."""
    trace = resident["float32"]
    asks = {Lookahead.GATE: 3}
    model = TracedModel(Replay(trace, decoder.shape, batch, 4, NEW_TOKENS, asks, hidden=True))
    for first in range(0, 4, batch):
        prompts = PROMPTS[first : first + batch]
        both = (decoder, model)
        for one in both:
            one.begin(prompts, NEW_TOKENS)
        np.testing.assert_allclose(*(one.embedding() for one in both), atol=1e-6)
        for step in range(NEW_TOKENS):
            compare_pass(decoder, model, decode=step > 0)
            chosen = [one.head() for one in both]
            assert chosen[0] == chosen[1]


def compare_pass(decoder: Decoder, model: TracedModel, decode: bool) -> None:
    """Compare one pass; a batch is summed in another order than single sequences."""
    layers = decoder.shape.moe_layers
    assert decoder.embed("decode" if decode else "prefill") == model.embed("decode")
    for layer in range(decoder.shape.num_layers):
        decoder.attend(layer)
        if layer not in layers:
            decoder.dense(layer)
            continue
        own, gate = decoder.gate(layer), model.gate(layer)
        assert np.array_equal(own.ids_TK, gate.ids_TK)
        np.testing.assert_allclose(decoder.hidden(layer), model.hidden(layer), atol=1e-4)
        at = layers.index(layer)
        for later in layers[at + 1 : at + 4] if decode else ():
            said = (one.predict(layer, later, (), Lookahead.GATE) for one in (decoder, model))
            np.testing.assert_allclose(*said, atol=1e-4)
        decoder.compute(layer, list(decoder.dispatch(layer, own.ids_TK, own.ids_TK)))
        if decoder.shape.shared_width:
            decoder.shared(layer)
        decoder.combine(layer)


# ----------------------------------------------------------------------------- what may be learnt


def test_a_text_that_is_read_and_one_that_was_recorded_are_equal(decoder, resident):
    """What a live run learns from, and what a replay does; rounding may fall the other way."""
    for s, (prompt, trace) in enumerate((p, resident["float16"]) for p in PROMPTS):
        recorded = routing(trace, s, {"hidden", "embedding"})
        text = [prompt[0], *trace.chosen[trace.sequences[s]][:-1].tolist()]
        (own,) = read(decoder, [text], len(prompt), lookaheads=(), states=True)
        assert own.prefill == recorded.prefill
        assert np.array_equal(own.ids_TLK, recorded.ids_TLK)
        for what in ("scores_TLE", "hidden_TLH", "embedding_H"):
            one, other = getattr(own, what), getattr(recorded, what)
            assert one.dtype == other.dtype == np.float16
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4, err_msg=what)


def test_only_requested_states_are_read(decoder, resident):
    for also in ((), ("scores",), ("hidden",), ("embedding",), ("hidden", "embedding")):
        found = routing(resident["float16"], 0, also)
        assert (found.hidden_TLH is not None) == ("hidden" in also)
        assert (found.embedding_H is not None) == ("embedding" in also)
    (own,) = read(decoder, [PROMPTS[0]], 2)
    assert own.hidden_TLH is own.embedding_H is None


# ----------------------------------------------------------------------------- without them


def test_trace_without_states_serves_only_policies_that_need_none(decoder, resident, tmp_path):
    record(tmp_path / "t", decoder, build("gpu-only"), states=False)
    trace, full = open_trace(tmp_path / "t"), resident["float16"]
    assert set(full.header.arrays) - set(trace.header.arrays) == {"hidden", "embedding"}
    assert full.header.holds == (*trace.header.holds, "hidden states", "embeddings")
    assert "gate predictions 3 ahead" in trace.header.holds
    assert trace.hidden_TLH is trace.embedding_SH is None
    plain = system_of(ThreeAhead)
    assert generate(replayed(trace, decoder, plain, 1), plain, 1) == generate(
        replayed(full, decoder, plain, 1), plain, 1
    )
    for prefetch, says in ((ByState, "no hidden states"), (ByEmbedding, "no embeddings")):
        system = system_of(prefetch)
        with pytest.raises(UsageError, match=says):
            generate(replayed(trace, decoder, system, 1), system, 1)


def test_states_are_mapped_and_checked_when_they_are_asked_for(decoder, tmp_path):
    record(tmp_path / "t", decoder, build("gpu-only"))
    file = tmp_path / "t" / "hidden.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    trace = open_trace(tmp_path / "t")
    generate(replayed(trace, decoder, build("moe-ondemand"), 1), build("moe-ondemand"), 1)
    routing(trace, 0)
    with pytest.raises(InputError, match=r"hidden\.npy is not what was written"):
        _ = trace.hidden_TLH
    data[-1] ^= 1
    file.write_bytes(data)
    whole = open_trace(tmp_path / "t").hidden_TLH
    assert whole is not None
    assert isinstance(whole, np.memmap)  # read on access, not before
