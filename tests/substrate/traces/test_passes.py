"""A recorded trace replays to the nanosecond; an unsuitable trace is refused."""

from dataclasses import dataclass, field, replace
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
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.passes import Recorder, TracedModel
from moebench.systems.options import build
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.prefetch import NextGate
from tests.substrate.engine.fakes import Rig, random_trace, rig, small_shape
from tests.substrate.models.checkpoints import make_checkpoint

BATCHES = [[[5, 9, 2, 44], [3]], [[7, 7, 20]]]
NEW_TOKENS = 6

SYSTEMS = [
    ("moe-ondemand", {}),
    ("moe-ondemand", {"evict": "lfu", "scope": "layer"}),
    ("smoe", {"alpha": "0"}),
    ("smoe", {"alpha": "0", "prefetch": "next-gate", "assign": "host"}),
    # What it recorded is its own routing, by predictions and on the host.
    ("daop", {"place": "by-id", "route.first": "1"}),
]


@dataclass(kw_only=True)
class TwoLayersAhead(NextGate):
    """Prefetching by the gates of the next two layers, also in prefill."""

    @property
    def predictor(self) -> Predictor:
        return NextGates(layers=2, in_prefill=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def decoder_of(family: str, folder: Path) -> Decoder:
    checkpoint = Checkpoint(make_checkpoint(folder, family))
    experts = ResidentExperts(checkpoint, torch.float32)
    return Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Decoder:
    """Return a decoder with a dense layer and two MoE layers."""
    return decoder_of("qwen2_moe", tmp_path_factory.mktemp("qwen2_moe"))


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory) -> Decoder:
    """Return a decoder with three MoE layers."""
    return decoder_of("mixtral", tmp_path_factory.mktemp("mixtral"))


def run(model, name: str, overrides: dict[str, str], slots: int = 6) -> tuple[Rig, list]:
    return generate(model, build(name, overrides), slots)


def generate(model, system: System, slots: int = 6) -> tuple[Rig, list]:
    made = rig(system, model, slots=slots)
    tokens = [made.engine.generate(prompts, NEW_TOKENS).tokens for prompts in BATCHES]
    return made, tokens


def facts(made: Rig) -> list[tuple]:
    return [(s.op, s.lane, s.start_ns, s.end_ns, s.stall_ns, s.cause) for s in made.spans]


@pytest.mark.parametrize(("system", "overrides"), SYSTEMS)
def test_a_replay_is_the_live_run_to_the_nanosecond(decoder, system, overrides):
    recorder = Recorder(decoder)
    live, tokens = run(recorder, system, overrides)
    replayed, again = run(TracedModel(recorder.trace), system, overrides)
    assert facts(replayed) == facts(live)
    assert replayed.claims == live.claims
    assert replayed.counts == live.counts
    assert again == tokens


def test_predictions_of_several_layers_replay_in_both_phases(three_layers):
    def system() -> System:
        return replace(build("moe-ondemand"), prefetch=TwoLayersAhead())

    recorder = Recorder(three_layers)
    live, tokens = generate(recorder, system())
    replayed, again = generate(TracedModel(recorder.trace), system())
    assert facts(replayed) == facts(live)
    assert (replayed.counts, again) == (live.counts, tokens)
    for passes in recorder.trace.batches:
        for one in passes:
            assert set(one.predicted) == {Lookahead.GATE}
            predicted = one.predicted[Lookahead.GATE]
            assert set(predicted) == {(0, 1), (0, 2), (1, 2)}
            for scores_TE in predicted.values():
                assert scores_TE.shape == (sum(one.rows), three_layers.shape.num_experts)


def test_recording_changes_nothing(decoder):
    plain, tokens = run(decoder, *SYSTEMS[2])
    recorded, again = run(Recorder(decoder), *SYSTEMS[2])
    assert facts(recorded) == facts(plain)
    assert again == tokens


