"""FlashMoE: the paper's example, Belady's labels, the network, training, and the whole system."""

import numpy as np
import pytest
import torch
from safetensors import safe_open

from moebench.harness.studies.evictions import duel, eviction_map, hit_rates, regret
from moebench.substrate.engine.cache_replay import replay, token_steps, topology
from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import Header, writing
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.flashmoe import FlashMoE, LearnedEviction
from moebench.systems.learn.eviction_network import (
    EvictionNetworkOptions,
    History,
    Network,
    features,
    labels,
    trained,
)
from moebench.systems.options import build
from moebench.systems.registry import make
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.views import cache, shape, view

INF = float("inf")


def one_layer(*tokens):
    """A sequence of one layer ``[T, 1, K]``."""
    return np.array(tokens).reshape(len(tokens), 1, -1)


# ---------------------------------------------------------------- §3.2


def test_the_papers_example():
    history = History(1, 6)
    assert history.r[0].tolist() == [INF] * 6
    history.step(0, [4])  # time_step 0: expert 4 is routed
    assert history.r[0].tolist() == [INF, INF, INF, INF, 1, INF]
    assert history.f[0].tolist() == [0, 0, 0, 0, 1, 0]
    assert history.features(0).reshape(2, 6).tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0]]
    history.step(0, [3])  # time_step 1: expert 3
    assert history.r[0].tolist() == [INF, INF, INF, 1, 2, INF]
    assert history.f[0].tolist() == [0, 0, 0, 1, 1, 0]
    assert history.features(0).reshape(2, 6).tolist() == [[0, 0, 0, 1, 0.5, 0], [0, 0, 0, 1, 1, 0]]
    history.step(0, [3])
    assert history.features(0).tolist() == [0, 0, 0, 1, 1 / 3, 0, 0, 0, 0, 1, 0.5, 0]


def test_nothing_was_routed_yet():
    assert History(1, 3).features(0).tolist() == [0] * 6


def test_a_layer_has_its_own_history():
    seen = features(np.array([[[0], [1]], [[1], [1]]]), 2)
    assert seen[0].tolist() == [[1, 0, 1, 0], [0.5, 1, 1, 1]]
    assert seen[1].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]]


# ---------------------------------------------------------------- Belady's labels


def test_labels_by_hand():
    # Four experts: the horizon is three tokens.
    label, known = labels(one_layer(0, 1, 0, 2, 1), 4)
    # Token 0: 0 again after 2, 1 after 1, 2 after 3, 3 not in the 4 tokens that are left.
    assert label[0, 0] == pytest.approx([2 / 3, 1 / 3, 1, 1])
    assert known[0, 0].tolist() == [True] * 4
    # Token 1: 0 after 1, 1 after 3, 2 after 2, 3 not within the 3 tokens that are left.
    assert label[0, 1] == pytest.approx([1 / 3, 1, 2 / 3, 1])
    assert known[0, 1].tolist() == [True] * 4
    # Token 2: 0 is not used again in the 2 tokens that are left; whether in 3, nobody knows.
    assert label[0, 2, 1:3] == pytest.approx([2 / 3, 1 / 3])
    assert known[0, 2].tolist() == [False, True, True, False]
    assert known[0, 4].tolist() == [False] * 4


def test_masked_by_what_belady_holds():
    # Two slots.  Before token 2 they hold 0 and 1; 2 takes 1's place, for 0 comes sooner.
    tokens = one_layer(0, 1, 2, 0, 2, 1, 0, 0, 0, 0)
    known = labels(tokens, 4, cached=2)[1]
    held = [set(np.flatnonzero(row)) for row in known[0, :6]]
    assert held == [set(), {0}, {0, 1}, {0, 2}, {0, 2}, {0, 2}]


# ---------------------------------------------------------------- the network


