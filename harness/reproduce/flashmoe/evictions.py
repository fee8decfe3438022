"""FlashMoE's figures about caches, from recorded sequences ``[T, L, K]`` (§2.3, §4.3).

Each layer has its own cache, which starts empty, and tokens are replayed one by one with their own
experts protected (see `substrate.analysis.cache_replay`).  Steps are tokens, as in the paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moebench.substrate.analysis.cache_replay import Replayed, Step, replay, token_steps, topology
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict_belady import Belady

Sequences = Sequence[np.ndarray]


def hit_rates(
    sequences: Sequences, num_experts: int, slots: Iterable[int], policies: Mapping[str, Eviction]
) -> dict[int, dict[str, float]]:
    """Return the hit rate of all layers by slots per layer and policy (Fig. 6)."""
    steps, shape = _prepared(sequences, num_experts)
    layers = shape.num_layers
    return {
        size: {
            name: replay(policy, steps, shape, size * layers).hit_rate
            for name, policy in policies.items()
        }
        for size in slots
    }


@dataclass(frozen=True, slots=True)
class EvictionMap:
    """Data of Fig. 2 for one layer: ages of experts (colours) and evictions (marks).

    Attributes:
        age_TE: tokens since an expert was last routed; infinite before its first use.
        evicted: pairs (token, expert) of each policy's evictions.
    """

    age_TE: np.ndarray
    evicted: dict[str, list[tuple[int, int]]]


def eviction_map(
    ids_TLK: np.ndarray, layer: int, num_experts: int, slots: int, policies: Mapping[str, Eviction]
) -> EvictionMap:
    """Return the evictions of each policy in one layer of one sequence."""
    steps, shape = _prepared([ids_TLK[:, layer : layer + 1]], num_experts)
    age_TE = np.full((len(ids_TLK), num_experts), np.inf)
    age = np.full(num_experts, np.inf)
    for t, ids in enumerate(ids_TLK[:, layer]):
        age += 1
        age[ids] = 0
        age_TE[t] = age
    evicted = {
        name: [(step, key) for step, key, _ in replay(policy, steps, shape, slots).evicted]
        for name, policy in policies.items()
    }
    return EvictionMap(age_TE, evicted)


@dataclass(frozen=True, slots=True)
class Regret:
    """Statistics of a policy's evictions.

    Attributes:
        refetched: share of evicted experts used again within the next few tokens (§2.3: 5).
        idle: mean tokens between an expert's last use and its eviction ("eviction delay").
    """

    evictions: int
    refetched: float
    idle: float


def regret(
    policy: Eviction, sequences: Sequences, num_experts: int, slots: int, within: int = 5
) -> Regret:
    """Replay a policy and return the statistics of its evictions (§2.3)."""
    steps, shape = _prepared(sequences, num_experts)
    return regret_of(replay(policy, steps, shape, slots * shape.num_layers), steps, shape, within)


def regret_of(
    done: Replayed, sequences: Sequence[Sequence[Step]], shape: ModelShape, within: int = 5
) -> Regret:
    """Return the statistics of evictions of a finished replay of ``sequences``."""
    flat = [step for steps in sequences for step in steps]
    uses: dict[int, list[int]] = {}  # the tokens that use an expert, by key
    token = [0] * len(flat)  # the token of each step, counted in its layer
    seen = [0] * shape.num_layers
    for now, (layer, experts) in enumerate(flat):
        token[now] = seen[layer]
        seen[layer] += 1
        for expert in experts:
            uses.setdefault(layer * shape.num_experts + expert, []).append(token[now])
    again, idle = 0, 0
    for step, victim, _ in done.evicted:
        used, now = uses[victim], token[step]
        following = int(np.searchsorted(used, now, side="right"))
        again += following < len(used) and used[following] <= now + within
        idle += now - used[following - 1]
    n = len(done.evicted)
    return Regret(n, again / n if n else float("nan"), idle / n if n else float("nan"))


@dataclass(frozen=True, slots=True)
class Duel:
    """Counts of evictions with different victims, by the policy whose victim is used later."""

    first: int
    second: int
    equal: int

    @property
    def share(self) -> float:
        """Share of unequal evictions at which the first policy's victim is used later."""
        return self.first / max(self.first + self.second, 1)


def duel(
    first: Eviction, second: Eviction, sequences: Sequences, num_experts: int, slots: int
) -> Duel:
    """Count which policy's victims are used later, where they differ; evict the first's (§2.3)."""
    steps, shape = _prepared(sequences, num_experts)
    rivals = _Rivals(first, second)
    replay(rivals, steps, shape, slots * shape.num_layers)
    return Duel(rivals.won[0], rivals.won[1], rivals.equal)


class _Rivals(Eviction):
    """Two policies on one cache, judged by Belady's, which knows the next uses."""

    clairvoyant: ClassVar[bool] = True

    def __init__(self, first: Eviction, second: Eviction) -> None:
        self.oracle = Belady()
        self.all = (first, second, self.oracle)
        self.won, self.equal = [0, 0], 0

    def set_future(self, steps: Sequence[Step], may_refuse: bool = False) -> None:
        self.oracle.set_future(steps, may_refuse)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        for policy in self.all:
            policy.start(shape, cache)

    def begin_sequences(self, prompts: Prompts) -> None:
        for policy in self.all:
            policy.begin_sequences(prompts)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        for policy in self.all:
            policy.used(layer, experts)

    def arrived(self, key: int) -> None:
        for policy in self.all:
            policy.arrived(key)

    def left(self, key: int) -> None:
        for policy in self.all:
            policy.left(key)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        chosen = [policy.victim(allowed, incoming) for policy in self.all[:2]]
        if chosen[0] != chosen[1] and None not in chosen:
            a, b = (self.oracle.next_use(key) for key in chosen if key is not None)
            if a == b:
                self.equal += 1
            else:
                self.won[b > a] += 1
        return chosen[0]


def _prepared(sequences: Sequences, num_experts: int) -> tuple[list[list[Step]], ModelShape]:
    layers, k = sequences[0].shape[1:]
    return [token_steps(ids) for ids in sequences], topology(layers, num_experts, k)
