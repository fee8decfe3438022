"""Routing of a scale model on texts of a data set and on its continuations, without any system.

The routed texts are kept in the folder of training texts of systems (`harness.run.learn`).
"""

import math
from collections.abc import Callable

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.run.learn import LosslessModel, folder, written
from moebench.harness.run.rules import resolve
from moebench.harness.run.weights import open_weights
from moebench.results.claims import Measured
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.terms import LOOKAHEADS, RoutedSequence
from moebench.substrate.traces.replay import routings
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load

#: Number of texts of a data set, in a full run and with ``--quick``.
TEXTS, QUICK_TEXTS = 64, 16


def routed(evidence: Evidence, model: str, dataset: str) -> list[RoutedSequence]:
    """Return the routing of prompts of up to 256 tokens and 64 generated tokens each.

    All predictions are included.  With ``routing: real`` in a counter-experiment, return recordings
    of the model instead.

    Raises:
        MissingEvidenceError: there is no data folder, and the data set is not generated.
        InputError: the folder does not hold the data set.
    """
    if evidence.changes.get("routing") == "real":
        return [text for one in evidence.recordings(model) for text in routings(one.trace)]
    sample = _sample(evidence, dataset)
    spec = resolve(evidence.data_dir, system="gpu-only", model=model, machine="h200",
                   allow_overcommit=True)  # fmt: skip
    opened = open_weights(spec)
    shared = SharedWork(opened.checkpoint)
    try:
        return list(
            written(
                workload(dataset), sample,
                LosslessModel(
                    shared.decoder, shared.differentiable, shared.rounding,
                    opened.hashes["weights"], opened.texts.tokenizer, None,
                ),
                folder(evidence.scratch), lambda done, total: None, frozenset({"predictions"}),
                LOOKAHEADS,
            ).sequences
        )  # fmt: skip
    finally:
        opened.checkpoint.close()


def _sample(evidence: Evidence, dataset: str) -> PromptSet:
    count = QUICK_TEXTS if evidence.quick else TEXTS
    if evidence.data_dir is None and workload(dataset).source != "generated":
        raise MissingEvidenceError(f"{dataset} lies in a data folder; give --data-dir DIR")
    return load(workload(dataset), "test", count, 0, evidence.data_dir, or_fewer=True)


def recorded(evidence: Evidence, model: str, *kinds: str) -> list[RoutedSequence]:
    """Return a model's recorded routing of some kinds of text, each cut where the text loops.

    Raises MissingEvidenceError: there is no data folder, or it has no text of these kinds.
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
    evidence: Evidence, model: str, dataset: str, figure: Callable[[RoutedSequence], float],
    said: str,
) -> Measured:  # fmt: skip
    """Measure the mean of a figure over the texts of a data set on which it is defined."""
    found = [figure(text) for text in routed(evidence, model, dataset)]
    samples = [value for value in found if not math.isnan(value)]
    if not samples:
        raise MissingEvidenceError(f"no text of {dataset} is long enough")
    real = evidence.changes.get("routing") == "real"
    who = "recordings of the model" if real else "the scale model's routing"
    return Measured.of(samples, "counted", f"{len(samples)} texts, {who}; {said}", "texts")
