"""ProMoE by hand: a stride of two, chunks that yield to loads, the next token's first layers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch, Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.systems.options import build, describe
from moebench.systems.promoe import LearnedStates, ProMoE, StridePrefetch, likeliest
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig, small_shape
from tests.substrate.engine.own import Placed, row
from tests.substrate.models.checkpoints import make_checkpoint
from tests.substrate.traces.texts import routed_text
from tests.systems.views import shape, view

NO_CONTROL = FlatCosts(prices(network=25))


class Named:
    """Networks that name experts by the layer of the call."""

    def __init__(self, named: dict[int, dict[int, tuple[int, ...]]], layers=4, stride=2):
        self.named, self.num_layers, self.num_experts, self.stride = named, layers, 4, stride
        self.note: dict[str, str] = {}
        #: The state and the layer of every question.
        self.asked: list[tuple[list, int]] = []

    def probabilities(self, hidden_TH, layer):
        self.asked.append((hidden_TH.tolist(), layer))
        wanted = self.named.get(layer, {})
        return {later: np.array([row(*best)] * len(hidden_TH)) for later, best in wanted.items()}


def told_by(networks, **options) -> StridePrefetch:
    """Return a prefetch policy with these networks."""
    prefetch = StridePrefetch(**options)
    prefetch._predictor = LearnedStates(networks, (8, 16, 16))
    return prefetch


# --------------------------------------------------------------------------- the timeline

# Four layers, top-2 of four experts, 0 and 1 of each on the device, a third slot free.
#
#   device  attend 30, gate 3, expert 10, combine 2, head 6     h2d  load 40     host  network 25
#
# Prefill takes 4 · 55 + 6.  The first decoded token begins at 226:
#
#   layer 0  gate 259, experts until 279; its network, 259..284, expects 2 of layer 2
#   h2d      2 of layer 2, in four parts of 10, from 284 on: three have begun when
#   layer 1  at 314 its gate asks for 3, which is not there: 314..354; then the fourth, 354..364
#            experts 0 (314..324) and 3 (354..364), sum until 366; its network, 314..339, expects
#            of layer 3 what is there
#   layer 2  gate 399: 2 has come; sum until 421.  No layer is two further on
#   layer 3  gate 454; its network, 454..479, expects 2 of the next token's layers 0 and 1
#   h2d      479..519 and 519..559, while the next token begins at 482
#
#   layer 0  gate 515: 2 is on its way, in its last part; experts 0 (515..525) and 2 (525..535)
#   layer 1  gate 570: 2 has come

LOADS = [
    *((2, 2, start, start + 10) for start in (284, 294, 304)),
    (1, 3, 314, 354),
    (2, 2, 354, 364),
    *((0, 2, start, start + 10) for start in (479, 489, 499, 509)),
    *((1, 2, start, start + 10) for start in (519, 529, 539, 549)),
]
HERE = row(0, 1)
EXPECTED = {0: {2: (2, 0)}, 1: {3: (0, 1)}, 3: {0: (2, 0), 1: (2, 0)}}
USED = {(1, 1): row(0, 3), (1, 2): row(0, 2), (2, 0): row(0, 2), (2, 1): row(0, 2)}


def decoded(networks, tokens=3, **options) -> tuple[Rig, FixedModel]:
    gates = {(p, layer): [USED.get((p, layer), HERE)] for p in range(tokens) for layer in range(4)}
    model = FixedModel(small_shape(layers=4), gates)
    place = Placed(pairs=[(layer, e) for layer in range(4) for e in (0, 1)])
    system = ProMoE(place=place, prefetch=told_by(networks, **options))
    made = rig(system, model, slots=12, costs=NO_CONTROL)
    made.engine.generate([[5]], tokens)
    return made, model


def test_a_token_and_the_first_layers_of_the_next():
    networks = Named(EXPECTED)
    made, _ = decoded(networks, chunks=4)
    loads = [
        (s.op.layer, s.op.experts[0], s.start_ns, s.end_ns)
        for s in made.spans
        if s.op.kind is OpKind.LOAD
    ]
    assert sorted(loads, key=lambda load: load[2]) == LOADS
    predicted = [
        (s.op.layer, s.lane, s.start_ns, s.end_ns, s.op.network)
        for s in made.spans
        if s.op.kind is OpKind.PREDICT
    ]
    assert predicted[:3] == [
        (0, Lane.HOST, 259, 284, (8, 16, 16, 4)),
        (1, Lane.HOST, 314, 339, (8, 16, 16, 4)),
        (3, Lane.HOST, 454, 479, (8, 16, 16, 8)),
    ]
    # States by pass and layer; layer 2 predicts no layer, and prefill has no predictions.
    assert [state for state, _ in networks.asked[:4]] == [[[1, 0]], [[1, 1]], [[1, 3]], [[2, 0]]]
    counts = made.counts["decode"]
    assert (counts.loads, counts.in_flight, counts.hits) == (1, 1, 14)
    assert (counts.prefetched, counts.prefetched_used) == (3, 3)


def test_in_one_piece_a_fetch_delays_what_is_needed():
    made, _ = decoded(Named(EXPECTED), chunks=1)
    loads = [(s.op.layer, s.start_ns) for s in made.spans if s.op.kind is OpKind.LOAD]
    assert loads[:2] == [(2, 284), (1, 324)]


# --------------------------------------------------------------------------- the policy


def expect(prefetch: StridePrefetch, layer: int, *forecast: tuple[int, list[list[float]]]):
    seen = view([[1.0, 0, 0, 0]], 1, layer=layer, layers=6)
    return list(prefetch.prefetch(seen, {later: np.array(p_TE) for later, p_TE in forecast}))


def test_what_nearer_layers_still_lack_stays_in_front():
    prefetch = StridePrefetch(stride=3)
    prefetch.start(shape(experts=4, layers=6), None)  # type: ignore[arg-type]
    assert expect(prefetch, 0, (3, [row(1)])) == [Fetch(3, 1)]
    assert expect(prefetch, 1, (4, [row(2)])) == [Fetch(3, 1), Fetch(4, 2)]
    assert expect(prefetch, 2, (5, [row(3)])) == [Fetch(3, 1), Fetch(4, 2), Fetch(5, 3)]
    assert expect(prefetch, 3) == [Fetch(4, 2), Fetch(5, 3)]
    assert expect(prefetch, 4) == [Fetch(5, 3)]
    wrapped = [(layer, [row(0)]) for layer in range(3)]
    assert expect(prefetch, 5, *wrapped) == [Fetch(layer, 0) for layer in range(3)]
    assert expect(prefetch, 0, (3, [row(1)])) == [Fetch(1, 0), Fetch(2, 0), Fetch(3, 1)]
    prefetch.begin_sequences(Prompts((4,)))
    assert expect(prefetch, 0) == []


def test_a_batch_fetches_what_any_row_expects_the_surest_first():
    p_TE = np.array([[0.5, 0.4, 0.1, 0.0], [0.1, 0.9, 0.0, 0.45]])
    assert likeliest(p_TE, 1) == [1, 0]
    assert likeliest(p_TE, 2) == [1, 0, 3]
    assert likeliest(np.full((1, 4), 0.25), 2) == [0, 1]
    prefetch = StridePrefetch(experts=1)
    prefetch.start(shape(experts=4, layers=6), None)  # type: ignore[arg-type]
    assert expect(prefetch, 0, (2, p_TE.tolist())) == [Fetch(2, 1), Fetch(2, 0)]


def test_what_it_learns_and_what_is_charged(tmp_path):
    model = shape(experts=4, top_k=1, layers=4, dense_layers=(0,), dense_width=8)
    prefetch = StridePrefetch(trained_width=4, epochs=1)
    assert prefetch.predictor is None
    assert prefetch.learnt == {}
    text = routed_text(model, 20, 4, prefetch.learns_from)
    prefetch.calibrate([text], model, tmp_path)
    prefetch.start(model, None)  # type: ignore[arg-type]
    assert float(prefetch.learnt["ahead.recall"]) >= 0
    predictor = prefetch.predictor
    assert predictor is not None
    for layer, layers_ahead in ((1, [3]), (2, []), (3, [1, 2])):
        seen = view([[1.0, 0, 0, 0]] * 2, 1, layer=layer, hidden=np.ones((2, 8)))
        seen.shape = model
        assert predictor.asked(seen) == bool(layers_ahead)
        found = predictor.forecast(seen, None, ())  # type: ignore[arg-type]
        assert {later: p.shape for later, p in found.items()} == dict.fromkeys(layers_ahead, (2, 4))
        op = predictor.op(seen)
        assert op.network == (8, 1024, 1024, 4 * len(layers_ahead))
        assert (op.kind, op.rows, predictor.lane) == (OpKind.PREDICT, (2,), Lane.HOST)
    assert not predictor.asked(view([[1.0, 0, 0, 0]], 1, layer=1, phase="prefill"))
    with pytest.raises(UsageError, match="trained for 3 layers of 4 experts"):
        prefetch.start(shape(experts=8), None)  # type: ignore[arg-type]


def test_promoe_options_are_applied_or_refused():
    system = build("promoe", {"prefetch.stride": "1", "prefetch.chunks": "8"})
    assert describe(system)["prefetch.stride"] == "1"
    assert (system.scope, system.lossless, system.reads_hidden) == ("layer", True, True)
    for refused in ("stride=0", "experts=-1", "chunks=0", "chunks=65", "width=0", "tokens=3"):
        option, _, value = refused.partition("=")
        with pytest.raises(UsageError, match=f"prefetch.{option} is {value}; allowed"):
            build("promoe", {f"prefetch.{option}": value})


# --------------------------------------------------------------------------- with mathematics


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral", "deepseek"])
@pytest.mark.parametrize("prompts", [[[5, 9, 2, 44]], [[5, 9, 2, 44], [3], [7, 7, 20]]])
@pytest.mark.parametrize("name", ["promoe", "finemoe"])
def test_tokens_are_those_of_the_resident_model(name, family, prompts, tmp_path):
    checkpoint = Checkpoint(make_checkpoint(tmp_path, family))
    model, common = checkpoint.shape, checkpoint.common(torch.float32)
    layers, experts = len(model.moe_layers), model.num_experts

    def run(system, slots: int):
        decoder = Decoder(model, common, ResidentExperts(checkpoint, torch.float32))
        made = rig(system, decoder, slots=slots)
        return made, made.engine.generate(prompts, 6).tokens, decoder.history

    small = {"prefetch.stride": "1", "prefetch.epochs": "1"}
    system = build(name, small if name == "promoe" else {"prefetch.distance": "1"})
    learns_from = system.prefetch.learns_from
    texts = [routed_text(model, 12, 4, learns_from, seed) for seed in range(3)]
    system.prefetch.calibrate(texts, model, tmp_path, lambda done, total: None)
    slots = max(layers, layers * experts // 2)
    made, tokens, logits = run(system, slots)
    _, expected, reference = run(build("gpu-only"), layers * experts)
    assert tokens == expected
    assert all(torch.equal(a, b) for a, b in zip(logits, reference, strict=True))
    check_timeline(made.spans, made.claims, num_experts=experts, capacity=slots)
    predicted = [s for s in made.spans if s.op.kind is OpKind.PREDICT]
    # FineMoE also searches when the prompt is read.
    assert len(predicted) == 5 * layers + (name == "finemoe")
    assert {s.lane for s in predicted} == {Lane.HOST}


def test_among_many_equal_probabilities_each_row_wants_the_lowest_ids():
    p_TE = np.random.default_rng(0).integers(1, 4, (2, 400)) / 4
    wanted = {e for p_E in p_TE for e in sorted(range(400), key=lambda e: (-p_E[e], e))[:150]}
    best = p_TE.max(axis=0)
    assert likeliest(p_TE, 150) == sorted(wanted, key=lambda e: (-best[e], e))