def random_network(layers, experts, hidden=128, seed=0):
    chance = np.random.default_rng(seed)
    widths = [2 * experts, hidden, hidden // 2, experts]
    return Network(
        [chance.normal(0, 0.2, (layers, *w)).astype("f4") for w in zip(widths, widths[1:])],  # noqa: B905, RUF007
        [chance.normal(0, 0.2, (layers, w)).astype("f4") for w in widths[1:]],
    )


def test_113_kb_a_layer():
    assert random_network(2, 64).bytes_per_layer == 113 * 1024


def test_the_network_is_torchs():
    network = random_network(3, 8)
    x = np.random.default_rng(1).random(16).astype("f4")
    layers = []
    for w, b in zip(network.weights, network.biases, strict=True):
        linear = torch.nn.Linear(w.shape[1], w.shape[2])
        linear.weight.data, linear.bias.data = torch.tensor(w[2].T), torch.tensor(b[2])
        layers += [linear, torch.nn.SiLU()]
    with torch.no_grad():
        expected = torch.nn.Sequential(*layers[:-1])(torch.tensor(x)).numpy()
    assert network.distances(2, x) == pytest.approx(expected, abs=1e-5)


# ---------------------------------------------------------------- training


def routed(tokens=120, layers=2, experts=8, seed=0):
    """Expert 0 and 1 alternate, the third choice is drawn."""
    chance = np.random.default_rng(seed)
    ids = np.empty((tokens, layers, 2), dtype=np.int64)
    ids[:, :, 0] = (np.arange(tokens) % 2)[:, None]
    ids[:, :, 1] = chance.integers(2, experts, (tokens, layers))
    return ids


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


def test_trained_once(artefacts):
    told = []
    options = EvictionNetworkOptions(hidden=16, epochs=5)
    first = trained([routed()], 8, options, artefacts, lambda *done: told.append(done))
    assert told == [(n, 5) for n in range(1, 6)]
    again = trained([routed()], 8, options, artefacts, lambda *done: told.append(done))
    assert len(told) == 5
    assert all(np.array_equal(a, b) for a, b in zip(first.weights, again.weights, strict=True))
    files = sorted(artefacts.glob("*"))
    assert [file.suffix for file in files] == [".safetensors"]
    with safe_open(files[0], "np") as kept:
        assert kept.metadata()["epochs"] == "5"
        assert 0 < float(kept.metadata()["validation_mse"]) < 1
    for other in ({"seed": 1}, {"cached": 3}, {"hidden": 8}):
        trained(
            [routed()], 8, EvictionNetworkOptions(**{"hidden": 16, "epochs": 1} | other), artefacts
        )
    trained([routed(seed=1)], 8, options, artefacts)
    assert len(list(artefacts.glob("*"))) == 5


def test_equal_data_and_seed_give_equal_networks(tmp_path):
    options = EvictionNetworkOptions(hidden=16, epochs=3)
    a = trained([routed()], 8, options, tmp_path / "a")
    with torch.inference_mode():  # as in a run
        b = trained([routed()], 8, options, tmp_path / "b")
    assert all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))


def test_it_learns_what_recurs(artefacts):
    # 0 and 1 come every second token, each of the others about every sixth.
    network = trained([routed(400)], 8, EvictionNetworkOptions(hidden=32, epochs=60), artefacts)
    history = History(2, 8)
    for ids in routed(51, seed=9):
        for layer in range(2):
            history.step(layer, ids[layer])
    for layer in range(2):
        distances = network.distances(layer, history.features(layer))
        assert distances[:2].max() < distances[2:].min()


