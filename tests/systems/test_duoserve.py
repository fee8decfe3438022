"""DuoServe-MoE by hand: a prefill's pipeline, a decoded layer with a wrong prediction."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.machines.records import DiskRecords
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import RoutedSequence
from moebench.systems.duoserve import DuoServe, LearnedPath, PathPredictor
from moebench.systems.options import build, describe
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig, small_shape
from tests.substrate.models.checkpoints import make_checkpoint
from tests.systems.views import shape, view

# --------------------------------------------------------------------------- the timeline

# Four experts, top-2, two slots, two layers; nothing costs the control thread any time.
#
#   device  attend 30, gate 3, expert 10, combine 2, head 6     h2d  load 40     predict  25
#
# Prefill, two rows: {0,1} and {2,3}, so that all four are active.  Expert 0 is the first.
#
#   h2d     0 (0..40)  begins with the pass.  The gate is known at 33: 1 (40..80) takes the free
#           slot, 2 that of 0 (computed until 50), 3 that of 1 (until 90)
#   device  0 (40..50)  1 (80..90)  2 (120..130)  3 (160..170)
#   h2d     layer 1's expert 0 takes the slot of 2 (until 130), behind 3: 160..200
#   layer 1 attend 172..202, gate 202..205: expert 0 is there, the rest as before

NO_CONTROL = FlatCosts(prices(network=25))

PREFILL = [
    ("load", 0, (0,), "h2d", 0, 40),
    ("attend", 0, (), "device", 0, 30),
    ("gate", 0, (), "device", 30, 33),
    ("load", 0, (1,), "h2d", 40, 80),
    ("expert", 0, (0,), "device", 40, 50),
    ("expert", 0, (1,), "device", 80, 90),
    ("load", 0, (2,), "h2d", 80, 120),
    ("expert", 0, (2,), "device", 120, 130),
    ("load", 0, (3,), "h2d", 120, 160),
    ("expert", 0, (3,), "device", 160, 170),
    ("combine", 0, (), "device", 170, 172),
    ("load", 1, (0,), "h2d", 160, 200),
    ("attend", 1, (), "device", 172, 202),
    ("gate", 1, (), "device", 202, 205),
    ("load", 1, (1,), "h2d", 205, 245),
    ("expert", 1, (0,), "device", 205, 215),
    ("expert", 1, (1,), "device", 245, 255),
    ("load", 1, (2,), "h2d", 245, 285),
    ("expert", 1, (2,), "device", 285, 295),
    ("load", 1, (3,), "h2d", 285, 325),
    ("expert", 1, (3,), "device", 325, 335),
    ("combine", 1, (), "device", 335, 337),
    ("head", -1, (), "device", 337, 343),
]

# Decode, a prompt of one row.  Layer 0 uses {0,1}, layer 1 {0,2}; {2,3} is predicted for it.
#
#   t0      the first token is there; both slots hold layer 1's experts
#   h2d     layer 0, after the gate at 33: 0 (33..73) and 1 (73..113), from t0
#   predict 33..58: beside the loads
#   device  0 (73..83)  1 (113..123)  combine 123..125
#   h2d     2 takes the slot of 0, 3 that of 1 (computed until 123): 113..153, 153..193
#   layer 1 attend 125..155, gate 155..158: 2 is there, 3 on its way in vain, 0 is missing
#   device  2 (158..168)
#   h2d     0 takes the slot of 2, behind 3: 193..233
#   device  0 (233..243)  combine 243..245  head 245..251

DECODE = [
    ("attend", 0, (), "device", 0, 30),
    ("gate", 0, (), "device", 30, 33),
    ("load", 0, (0,), "h2d", 33, 73),
    ("predict", 0, (), "predict", 33, 58),
    ("load", 0, (1,), "h2d", 73, 113),
    ("expert", 0, (0,), "device", 73, 83),
    ("expert", 0, (1,), "device", 113, 123),
    ("load", 1, (2,), "h2d", 113, 153),
    ("combine", 0, (), "device", 123, 125),
    ("attend", 1, (), "device", 125, 155),
    ("load", 1, (3,), "h2d", 153, 193),
    ("gate", 1, (), "device", 155, 158),
    ("expert", 1, (2,), "device", 158, 168),
    ("load", 1, (0,), "h2d", 193, 233),
    ("expert", 1, (0,), "device", 233, 243),
    ("combine", 1, (), "device", 243, 245),
    ("head", -1, (), "device", 245, 251),
]


def best(*experts: int) -> list[float]:
    return [0.9 - 0.2 * experts.index(e) if e in experts else 0.01 for e in range(4)]


class Named:
    """ExpertMLP that always names the same experts, and keeps the paths that it received."""

    def __init__(self, *named: int) -> None:
        self.named = named
        #: (path, layer) of every question.
        self.asked: list[tuple[list, int]] = []

    def probabilities(self, path_TLK, layer):
        self.asked.append((path_TLK.tolist(), layer))
        return np.array([best(*self.named)] * len(path_TLK))


def told_by(network) -> LearnedPath:
    """Return a prefetch policy with this network; a small network is charged."""
    prefetch = LearnedPath()
    prefetch._predictor = PathPredictor(network, (3, 4))
    return prefetch


def served(prefetch: LearnedPath, prompt_rows: list[list[float]], new_tokens: int) -> Rig:
    gates = {(0, layer): prompt_rows for layer in range(2)}
    for token in range(1, new_tokens):
        gates |= {(token, 0): [best(0, 1)], (token, 1): [best(2, 0)]}
    system = DuoServe(prefetch=prefetch)
    model = FixedModel(small_shape(layers=2), gates)
    made = rig(system, model, slots=system.most_slots(model.shape), costs=NO_CONTROL)
    made.engine.generate([[5] * len(prompt_rows)], new_tokens)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=2)
    return made


def flat(spans, origin: int = 0) -> list[tuple]:
    rows = [
        (s.op.kind.value, s.op.layer, s.op.experts, s.lane.value,
         s.start_ns - origin, s.end_ns - origin)
        for s in spans
    ]  # fmt: skip
    return sorted(rows)


def test_a_prefill_streams_every_expert_once_through_two_slots():
    made = served(LearnedPath(), [best(0, 1), best(2, 3)], 1)
    assert flat(made.spans) == sorted(PREFILL)
    counts = made.counts["prefill"]
    assert (counts.active, counts.loads, counts.hits, counts.in_flight) == (8, 6, 1, 1)


def test_a_wrong_prediction_is_fetched_again_behind_what_came_in_vain():
    made = served(told_by(Named(2, 3)), [best(0, 1)], 2)
    (head,) = [s for s in made.spans if s.op.kind is OpKind.HEAD][:1]
    decoded = [s for s in made.spans if s.start_ns >= head.end_ns]
    assert flat(decoded, head.end_ns) == sorted(DECODE)
    counts = made.counts["decode"]
    assert (counts.active, counts.hits, counts.in_flight, counts.loads) == (4, 1, 0, 3)
    assert (counts.prefetched, counts.prefetched_used) == (2, 1)
    assert (counts.asked, counts.asked_all, counts.asked_any) == (1, 0, 1)
    assert made.tier.peak_bytes == 2 * 1000


def test_a_right_prediction_hides_a_load():
    made = served(told_by(Named(0, 2)), [best(0, 1)], 2)
    counts = made.counts["decode"]
    assert (counts.asked, counts.asked_all, counts.asked_any) == (1, 1, 1)
    assert (counts.loads, counts.hits + counts.in_flight) == (2, 2)


def test_the_path_starts_anew_with_every_token():
    network = Named(2, 3)
    served(told_by(network), [best(0, 1)], 4)
    # Layer 0 of three decoded tokens; what lies ahead is zero.
    assert network.asked == [([[[0, 1], [0, 0]]], 1)] * 3


def test_the_path_holds_the_layers_so_far_of_every_row():
    network = Named(1)
    seen = view([best(0, 1), best(3, 2)], 2, layer=2, layers=5)
    seen.forward.history = [np.array([[0, 1], [2, 3]]), np.array([[1, 0], [3, 1]])]
    forecast = PathPredictor(network, (3, 4)).forecast(seen, None, ())  # type: ignore[arg-type]
    path = [[[0, 1], [1, 0], [0, 0], [0, 0], [0, 0]], [[2, 3], [3, 1], [0, 0], [0, 0], [0, 0]]]
    assert network.asked == [(path, 3)]
    assert {layer: scores.shape for layer, scores in forecast.items()} == {3: (2, 4)}


# --------------------------------------------------------------------------- the policy


def test_the_first_expert_of_a_prefill_is_the_most_popular(tmp_path):
    ids = np.array([[[3], [1]]] * 6 + [[[0], [2]]] * 2)
    prefetch = LearnedPath(trained_width=64, epochs=1)
    model = shape(experts=4, top_k=1, layers=3, dense_layers=(0,), dense_width=8)
    prefetch.calibrate([RoutedSequence(ids, 0)], model, tmp_path, lambda done, total: None)
    prefetch.start(model, None)  # type: ignore[arg-type]
    assert list(prefetch.opening("prefill", 1)) == [Fetch(1, 3)]
    assert list(prefetch.opening("decode", 1)) == []
    seen = view([[1.0, 0, 0, 0]], 1, layer=1, phase="prefill")
    assert list(prefetch.prefetch(seen, {})) == [Fetch(2, 1)]
    # The paper's network is charged, whatever was really trained.
    op = prefetch.predictor.op(seen)
    assert op.network == (1 + 4 + 4, 2048, 1024, 512, 256, 128, 64, 4)
    assert (op.kind, op.rows, prefetch.predictor.lane) == (OpKind.PREDICT, (1,), Lane.PREDICT)
    assert int(prefetch.learnt["epochs"]) == 1
    with pytest.raises(UsageError, match="trained for 2 layers of 4 experts"):
        prefetch.start(shape(experts=8, top_k=1), None)  # type: ignore[arg-type]


def test_a_batch_shares_the_likeliest():
    seen = view([[1.0, 0, 0, 0], [0, 0, 1.0, 0]], 2)
    said = np.array([[0.9, 0.1, 0.2, 0.3], [0.1, 0.2, 0.8, 0.85]])
    assert LearnedPath().prefetch(seen, {1: said}) == [Fetch(1, 0), Fetch(1, 3)]
    assert LearnedPath().prefetch(seen, {}) == ()  # before it is trained


def test_its_fetches_are_needed_loads_that_begin_early():
    assert LearnedPath().discipline == "committed"
    assert LearnedPath().predictor is None


def test_duoserve_options_are_applied_or_refused():
    system = build("duoserve", {"slots": "5", "prefetch.trained_width": "128"})
    spelled = describe(system)
    assert (spelled["prefetch.width"], spelled["prefetch.trained_width"]) == ("2048", "128")
    assert system.most_slots(shape(top_k=3)) == 5
    assert build("duoserve").most_slots(shape(top_k=3)) == 3
    assert system.device_bytes == 300_000_000
    assert system.lossless
    refused = ({"slots": "-1"}, {"prefetch.width": "32"}, {"prefetch.dropout": "1"})
    for options in (*refused, {"route": "expert-cache", "alpha": "2"}):
        with pytest.raises(UsageError, match="allowed"):
            build("duoserve", options)


# --------------------------------------------------------------------------- with mathematics


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral", "deepseek"])
@pytest.mark.parametrize("prompts", [[[5, 9, 2, 44]], [[5, 9, 2, 44], [3], [7, 7, 20]]])
def test_tokens_are_those_of_the_resident_model(family, prompts, tmp_path):
    checkpoint = Checkpoint(make_checkpoint(tmp_path, family))
    model, common = checkpoint.shape, checkpoint.common(torch.float32)
    layers, experts = len(model.moe_layers), model.num_experts

    def run(system, slots: int):
        decoder = Decoder(model, common, ResidentExperts(checkpoint, torch.float32))
        made = rig(system, decoder, slots=slots, costs=NO_CONTROL)
        return made, made.engine.generate(prompts, 6).tokens, decoder.history

    random = np.random.default_rng(0)
    texts = [
        RoutedSequence(
            np.stack([random.permutation(experts)[: model.top_k] for _ in range(20 * layers)])
            .reshape(20, layers, model.top_k), 5,
        )
    ]  # fmt: skip
    duoserve = build("duoserve", {"prefetch.trained_width": "64", "prefetch.epochs": "2"})
    duoserve.prefetch.calibrate(texts, model, tmp_path, lambda done, total: None)
    made, tokens, logits = run(duoserve, duoserve.most_slots(model))
    _, expected, reference = run(build("gpu-only"), layers * experts)
    assert tokens == expected
    assert all(torch.equal(a, b) for a, b in zip(logits, reference, strict=True))
    check_timeline(
        made.spans, made.claims, num_experts=experts, capacity=duoserve.most_slots(model)
    )
    counts = made.counts["decode"]
    pairs = sum(layer + 1 in model.moe_layers for layer in model.moe_layers)
    assert counts.asked == 5 * pairs * len(prompts)
    predicted = [s for s in made.spans if s.lane is Lane.PREDICT]
    assert len(predicted) == 5 * pairs


@pytest.mark.usefixtures("no_gradients")
def test_slots_that_are_real(tmp_path):
    checkpoint = Checkpoint(make_checkpoint(tmp_path / "model", "qwen2_moe"))
    store = ExpertStore.build(checkpoint, tmp_path / "experts.bin", torch.float32)
    common = checkpoint.common(torch.float32)
    texts = [RoutedSequence(np.tile([[[0, 1, 2], [5, 6, 7]]], (9, 1, 1)), 0)]

    def run(system, slots: int):
        timeline = Timeline(keep_all=True)
        tier = Tier("memory", slots * store.record_bytes)
        cache = ExpertCache(store.shape, slots, "global", tier, store.record_bytes)
        with DiskRecords(store) as records, LocalMachine(records, slots, timeline) as machine:
            decoder = Decoder(store.shape, common, SlotExperts(cache, machine.slots))
            engine = Engine(system, decoder, machine, cache, timeline)
            engine.start()
            tokens = engine.generate([[5, 9, 2, 44, 17]], 6).tokens
        cache.check_integrity()
        return tokens, engine.tally.by_phase["decode"]

    model = store.shape
    duoserve = build("duoserve", {"prefetch.trained_width": "64", "prefetch.epochs": "2"})
    duoserve.prefetch.calibrate(texts, model, tmp_path, lambda done, total: None)
    tokens, counts = run(duoserve, duoserve.most_slots(model))
    assert counts.asked == 5 * (len(model.moe_layers) - 1)
    assert tokens == run(build("gpu-only"), len(model.moe_layers) * model.num_experts)[0]


def test_without_calibration_decode_loads_after_the_gate():
    made = served(LearnedPath(), [best(0, 1)], 2)
    counts = made.counts["decode"]
    assert (counts.prefetched, counts.asked, counts.loads) == (0, 0, 4)
