"""Counts from FlashMoE's routing alone, without a machine: hits, evictions and used experts.

The sequences are those that the runs of `EVICTIONS` replay, and the network is trained on the same
other sequences.  Each layer has its own cache; prompts are read token by token.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.flashmoe.evictions import Duel, Regret, duel, hit_rates, regret
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS
from moebench.harness.run.identity import code_hash
from moebench.harness.run.learn import folder
from moebench.harness.run.routing import source_of
from moebench.results.claims import Measured
from moebench.substrate.analysis.cache_replay import topology
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.recipes import recipes
from moebench.substrate.traces.synthesis import Synthesis, Topology, synthesize
from moebench.systems.flashmoe import LearnedEviction
from moebench.systems.registry import make

#: Cache sizes of Fig. 6, as shares of a layer's experts; an eighth leaves policies no choice.
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)

#: Counted policies: those that run, textbook LFU (``lfu-kept``) and the bound (``belady``).
COUNTED = ("flashmoe", "lru", "lfu", "lfu-kept", "lifo", "fifo", "arc", "lecar", "belady")

MODEL_OF = {"F1": "olmoe-1b-7b", "F2": "qwen3-30b-a3b"}

Rates = dict[int, dict[str, float]]


class Routing(NamedTuple):
    """A trace whose first ``replayed`` sequences are held out, and the texts of the network.

    The network learns from the last ``learnt`` sequences of the trace ``shown``, which may be the
    same trace, with the option ``cached`` of `LearnedEviction`.
    """

    trace: Path
    replayed: int
    shown: Path
    learnt: int
    artefacts: Path
    cached: int = 0

    @property
    def experts(self) -> int:
        """Number of experts in a layer."""
        return open_trace(self.trace).header.num_experts

    def sequences(self, learnt: bool) -> list[np.ndarray]:
        """Return the chosen experts ``[T, L, K]`` of each training or held-out sequence."""
        trace = open_trace(self.shown if learnt else self.trace)
        rows = trace.sequences
        chosen = rows[-self.learnt :] if learnt else rows[: self.replayed]
        return [trace.ids_TLK[one].astype(np.int64) for one in chosen]


def routings(evidence: Evidence, setting: str) -> list[Routing]:
    """Return the routing of a setting, for each seed.

    Raises MissingEvidenceError: the counter-experiment is of another setting.
    """
    found = {}
    for spec in evidence.specs(EVICTIONS):
        if spec.setting == setting and spec.overrides.get("evict") == "flashmoe":
            cached = int(spec.overrides.get("evict.cached", 0))
            source = source_of(spec, evidence.data_dir)
            trace = source.open(evidence.scratch)
            shown, replayed = source.learnable(evidence.scratch, spec.prompts)
            rest = len(shown.sequences) - replayed
            learnt = min(rest, spec.calibrate_texts or LearnedEviction.calibration_texts)
            found[spec.seed] = Routing(
                trace.path, spec.prompts, shown.path, learnt, folder(evidence.scratch), cached
            )  # fmt: skip
    if not found:
        raise MissingEvidenceError(f"nothing of {setting} is replayed here")
    return list(found.values())


def measured(
    evidence: Evidence, setting: str, figure: Callable[[Routing], float], conditions: str
) -> Measured:
    """Measure a figure of a setting's routing, with one sample for each seed."""
    known = routings(evidence, setting)
    tokens = sum(map(len, known[0].sequences(learnt=True)))
    said = f"{conditions}; {known[0].replayed} sequences, the network learnt from {tokens} tokens"
    return Measured.of(map(figure, known), "counted", said)


# ----------------------------------------------------------------------------- hits


@lru_cache
def network(routing: Routing) -> LearnedEviction:
    """Return the eviction networks of the runs, trained now or read from the kept file."""
    learnt = cast(LearnedEviction, make("evict", "flashmoe", cached=routing.cached))
    texts = [RoutedSequence(ids, 0) for ids in routing.sequences(learnt=True)]
    layers, k = texts[0].ids_TLK.shape[1:]
    learnt.calibrate(texts, topology(layers, routing.experts, k), routing.artefacts)
    return learnt


def policy(routing: Routing, name: str) -> Eviction:
    """Return an eviction policy by its name in `COUNTED`."""
    if name == "flashmoe":
        return network(routing)
    options = {"survive": "true", "tie": "id"} if name == "lfu-kept" else {}
    return cast(Eviction, make("evict", name.removesuffix("-kept"), **options))


