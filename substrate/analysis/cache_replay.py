"""Hit rates of cache policies on recorded routing, without a model, a machine or times.

A *hit* is a chosen expert that has a slot when its layer's gate is known.  A *step* is one layer of
one pass: the distinct experts that it uses.  A step is processed as in the engine
(`substrate.engine.loop`) with loads on demand and no prefetches:

    the policy receives all experts of the step; those that have a slot are hits and are protected
    the others are loaded in the given order (ascending ids, as in the engine), each into a free
      slot or a victim's, and are protected
    if no other expert can be evicted, an expert of the step itself is: it has been computed then
    protection ends

So a run of a system with this policy, on demand and without prefetching, has the same hits.

`hit_rate` counts by one of three definitions (``docs/caches.md``):

- ``steps``: as above.  A step's experts are requested together and protect each other; a prompt is
  one pass, and only decode counts; all sequences use one cache.
- ``requests``: each request of prefill and decode is its own step, without protection: the
  textbook's cache.
- ``statistics``: as in `substrate.analysis.statistics.hit_rates` and `moebench trace info`.  Only
  single requests of decode count, each sequence and layer has its own cache, and as many first
  misses as it has slots are free: earlier placement would save them.  Belady's misses are those of
  `substrate.analysis.bound.belady_misses`: whole steps, with bypass.

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

#: A layer, as an index among MoE layers, and the experts that it uses.
Step = tuple[int, Sequence[int]]

#: An eviction (step, victim, new expert), with experts as keys ``layer · E + expert``.
Evicted = tuple[int, int, int]

Counting = Literal["steps", "requests", "statistics"]
COUNTINGS = get_args(Counting)


@dataclass(slots=True)
class Replayed:
    """Result of a replay: requests and hits by layer ``[L]``, and all evictions in order."""

    requests: list[int]
    hits: list[int]
    evicted: list[Evicted] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Hits divided by requests, over all layers."""
        return sum(self.hits) / sum(self.requests)


# ----------------------------------------------------------------------------- steps


def token_steps(ids_TLK: np.ndarray, order: Literal["id", "recorded"] = "id") -> list[Step]:
    """Return the steps of a sequence, one for each token and layer, with experts in an order."""
    ordered = np.sort(ids_TLK, axis=2) if order == "id" else ids_TLK
    return [(layer, ids) for token in ordered.tolist() for layer, ids in enumerate(token)]


def requests(steps: Iterable[Step]) -> list[Step]:
    """Split steps so that each expert request is a step of its own."""
    return [(layer, (expert,)) for layer, experts in steps for expert in experts]


def topology(layers: int, experts: int, top_k: int) -> ModelShape:
    """Return a shape with given layers, experts and top-k, and placeholders for other fields."""
    return ModelShape(
        family="routing-only", num_layers=layers, num_experts=experts, top_k=top_k,
        hidden_size=1, vocab_size=1, num_heads=1, num_kv_heads=1, head_dim=1, expert_width=1,
        gate=GateKind.SOFTMAX_TOPK,
    )  # fmt: skip


# ----------------------------------------------------------------------------- the replay


def replay(
    policy: Eviction, sequences: Sequence[Sequence[Step]], shape: ModelShape, slots: int,
    scope: Scope = "layer", *, placed: Iterable[tuple[int, int]] = (),
    uncounted: Sequence[int] = (),
) -> Replayed:  # fmt: skip
    """Replay the steps of sequences, one after the other, through one cache with a policy.

    Args:
        sequences: the steps of each sequence.
        slots: number of slots over all layers; with ``scope="layer"`` each layer has an equal
            share, and remaining slots are not used.
        placed: pairs (layer, expert) that are in the cache before the first step.
        uncounted: of each sequence, how many of its first steps are not counted; by default none.

    Raises:
        BudgetError: not even one expert fits into each pool.
        UsageError: there is no step, or the policy reads gate scores, which a replay lacks.
    """
    if not any(map(len, sequences)):
        raise UsageError("the routing holds no step to replay")
    if policy.reads_scores:
        raise UsageError(
            f"{type(policy).__name__} reads gate scores; a replay of ids has none: run the trace "
            "(moebench run --trace)"
        )
    # `ExpertCache` requires top-k slots, but steps of single requests need only one.
    roomy = shape.model_copy(update={"top_k": 1}) if slots < shape.top_k else shape
    cache = ExpertCache(roomy, slots, scope, Tier("device", 0), 0)
    if policy.clairvoyant:
        policy.set_future([step for steps in sequences for step in steps], may_refuse=True)
    policy.start(shape, cache)
    run = _Run(policy, shape, cache)
    for layer, expert in placed:
        run.place(layer, expert)
    for steps, first in zip(sequences, uncounted or [0] * len(sequences), strict=True):
        policy.begin_sequences(Prompts(()))
        if first:
            run.steps_uncounted(steps[:first])
        run.steps(steps[first:])
        policy.end_sequences()
    return run.result


