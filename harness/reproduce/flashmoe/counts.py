"""What is counted from routing alone, without a machine: hits, evictions, experts used.

The sequences are those that the runs of `EVICTIONS` replay, and the network learns from the same
others; one cache a layer, prompts token by token.
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

#: Cache sizes of Fig. 6, as shares of a layer's experts; with an eighth every policy is forced.
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)

#: Beside those that run: LFU as a textbook has it, and the bound.
COUNTED = ("flashmoe", "lru", "lfu", "lfu-kept", "lifo", "fifo", "arc", "lecar", "belady")

MODEL_OF = {"F1": "olmoe-1b-7b", "F2": "qwen3-30b-a3b"}

Rates = dict[int, dict[str, float]]


class Routing(NamedTuple):
    """A trace; its first ``replayed`` sequences are held out, the network learns from the last."""

    trace: Path
    replayed: int
    learnt: int
    artefacts: Path

    @property
    def experts(self) -> int:
        """Of a layer."""
        return open_trace(self.trace).header.num_experts

    def sequences(self, learnt: bool) -> list[np.ndarray]:
        """Chosen experts ``[T, L, K]`` of each."""
        trace = open_trace(self.trace)
        rows = trace.sequences
        chosen = rows[self.replayed :][-self.learnt :] if learnt else rows[: self.replayed]
        return [trace.ids_TLK[one].astype(np.int64) for one in chosen]


def routings(evidence: Evidence, setting: str) -> list[Routing]:
    """The routing of a setting, once a seed.

    Raises:
        MissingEvidenceError: the counter-experiment is of another setting.
    """
    found = {}
    for spec in evidence.specs(EVICTIONS):
        if spec.setting == setting:
            trace = source_of(spec, evidence.data_dir).open(evidence.scratch)
            rest = len(trace.sequences) - spec.prompts
            learnt = min(rest, spec.calibrate_texts or LearnedEviction.calibration_texts)
            found[spec.seed] = Routing(
                trace.path, spec.prompts, learnt, folder(evidence.scratch)
            )  # fmt: skip
    if not found:
        raise MissingEvidenceError(f"nothing of {setting} is replayed here")
    return list(found.values())


def measured(
    evidence: Evidence, setting: str, figure: Callable[[Routing], float], conditions: str
) -> Measured:
    """A figure of each seed's routing."""
    known = routings(evidence, setting)
    tokens = sum(map(len, known[0].sequences(learnt=True)))
    said = f"{conditions}; {known[0].replayed} sequences, the network learnt from {tokens} tokens"
    return Measured.of(map(figure, known), "counted", said)


# ----------------------------------------------------------------------------- hits


@lru_cache
def network(routing: Routing) -> LearnedEviction:
    """The eviction networks, learnt or kept; the runs' own."""
    learnt = cast(LearnedEviction, make("evict", "flashmoe"))
    texts = [RoutedSequence(ids, 0) for ids in routing.sequences(learnt=True)]
    layers, k = texts[0].ids_TLK.shape[1:]
    learnt.calibrate(texts, topology(layers, routing.experts, k), routing.artefacts)
    return learnt


def policy(routing: Routing, name: str) -> Eviction:
    """An eviction policy by its name in `COUNTED`."""
    if name == "flashmoe":
        return network(routing)
    options = {"survive": "true", "tie": "id"} if name == "lfu-kept" else {}
    return cast(Eviction, make("evict", name.removesuffix("-kept"), **options))


@lru_cache
def rates(routing: Routing) -> Rates:
    """Fig. 6: hit rate by slots a layer and policy."""
    sizes = [round(share * routing.experts) for share in SHARES]
    policies = {name: policy(routing, name) for name in COUNTED}
    return hit_rates(routing.sequences(learnt=False), routing.experts, sizes, policies)


def gain(routing: Routing, other: str) -> float:
    """The greatest gain of FlashMoE's hit rate over another policy's, over sizes, in percent."""
    return max(100 * (of["flashmoe"] / of[other] - 1) for of in rates(routing).values())


def fewer_loads(routing: Routing, other: str) -> float:
    """How many loads it saves at the size where it saves most of them, in percent."""
    return max(100 * (1 - (1 - of["flashmoe"]) / (1 - of[other])) for of in rates(routing).values())


def first_at(routing: Routing) -> float:
    """Share of cache sizes at which no other policy that can be had hits as often."""
    realizable = [name for name in COUNTED if name not in ("flashmoe", "belady")]
    best = [of["flashmoe"] > max(of[name] for name in realizable) for of in rates(routing).values()]
    return sum(best) / len(best)


# ----------------------------------------------------------------------------- evictions


@lru_cache
def size_for(routing: Routing, belady: float) -> int:
    """Slots a layer with which Belady's hit rate comes nearest to a share; a multiple of 8."""
    oracle = {"belady": policy(routing, "belady")}
    sizes = range(16, routing.experts, 8)
    found = hit_rates(routing.sequences(learnt=False), routing.experts, sizes, oracle)
    return min(found, key=lambda size: abs(found[size]["belady"] - belady))


@lru_cache
def rates_at(routing: Routing, slots: int) -> dict[str, float]:
    """Hit rates of LRU and Belady."""
    policies = {name: policy(routing, name) for name in ("lru", "belady")}
    texts = routing.sequences(learnt=False)
    return hit_rates(texts, routing.experts, [slots], policies)[slots]


@lru_cache
def regret_of(routing: Routing, name: str, slots: int) -> Regret:
    """What became of a policy's victims."""
    texts = routing.sequences(learnt=False)
    return regret(policy(routing, name), texts, routing.experts, slots)


@lru_cache
def lru_against(lfu: str, routing: Routing, slots: int) -> Duel:
    """§2.3: whose victims are better where they differ."""
    texts = routing.sequences(learnt=False)
    return duel(policy(routing, "lru"), policy(routing, lfu), texts, routing.experts, slots)


# ----------------------------------------------------------------------------- experts used


def used(evidence: Evidence, model: str, tokens: int) -> list[float]:
    """Share of a layer's experts that a text of so many tokens uses, of each text, in percent.

    Raises:
        MissingEvidenceError: no text is that long.
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
    """Prompts of 256 tokens, drawn; or what was recorded, up to where it loops."""
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