def test_a_lossless_system_replays_what_another_recorded(decoder):
    recorder = Recorder(decoder)
    run(recorder, "smoe", {"alpha": "0"})
    live, tokens = run(decoder, "moe-ondemand", {"evict": "score"}, slots=4)
    replayed, again = run(TracedModel(recorder.trace), "moe-ondemand", {"evict": "score"}, slots=4)
    assert facts(replayed) == facts(live)
    assert again == tokens


def test_a_trace_holds_what_was_asked(decoder):
    recorder = Recorder(decoder)
    run(recorder, "smoe", {"alpha": "0"})
    layers = decoder.shape.moe_layers
    assert [len(passes) for passes in recorder.trace.batches] == [NEW_TOKENS] * 2
    for passes, prompts in zip(recorder.trace.batches, BATCHES, strict=True):
        prefill, *decoded = passes
        assert prefill.rows == tuple(map(len, prompts))
        assert prefill.predicted == {}, "nothing is predicted in prefill"
        for one in decoded:
            assert one.rows == (1,) * len(prompts)
            assert set(one.gates) == set(layers)
            assert set(one.predicted) == {Lookahead.LAYER}
            pairs = {(i, i + 1) for i in layers if i + 1 in layers}
            assert set(one.predicted[Lookahead.LAYER]) == pairs
            for gate in one.gates.values():
                assert gate.scores_TE.shape == (len(prompts), decoder.shape.num_experts)
                assert gate.ids_TK.shape == (len(prompts), decoder.shape.top_k)


@dataclass(kw_only=True)
class ByNorm(LeastRecentlyUsed):
    """LRU that keeps the norms of the states that gates read."""

    reads_token_norms = True
    found: list[list[float]] = field(default_factory=list)

    def observe(self, view):
        self.found.append(None if view.norm_T is None else view.norm_T.tolist())


def test_norms_of_states_are_recorded_where_a_policy_reads_them(decoder):
    recorder, live, again = Recorder(decoder), ByNorm(), ByNorm()
    generate(recorder, replace(build("moe-ondemand"), evict=live))
    assert min(map(min, live.found)) > 0
    generate(TracedModel(recorder.trace), replace(build("moe-ondemand"), evict=again))
    assert again.found == live.found


def test_norms_follow_from_recorded_states_and_are_unknown_without_them(decoder):
    recorder = Recorder(decoder)
    run(recorder, "moe-ondemand", {})
    blind = ByNorm()
    generate(TracedModel(recorder.trace), replace(build("moe-ondemand"), evict=blind))
    assert set(blind.found) == {None}
    for batch in recorder.trace.batches:
        for one in batch:
            one.hidden = {layer: np.full((sum(one.rows), 4), 3.0) for layer in one.gates}
    sees = ByNorm()
    generate(TracedModel(recorder.trace), replace(build("moe-ondemand"), evict=sees))
    assert {norm for norms in sees.found for norm in norms} == {6.0}


def test_a_trace_keeps_copies(decoder):
    recorder = Recorder(decoder)
    recorder.begin([[1, 2]], 1)
    recorder.embed("prefill")
    recorder.attend(0)
    recorder.dense(0)
    recorder.attend(1)
    gate = recorder.gate(1)
    kept = recorder.trace.batches[0][0].gates[1]
    before = kept.scores_TE.copy()
    gate.scores_TE[:] = -1
    assert np.array_equal(kept.scores_TE, before)


# ----------------------------------------------------------------------------- unfit traces


def replay(overrides: dict[str, str], passes: int, batches: int, trace):
    made = rig(build("moe-ondemand", overrides), TracedModel(trace), slots=6)
    for _ in range(batches):
        made.engine.generate([[0, 0]], passes)


def trace_of(passes: int, predictions: bool = True):
    trace = random_trace(1, small_shape(layers=2), [[2]], passes)
    if not predictions:
        for one in trace.batches[0]:
            one.predicted.clear()
    return trace


