"""Belady's MIN by hand: next uses, ties, protected experts, bypass, and refusals."""

from collections.abc import Sequence

import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.systems.policies.evict_belady import Belady
from tests.systems.views import cache, flags, shape

#: Two layers of four experts: keys 0 to 3 and 4 to 7.
MODEL = shape(4, 2, 2)
STEPS = [(0, [0, 1]), (1, [0, 1]), (0, [2, 0]), (1, [3, 0]), (0, [1, 2])]


def started(
    steps: Sequence[tuple[int, Sequence[int]]] = STEPS, bypass: bool = False,
    scope: Scope = "global",
) -> Belady:  # fmt: skip
    policy = Belady(bypass=bypass)
    policy.set_future(steps, may_refuse=bypass)
    policy.start(MODEL, cache(MODEL, 8, scope))
    return policy


def victim(policy: Belady, *allowed: int, incoming: int = 7) -> int | None:
    return policy.victim(flags(allowed, 8), incoming)


NEVER = 2**62


def test_next_uses_are_those_of_the_future() -> None:
    policy = started()
    assert [policy.next_use(key) for key in range(8)] == [0, 0, 2, NEVER, 1, 1, NEVER, 3]
    policy.used(0, [0, 1])
    assert [policy.next_use(key) for key in range(4)] == [2, 4, 2, NEVER]
    policy.used(1, [0, 1])
    policy.used(0, [2, 0])
    assert [policy.next_use(key) for key in range(8)] == [NEVER, 4, 4, NEVER, 3, NEVER, NEVER, 3]


def test_the_farthest_use_leaves_and_ties_go_to_the_lowest_id() -> None:
    policy = started()
    for key in (0, 1, 2, 4):
        policy.arrived(key)
    assert victim(policy, 0, 1, 2, 4) == 2
    policy.arrived(6)
    policy.arrived(3)
    assert victim(policy, 0, 1, 2, 3, 4, 6) == 3, "3 and 6 are not used again"
    policy.left(3)
    assert victim(policy, 0, 1, 2, 3, 4, 6) == 6
    policy.used(0, [0, 1])
    # 1 is now used at step 4, 0 and 2 at step 2, and 4 at step 1.
    assert victim(policy, 0, 1, 2, 4) == 1
    assert victim(policy, 0, 2, 4) == 0
    assert victim(policy) is None


def test_protected_experts_are_passed_over_and_not_forgotten() -> None:
    policy = started()
    for key in (0, 2, 6):
        policy.arrived(key)
    assert victim(policy, 0) == 0
    assert victim(policy, 0, 2) == 2
    assert victim(policy, 0, 2, 6) == 6


def test_a_pool_of_each_layer_evicts_its_own() -> None:
    policy = started(scope="layer")
    for key in (0, 6):
        policy.arrived(key)
    assert victim(policy, 0, 6, incoming=1) == 0
    assert victim(policy, 0, 6, incoming=7) == 6
    assert victim(policy, 0, incoming=7) is None


def test_an_expert_whose_next_use_is_farthest_is_bypassed() -> None:
    policy = started(bypass=True)
    policy.arrived(2)
    assert victim(policy, 2, incoming=6) is None, "it is never used"
    assert victim(policy, 2, incoming=7) is None, "it is used later"
    assert victim(policy, 2, incoming=1) == 2
    policy.arrived(4)
    assert victim(policy, 4, incoming=5) is None, "it is used as late"
    plain = started()
    plain.arrived(2)
    assert victim(plain, 2, incoming=6) == 2


def test_what_it_was_not_told_is_one_line() -> None:
    policy = started()
    policy.used(0, [0, 1])
    with pytest.raises(UsageError, match=r"was not told that layer 1 uses expert 2; it works with"):
        policy.used(1, [0, 2])
    last = started([(0, [1])])
    last.used(0, [1])
    with pytest.raises(UsageError, match="was not told that layer 0 uses expert 3"):
        last.used(0, [3])
    with pytest.raises(UsageError, match=r"needs to know the future: replay recorded routing"):
        Belady().start(MODEL, cache(MODEL, 8))
    alone = Belady(bypass=True)
    alone.set_future(STEPS)
    with pytest.raises(UsageError, match=r"evict\.bypass=true: on a device an expert needs a slot"):
        alone.start(MODEL, cache(MODEL, 8))
