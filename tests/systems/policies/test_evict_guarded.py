"""Guards of an eviction: by hand, without any of them, and their promises on random streams.

Keys are ``layer · 4 + expert``.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.terms import RoutedSequence
from moebench.systems.next_use import FarthestNextUse, GuardedNextUse
from moebench.systems.policies.evict import LeastFrequentlyUsed, LeastRecentlyUsed
from moebench.systems.policies.evict_guarded import GuardedLFU, GuardedLRU
from moebench.systems.registry import make
from tests.systems.views import flags, shape, started, victim_of

EXPERTS, LAYERS = 4, 2
KEYS = EXPERTS * LAYERS
NONE = {"unused": False, "recent": 0, "forecast": False}


def guarded(**options):
    """Return a guarded LRU with no guard but the given ones."""
    return started(GuardedLRU(**{**NONE, **options}), EXPERTS, LAYERS)


def comes(policy, purpose, *keys):
    """Let experts arrive, as the engine does: it says what for."""
    policy.purpose = purpose
    for key in keys:
        policy.arrived(key)
    policy.purpose = "needed"


def asked(policy, purpose, *keys):
    """Return which of these keys the policy evicts for a transfer of this purpose."""
    policy.purpose = purpose
    found = victim_of(policy, *keys)
    policy.purpose = "needed"
    return found


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize("purpose", ["speculative", "committed"])
def test_what_was_fetched_in_vain_leaves_first(purpose):
    policy = guarded(unused=True)
    comes(policy, "needed", 0)
    comes(policy, purpose, 4, 5)
    comes(policy, "needed", 1)
    assert victim_of(policy, 0, 1, 4, 5) == 0  # layer 1 has not been computed: LRU's order
    policy.used(1, [1])  # 5 was used, 4 was not
    assert victim_of(policy, 0, 1, 4, 5) == 4
    assert victim_of(policy, 0, 1, 5) == 0
    policy.used(1, [0])  # now 4 is used after all
    assert victim_of(policy, 0, 1, 4, 5) == 0
    policy.left(4)
    comes(policy, "needed", 4)  # loaded because its layer needs it
    policy.used(1, [1])
    assert victim_of(policy, 0, 4) == 0


def test_what_left_is_no_longer_in_vain():
    policy = guarded(unused=True)
    comes(policy, "needed", 0)
    comes(policy, "speculative", 4)
    policy.used(1, [])
    policy.left(4)
    policy.placed(4)
    policy.used(1, [])
    assert victim_of(policy, 0, 4) == 0


def test_what_is_placed_was_not_fetched_in_vain():
    policy = guarded(unused=True)
    comes(policy, "needed", 0)
    policy.purpose = "speculative"  # that of the last transfer
    policy.placed(4)
    policy.used(1, [])
    assert asked(policy, "needed", 0, 4) == 0


def test_uploads_and_needed_loads_are_not_prefetches():
    policy = guarded(unused=True)
    comes(policy, "needed", 0)
    comes(policy, "upload", 4)
    policy.used(1, [])
    assert victim_of(policy, 0, 4) == 0


def test_a_speculative_prefetch_evicts_nothing_of_the_last_passes():
    policy = guarded(recent=2)
    comes(policy, "needed", 0, 1, 2)
    for experts in ([0], [1], [2]):  # 0 was used three passes ago
        policy.used(0, experts)
    assert asked(policy, "speculative", 0, 1, 2) == 0
    assert asked(policy, "speculative", 1, 2) is None
    for purpose in ("needed", "committed", "upload"):
        assert asked(policy, purpose, 1, 2) == 1
    policy.used(1, [3])  # passes of another layer do not count
    assert asked(policy, "speculative", 1, 2) is None
    policy.used(0, [3])
    assert asked(policy, "speculative", 1, 2) == 1


def test_expected_experts_leave_last_and_for_no_speculative_prefetch():
    policy = guarded(forecast=True, experts=1)
    comes(policy, "needed", 5, 0, 1)
    policy.foresee({1: np.array([[0.1, 0.6, 0.2, 0.1]])})  # expert 1 of layer 1: key 5
    assert victim_of(policy, 0, 1, 5) == 0
    assert victim_of(policy, 5) == 5
    assert asked(policy, "speculative", 5) is None
    policy.foresee({1: np.array([[0.9, 0.0, 0.1, 0.0]])})  # replaces what was expected
    assert victim_of(policy, 0, 1, 5) == 5


def test_an_expectation_ends_with_its_layer():
    policy = guarded(forecast=True, experts=2)
    comes(policy, "needed", 5, 6, 0)
    policy.foresee({1: np.array([[0.1, 0.6, 0.2, 0.1]])})
    assert victim_of(policy, 0, 5, 6) == 0
    policy.used(0, [0])
    assert victim_of(policy, 0, 5, 6) == 0
    policy.used(1, [])
    assert victim_of(policy, 0, 5, 6) == 5


def test_each_row_protects_its_own_and_the_models_k_by_default():
    policy = guarded(forecast=True)  # k is 1
    comes(policy, "needed", 4, 5, 6, 7)
    policy.foresee({1: np.array([[0.9, 0.5, 0.0, 0.0], [0.0, 0.5, 0.0, 0.9]])})
    assert victim_of(policy, 4, 5, 6, 7) == 5
    assert victim_of(policy, 4, 6, 7) == 6
    assert victim_of(policy, 4, 7) == 4


@pytest.mark.parametrize(
    "name", ["guarded-lru", "guarded-lfu", "guarded-score", "guarded-next-use"]
)
def test_scores_are_read_where_the_policy_behind_reads_them(name):
    plain = name.removeprefix("guarded-")
    assert make("evict", name).reads_scores == make("evict", plain).reads_scores


# ---------------------------------------------------------------- random streams

COMBINED = [
    (GuardedLRU, LeastRecentlyUsed),
    (GuardedLFU, LeastFrequentlyUsed),
    (GuardedNextUse, FarthestNextUse),
]


def made(kind, **options):
    """Return a policy, which has learnt if it must."""
    policy = kind(**options)
    if policy.calibrates:
        ids_TLK = np.random.default_rng(0).integers(0, EXPERTS, (50, LAYERS, 1))
        policy.calibrate([RoutedSequence(ids_TLK, 1)], shape(EXPERTS, 1, LAYERS), Path())
    return policy


PURPOSES = st.sampled_from(["needed", "speculative", "committed", "upload"])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrives"), st.integers(0, KEYS - 1), PURPOSES),
        st.tuples(st.just("used"), st.integers(0, LAYERS - 1), st.sets(st.integers(0, 3))),
        st.tuples(st.just("foresees"), st.integers(0, LAYERS - 1), st.permutations(range(4))),
        st.tuples(st.just("evicts"), st.sets(st.integers(0, KEYS - 1)), PURPOSES),
    ),
    max_size=40,
)


@given(EVENTS, st.sampled_from(COMBINED))
def test_without_guards_it_is_the_policy_behind(events, kinds):
    guarded, plain = kinds
    policies = (
        started(made(guarded, **NONE), EXPERTS, LAYERS),
        started(made(plain), EXPERTS, LAYERS),
    )
    inside = set()
    for event in events:
        found = {play(policy, event, set(inside)) for policy in policies}
        assert len(found) == 1
        follow(inside, event, found.pop())


def play(policy, event, inside):
    """Let an event happen to a policy; return the key that it evicts."""
    kind, what, more = event
    if kind == "arrives" and what not in inside:
        comes(policy, more, what)
    elif kind == "used":
        policy.used(what, sorted(more))
    elif kind == "foresees":
        policy.foresee({what: np.array([more], dtype=float)})
    elif kind == "evicts":
        policy.purpose = more
        victim = policy.victim(flags(what & inside, KEYS), 7)
        policy.purpose = "needed"
        if victim is not None:
            policy.left(victim)
        return victim
    return None


def follow(inside, event, victim):
    """Update the set of residents by an event."""
    if event[0] == "arrives":
        inside.add(event[1])
    inside.discard(victim)


@given(
    EVENTS, st.booleans(), st.integers(0, 3), st.booleans(), st.integers(1, 4),
    st.sampled_from([guarded for guarded, _ in COMBINED]),
)  # fmt: skip
def test_guards_keep_their_promises(events, unused, recent, forecast, experts, kind):
    options = {"unused": unused, "recent": recent, "forecast": forecast, "experts": experts}
    policy = started(made(kind, **options), EXPERTS, LAYERS)
    inside, ahead, vain = set(), set(), set()
    expected = {layer: set() for layer in range(LAYERS)}
    passes = {layer: [] for layer in range(LAYERS)}
    for event in events:
        what, more = event[1:]
        before = set(inside)
        victim = play(policy, event, before)
        if event[0] == "arrives" and what not in before and more in ("speculative", "committed"):
            ahead.add(what)
        elif event[0] == "used":
            keys = {what * EXPERTS + expert for expert in more}
            mine = {key for key in ahead if key // EXPERTS == what}
            vain = (vain | mine) - keys
            ahead -= mine
            expected[what] = set()
            passes[what].append(keys)
        elif event[0] == "foresees" and forecast:
            best = sorted(range(4), key=lambda e: -more[e])[:experts]
            expected[what] = {what * EXPERTS + expert for expert in best}
        elif event[0] == "evicts":
            allowed = what & before
            last = set().union(
                *(set().union(*done[-recent:]) for done in passes.values() if recent)
            )
            protected = set().union(*expected.values())
            if more == "speculative":
                protected |= last
            wasted = allowed & vain if unused else set()
            if wasted:
                assert victim in wasted
            elif allowed - protected:
                assert victim in allowed - protected
            elif more == "speculative" or not allowed:
                assert victim is None
            else:
                assert victim in allowed
            ahead.discard(victim)
            vain.discard(victim)
        follow(inside, event, victim)
