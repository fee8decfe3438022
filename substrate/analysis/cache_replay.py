"""How often a cache policy hits on recorded routing: no model, no machine, no time.

A *hit* is a chosen expert that has a slot when its layer's gate is known.  A *step* is one layer of
one pass: the distinct experts that it uses.  A step goes as in the engine
(`substrate.engine.loop`, everything loaded on demand, nothing prefetched):

    the policy is told all of the step's experts; those that have a slot hit and are pinned
    the others are loaded in the order given (ascending ids, as the engine does), each into a free
      slot or a victim's, and pinned
    when no other expert can be evicted, one of the step itself is: it was computed by then
    pins end

So a run of a system with this policy, on demand and without prefetching, hits exactly as often.

`hit_rate` counts under each of the definitions that are in use (``docs/caches.md``):

- ``steps``: as above.  A step's experts are asked for together and protect each other; prefill and
  decode; sequences go through one cache.
- ``requests``: the same, each request by itself, nothing protected: the textbook's cache.
- ``statistics``: as `substrate.analysis.statistics.hit_rates` and `moebench trace info` count.
  Single requests of decode alone, a cache of its own for each sequence and layer, whose first
  misses, as many as it has slots, are free: they stand for what was placed before.  Belady's is
  `substrate.analysis.bound.belady_misses` there: whole steps, with bypass.

Shape letters: T tokens, L MoE layers, K chosen experts a token.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import RoutedSequence

#: A layer, counted over those with experts, and what it uses.
Step = tuple[int, Sequence[int]]

#: At which step an expert left, and for whom, as keys ``layer · E + expert``: (step, victim, new).
Evicted = tuple[int, int, int]

Counting = Literal["steps", "requests", "statistics"]
COUNTINGS = get_args(Counting)


@dataclass(slots=True)
class Replayed:
    """What became of the requests, by layer ``[L]``; every eviction in order."""

    requests: list[int]
    hits: list[int]
    evicted: list[Evicted] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Hits over requests, all layers together."""
        return sum(self.hits) / sum(self.requests)


# ----------------------------------------------------------------------------- steps


def token_steps(ids_TLK: np.ndarray, order: Literal["id", "recorded"] = "id") -> list[Step]:
    """Token by token, layer by layer; experts by ascending id, or as the trace lists them."""
    ordered = np.sort(ids_TLK, axis=2) if order == "id" else ids_TLK
    return [(layer, ids) for token in ordered.tolist() for layer, ids in enumerate(token)]


def requests(steps: Iterable[Step]) -> list[Step]:
    """Every request a step of its own."""
    return [(layer, (expert,)) for layer, experts in steps for expert in experts]


def topology(layers: int, experts: int, top_k: int) -> ModelShape:
    """A shape of which only layers, experts and top-k mean anything: all that a policy reads."""
    return ModelShape(
        family="routing-only", num_layers=layers, num_experts=experts, top_k=top_k,
        hidden_size=1, vocab_size=1, num_heads=1, num_kv_heads=1, head_dim=1, expert_width=1,
        gate=GateKind.SOFTMAX_TOPK,
    )  # fmt: skip


# ----------------------------------------------------------------------------- the replay


def replay(
    policy: Eviction,
    sequences: Sequence[Sequence[Step]],
    shape: ModelShape,
    slots: int,
    scope: Scope = "layer",
    *,
    placed: Iterable[tuple[int, int]] = (),
) -> Replayed:
    """Run sequences after each other through one cache.

    Args:
        sequences: the steps of each.
        slots: experts that are held at once, over all layers; with ``scope="layer"`` each of the
            layers has the same number, and what is left over is not used.
        placed: pairs (layer, expert) that are there before the first step.

    Raises:
        BudgetError: not even one expert fits into each pool.
        UsageError: no step, or a policy that asks for gate scores, which ids do not have.
    """
    if not any(map(len, sequences)):
        raise UsageError("the routing holds no step to replay")
    if policy.reads_scores:
        raise UsageError(
            f"{type(policy).__name__} reads gate scores; a replay of ids has none: run the trace "
            "(moebench run --trace)"
        )
    # Whatever does not pin more than one expert at once may hold less than the top-k.
    roomy = shape.model_copy(update={"top_k": 1}) if slots < shape.top_k else shape
    cache = ExpertCache(roomy, slots, scope, Tier("device", 0), 0)
    if policy.clairvoyant:
        policy.set_future([step for steps in sequences for step in steps], may_refuse=True)
    policy.start(shape, cache)
    run = _Run(policy, shape, cache)
    for layer, expert in placed:
        run.place(layer, expert)
    for steps in sequences:
        policy.begin_sequences(Prompts(()))
        run.steps(steps)
        policy.end_sequences()
    return run.result


