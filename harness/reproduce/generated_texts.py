"""How a scale model routes texts of a data set, and what it writes after them: no system runs.

Texts are kept as those that systems learn from are (`harness.run.learn`).
"""

import math
from collections.abc import Callable
from pathlib import Path

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.run.learn import LosslessModel, folder, written
from moebench.harness.run.rules import resolve
from moebench.harness.run.weights import open_weights
from moebench.results.claims import Measured
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.terms import LOOKAHEADS, RoutedSequence
from moebench.substrate.traces.replay import routings
from moebench.systems.learn.artefacts import content_hash
from moebench.workloads.catalogue import workload
from moebench.workloads.data import read_passages
from moebench.workloads.draw import PASSAGE_WORDS, PromptSet, load

#: C4 is no workload: its texts are read as plain ones are.
C4 = "c4"
_C4_FILE = Path("corpus") / "c4_demo.txt"

#: Texts of a data set, and with ``--quick``.
TEXTS, QUICK_TEXTS = 64, 16


def routed(evidence: Evidence, model: str, dataset: str) -> list[RoutedSequence]:
    """Prompts of up to 256 tokens and 64 written ones each, with all predictions.

    With ``routing: real`` in a counter-experiment, recordings of the model instead.

    Raises:
        MissingEvidenceError: there is no data folder, and the data set is not generated.
        InputError: the folder does not hold it.
    """
    if evidence.changes.get("routing") == "real":
        return _recorded(evidence, model)
    sample = _sample(evidence, dataset)
    spec = resolve(evidence.data_dir, system="gpu-only", model=model, machine="h200",
                   allow_overcommit=True)  # fmt: skip
    opened = open_weights(spec)
    shared = SharedWork(opened.checkpoint)
    try:
        return list(
            written(
                workload("text" if dataset == C4 else dataset), sample,
                LosslessModel(
                    shared.decoder, shared.differentiable, opened.hashes["weights"],
                    opened.texts.tokenizer, None,
                ),
                folder(evidence.scratch), lambda done, total: None, frozenset({"predictions"}),
                LOOKAHEADS,
            ).sequences
        )  # fmt: skip
    finally:
        opened.checkpoint.close()


def _sample(evidence: Evidence, dataset: str) -> PromptSet:
    count = QUICK_TEXTS if evidence.quick else TEXTS
    generated = dataset != C4 and workload(dataset).source == "generated"
    if evidence.data_dir is None and not generated:
        raise MissingEvidenceError(f"{dataset} lies in a data folder; give --data-dir DIR")
    if dataset != C4:
        return load(workload(dataset), "test", count, 0, evidence.data_dir, or_fewer=True)
    assert evidence.data_dir is not None
    texts = read_passages(evidence.data_dir / _C4_FILE, PASSAGE_WORDS)[:count]
    return PromptSet(
        examples=tuple(texts), source="C4", split="test", seed=0, available=len(texts),
        data_hash=content_hash([text.prompt for text in texts]),
    )  # fmt: skip


def _recorded(evidence: Evidence, model: str) -> list[RoutedSequence]:
    return [text for one in evidence.recordings(model) for text in routings(one.trace)]


def recorded(evidence: Evidence, model: str, *kinds: str) -> list[RoutedSequence]:
    """A model's recordings of some kinds of text, each up to where it loops.

    Raises:
        MissingEvidenceError: there is no data folder, or nothing of these kinds in it.
    """
    found = [
        RoutedSequence(one.trace.ids_TLK[rows[:end]].astype(int), prompt)
        for one in evidence.recordings(model)
        if one.trace.path.name.split("__")[1].split("-")[0] in kinds
        for rows, end, prompt in zip(one.trace.sequences, one.ends, one.trace.prompts, strict=True)
    ]
    if not found:
        raise MissingEvidenceError(f"no {' or '.join(kinds)} was recorded of {model}")
    return found


def over_texts(
    evidence: Evidence,
    model: str,
    dataset: str,
    figure: Callable[[RoutedSequence], float],
    said: str,
) -> Measured:
    """A figure of each text that has it; the value is their mean."""
    found = [figure(text) for text in routed(evidence, model, dataset)]
    samples = [value for value in found if not math.isnan(value)]
    if not samples:
        raise MissingEvidenceError(f"no text of {dataset} is long enough")
    real = evidence.changes.get("routing") == "real"
    who = "recordings of the model" if real else "the scale model's routing"
    return Measured.of(samples, "counted", f"{len(samples)} texts, {who}; {said}", "texts")
