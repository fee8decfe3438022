"""The LFRU systems: vLLM's defaults, tinyserve's order of loads, and its FATE prefetch."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from moebench.harness.conformance.cases import CASES
from moebench.harness.conformance.suite import check_system
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.policies import Assignment, Eviction, Prefetching
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Lookahead
from moebench.systems.lfru import Fate, LFRUCache, LoadByRank
from moebench.systems.options import build
from moebench.systems.policies.evict_engines import LFRU
from moebench.systems.registry import name_of
from tests.systems.views import active, cache, fetched, shape, view

EXPERTS, K, LAYERS = 8, 2, 6


@dataclass(kw_only=True)
class TinyServe(LFRUCache):
    """tinyserve, as the options in the module's docstring make it."""

    assign: Assignment = field(default_factory=LoadByRank)
    prefetch: Prefetching = field(default_factory=Fate)
    evict: Eviction = field(default_factory=lambda: LFRU(reading="tinyserve"))
    scope: str = "global"


def started(**options):
    """Return FATE at the start of a run."""
    policy, model = Fate(**options), shape(EXPERTS, K, LAYERS)
    policy.start(model, cache(model, 12))
    return policy


def token(policy, chosen, forecast=None, **of):
    """Show FATE a layer in which a token uses ``chosen``; return its fetches."""
    layer = of.get("layer", 0)
    seen = view(np.ones((len(chosen), EXPERTS)), K, own=chosen, layers=LAYERS, **of)
    policy.observe(seen)
    return [*policy.prefetch(seen, forecast or {})], policy.predictor.asked(seen), layer


# ---------------------------------------------------------------- the systems


def test_the_default_is_vllms_and_the_options_make_tinyserve():
    plain = build("lfru")
    assert (plain.scope, plain.lossless) == ("layer", True)
    names = {decision: name_of(decision, policy) for decision, policy in plain.policies.items()}
    assert names == {
        "place": "none", "route": "exact", "assign": "load", "prefetch": "none",
        "admit": "all", "evict": "lfru",
    }  # fmt: skip
    assert plain.evict.reading == "vllm"
    tiny = build("lfru", {
        "scope": "global", "evict.reading": "tinyserve", "assign": "load-by-rank",
        "prefetch": "fate",
    })  # fmt: skip
    assert tiny.policies == TinyServe().policies
    assert tiny.lookaheads == {Lookahead.NORMED: 1}


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4]], ids=str)
def test_tinyserve_conforms(case):
    assert not check_system(TinyServe, cases=[case]).failures


def test_12_5_2_misses_are_loaded_in_the_routers_order():
    seen = view(np.ones((1, EXPERTS)), 4, resident=[5], own=[[6, 5, 2, 7]])
    assert fetched(0, LoadByRank().assign(seen, active(seen)).load) == [6, 2, 7]
    # Rows of a prompt: in the order in which they name experts first.
    seen = view(np.ones((2, EXPERTS)), 3, own=[[6, 1, 2], [0, 6, 7]])
    assert fetched(0, LoadByRank().assign(seen, active(seen)).load) == [6, 1, 2, 0, 7]


def test_experts_that_the_router_did_not_name_are_loaded_last():
    seen = view(np.ones((1, EXPERTS)), K, own=[[6, 5]])
    assert fetched(0, LoadByRank().assign(seen, active(seen, {1: 1, 5: 1})).load) == [5, 1]


# ---------------------------------------------------------------- FATE


def test_12_5_3_the_next_layers_router_on_this_layers_state_predicts_k_and_one_more():
    # No token was decoded before: the router is asked, and its best 2 + 1 are fetched, best first.
    scores = np.array([[0.1, 0.05, 0.3, 0.05, 0.2, 0.15, 0.1, 0.05]])
    fetches, asked, _ = token(started(), [[0, 1]], {1: scores})
    assert asked
    assert fetched(1, fetches) == [2, 4, 5]
    assert started().predictor.lookahead is Lookahead.NORMED  # the state that this gate reads
    fetches, _, _ = token(started(experts=1), [[0, 1]], {1: scores})
    assert fetched(1, fetches) == [2]


def test_12_5_3_the_previous_tokens_experts_are_used_wherever_they_are_known():
    policy = started()
    for layer in range(LAYERS):
        token(policy, [[layer, 7]], layer=layer)
    # The second token, layer 0: layers 1, 2 and 3 are known, so that no router is asked.
    fetches, asked, _ = token(policy, [[3, 4]], layer=0)
    assert not asked
    assert fetches == [
        Fetch(1, 1), Fetch(1, 7), Fetch(2, 2), Fetch(2, 7), Fetch(3, 3), Fetch(3, 7),
    ]  # fmt: skip
    # Layer 4: only layer 5 is left.
    fetches, _, _ = token(policy, [[0, 1]], layer=4)
    assert fetches == [Fetch(5, 5), Fetch(5, 7)]


def test_12_5_3_a_known_layer_ignores_a_forecast():
    policy = started()
    token(policy, [[2, 3]], layer=1)
    scores = np.eye(EXPERTS)[[6]]
    assert token(policy, [[0, 1]], {1: scores})[0] == [Fetch(1, 2), Fetch(1, 3)]


def test_without_adaptive_the_router_predicts_the_next_layer_and_the_past_those_beyond():
    policy = started(adaptive=False)
    for layer in range(LAYERS):
        token(policy, [[layer, 7]], layer=layer)
    scores = np.array([[0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.0, 0.0]])
    fetches, asked, _ = token(policy, [[0, 1]], {1: scores})
    assert asked
    assert fetches == [
        Fetch(1, 5), Fetch(1, 4), Fetch(1, 3), Fetch(2, 2), Fetch(2, 7), Fetch(3, 3), Fetch(3, 7),
    ]  # fmt: skip


def test_ahead_1_fetches_for_the_next_layer_alone():
    policy = started(ahead=1)
    for layer in range(LAYERS):
        token(policy, [[layer, 7]], layer=layer)
    assert token(policy, [[0, 1]])[0] == [Fetch(1, 1), Fetch(1, 7)]


@pytest.mark.parametrize("of", [{"phase": "prefill"}, {"rows": 2}])
def test_prompts_and_batches_are_neither_remembered_nor_prefetched(of):
    rows = of.pop("rows", 1)
    policy = started()
    for layer in range(2):
        token(policy, [[0, 1]] * rows, layer=layer, **of)
    fetches, asked, _ = token(policy, [[0, 1]] * rows, layer=0, **of)
    assert (fetches, asked) == ([], False)
    assert token(policy, [[0, 1]])[1]  # a single token then knows nothing of layer 1


def test_routing_is_remembered_over_sequences_and_forgotten_by_a_new_run():
    policy = started()
    token(policy, [[2, 3]], layer=1)
    policy.end_sequences()
    assert token(policy, [[0, 1]])[0] == [Fetch(1, 2), Fetch(1, 3)]
    model = shape(EXPERTS, K, LAYERS)
    policy.start(model, cache(model, 12))
    assert token(policy, [[0, 1]])[:2] == ([], True)


def test_a_prefetch_is_committed_so_that_it_takes_a_slot_as_a_miss_does():
    assert Fate().discipline == "committed"


@pytest.mark.parametrize("option", [{"experts": -1}, {"ahead": 0}])
def test_options_out_of_range_are_refused(option):
    (name,) = option
    with pytest.raises(UsageError, match=rf"prefetch\.{name} is .*; allowed: "):
        Fate(**option)
