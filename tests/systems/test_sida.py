"""SiDA-MoE by hand: SparseMax, the hash table, FIFO beside what is predicted, the network."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import BrokenError, check_timeline
from moebench.substrate.engine.decisions import ForwardPass, Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.models.shape import GateKind
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.learn import hash_function
from moebench.systems.learn.hash_function import HashFunction, HashOptions, sparsemax, trained
from moebench.systems.options import build
from moebench.systems.policies.route import ExactRouting
from moebench.systems.sida import PredictedUnion, code_factors, factors, table_of, union_of
from tests.substrate.engine.fakes import FlatCosts, prices, random_trace, rig, small_shape
from tests.systems.views import shape

# --------------------------------------------------------------------------- the formulas


def test_sparsemax_of_the_sheet():
    # (1 + .8 - 1) / 2 = .4 is taken from each; .1 is below it.
    assert sparsemax(np.array([1, 0.8, 0.1])) == pytest.approx([0.6, 0.4, 0])
    assert sparsemax(np.array([[3.0, 0, 0], [1, 1, 1]])) == pytest.approx(
        np.array([[1, 0, 0], [1 / 3] * 3])
    )
    assert sparsemax(np.array([0.2, -np.inf, 0.1])) == pytest.approx([0.55, 0, 0.45])


SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


@given(SCORES, SCORES)
def test_sparsemax_is_the_nearest_point_of_the_simplex(scores, other):
    z = np.array(scores)
    p = sparsemax(z)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    # No other point of the simplex is nearer.
    q = np.abs(np.resize(np.array(other), len(z))) + 1e-9
    q /= q.sum()
    assert ((z - p) ** 2).sum() <= ((z - q) ** 2).sum() + 1e-9
    assert hash_function._sparsemax(torch.from_numpy(z)).numpy() == pytest.approx(p)


def test_weights_of_the_code():
    assert code_factors(np.array([[0.5, 0.3, 0.1]])) == pytest.approx(
        np.array([[0.25, 0.075, 0.025]])
    )
    assert code_factors(np.array([[0.8]])) == pytest.approx(np.array([[0.8]]))


def test_weights_follow_the_models_own_rule():
    p_TE, ids_TK = np.array([[0.1, 0.3, 0.6, 0.0]]), np.array([[1, 0]])
    plain = shape(4, 2).model_copy(update={"gate": GateKind.SOFTMAX_TOPK})
    again = plain.model_copy(update={"gate": GateKind.SOFTMAX_TOPK_RENORM})
    assert factors(p_TE, ids_TK, plain).tolist() == [[0.3, 0.1]]
    assert factors(p_TE, ids_TK, again) == pytest.approx(np.array([[0.75, 0.25]]))
    # Only experts within the jitter of a pick are near: each pick is weighed by itself.
    mixed = plain.model_copy(update={"gate": GateKind.SPARSEMIXER, "gate_jitter": 0.01})
    far = np.array([[1e-9, 0.5, 0.5 - 1e-9, 1e-12]], np.float32)
    assert factors(far, np.array([[1, 2]]), mixed)[0, 0] == pytest.approx(0.5, abs=1e-3)


def test_the_hash_table_and_its_union():
    p_TLE = np.array([[[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], [[0.2, 0.2, 0.6], [0.4, 0.4, 0.2]]])
    ids_TLK, p_TLK = table_of(p_TLE, 1)
    assert ids_TLK[..., 0].tolist() == [[1, 0], [2, 0]]
    assert p_TLK[..., 0].tolist() == [[0.6, 0.5], [0.6, 0.4]]
    assert union_of(ids_TLK, (0, 2)) == [(0, 1), (0, 2), (2, 0)]


# --------------------------------------------------------------------------- the cache


class Said(HashFunction):
    """A network that says what a test writes down, pass by pass."""

    passes: list[np.ndarray] = []  # noqa: RUF012

    def read(self, embedding_TH, reading):
        return Said.passes.pop(0)


def saying(*passes, experts=8, layers=1, variant="published", **options):
    """Return the system, whose network predicts these experts of layer after layer in each pass."""
    system = build("sida", options, variant)
    network = Said({"compress.bias": np.zeros(2)}, layers, experts, {})
    system.route._network = network
    Said.passes = []
    for predicted in passes:
        p_TLE = np.full((1, layers, experts), 0.01)
        for row, ids in enumerate(predicted):
            for rank, expert in enumerate(ids):
                p_TLE[0, row, expert] = 0.5 - 0.1 * rank
        Said.passes.append(p_TLE)
    return system


class Embedded(TracedModel):
    """A replay whose tokens have embeddings."""

    def token_embeddings(self):
        return np.zeros((self.rows, 8), np.float32)

    def embed(self, phase):
        self.rows = super().embed(phase)
        return self.rows


def ran(system, passes, *, slots, layers=1, top_k=2, costs=None):
    """Run one text of one-token passes, and return the rig."""
    model = small_shape(layers=layers, experts=8, top_k=top_k)
    made = rig(system, Embedded(random_trace(0, model, [[1]], passes)), slots=slots, costs=costs)
    made.engine.generate([[1]], passes)
    return made


def residents(made):
    held = np.flatnonzero(made.cache.held).tolist()
    order = list(made.engine.system.evict._pools[0])
    assert sorted(order) == held
    return order


def test_the_oldest_expert_that_is_not_predicted_leaves():
    # FIFO 4, 1, 7 in three slots; {1, 2} is predicted: 4 leaves.
    system = saying([[4, 1]], [[1, 7]], [[1, 2]])
    made = ran(system, 3, slots=3)
    assert residents(made) == [1, 7, 2]
    loads = [span.op.experts[0] for span in made.spans if span.op.kind is OpKind.LOAD]
    assert loads == [1, 4, 7, 2]


def test_the_code_sends_back_all_that_is_not_predicted():
    system = saying([[4, 1]], [[1, 7]], [[1, 2]], variant="shipped")
    made = ran(system, 3, slots=3)
    assert residents(made) == [1, 2]
    back = [span.op.experts[0] for span in made.spans if span.lane is Lane.D2H]
    assert back == [4, 7]
    known = {"num_experts": 8, "capacity": 3, "record_bytes": [1000], "writes_back": True}
    check_timeline(made.spans, made.events, **known)
    # A copy over another lane is found.
    sent = next(span for span in made.spans if span.lane is Lane.D2H)
    sent.lane = Lane.DISK
    with pytest.raises(BrokenError, match="written back over another lane"):
        check_timeline(made.spans, made.events, **known)


def test_a_predicted_expert_is_not_evicted_though_it_is_the_oldest():
    # FIFO 1, 4, 7: FIFO alone would evict 1, which this pass needs.
    system = saying([[1, 4]], [[4, 7]], [[1, 2]])
    assert residents(ran(system, 3, slots=3)) == [1, 7, 2]


def test_more_predicted_experts_than_slots_are_loaded_layer_by_layer():
    system = saying([[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]], layers=3)
    made = ran(system, 2, slots=4, layers=3)
    counts = made.counts["decode"]
    assert counts.active == 6
    assert counts.loads + counts.hits + counts.in_flight >= 6
    check_timeline(made.spans, made.events, num_experts=8, capacity=4, record_bytes=[1000])
    first = [span.op for span in made.spans if span.op.kind is OpKind.LOAD][:4]
    assert [(op.layer, op.experts[0]) for op in first] == [(0, 0), (0, 1), (1, 2), (1, 3)]


# --------------------------------------------------------------------------- time


def test_the_prediction_precedes_layer_0_and_no_gate_is_waited_for():
    system = saying([[0, 1], [2, 3]], [[0, 1], [2, 3]], layers=2)
    costs = FlatCosts(prices(load=90, predict=500), sync_ns=2)
    made = ran(system, 2, slots=8, layers=2, costs=costs)
    kinds = [span.op.kind for span in made.spans]
    assert OpKind.GATE not in kinds
    predicted = [span for span in made.spans if span.op.kind is OpKind.PREDICT]
    assert len(predicted) == 2
    assert all(span.lane is Lane.PREDICT for span in predicted)
    for span in made.spans:
        if span.op.kind in (OpKind.LOAD, OpKind.ATTEND):
            before = [p for p in predicted if p.end_ns <= span.start_ns]
            assert before, f"{span} began before the first prediction"


def test_models_that_weigh_the_inputs_of_experts_are_refused():
    model = shape(4, 1)
    assert build("sida").why_not(model, 1) is None
    inputs = model.model_copy(update={"gate": GateKind.TOPK_SIGMOID})
    assert inputs.weighs_input
    assert "weighs their inputs" in build("sida").why_not(inputs, 1)


def test_a_routing_of_passes_without_a_cost_is_one_line():
    class Free(ExactRouting):
        routes_passes = True

    system = build("moe-ondemand")
    system.route = Free()
    with pytest.raises(UsageError, match="Free routes passes at their start and has no `pass_op`"):
        ran(system, 1, slots=4)


def test_the_charged_network_has_the_papers_weights():
    system = saying([[0, 1]])
    model = shape(8, 2, 1)
    system.route._shape = model
    widths = system.route.pass_op(3).network
    weights = sum(a * b for a, b in pairwise(widths))
    heads = 8
    lstm = 2 * 4 * 256 * (256 + 256)
    assert weights == model.hidden_size * 256 + lstm + 256 * 256 + 256 * heads


# --------------------------------------------------------------------------- the network


def routed_texts(count=24, tokens=9, layers=2, experts=4, width=6):
    """Return texts whose experts follow from their tokens: each token has an embedding."""
    random = np.random.default_rng(0)
    table_VH = random.standard_normal((5, width)).astype(np.float16)
    scores_VLE = random.dirichlet(np.full(experts, 0.2), (5, layers))
    found = []
    for _ in range(count):
        ids = random.integers(0, 5, tokens)
        scores = scores_VLE[ids]
        found.append(
            RoutedSequence(
                np.argsort(-scores, axis=2)[..., :1], 3, scores.astype(np.float16),
                embedding_TH=table_VH[ids],
            )
        )  # fmt: skip
    return found


OPTIONS = HashOptions(width=16, epochs=90, seed=0)


def test_the_network_learns_which_experts_tokens_use(tmp_path: Path):
    texts = routed_texts()
    network = trained(texts, 4, OPTIONS, tmp_path)
    right = []
    for text in texts[-2:]:  # more than the one that was held out, and read in the same way
        p_TLE = network.read(text.embedding_TH.astype(np.float32), network.begin())
        right.append((p_TLE.argmax(axis=2) == text.ids_TLK[..., 0]).mean())
    most = np.mean([(text.ids_TLK == text.ids_TLK[0]).mean() for text in texts])
    assert np.mean(right) > 0.75 > most + 0.2, "experts follow from tokens, not from a habit"
    assert 0.9 < float(network.note["top_3"]) <= 1, "of four experts"
    untrained = trained(texts, 4, HashOptions(width=16, epochs=1, seed=0), tmp_path)
    assert float(network.note["loss"]) < float(untrained.note["loss"]) / 2


def test_a_trained_network_is_kept_by_its_texts_and_options(tmp_path: Path):
    options = HashOptions(width=4, epochs=1, seed=0)
    texts = routed_texts(3)
    one, two = (trained(texts, 4, options, tmp_path) for _ in range(2))
    assert all(np.array_equal(one.arrays[n], two.arrays[n]) for n in one.arrays)
    trained(texts[:2], 4, options, tmp_path)
    assert len([*tmp_path.glob("hash-function-*.safetensors")]) == 2


def test_numpy_reads_as_torch_trains():
    network = hash_function._network(5, 3, 8, seed=1)
    arrays = {name: p.detach().numpy() for name, p in network.named_parameters()}
    x_TH = np.random.default_rng(2).standard_normal((7, 3)).astype(np.float32)
    with torch.no_grad():
        logits = hash_function._logits(network, torch.from_numpy(x_TH)[None])[0]
    wanted = logits.view(7, 2, 4).softmax(-1).numpy()
    read = HashFunction(arrays, 2, 4, {})
    whole = read.read(x_TH, read.begin())
    assert whole == pytest.approx(wanted, abs=1e-5)
    # Tokens that are read one by one are predicted as in one pass.
    state = read.begin()
    parts = [read.read(x_TH[:4], state), *(read.read(x_TH[t : t + 1], state) for t in range(4, 7))]
    assert np.concatenate(parts) == pytest.approx(whole, abs=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 5))
def test_a_prediction_does_not_depend_on_later_tokens(known, seed):
    network = hash_function._network(4, 3, 4, seed=0)
    read = HashFunction({n: p.detach().numpy() for n, p in network.named_parameters()}, 1, 4, {})
    x_TH = np.random.default_rng(seed).standard_normal((7, 3)).astype(np.float32)
    whole = read.read(x_TH, read.begin())
    assert read.read(x_TH[:known], read.begin()) == pytest.approx(whole[:known], abs=1e-6)


def test_the_loss_by_hand():
    # One token, one layer: teacher .5, .3, .2; the network says a third each.
    teacher = torch.tensor([0.5, 0.3, 0.2]).view(1, 1, 1, 3)
    found = hash_function.losses(torch.zeros(1, 1, 1, 3), teacher, torch.ones(1, 1))
    distilled = 1 / 2 - 1 / 3 + 1 / 3 - 0.3 + 1 / 3 - 0.2
    assert float(found) == pytest.approx(distilled + 0.005 * np.log(3))
    padded = torch.cat([teacher, torch.zeros_like(teacher)], dim=1)
    again = hash_function.losses(torch.zeros(1, 2, 1, 3), padded, torch.tensor([[1.0, 0.0]]))
    assert float(again) == pytest.approx(float(found))


def prefill(*lengths: int) -> ForwardPass:
    """A pass over prompts of these lengths."""
    rows = sum(lengths)
    return ForwardPass(phase="prefill", sequences=lengths, rows=rows, context=rows, pairs=rows)


def test_texts_of_a_batch_are_read_apart():
    system = build("sida", {"route.width": "4"})
    network = hash_function._network(4, 3, 4, seed=0)
    arrays = {n: p.detach().numpy() for n, p in network.named_parameters()}
    route = system.route
    route._network, route._shape = HashFunction(arrays, 1, 4, {}), shape(4, 1, 1)
    x_TH = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    route.begin_sequences(Prompts((3, 2), None))
    route.plan_pass(prefill(3, 2), x_TH)
    together = route._weights[0].copy()
    for part, at in ((x_TH[:3], 0), (x_TH[3:], 3)):
        route.begin_sequences(Prompts((len(part),), None))
        route.plan_pass(prefill(len(part)), part)
        assert np.allclose(route._weights[0], together[at : at + len(part)])


def test_what_was_predicted_is_cut_to_the_slots_of_its_pool() -> None:
    """Layers 0 and 2 have experts: all slots together hold three, or two and one each."""
    found = [(0, 5), (2, 1), (0, 6), (2, 3), (0, 7)]
    fetches = PredictedUnion()
    fetches._shape = SimpleNamespace(moe_layers=(0, 2))  # type: ignore[assignment]
    fetches._cache = SimpleNamespace(scope="global", slots=3)  # type: ignore[assignment]
    assert fetches._fitting(found) == [(0, 5), (2, 1), (0, 6)]
    fetches._cache = SimpleNamespace(scope="layer", slots=3, pools=[2, 1])  # type: ignore[assignment]
    assert fetches._fitting(found) == [(0, 5), (0, 6), (2, 1)]
    assert fetches._fitting([]) == []


def test_a_pick_of_a_sparse_mixer_is_weighed_against_the_experts_near_it():
    """Jitter 0.25 keeps logits within half of the larger one's size.

    Of log 0.5, 0.3 and 0.2, the second is near the first (0.51 / 1.20), the third is not (0.92 /
    1.61 = 0.57): 0.5 of 0.8.  Without the first, the second and the third are near: 0.3 of 0.5.
    """
    mixed = shape(4, 2).model_copy(update={"gate": GateKind.SPARSEMIXER, "gate_jitter": 0.25})
    p_TE = np.array([[0.5, 0.3, 0.2, 1e-12]], np.float32)
    found = factors(p_TE, np.array([[0, 1]]), mixed)
    assert found == pytest.approx(np.array([[0.625, 0.6]]), rel=1e-4)


def test_among_many_equal_probabilities_the_lowest_ids_are_in_the_table():
    p_TLE = np.random.default_rng(0).integers(1, 4, (2, 3, 400)) / 4
    ids_TLK, _ = table_of(p_TLE, 300)
    for p_E, ids_K in zip(p_TLE.reshape(-1, 400), ids_TLK.reshape(-1, 300), strict=True):
        assert ids_K.tolist() == sorted(range(400), key=lambda e: (-p_E[e], e))[:300]


def test_networks_learn_from_64_texts_unless_it_is_said() -> None:
    assert build("sida").route.calibration_texts == 64