@lru_cache
def rates(routing: Routing) -> Rates:
    """Return the hit rates of Fig. 6, by slots per layer and policy."""
    sizes = [round(share * routing.experts) for share in SHARES]
    policies = {name: policy(routing, name) for name in COUNTED}
    return hit_rates(routing.sequences(learnt=False), routing.experts, sizes, policies)


def gain(routing: Routing, other: str) -> float:
    """Return the largest gain of FlashMoE's hit rate over a policy's, over sizes, in percent."""
    return max(100 * (of["flashmoe"] / of[other] - 1) for of in rates(routing).values())


def fewer_loads(routing: Routing, other: str) -> float:
    """Return the largest saving of loads by FlashMoE against a policy, over sizes, in percent."""
    return max(100 * (1 - (1 - of["flashmoe"]) / (1 - of[other])) for of in rates(routing).values())


def first_at(routing: Routing) -> float:
    """Return the share of cache sizes at which FlashMoE beats every realizable policy."""
    realizable = [name for name in COUNTED if name not in ("flashmoe", "belady")]
    best = [of["flashmoe"] > max(of[name] for name in realizable) for of in rates(routing).values()]
    return sum(best) / len(best)


# ----------------------------------------------------------------------------- evictions


@lru_cache
def size_for(routing: Routing, belady: float) -> int:
    """Return the slots per layer with which Belady's hit rate is nearest ``belady``."""
    oracle = {"belady": policy(routing, "belady")}
    sizes = range(16, routing.experts, 8)
    found = hit_rates(routing.sequences(learnt=False), routing.experts, sizes, oracle)
    return min(found, key=lambda size: abs(found[size]["belady"] - belady))


@lru_cache
def rates_at(routing: Routing, slots: int) -> dict[str, float]:
    """Return the hit rates of LRU and Belady with ``slots`` slots per layer."""
    policies = {name: policy(routing, name) for name in ("lru", "belady")}
    texts = routing.sequences(learnt=False)
    return hit_rates(texts, routing.experts, [slots], policies)[slots]


@lru_cache
def regret_of(routing: Routing, name: str, slots: int) -> Regret:
    """Return the statistics of a policy's evictions with ``slots`` slots per layer."""
    texts = routing.sequences(learnt=False)
    return regret(policy(routing, name), texts, routing.experts, slots)


@lru_cache
def lru_against(lfu: str, routing: Routing, slots: int) -> Duel:
    """Return how often LRU's victims are better than LFU's, where they differ (§2.3)."""
    texts = routing.sequences(learnt=False)
    return duel(policy(routing, "lru"), policy(routing, lfu), texts, routing.experts, slots)


# ----------------------------------------------------------------------------- experts used


def used(evidence: Evidence, model: str, tokens: int) -> list[float]:
    """Return the share of a layer's experts that each text uses in ``tokens`` tokens, in percent.

    Raises MissingEvidenceError: no text is that long.
    """
    texts = _texts(evidence, model)
    found = [_used(ids, tokens, experts) for ids, experts in texts if len(ids) >= tokens]
    if not found:
        raise MissingEvidenceError(f"no recorded text of {model} has {tokens} tokens")
    return found


def _used(ids_TLK: np.ndarray, tokens: int, experts: int) -> float:
    layers = ids_TLK[:tokens].transpose(1, 0, 2)
    return 100 * float(np.mean([len(np.unique(layer)) for layer in layers])) / experts


def _texts(evidence: Evidence, model: str) -> Sequence[tuple[np.ndarray, int]]:
    """Return drawn prompts of 256 tokens, or recordings cut where they loop, with their experts."""
    shape = model_shape(model)
    if evidence.changes.get("routing") == "real":
        return [
            (one.trace.ids_TLK[rows[:end]], shape.num_experts)
            for one in evidence.recordings(model)
            for rows, end in zip(one.trace.sequences, one.ends, strict=True)
        ]
    out = evidence.scratch / "routing" / f"prompts-{model}-{code_hash()}"
    if not out.exists():
        synthesis = Synthesis(Topology.of(shape), recipes()[model], seed=0)
        synthesize(synthesis, model, [256] * 8, 2, out)
    trace = open_trace(out)
    return [(trace.ids_TLK[rows], shape.num_experts) for rows in trace.sequences]