def test_a_trace_that_is_too_short_is_refused_before_it_runs():
    replay({}, passes=3, batches=1, trace=trace_of(4))
    with pytest.raises(UsageError, match="the trace holds 4 passes; the run asks for 5 passes"):
        replay({}, passes=5, batches=1, trace=trace_of(4))


def test_a_trace_with_too_few_batches_is_refused():
    with pytest.raises(UsageError, match="the trace holds no further batch"):
        replay({}, passes=3, batches=2, trace=trace_of(4))


def test_a_trace_without_predictions_serves_only_systems_that_predict_nothing():
    replay({}, passes=3, batches=1, trace=trace_of(4, predictions=False))
    with pytest.raises(UsageError, match="prefetch=none"):
        replay({"prefetch": "next-gate"}, passes=3, batches=1, trace=trace_of(4, predictions=False))


def test_predictions_of_another_kind_are_refused(decoder):
    recorder = Recorder(decoder)
    run(recorder, "smoe", {"alpha": "0"})
    with pytest.raises(UsageError, match="no predictions of kind gate"):
        run(TracedModel(recorder.trace), "smoe", {"alpha": "0", "prefetch.predict": "gate"})


def test_predictions_of_a_layer_that_was_not_asked_for_are_refused_in_one_line(decoder):
    recorder = Recorder(decoder)
    run(recorder, "moe-ondemand", {"prefetch": "next-gate"})
    model = TracedModel(recorder.trace)
    model.begin(BATCHES[0], NEW_TOKENS)
    model.embed("prefill")
    model.embed("decode")
    first, later = decoder.shape.moe_layers[:2]
    assert model.predict(first, later, (), Lookahead.GATE).shape == (2, decoder.shape.num_experts)
    with pytest.raises(UsageError, match="layer 1 made of layer 7; run without --trace") as error:
        model.predict(first, 7, (), Lookahead.GATE)
    assert "\n" not in str(error.value)


# ----------------------------------------------------------------------------- without mathematics


def test_a_trace_holds_no_states():
    model = TracedModel(trace_of(2))
    model.begin([[0, 0]], 2)
    model.embed("prefill")
    with pytest.raises(UsageError, match="no hidden states; run the system live"):
        model.hidden(0)
    with pytest.raises(UsageError, match="no embeddings; run the system live"):
        model.embedding()


@pytest.mark.parametrize(
    ("ids", "active"),
    [
        ([[3, -1]], {3: 1}),
        ([[-1, -1]], {}),
        ([[3, -1], [0, 3]], {0: 1, 3: 2}),
        ([[-1, -1], [-1, -1]], {}),
        ([[2, 0], [2, 1], [1, 2]], {0: 1, 1: 2, 2: 3}),
    ],
)
def test_active_experts_of_any_routing(ids, active):
    """-1 is no expert; ascending, as a model that computes gives them."""
    ids_TK = np.array(ids)
    model = TracedModel(trace_of(2))
    assert list(model.dispatch(0, ids_TK, ids_TK).items()) == list(active.items())


def test_an_exact_prediction_is_what_the_later_gate_chose():
    trace = random_trace(5, small_shape(), [[3, 1]], passes=2)
    model = TracedModel(trace)
    (batch,) = trace.batches
    model.begin([[0] * n for n in batch[0].rows], len(batch))
    rows = model.embed("prefill")
    first, second = model.shape.moe_layers[:2]
    model.gate(first)
    scores_TE = model.predict(first, second, (), Lookahead.EXACT)
    assert scores_TE.shape == (rows, model.shape.num_experts)
    ids_TK = batch[0].gates[second].ids_TK
    assert (np.argsort(-scores_TE, axis=1, kind="stable")[:, : ids_TK.shape[1]] == ids_TK).all()
    assert ((scores_TE > 0).sum(axis=1) == ids_TK.shape[1]).all()
