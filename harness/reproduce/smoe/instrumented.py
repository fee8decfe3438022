"""Instrumented runs: the importance and location of active experts, and gate scores by rank.

Run documents do not hold these figures, so each cell of an experiment runs once more in this
process, with SMoE's assignment (here) or routing (`batches`) wrapped.  The results are kept in the
scratch folder.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.run.execute import EngineRun, prepare, started
from moebench.harness.run.identity import code_hash
from moebench.harness.settings import setting
from moebench.harness.sweep.worker import group_of
from moebench.results.spec import RunSpec
from moebench.substrate.analysis.gate_scores import score_skew
from moebench.substrate.analysis.statistics import reuse_by_rank
from moebench.substrate.engine.decisions import Active, LayerView, Plan
from moebench.substrate.files import write_text
from moebench.substrate.terms import RoutedSequence


@dataclass(slots=True)
class Importance:
    """Counts of the top-k experts of decoded tokens, by importance and by location after routing.

    An expert is top-score if its score is at least (1+α) times the best score of an inactive
    expert, else low-score (SMoE, Table II).  Replaced low-score experts do not count as absent.

    Attributes:
        top, low: all experts of the kind.
        top_absent, low_absent: experts neither on the device nor being copied to it.
        top_in_flight, low_in_flight: experts that are being copied.
    """

    top: int = 0
    low: int = 0
    top_absent: int = 0
    low_absent: int = 0
    top_in_flight: int = 0
    low_in_flight: int = 0

    def count(
        self, scores: Sequence[float], own: Sequence[int], alpha: float, absent: set[int],
        in_flight: set[int],
    ) -> None:  # fmt: skip
        """Add the experts of one token in one layer."""
        chosen = set(own)
        rival = max((s for e, s in enumerate(scores) if e not in chosen), default=0.0)
        top = {e for e in own if scores[e] >= (1 + alpha) * rival}
        low = chosen - top
        self.top += len(top)
        self.low += len(low)
        self.top_absent += len(top & absent)
        self.low_absent += len(low & absent)
        self.top_in_flight += len(top & in_flight)
        self.low_in_flight += len(low & in_flight)


@dataclass(slots=True)
class Watched:
    """Results of an instrumented run of one cell.

    Attributes:
        run_id: id of the cell's ordinary run.
        options: ``--set`` options, without α.
        score_by_rank: mean gate score, relative to the highest.
        reuse_by_rank: share of experts of a rank that are chosen within the next 3 tokens.
    """

    run_id: str
    setting: str
    options: dict[str, str]
    seed: int
    top_k: int
    importance: Importance = field(default_factory=Importance)
    score_by_rank: list[float] = field(default_factory=list)
    reuse_by_rank: list[float] = field(default_factory=list)


def watch(evidence: Evidence, experiment: Experiment, **options: str) -> list[Watched]:
    """Run the cells of an experiment with these ``--set`` options instrumented, at batch 1."""
    specs = [s for s in evidence.specs(experiment) if _options(s) == options]
    scratch = evidence.scratch
    found = each_seen(evidence, specs, "watched", lambda run: asdict(_watched(run, scratch)))
    return [Watched(**{**one, "importance": Importance(**one["importance"])}) for one in found]


def each_seen(
    evidence: Evidence, specs: Sequence[RunSpec], kind: str,
    see: Callable[[EngineRun], dict[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return what an instrumented run of each cell saw; runs that are kept are not run again.

    Args:
        kind: folder of the scratch folder in which it is kept.
        see: runs a prepared cell and returns what it saw, as JSON can hold it.
    """
    found, shared, group = [], None, ""
    for spec in sorted(specs, key=group_of):
        session = prepare(spec, evidence.data_dir)
        kept = evidence.scratch / kind / f"{session.run_id}-{code_hash()}.json"
        if not kept.exists():
            shared = session.share(shared if group_of(spec) == group else None)
            group = group_of(spec)
            write_text(kept, json.dumps(see(session)))
        found.append(json.loads(kept.read_text(encoding="utf-8")))
    return found


def _options(spec: RunSpec) -> dict[str, str]:
    return {key: value for key, value in spec.overrides.items() if key != "alpha"}


def _watched(session: EngineRun, scratch: Path) -> Watched:
    spec = session.spec
    name = spec.setting or spec.model
    seen = Watched(session.run_id, name, _options(spec), spec.seed, session.full.top_k)
    alpha = float(spec.overrides.get("alpha", setting(name).alpha or 0))
    tokens = _hook(session, seen.importance, alpha)
    sequences: list[RoutedSequence] = []
    answer(session, scratch, lambda: sequences.append(_sequence(tokens)))
    seen.score_by_rank = score_skew(sequences).tolist()
    seen.reuse_by_rank = reuse_by_rank(sequences, session.full.num_experts).tolist()
    return seen


def answer(session: EngineRun, scratch: Path, after: Callable[[], None] = lambda: None) -> None:
    """Run a prepared cell, and call ``after`` when each of its batches has been answered."""
    spec = session.spec
    with started(session, scratch, lambda done, total: None) as ready, torch.inference_mode():
        for first in range(0, spec.prompts, spec.batch):
            session.answer(ready.stage, slice(first, first + spec.batch))
            after()


#: For each decoded token, the gate scores and the chosen experts of each layer.
Tokens = list[list[tuple[np.ndarray, np.ndarray]]]


def _hook(session: EngineRun, importance: Importance, alpha: float) -> Tokens:
    """Wrap a system's assignment; the returned list grows as tokens are decoded."""
    assignment = session.system.assign
    assign, first = assignment.assign, session.full.moe_layers[0]
    tokens: Tokens = []

    def watching(view: LayerView, active: Active) -> Plan:
        if view.phase == "decode":
            own, absent, flying = view.topk_ids_TK.tolist()[0], {*active.absent}, active.in_flight
            importance.count(view.scores[0], own, alpha, absent, {*flying})
            if view.layer == first:
                tokens.append([])
            tokens[-1].append((np.array(view.scores_TE[0]), np.array(view.topk_ids_TK[0])))
        return assign(view, active)

    assignment.assign = watching  # type: ignore[method-assign]
    return tokens


def _sequence(tokens: Tokens) -> RoutedSequence:
    """Return the tokens decoded since the last call as one sequence, and clear the list."""
    scores_TLE = np.stack([np.stack([scores for scores, _ in token]) for token in tokens])
    ids_TLK = np.stack([np.stack([ids for _, ids in token]) for token in tokens])
    tokens.clear()
    return RoutedSequence(ids_TLK=ids_TLK, prefill=0, scores_TLE=scores_TLE)