def test_a_broken_artefact(tmp_path):
    options = EvictionNetworkOptions(hidden=8, epochs=1)
    trained([routed()], 8, options, tmp_path)
    file = next(tmp_path.glob("*"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=r"safetensors.*remove it"):
        trained([routed()], 8, options, tmp_path)


def test_too_little_to_learn_from(tmp_path):
    with pytest.raises(UsageError, match="less than two tokens"):
        trained([routed(1)], 8, EvictionNetworkOptions(), tmp_path)


# ---------------------------------------------------------------- Algorithm 1


def ready(layers=2, experts=8, top_k=2, slots=8, scope="layer"):
    """A policy with a network that nobody trained, at the start of a run."""
    policy = LearnedEviction()
    policy._network = random_network(layers, experts, 16)
    model = shape(experts, top_k, layers)
    policy.start(model, cache(model, slots, scope))
    return policy


def distances(policy, layer):
    return policy._network.distances(layer, policy._history.features(layer))


def test_the_farthest_of_those_that_may_leave():
    policy = ready()
    for experts in ([0, 3], [3, 5], [1, 5]):
        policy.used(1, experts)
    expected = distances(policy, 1)
    allowed = np.zeros(16, dtype=bool)
    for may in ([0, 3, 5], [0, 5], [3]):
        allowed[:] = False
        allowed[[8 + e for e in may]] = True
        assert policy.victim(allowed, 8 + 2) == 8 + max(may, key=lambda e: expected[e])
    assert policy.victim(np.zeros(16, dtype=bool), 8) is None


def test_scores_follow_the_history():
    policy = ready()
    allowed = np.ones(16, dtype=bool)
    allowed[8:] = False
    for step in range(20):
        policy.used(0, [step % 8, (step * 3 + 1) % 8])
        assert policy.victim(allowed, 0) == int(distances(policy, 0).argmax())


def test_a_prompts_tokens_are_steps():
    policy = ready(layers=1)
    rows = np.eye(8)[[4, 3, 3]]
    prompt = view(rows, 1, phase="prefill")
    for _ in range(2):  # the second prompt starts anew
        policy.observe(prompt)
        policy.used(0, [3, 4])
        assert policy._history.r[0, [3, 4]].tolist() == [1, 3]
        assert policy._history.f[0, [3, 4]].tolist() == [2, 1]
        policy.observe(view(np.eye(8)[[5]], 1))
        policy.used(0, [5])
        assert policy._history.r[0, [3, 4, 5]].tolist() == [2, 4, 1]


def test_nothing_to_train_on():
    with pytest.raises(UsageError, match=r"--set evict\.trace=DIR"):
        LearnedEviction().start(shape(), cache(shape(), 4))


def test_trained_for_another_model():
    policy = LearnedEviction()
    policy._network = random_network(3, 8)
    with pytest.raises(UsageError, match=r"3 layers of 8 experts, the model has 2 of 8"):
        policy.start(shape(8), cache(shape(8), 4))


@pytest.mark.parametrize("option", ["tokens", "hidden", "epochs", "cached"])
def test_options(option):
    with pytest.raises(UsageError, match=rf"evict\.{option} is -1"):
        LearnedEviction(**{option: -1})


def record(out, ids_TLK, experts):
    """A trace's folder."""
    tokens, layers, k = ids_TLK.shape
    header = Header(model="m", workload="w", num_moe_layers=layers, num_experts=experts, top_k=k)
    with writing(out, header) as writer:
        writer.append(
            ids=ids_TLK,
            sequence=np.arange(tokens) // 40,
            position=np.arange(tokens) % 40,
            phase=np.ones(tokens),
            chosen=np.full(tokens, -1),
        )
    return out


def test_trained_on_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = record(tmp_path / "trace", routed(), 8)
    settings = {"evict.trace": str(folder), "evict.epochs": "2", "evict.tokens": "80"}
    system = build("flashmoe", settings)
    assert not system.evict.calibrates
    assert build("flashmoe").evict.calibrates
    model = shape(8, 2, 2)
    system.evict.start(model, cache(model, 8, "layer"))
    assert len(list((tmp_path / ".moebench" / "flashmoe").iterdir())) == 1
    # The first two of three sequences are those 80 tokens.
    policy = LearnedEviction(epochs=2)
    policy.calibrate([RoutedSequence(routed()[:40], 0), RoutedSequence(routed()[40:80], 9)], model)
    assert len(list((tmp_path / ".moebench" / "flashmoe").iterdir())) == 1
    with pytest.raises(UsageError, match="2 layers of 8 experts; the model has 2 of 4"):
        build("flashmoe", settings).evict.start(shape(4), cache(shape(4), 4))
    with pytest.raises(InputError, match="no trace nowhere"):
        LearnedEviction(trace="nowhere").start(model, cache(model, 8))


# ---------------------------------------------------------------- the system


def run(system, trace, slots):
    made = rig(system, TracedModel(trace), slots=slots)
    for batch in trace.batches:
        made.engine.generate([[0] * rows for rows in batch[0].rows], len(batch))
    return made


def flashmoe(layers, experts):
    system = FlashMoE()
    system.evict._network = random_network(layers, experts, 16)
    return system


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_the_system(top_k):
    model = small_shape(layers=3, experts=8, top_k=top_k, dense_layers=(0,))
    trace = random_trace(3, model, [[5, 3, 4], [2]], 10)
    system = flashmoe(2, 8)
    made = run(system, trace, slots=10)
    assert system.lossless
    assert not any(claim.placed for claim in made.claims)  # starts with common weights alone
    prefill = made.engine.counts["prefill"]
    # Each routed expert is read once a pass: the first finds an empty device.
    used = [len(np.unique(trace.batches[0][0].gates[layer].ids_TK)) for layer in (1, 2)]
    first = [claim.key for claim in made.claims[: sum(used)]]
    assert len(set(first)) == len(first) == sum(used)
    assert prefill.hits + prefill.loads == prefill.active
    assert made.engine.counts["decode"].hits > 0
    made.cache.check_integrity()


def test_equal_runs():
    model = small_shape(layers=3, experts=8, top_k=2)
    trace = random_trace(4, model, [[4]], 8)
    a, b = (run(flashmoe(3, 8), trace, slots=9) for _ in range(2))
    assert a.claims == b.claims
    assert [s.end_ns for s in a.spans] == [s.end_ns for s in b.spans]


def test_any_eviction_in_the_networks_place():
    assert build("flashmoe", {"evict": "arc"}).scope == "layer"
    with pytest.raises(UnknownNameError, match=r"evict\.window"):
        build("flashmoe", {"evict.window": "3"})


# ---------------------------------------------------------------- figures


def test_an_eviction_map_by_hand():
    drawn = eviction_map(
        one_layer(0, 1, 2, 0, 1), 0, 3, 2, {n: make("evict", n) for n in ("lru", "belady")}
    )
    assert drawn.age_TE.tolist() == [
        [0, INF, INF], [1, 0, INF], [2, 1, 0], [0, 2, 1], [1, 0, 2],
    ]  # fmt: skip
    # LRU always throws out what comes next; Belady gives up 1 for 2, then has 0, then 1 for either.
    assert drawn.evicted == {"lru": [(2, 0), (3, 1), (4, 2)], "belady": [(2, 1), (4, 0)]}


def test_regret_by_hand():
    tokens = [one_layer(0, 1, 2, 0, 1)]
    lru = regret(make("evict", "lru"), tokens, 3, 2, within=1)
    # Evicted at 2, 3, 4: 0 (used again at 3), 1 (at 4), 2 (never).  Each was idle for two tokens.
    assert (lru.evictions, lru.refetched, lru.idle) == (3, pytest.approx(2 / 3), 2)
    belady = regret(make("evict", "belady"), tokens, 3, 2, within=1)
    # 1 at 2 (used at 1, again at 4: after two tokens), 0 at 4 (used at 3, never again).
    assert (belady.evictions, belady.refetched, belady.idle) == (2, 0, 1)
    within_two = regret(make("evict", "belady"), tokens, 3, 2, within=2)
    assert within_two.refetched == 0.5


def test_a_duel_by_hand():
    # 0 0 0 1: at 2, LRU gives up 0 and LFU 1.  0 comes sooner, so LFU is right.
    found = duel(make("evict", "lru"), make("evict", "lfu"), [one_layer(0, 0, 0, 1, 2, 0, 1)], 3, 2)
    assert (found.first, found.second) == (0, 1)
    assert found.share == 0
    same = duel(make("evict", "lru"), make("evict", "lru"), [one_layer(0, 1, 2, 0)], 3, 2)
    assert (same.first, same.second, same.equal) == (0, 0, 0)


def test_hit_rates_by_size():
    sequences = [routed(), routed(seed=1)]
    policies = {n: make("evict", n) for n in ("lru", "belady")} | {"flashmoe": ready(2, 8)}
    rates = hit_rates(sequences, 8, (2, 4, 8), policies)
    assert list(rates) == [2, 4, 8]
    for size, row in rates.items():
        assert row["belady"] == max(row.values())
        steps = [token_steps(ids) for ids in sequences]
        assert (
            row["lru"] == replay(make("evict", "lru"), steps, topology(2, 8, 2), 2 * size).hit_rate
        )
    assert rates[8]["lru"] == rates[8]["flashmoe"] == rates[8]["belady"]
