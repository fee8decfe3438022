"""FlashMoE: Algorithm 1 with an untrained network, its training data, and the system."""

import numpy as np
import pytest

from moebench.harness.run.learn import recorded
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import Header
from moebench.substrate.traces.passes import TracedModel
from moebench.substrate.traces.writer import writing
from moebench.systems.flashmoe import FlashMoE, LearnedEviction, _layers
from moebench.systems.learn.eviction_network import History, Network
from moebench.systems.options import build
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.learn.networks import random_network, routed
from tests.systems.views import cache, shape, view


def ready(layers=2, experts=8, top_k=2, slots=8, scope="layer"):
    """Return a policy with an untrained network, at the start of a run."""
    policy = LearnedEviction()
    policy.network = random_network(layers, experts, 16)
    model = shape(experts, top_k, layers)
    policy.start(model, cache(model, slots, scope))
    return policy


def distances(policy, layer):
    return policy.network.distances(layer, policy._history.features(layer))


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
        policy.begin_sequences(Prompts((3,)))
        policy.observe(prompt)
        policy.used(0, [3, 4])
        assert policy._history.r[0, [3, 4]].tolist() == [1, 3]
        assert policy._history.f[0, [3, 4]].tolist() == [2, 1]
        policy.observe(view(np.eye(8)[[5]], 1))
        policy.used(0, [5])
        assert policy._history.r[0, [3, 4, 5]].tolist() == [2, 4, 1]
        policy.end_sequences()


def test_sequences_begin_when_they_are_said_to():
    # The farther away, the longer ago (-1/r); of those that were not used, the highest id.
    longest_ago = np.concatenate([-np.eye(8), np.zeros((8, 8))])
    network = Network([np.stack([longest_ago] * 2)], [np.stack([np.arange(8) / 1000] * 2)])
    policy = LearnedEviction()
    policy.network = network
    policy.start(shape(8), cache(shape(8), 8, "layer"))

    def victims():
        """Return the victims of either layer."""
        return [policy.victim(np.arange(16) // 8 == layer, layer * 8) for layer in (0, 1)]

    assert victims() == [7, 15]
    for layer in (0, 1):
        policy.used(layer, [7])
    assert victims() == [6, 14]
    # Another prefill of the same sequences is not a new beginning.
    policy.observe(view(np.eye(8)[[6]], 1, phase="prefill"))
    policy.used(0, [6])
    assert victims() == [5, 14]
    # A beginning is one for every layer, also where distances were just computed.
    policy.begin_sequences(Prompts((1,)))
    assert victims() == [7, 15]


def test_nothing_to_train_on():
    with pytest.raises(UsageError, match="learns from recorded routing: calibrate it first"):
        LearnedEviction().start(shape(), cache(shape(), 4))


def test_trained_for_another_model():
    policy = LearnedEviction()
    policy.network = random_network(3, 8)
    with pytest.raises(UsageError, match=r"3 layers of 8 experts, the model has 2 of 8"):
        policy.start(shape(8), cache(shape(8), 4))


@pytest.mark.parametrize("option", ["tokens", "hidden", "epochs", "cached"])
def test_negative_flashmoe_options_are_refused(option):
    with pytest.raises(UsageError, match=rf"evict\.{option} is -1"):
        LearnedEviction(**{option: -1})


def record(out, ids_TLK, experts):
    """Write a trace folder with sequences of 40 tokens."""
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


def test_trained_on_a_trace_that_it_names(tmp_path):
    folder = record(tmp_path / "trace", routed(), 8)
    overrides = {"evict.trace": str(folder), "evict.epochs": "2", "evict.tokens": "80"}
    policy = build("flashmoe", overrides).evict
    assert policy.calibrates
    assert policy.calibration_trace == str(folder)
    model, networks = shape(8, 2, 2), tmp_path / "networks"
    found = recorded(policy, model, "evict")
    policy.calibrate(found.sequences, model, networks)
    assert policy.learnt["tokens"] == "72"  # a tenth validates
    policy.start(model, cache(model, 8, "layer"))
    # The first two of three sequences are those 80 tokens: the same texts and options, so the
    # network that was kept.
    again = LearnedEviction(epochs=2)
    texts = [RoutedSequence(routed()[:40], 0), RoutedSequence(routed()[40:80], 9)]
    again.calibrate(texts, model, networks, lambda done, total: pytest.fail("trained twice"))
    assert again.learnt == policy.learnt
    assert len(list(networks.iterdir())) == 1
    with pytest.raises(UsageError, match="2 layers of 8 experts; the model has 2 of 4"):
        recorded(policy, shape(4), "evict")
    with pytest.raises(InputError, match="no trace nowhere"):
        recorded(build("flashmoe", {"evict.trace": "nowhere"}).evict, model, "evict")


def test_without_a_trace_of_its_own_it_learns_from_the_runs():
    policy = build("flashmoe").evict
    assert policy.calibrates
    assert policy.calibration_trace == ""
    assert policy.learnt == {}


# ---------------------------------------------------------------- the system


def run(system, trace, slots):
    made = rig(system, TracedModel(trace), slots=slots)
    for batch in trace.batches:
        made.engine.generate([[0] * rows for rows in batch[0].rows], len(batch))
    return made


def flashmoe(layers, experts):
    system = FlashMoE()
    system.evict.network = random_network(layers, experts, 16)
    return system


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_flashmoe_reads_each_routed_expert_once_in_prefill(top_k):
    model = small_shape(layers=3, experts=8, top_k=top_k, dense_layers=(0,))
    trace = random_trace(3, model, [[5, 3, 4], [2]], 10)
    system = flashmoe(2, 8)
    made = run(system, trace, slots=10)
    assert system.lossless
    assert not any(claim.placed for claim in made.claims)  # starts with non-expert weights only
    prefill = made.counts["prefill"]
    # Each routed expert is read once a pass: the first finds an empty device.
    used = [len(np.unique(trace.batches[0][0].gates[layer].ids_TK)) for layer in (1, 2)]
    first = [claim.key for claim in made.claims[: sum(used)]]
    assert len(set(first)) == len(first) == sum(used)
    assert prefill.hits + prefill.loads == prefill.active
    assert made.counts["decode"].hits > 0
    made.cache.check_integrity()


def test_the_history_is_the_second_batchs_alone():
    model = small_shape(layers=2, experts=8, top_k=2)
    trace = random_trace(5, model, [[4], [3, 2]], 4)
    made = run(flashmoe(2, 8), trace, slots=8)
    prefill, *decoded = trace.batches[1]
    expected = History(2, 8)
    for layer in range(2):
        for ids in prefill.gates[layer].ids_TK:
            expected.step(layer, ids)
        for step in decoded:
            expected.step(layer, np.unique(step.gates[layer].ids_TK))
    history = made.engine.system.evict._history
    assert history.r.tolist() == expected.r.tolist()
    assert history.f.tolist() == expected.f.tolist()


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


def test_the_first_hidden_layer_is_as_wide_as_in_the_paper():
    """Table 1: 128; a network of one unit has no second layer of half its width."""
    policy = build("flashmoe", {}).evict
    assert (policy.hidden, policy.tokens, policy.cached) == (128, 65_536, 0)


def test_layers_of_allowed_keys_are_found_whichever_expert_it_is():
    allowed = np.zeros(12, dtype=bool)
    assert _layers(allowed, 4) == []
    allowed[[7, 8]] = True
    assert _layers(allowed, 4) == [1, 2]
    allowed[[0, 4, 5]] = True
    assert _layers(allowed, 4) == [0, 1, 2]