class _Pool:
    """A pool of shared slots; ``allowed`` and ``held`` are array views of masks over all keys."""

    def __init__(self, free: int, keys: int) -> None:
        self.free = free
        # Writing single bytes is much faster than writing array elements; policies read arrays.
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
            if asked == 1:  # A shortcut for one expert: there is no other one to protect.
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

    def steps_uncounted(self, steps: Iterable[Step]) -> None:
        """Process steps whose requests and hits are not counted; evictions are."""
        counts = self.result.requests, self.result.hits
        before = [list(each) for each in counts]
        self.steps(steps)
        for each, known in zip(counts, before, strict=True):
            each[:] = known

    def place(self, layer: int, expert: int) -> None:
        """Put an expert into the cache before the first step."""
        pool, key = self.pools[layer], layer * self.experts + expert
        pool.free -= 1
        self.policy.placed(key)
        pool.inside[key] = pool.may_leave[key] = 1

    def load(self, key: int, pool: _Pool) -> bool:
        """Load an expert into a free slot or a victim's; return False if the policy refuses."""
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
    slots: int, counting: Counting = "steps", scope: Scope | None = None,
) -> float:  # fmt: skip
    """Return a cache policy's hit rate on sequences, under one of the three definitions.

    Args:
        make: returns a new policy.
        shape: layers, experts and top-k (`topology`).
        slots: slots of a layer; with the scope ``global`` all layers share ``slots`` times the
            number of layers.
        scope: None is that of the definition: ``layer`` for ``statistics``, else ``global``, as in
            runs.

    Raises:
        UsageError: the policy needs more than ids, or the definition excludes this scope or needs
            decoded tokens and there are none.
    """
    scope, size = scope or scope_of(counting), slots * shape.num_layers
    if counting == "statistics":
        return _of_statistics(make, sequences, shape, slots, scope)
    if counting == "requests":
        asked = [requests(token_steps(s.ids_TLK)) for s in sequences]
        return replay(make(), asked, shape, size, scope).hit_rate
    if not any(len(s.ids_TLK) > s.prefill for s in sequences):
        raise UsageError("--count steps: the trace decodes no token; count requests instead")
    prompts = [_prompt_steps(s) for s in sequences]
    steps = [
        [*prompt, *token_steps(s.ids_TLK[s.prefill :])]
        for prompt, s in zip(prompts, sequences, strict=True)
    ]
    uncounted = list(map(len, prompts))
    return replay(make(), steps, shape, size, scope, uncounted=uncounted).hit_rate


def scope_of(counting: Counting) -> Scope:
    """Return the scope that a definition has unless another is asked for."""
    return "layer" if counting == "statistics" else "global"


def _prompt_steps(sequence: RoutedSequence) -> list[Step]:
    """Return the steps of a prompt's pass, one for each layer; none without a prompt."""
    ids_LTK = sequence.ids_TLK[: sequence.prefill].swapaxes(0, 1)
    return [
        (layer, np.unique(ids_TK).tolist()) for layer, ids_TK in enumerate(ids_LTK) if ids_TK.size
    ]


def _of_statistics(
    make: Callable[[], Eviction], sequences: Sequence[RoutedSequence], shape: ModelShape,
    slots: int, scope: Scope,
) -> float:  # fmt: skip
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
        asked_for = requests(token_steps(ids_TLK))
        done = replay(policy, [asked_for], shape, slots * shape.num_layers, scope)
        by_layer = zip(done.requests, done.hits, strict=True)
        missed += sum(max(0, requested - hits - slots) for requested, hits in by_layer)
    if not asked:
        raise UsageError("--count statistics: the trace decodes no token; count steps instead")
    return 1 - missed / asked
