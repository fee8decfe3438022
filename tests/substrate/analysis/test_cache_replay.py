"""Counted cache hits: one step by hand, the engine's own counts, and Belady as the upper bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.analysis.cache_replay import (
    COUNTINGS,
    Replayed,
    hit_rate,
    replay,
    requests,
    scope_of,
    token_steps,
    topology,
)
from moebench.substrate.analysis.statistics import hit_rates
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.passes import TracedModel, pass_steps
from moebench.systems.options import build
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.registry import make
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.substrate.engine.own import Grows

POLICIES = ["lru", "lfu", "fifo", "lifo", "arc", "lecar"]


def run(steps, slots, policy="lru", experts=8, top_k=2, layers=1, scope="layer", **more):
    """Replay one sequence with a policy, and return the counts."""
    shape = topology(layers, experts, top_k)
    return replay(make("evict", policy), [steps], shape, slots, scope, **more)


# ---------------------------------------------------------------- by hand


def test_a_steps_own_experts_are_protected():
    # Slots 0 1 2.  The step {0, 3, 4}: 0 hits.  LRU's order is 1 2 0: 3 takes 1's place, 4 takes
    # 2's, and 0 stays though no other is left.
    done = run([(0, (0, 1, 2)), (0, (0, 3, 4))], 3, top_k=3)
    assert done == Replayed([6], [1], [(1, 1, 3), (1, 2, 4)])


def test_hits_are_counted_before_anybody_leaves():
    # Request by request 5 would push out 6; a step is one moment.
    assert run([(0, (6, 7)), (0, (5, 6))], 2).hits == [1]
    assert run(requests([(0, (6, 7)), (0, (5, 6))]), 2).hits == [0]


def test_a_step_larger_than_the_slots():
    # 0 1 fill the slots.  No other expert may leave for 2, so the step's oldest does.
    done = run([(0, (0, 1, 2)), (0, (1, 2))], 2, top_k=3)
    assert done == Replayed([5], [2], [(0, 0, 2)])


def test_placed_experts_are_hits():
    assert run([(0, (3, 4))], 4, placed=[(0, 4), (0, 5)]).hits == [1]


def test_first_steps_need_not_count():
    # 0 1 fill the slots before counting: 1 hits, 2 replaces 0, and 2 hits.
    steps = [(0, (0, 1)), (0, (1, 2)), (0, (2,))]
    done = run(steps, 2, uncounted=[1])
    assert done == Replayed([3], [2], [(1, 0, 2)])
    assert run(steps, 2).requests == [5]


def test_layers_have_their_own_slots_or_share_them():
    # Three slots for each, or six for both: layer 1 needs five, layer 0 one.
    steps = [(layer, (e,)) for _ in range(2) for layer, n in ((0, 1), (1, 5)) for e in range(n)]
    assert run(steps, 6, layers=2, top_k=1).hits == [1, 0]
    assert run(steps, 6, layers=2, top_k=1, scope="global").hits == [1, 5]


def test_what_is_refused_was_loaded_and_is_not_kept():
    # Belady with bypass, one slot: 1 is never used again and does not push out 0.
    policy = make("evict", "belady", bypass=True)
    done = replay(policy, [requests([(0, (0,)), (0, (1,)), (0, (0,))])], topology(1, 4, 1), 1)
    assert done == Replayed([3], [1], [])


def test_a_policy_may_leave_free_slots_empty():
    # Three slots.  0 and 1 take free slots although only 3 may: no other expert could leave.
    steps = [(0, (0, 1)), (0, (0, 2)), (0, (1, 3))]
    done = replay(Grows(keys=[3]), [steps], topology(1, 8, 2), 3)
    assert done == Replayed([6], [1], [(1, 1, 2), (2, 0, 1)])


def test_steps_of_a_trace():
    ids_TLK = np.array([[[3, 1], [0, 2]], [[2, 0], [1, 3]]], dtype=np.uint8)
    by_id = [(0, [1, 3]), (1, [0, 2]), (0, [0, 2]), (1, [1, 3])]
    assert token_steps(ids_TLK) == by_id
    assert token_steps(ids_TLK, "recorded")[0] == (0, [3, 1])
    assert requests(by_id)[:3] == [(0, (1,)), (0, (3,)), (1, (0,))]


def test_a_pass_is_a_step_for_each_layer():
    shape = small_shape(layers=3, dense_layers=(0,))
    trace = random_trace(1, shape, [[4, 2]], 2)
    steps = pass_steps(trace.batches[0])
    assert [layer for layer, _ in steps] == [1, 2, 1, 2]
    prefill = trace.batches[0][0].gates[1].ids_TK
    assert steps[0][1] == sorted(set(prefill.ravel().tolist()))


# ---------------------------------------------------------------- other truths


@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize(("slots", "top_k"), [(6, 2), (12, 2), (3, 3)])
def test_the_engine_hits_as_often(name, scope, slots, top_k):
    shape = small_shape(layers=4, experts=8, top_k=top_k, dense_layers=(0,))
    # Where a layer uses more experts than it has slots, times decide which can leave.
    fits = name in ("lru", "fifo")
    trace = random_trace(slots, shape, [[5, 3], [2]] if fits else [[1], [1]], 12 if fits else 24)
    steps = pass_steps(done for batch in trace.batches for done in batch)
    system = build("moe-ondemand", {"evict": name, "scope": scope})
    if name == "belady":
        system.evict.set_future(steps)
    engine = rig(system, TracedModel(trace), slots=slots, scope=scope).engine
    placed = list(system.place.place(shape, engine.cache.slots, scope))
    for batch in trace.batches:
        engine.generate([[0] * rows for rows in batch[0].rows], len(batch))
    counts = engine.tally.by_phase.values()
    done = replay(make("evict", name), [steps], shape, slots, scope, placed=placed)
    assert sum(done.hits) == sum(c.hits for c in counts)
    assert sum(done.requests) == sum(c.active for c in counts)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.sampled_from(POLICIES))
def test_no_policy_has_fewer_misses_than_belady(seed, slots, name):
    ids_TLK = np.random.default_rng(seed).permuted(np.tile(np.arange(8), (40, 1, 1)), axis=2)
    steps = token_steps(ids_TLK[:, :, :2])
    misses = [80 - run(steps, slots, p).hits[0] for p in (name, "belady")]
    assert misses[0] >= misses[1]
    # The bound's first misses are free, as if it started with the best content.
    assert max(0, misses[1] - slots) >= belady_misses([ids for _, ids in steps], slots)


# ---------------------------------------------------------------- hit rates by definition


def lru_replay(steps, size, pool_of):
    """Return which requests of each step hit, by lists of residents from the oldest to the newest.

    ``pool_of`` names the pool of ``size`` slots that a layer's experts share.
    """
    pools, found = {}, []
    for layer, experts in steps:
        pool, keys = pools.setdefault(pool_of(layer), []), [(layer, e) for e in experts]
        hits = [key for key in keys if key in pool]
        found.append([key in pool for key in keys])
        pool[:] = [key for key in pool if key not in hits] + hits
        for key in keys:
            if key not in hits:
                if len(pool) == size:
                    pool.remove(next((one for one in pool if one not in keys), pool[0]))
                pool.append(key)
    return found


@st.composite
def recorded(draw):
    """Return sequences of two layers of six experts, some of them without prompt or decode."""
    top_k, seed = draw(st.integers(1, 3)), draw(st.integers(0, 10**6))
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=3)
    )
    draws = np.random.default_rng(seed)
    return [
        RoutedSequence(
            np.array([[draws.permutation(6)[:top_k] for _ in range(2)] for _ in range(sum(n))])
            .reshape(sum(n), 2, top_k),
            n[0],
        )
        for n in lengths
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(recorded(), st.integers(1, 5), st.sampled_from(["layer", "global", None]))
def test_hit_rates_are_those_of_their_definitions(sequences, slots, scope):
    top_k = sequences[0].ids_TLK.shape[2]
    shape = topology(2, 6, top_k)

    def rate(counting, policy="lru"):
        return hit_rate(lambda: make("evict", policy), sequences, shape, slots, counting, scope)

    size = slots if scope == "layer" else 2 * slots
    pool_of = (lambda layer: layer) if scope == "layer" else (lambda layer: 0)
    decoded = [s.ids_TLK[s.prefill :] for s in sequences]
    if sum(s.ids_TLK.size for s in sequences):
        alone = [(layer, (int(e),)) for s in sequences for token in s.ids_TLK
                 for layer, experts in enumerate(token) for e in sorted(experts)]  # fmt: skip
        assert rate("requests") == pytest.approx(np.mean(lru_replay(alone, size, pool_of)))
    if not any(map(len, decoded)):
        for counting in {"steps", "statistics"} - ({"statistics"} if scope == "global" else set()):
            with pytest.raises(UsageError, match=f"count {counting}: the trace decodes no token"):
                rate(counting)
        return
    if size >= top_k:
        steps, counted = [], []
        for s in sequences:
            prompt = [(layer, sorted({*s.ids_TLK[: s.prefill, layer].ravel().tolist()}))
                      for layer in range(2) if s.prefill]  # fmt: skip
            tokens = [(layer, sorted(experts.tolist())) for token in s.ids_TLK[s.prefill :]
                      for layer, experts in enumerate(token)]  # fmt: skip
            steps += prompt + tokens
            counted += [False] * len(prompt) + [True] * len(tokens)
        hits = lru_replay(steps, size, pool_of)
        wanted = [hit for step, known in zip(hits, counted, strict=True) if known for hit in step]
        assert rate("steps") == pytest.approx(np.mean(wanted))
    if scope == "global":
        with pytest.raises(UsageError, match="--count statistics: has a cache a layer"):
            rate("statistics")
        return
    for policy in ("lru", "belady"):
        by_statistics = hit_rates(sequences, [slots])[policy][0]
        assert rate("statistics", policy) == pytest.approx(by_statistics)


def test_each_definition_has_its_scope():
    assert {counting: scope_of(counting) for counting in COUNTINGS} == {
        "steps": "global", "requests": "global", "statistics": "layer",
    }  # fmt: skip


class Watched(LeastRecentlyUsed):
    """Writes down what a replay tells it."""

    told = ()


def watch(name):
    def hook(self, *given):
        self.told = (*self.told, (name, *given))
        return getattr(LeastRecentlyUsed, name)(self, *given)

    return hook


for hook in ("placed", "begin_sequences", "used", "arrived", "left", "end_sequences"):
    setattr(Watched, hook, watch(hook))


def test_a_policy_is_told_what_it_is_told_in_a_run():
    policy = Watched()
    sequences = [[(0, (1, 0))], [(0, (2, 3)), (1, (1,))]]
    done = replay(policy, sequences, topology(2, 4, 2), 6, placed=[(0, 1), (1, 3)])
    # Three slots a layer: 3 takes the place of 1, as 0 came after it.
    begin, end = ("begin_sequences", Prompts(())), ("end_sequences",)
    assert policy.told == (
        ("placed", 1), ("arrived", 1), ("placed", 7), ("arrived", 7),
        begin, ("used", 0, (1, 0)), ("arrived", 0), end,
        begin, ("used", 0, (2, 3)), ("arrived", 2), ("left", 1), ("arrived", 3),
        ("used", 1, (1,)), ("arrived", 5), end,
    )  # fmt: skip
    assert done == Replayed([4, 1], [1, 0], [(1, 1, 3)])
    assert done.hit_rate == 1 / 5


def test_a_shape_of_routing_alone_has_its_numbers():
    shape = topology(5, 7, 3)
    assert (shape.num_layers, shape.num_experts, shape.top_k) == (5, 7, 3)
    assert len(shape.moe_layers) == 5
    assert shape.expert_params == 3


# ---------------------------------------------------------------- what cannot be


def test_replay_without_steps_is_refused():
    with pytest.raises(UsageError, match="no step"):
        run([], 4)
    with pytest.raises(UsageError, match="no step"):
        replay(make("evict", "lru"), [], topology(1, 4, 1), 2)


def test_policy_that_reads_scores_is_refused_on_ids():
    with pytest.raises(UsageError, match="LowestAverageScore reads gate scores"):
        run([(0, (1,))], 4, "score")


def test_fewer_slots_than_layers_are_refused():
    with pytest.raises(BudgetError, match="each of 3 layers needs one"):
        run([(0, (1,))], 2, layers=3)
