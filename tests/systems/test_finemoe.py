"""FineMoE: search by brute force; the cumulative rule, priorities and evictions by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch, Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.terms import RoutedSequence
from moebench.systems.finemoe import LeastExpected, MatchedMaps, selected
from moebench.systems.learn.map_store import shares
from moebench.systems.options import build, describe
from tests.substrate.traces.texts import routed_text
from tests.systems.views import shape, started, victim_of, view

LAYERS, EXPERTS, K = 5, 6, 2
MODEL = shape(EXPERTS, K, LAYERS)


# --------------------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("delta", "k", "expected"),
    [
        (0.0, 1, [2]),  # 0.5 exceeds nothing
        (0.4, 1, [2]),
        (0.5, 1, [2, 0]),  # 0.5 does not exceed 0.5
        (0.7, 1, [2, 0]),
        (0.75, 1, [2, 0, 1]),
        (0.4, 3, [2, 0, 1]),  # at least k
        (1.0, 1, [2, 0, 1, 3]),  # nothing exceeds 1
    ],
)
def test_experts_until_their_sum_exceeds_delta(delta, k, expected):
    assert selected(np.array([0.25, 0.125, 0.5, 0.125]), delta, k) == expected


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 6))
def test_the_fewest_that_suffice(seed, delta, k):
    p_E = np.random.default_rng(seed).dirichlet(np.ones(EXPERTS))
    chosen = selected(p_E, delta, k)
    rest = [p for e, p in enumerate(p_E) if e not in chosen]
    assert len(set(chosen)) == len(chosen) >= k
    assert min(p_E[chosen]) >= max(rest, default=0)
    assert not rest or p_E[chosen].cumsum()[-1] > delta
    assert len(chosen) == k or p_E[chosen[:-1]].cumsum()[-1] <= delta


# --------------------------------------------------------------------------- the search


def cosine(a, b):
    a, b = np.ravel(a).astype(float), np.ravel(b).astype(float)
    return a @ b / np.sqrt((a @ a) * (b @ b))


def seen(scores_TE, layer, phase="decode"):
    made = view(scores_TE, K, layer=layer, layers=LAYERS, phase=phase)
    if layer == LAYERS - 1:
        made.next_layer = None
    made.shape = MODEL
    return made


def filled(tmp_path, texts=3, **options) -> tuple[MatchedMaps, list[RoutedSequence]]:
    prefetch = MatchedMaps(**options)
    known = [routed_text(MODEL, 7, 3, prefetch.learns_from, seed) for seed in range(texts)]
    prefetch.calibrate(known, MODEL, tmp_path)
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    return prefetch, known


@pytest.mark.parametrize("capacity", [100, 9])
def test_each_layer_finds_the_nearest_trajectory_and_the_last_the_nearest_prompt(
    capacity, tmp_path
):
    prefetch, _ = filled(tmp_path, distance=2, capacity=capacity)
    search = prefetch.predictor
    assert search is not None
    store = search.store
    random = np.random.default_rng(5)
    embeddings = random.standard_normal((2, 8))
    prefetch.begin_sequences(Prompts((4, 4), embeddings))
    # A prompt's last layer: the first layers of the first token, by the prompts alone.
    told = search.forecast(seen(random.random((7, EXPERTS)), LAYERS - 1, "prefill"), None, ())
    alike = [[cosine(e, other) for other in store.embedding_CH[: store.size]] for e in embeddings]
    assert list(told) == [0, 1]
    for layer, p_BE in told.items():
        for b in range(2):
            own = [np.isclose(a, max(alike[b]), atol=1e-5) for a in alike[b]]
            options = store.maps_LCE[layer, : store.size][own]
            assert any(np.array_equal(p_BE[b], p_E) for p_E in options)
        assert search.deltas(layer, 2) == pytest.approx(
            [min(max(1 - max(a), 0), 1) for a in alike], abs=1e-5
        )
    for _ in range(6):
        maps = store.maps_LCE[:, : store.size].copy()
        running = shares(random.dirichlet(np.ones(EXPERTS), (2, LAYERS)))
        for layer in range(LAYERS):
            told = search.forecast(seen(running[:, layer], layer), None, ())
            later = layer + 2
            assert list(told) == ([later] if layer < LAYERS - 1 and later < LAYERS else
                                  [0, 1] if layer == LAYERS - 1 else [])  # fmt: skip
            if later >= LAYERS:
                continue
            for b in range(2):
                prefix = running[b, : layer + 1]
                found = [cosine(prefix, maps[: layer + 1, c]) for c in range(maps.shape[1])]
                np.testing.assert_array_equal(told[later][b], maps[later, int(np.argmax(found))])
                assert search.deltas(later, 2)[b] == pytest.approx(1 - max(found), abs=1e-5)
        # The token's own maps are stored, and of its prompt they are the newest.
        assert store.size == min(capacity, maps.shape[1] + 2)
        for layer in (0, 1):
            np.testing.assert_allclose(told[layer], running[:, layer], atol=1e-6)
            assert search.deltas(layer, 2) == pytest.approx([0, 0], abs=1e-5)
    # Similarities kept while maps are added and removed equal newly computed ones.
    np.testing.assert_allclose(
        search._semantic_BC[:, : store.size],
        [[cosine(e, other) for other in store.embedding_CH[: store.size]] for e in embeddings],
        atol=1e-5,
    )


def test_a_run_begins_with_what_calibration_stored(tmp_path):
    prefetch, _ = filled(tmp_path, capacity=6)
    assert prefetch.learnt == {"iterations": "12", "maps": "6"}  # four decoded tokens of each text
    before = prefetch.predictor.store.maps_LCE.copy()
    prefetch.begin_sequences(Prompts((4,), np.ones((1, 8))))
    for layer in range(LAYERS):
        prefetch.predictor.forecast(seen(np.random.rand(1, EXPERTS), layer), None, ())
    assert (prefetch.predictor.store.maps_LCE != before).any()
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(prefetch.predictor.store.maps_LCE, before)
    with pytest.raises(UsageError, match="filled for 5 layers of 6 experts"):
        prefetch.start(shape(8, 2, 5), None)  # type: ignore[arg-type]


def test_without_calibration_the_store_fills_itself():
    prefetch = MatchedMaps(distance=1)
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    prefetch.begin_sequences(Prompts((4,), np.ones((1, 8))))
    search = prefetch.predictor
    scores = np.random.default_rng(0).random((LAYERS, 1, EXPERTS))
    told = [search.forecast(seen(scores[layer], layer), None, ()) for layer in range(LAYERS)]
    assert [list(found) for found in told] == [[], [], [], [], [0]]
    again = search.forecast(seen(scores[0], 0), None, ())
    np.testing.assert_allclose(again[1], shares(scores[1]))


def test_what_a_search_costs(tmp_path):
    prefetch, _ = filled(tmp_path, capacity=8)
    prefetch.full_size(MODEL.model_copy(update={"hidden_size": 2048}))  # the model that is charged
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    search = prefetch.predictor
    assert (search.lane, search.in_background, search.wraps) == (Lane.HOST, True, True)
    ones = np.ones((3, EXPERTS))
    op = search.op(seen(ones, 1))
    assert (op.kind, op.rows, op.network) == (OpKind.PREDICT, (3,), (EXPERTS, 8))
    assert search.op(seen(ones, LAYERS - 1)).network == (EXPERTS + 2048, 8)
    prompt = seen(ones, LAYERS - 1, "prefill")
    assert (search.op(prompt).rows, search.op(prompt).network) == ((1,), (2048, 8))
    assert search.asked(prompt)
    assert not search.asked(seen(ones, 1, "prefill"))


def test_learning_beats_chance(tmp_path):
    """Layer l + 1 uses what layer l used, moved by one: which map is nearest says it."""

    def text(seed, tokens=60):
        random = np.random.default_rng(seed)
        first = random.dirichlet(np.full(EXPERTS, 0.3), tokens)
        scores = np.stack([np.roll(first, layer, axis=1) for layer in range(LAYERS)], axis=1)
        return RoutedSequence(
            np.argsort(-scores, axis=2)[..., :K], 0, scores, embedding_H=np.ones(8)
        )

    prefetch = MatchedMaps(distance=2)
    prefetch.calibrate([text(seed) for seed in range(4)], MODEL, tmp_path)
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    prefetch.begin_sequences(Prompts((4,), np.ones((1, 8))))
    unseen, right, wanted = text(99), 0, 0
    for token in range(60):
        for layer in range(LAYERS):
            at = seen(unseen.scores_TLE[token, layer][None], layer)
            asked = prefetch.prefetch(at, prefetch.predictor.forecast(at, None, ()))
            for later in range(layer + 2, min(layer + 3, LAYERS)):
                named = [f.expert for f in asked if f.layer == later][:K]
                right += len({*named} & {*unseen.ids_TLK[token, later].tolist()})
                wanted += K
    assert right / wanted > 0.75  # by chance K / E, a third


# --------------------------------------------------------------------------- order and eviction


def test_priority_is_probability_over_distance():
    prefetch = MatchedMaps()
    prefetch.start(MODEL, None)  # type: ignore[arg-type]

    def ask(layer, forecast):
        told = {later: np.array(p_BE) for later, p_BE in forecast.items()}
        at = seen([[1.0, 0, 0, 0, 0, 0]], layer)
        return [(f.layer, f.expert) for f in prefetch.prefetch(at, told)]

    # k = 2, and δ is 0: of layer 3, three away, 0.6 / 3 and 0.3 / 3.
    assert ask(0, {3: [[0.6, 0.3, 0.1, 0, 0, 0]]}) == [(3, 0), (3, 1)]
    # Two away now: 0.3 and 0.15; of layer 4, three away: 0.9 / 3 and 0.06 / 3.  Equal: the nearer.
    assert ask(1, {4: [[0.06, 0, 0, 0.9, 0.04, 0]]}) == [(3, 0), (4, 3), (3, 1), (4, 0)]
    # At its own gate, layer 3 is not prefetched any more.
    assert ask(3, {}) == [(4, 3), (4, 0)]
    # The first layer follows the last: layer 0 is one away, layer 1 two.
    assert ask(4, {0: [[0.2, 0.1, 0, 0, 0, 0]], 1: [[0, 0, 0.6, 0.3, 0, 0]]}) == [
        (1, 2), (0, 0), (1, 3), (0, 1),
    ]  # fmt: skip
    prefetch.begin_sequences(Prompts((4,), np.ones((1, 8))))
    assert ask(0, {}) == []


def test_a_batch_fetches_the_union():
    prefetch = MatchedMaps()
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    p_BE = np.array([[0.6, 0.3, 0.1, 0, 0, 0], [0, 0.4, 0.1, 0.5, 0, 0]])
    asked = prefetch.prefetch(seen(np.ones((2, EXPERTS)), 0), {3: p_BE})
    assert asked == [Fetch(3, 0), Fetch(3, 3), Fetch(3, 1)]


def test_evicted_is_the_smallest_p_times_uses():
    evict = started(LeastExpected())  # two layers of four experts: keys 0 to 7
    assert victim_of(evict, 2, 5) == 2  # all alike: the lowest key
    evict.used(0, [2])
    assert victim_of(evict, 2, 5) == 5  # 2 / 4 and 1 / 4
    evict.foresee({1: np.array([[0.1, 0.7, 0.1, 0.1]])})
    assert victim_of(evict, 2, 5) == 2  # 2 / 4 and 0.7
    evict.foresee({0: np.array([[0.1, 0.1, 0.4, 0.4], [0, 0, 0.8, 0.2]])})
    assert victim_of(evict, 2, 5) == 5  # 2 · 0.8 and 0.7
    evict.used(1, [1, 3])
    assert victim_of(evict, 2, 5, 7) == 7  # 2 · 0.1
    assert evict.victim(np.zeros(8, dtype=bool), 7) is None


def test_finemoe_options_are_applied_or_refused():
    system = build("finemoe", {"prefetch.distance": "6"})
    assert describe(system)["prefetch.distance"] == "6"
    assert (system.lossless, system.reads_embedding, system.prefetch.capacity) == (True, True, 1000)
    for option in ("distance", "capacity"):
        said = rf"prefetch.{option} is 0; allowed: 1 (or more|to 10000)"
        with pytest.raises(UsageError, match=said):
            build("finemoe", {f"prefetch.{option}": "0"})
    with pytest.raises(UsageError, match="gate scores and prompts' embeddings"):
        MatchedMaps().calibrate([RoutedSequence(np.zeros((2, 5, 2), int), 0)], MODEL, None)  # type: ignore[arg-type]


def test_among_many_equal_probabilities_the_lowest_ids_are_selected():
    p_E = np.random.default_rng(0).integers(1, 4, 400).astype(float)
    p_E /= p_E.sum()
    wanted = sorted(range(400), key=lambda e: (-p_E[e], e))
    found = selected(p_E, 0.6, 2)
    assert found == wanted[: len(found)]
    assert p_E[found].sum() > 0.6 >= p_E[found[:-1]].sum()
    assert selected(p_E, 0.0, 250) == wanted[:250]


def test_stored_iterations_of_a_batch_have_their_cosines_and_products_with_all_sequences():
    prefetch = MatchedMaps(distance=1)
    prefetch.start(MODEL, None)  # type: ignore[arg-type]
    random = np.random.default_rng(3)
    prefetch.begin_sequences(Prompts((4, 5), random.random((2, 8))))
    search = prefetch.predictor
    scores = random.random((LAYERS, 2, EXPERTS))
    for layer in range(LAYERS):
        search.forecast(seen(scores[layer], layer), None, ())
    store = search.store
    assert store.size == 2
    map_TLE = np.stack([shares(scores[:, row]) for row in range(2)])
    np.testing.assert_allclose(store.maps_LCE[:, :2].transpose(1, 0, 2), map_TLE, rtol=1e-5)
    expected = np.einsum("tle,cle->tc", map_TLE, map_TLE)
    np.testing.assert_allclose(search._products_TC[:, :2], expected, rtol=1e-4)
    unit_BH = search._embedding_BH
    np.testing.assert_allclose(search._semantic_BC[:, :2], unit_BH @ unit_BH.T, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(unit_BH, axis=1), 1, rtol=1e-5)


def test_nothing_is_learnt_before_the_calibration():
    assert build("finemoe").prefetch.learnt == {}


def test_a_prompts_embedding_counts_by_the_distance_but_at_most_alone():
    for distance, semantic in ((1, 0.25), (4, 1.0), (6, 1.0)):
        assert MatchedMaps(distance=distance)._store(shape(4, 1, 4), 8)._semantic == semantic