class _Pool:
    """Slots that lend each other; ``allowed`` and ``held`` are views of bytes over all keys."""

    def __init__(self, free: int, keys: int) -> None:
        self.free = free
        # Bytes are written one by one much faster than arrays; policies read arrays.
        self.may_leave, self.inside = bytearray(keys), bytearray(keys)
        self.allowed = np.frombuffer(self.may_leave, dtype=bool)
        self.held = np.frombuffer(self.inside, dtype=bool)


class _Run:
    def __init__(self, policy: Eviction, shape: ModelShape, cache: ExpertCache) -> None:
        layers, self.experts = shape.num_layers, shape.num_experts
        self.policy = policy
        self.result = Replayed([0] * layers, [0] * layers)
        keys = layers * self.experts
        if cache.scope == "layer":
            each = cache.slots // len(shape.moe_layers)
            self.pools = [_Pool(each, keys) for _ in range(layers)]
        else:
            self.pools = [_Pool(cache.slots, keys)] * layers
        self.now = 0

    def steps(self, steps: Iterable[Step]) -> None:
        used, load, pools = self.policy.used, self.load, self.pools
        counted, hits, experts_a_layer = self.result.requests, self.result.hits, self.experts
        for layer, experts in steps:
            used(layer, experts)
            pool, base, asked = pools[layer], layer * experts_a_layer, len(experts)
            inside, may_leave = pool.inside, pool.may_leave
            counted[layer] += asked
            if asked == 1:  # the same as below: there is no other expert to protect
                key = base + experts[0]
                if inside[key]:
                    hits[layer] += 1
                elif load(key, pool):
                    may_leave[key] = 1
                self.now += 1
                continue
            missing = []
            for expert in experts:
                key = base + expert
                if inside[key]:
                    may_leave[key] = 0
                else:
                    missing.append(key)
            hits[layer] += asked - len(missing)
            for key in missing:
                load(key, pool)
            for expert in experts:
                key = base + expert
                may_leave[key] = inside[key]
            self.now += 1

    def place(self, layer: int, expert: int) -> None:
        """There from the start."""
        pool, key = self.pools[layer], layer * self.experts + expert
        pool.free -= 1
        self.policy.placed(key)
        pool.inside[key] = pool.may_leave[key] = 1

    def load(self, key: int, pool: _Pool) -> bool:
        """Into a free slot or a victim's; False if the policy refuses: through the cache."""
        policy, victim = self.policy, None
        if not pool.free or not policy.grows(key):
            victim = policy.victim(pool.allowed, key)
        if victim is None and not pool.free:
            if not any(pool.may_leave):
                victim = policy.victim(pool.held, key)
            if victim is None:
                return False
        if victim is None:
            pool.free -= 1
        else:
            pool.inside[victim] = pool.may_leave[victim] = 0
            policy.left(victim)
            self.result.evicted.append((self.now, victim, key))
        policy.arrived(key)
        pool.inside[key] = 1
        return True


# ----------------------------------------------------------------------------- hit rates


def hit_rate(
    make: Callable[[], Eviction], sequences: Sequence[RoutedSequence], shape: ModelShape,
    slots: int, counting: Counting = "steps", scope: Scope = "layer",
) -> float:  # fmt: skip
    """A policy's hits over requests.

    Args:
        make: makes the policy anew.
        shape: layers, experts and top-k (`topology`).
        slots: experts that a layer holds; with ``scope="global"`` so many times the layers, lent
            to all of them.

    Raises:
        UsageError: nothing was decoded, where decode alone counts; or the policy needs more than
            ids; or a scope that this counting does not have.
    """
    if counting == "statistics":
        return _of_statistics(make, sequences, shape, slots, scope)
    steps = [_steps(s.ids_TLK, counting) for s in sequences]
    return replay(make(), steps, shape, slots * shape.num_layers, scope).hit_rate


def _steps(ids_TLK: np.ndarray, counting: Counting) -> list[Step]:
    steps = token_steps(ids_TLK)
    return steps if counting == "steps" else requests(steps)


def _of_statistics(
    make: Callable[[], Eviction],
    sequences: Sequence[RoutedSequence],
    shape: ModelShape,
    slots: int,
    scope: Scope,
) -> float:
    if scope != "layer":
        raise UsageError("--count statistics: has a cache a layer; leave --scope out")
    decoded = [s.ids_TLK[s.prefill :] for s in sequences]
    asked, missed = 0, 0
    for ids_TLK in (ids for ids in decoded if len(ids)):
        asked += ids_TLK.size
        policy = make()
        if policy.clairvoyant:
            layers = ids_TLK.transpose(1, 0, 2).tolist()
            missed += sum(belady_misses(steps, slots) for steps in layers)
            continue
        done = replay(policy, [_steps(ids_TLK, "requests")], shape, slots * shape.num_layers)
        by_layer = zip(done.requests, done.hits, strict=True)
        missed += sum(max(0, requested - hits - slots) for requested, hits in by_layer)
    if not asked:
        raise UsageError("--count statistics: the trace decodes no token; count steps instead")
    return 1 - missed / asked
