"""Target ranges of routing statistics, measured on recordings of real models.

``traces/`` of the data folder holds recordings (``<model>__<workload>/``, see
`substrate.traces.published`) and totals by expert (``<model>__popularity/popularity.json``).  The
head of ``substrate/catalogue/routing.yaml`` explains how ranges follow from them; `write` writes
the measured part of that file.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from moebench.harness import console
from moebench.harness.scale.verify import WINDOW
from moebench.substrate.analysis.statistics import (
    LAGS,
    USED_AFTER,
    concentration,
    mean_cosine,
    popularity,
    prefill_decode_similarity,
    sequence_similarity,
    summary,
)
from moebench.substrate.analysis.targets import ROUTING, Evidence, read_routing, value_at
from moebench.substrate.errors import InputError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.published import read_published

#: Maximum number of windows read from a recording, the same as from a scale model.
WINDOWS = 40
#: Layers of random routing, which has as many windows as the recording compared with it.
RANDOM_LAYERS = 64
#: Half-width of a single figure's range as a share of the figure: ``CARRIED`` if the figure was
#: converted to another number of experts, else ``MARGIN``.
MARGIN, CARRIED = 0.1, 0.2
#: The half-width is at most ``LACKING`` of the distance to 1 for shares, and at least ``LEAST``.
LACKING, LEAST = 0.5, 0.01
#: Decimals of a range's bounds.
DECIMALS = 3

#: Statistics of single texts.
WITHIN = (
    *(f"used.{tokens}" for tokens in USED_AFTER),
    *(f"lag_overlap.{lag}" for lag in LAGS),
    *(
        f"hit_rates.{s}.{policy}"
        for s in ("quarter", "half")
        for policy in ("lru", "lfu", "belady")
    ),
    "popularity_within.gini", "popularity_within.max_over_mean", "prefill_decode_similarity",
    "weight_by_rank.1",
)  # fmt: skip
#: Statistics over several texts.
SIMILARITY = "sequence_similarity"
OVER_ALL = ("popularity.gini", "popularity.max_over_mean", SIMILARITY)

#: Domains of text whose totals by expert are read.
TOTALS = ("c4", "wikipedia", "book", "github")


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one topology, and the recordings whose routing represents theirs.

    Attributes:
        models: catalogue names of models with the same number of experts and top-k.
        why: how the recorded model is related to ``models``.
        totals: folder of totals by expert.
        without: statistics of the recordings that do not apply to ``models``.
    """

    models: tuple[str, ...]
    traces: tuple[str, ...]
    why: str
    totals: str | None = None
    without: tuple[str, ...] = ()


_MIXTRAL = "mixtral-8x7b-instruct__humaneval"

FAMILIES = (
    Family(
        ("olmoe-1b-7b",),
        tuple(f"olmoe-1b-7b__{text}" for text in ("math", "math-run2", "prose", "prose-run2")),
        "the model itself",
        "olmoe-1b-7b__popularity",
    ),
    Family(
        ("deepseek-moe-16b", "xverse-moe-a4.2b"),
        (
            "deepseek-v2-lite-chat__puffin",
            *(f"deepseek-v2-lite__esft_{task}" for task in ("intent", "summary", "translation")),
        ),
        "the later DeepSeek-V2-Lite, of 64 experts and top-6 as well",
    ),
    Family(
        ("qwen2-57b-a14b",),
        ("qwen1.5-moe-a2.7b__prose",),
        "the smaller Qwen1.5-MoE, of 60 experts and top-4",
    ),
    Family(
        ("qwen3-30b-a3b",),
        ("qwen3-30b-a3b-k6__explain",),
        "the model itself, run with top-6 in place of top-8",
    ),
    Family(
        ("mixtral-8x7b", "mixtral-8x22b"),
        (_MIXTRAL,),
        "the smaller of the two, as an Instruct model",
        "mixtral-8x7b__popularity",
    ),
    Family(
        ("phi-3.5-moe",),
        (_MIXTRAL,),
        "Mixtral, of 8 experts and top-2; of Phi-3.5-MoE only ranks are published",
        "mixtral-8x7b__popularity",
        # Phi's sparse mixer computes the two experts' weights differently from Mixtral's gate.
        without=("weight_by_rank.1",),
    ),
)


@dataclass(frozen=True, slots=True)
class Texts:
    """Routing of a recording, cut into windows, with the number of texts they come from."""

    windows: Sequence[RoutedSequence]
    count: int
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured routing statistics of a family's recordings, and the ranges that follow.

    Attributes:
        figures: recording (or random routing, or totals) -> statistic -> value.
        ranges: statistic -> lowest and highest value.
    """

    family: Family
    figures: Mapping[str, Mapping[str, float]]
    ranges: Mapping[str, tuple[float, float]]

    @property
    def evidence(self) -> Evidence:
        """The ranges as an entry of the target file ``routing.yaml``."""
        read = ", ".join((*self.family.traces, *filter(None, [self.family.totals])))
        source = f"measured on {read}: {self.family.why}"
        return Evidence(models=self.family.models, source=source, ranges=dict(self.ranges))


def measure(data_dir: Path, progress: Callable[[int, int], None]) -> list[Measured]:
    """Return the measured statistics of every family's recordings in a data folder.

    Raises InputError: a recording is missing or broken.
    """
    found = []
    for done, family in enumerate(FAMILIES, start=1):
        found.append(_measure(data_dir / "traces", family))
        progress(done, len(FAMILIES))
    return found


def _measure(folder: Path, family: Family) -> Measured:
    shape = model_shape(family.models[0])
    recordings = {name: read_texts(folder / name) for name in family.traces}
    figures: dict[str, dict[str, float]] = {}
    evidence = defaultdict[str, list[float]](list)
    carried = False
    for name, texts in recordings.items():
        figures[name] = found = _of_texts(texts)
        wanted = replace(texts, num_experts=shape.num_experts, top_k=shape.top_k)
        if wanted.num_experts == texts.num_experts:
            for key, value in found.items():
                evidence[key].append(value)
        else:
            carried = True
        if wanted != texts:
            figures[f"random as {name}"] = recorded = _of_texts(_random(texts))
            figures[f"random as {family.models[0]}"] = chance = _of_texts(_random(wanted))
            for key, value in found.items():
                evidence[key].append(value * chance[key] / recorded[key])
    together = _over_all(recordings)
    if family.totals is not None:
        random = _random(Texts(_WHOLE, len(_WHOLE), shape.num_experts, shape.top_k))
        noise = sequence_similarity(random.windows, random.num_experts)
        # Totals cover 200,000 tokens per domain, far more than the few recorded texts: use them
        # for popularity.
        together = {name: {SIMILARITY: f[SIMILARITY]} for name, f in together.items()}
        together |= _of_totals(folder / family.totals, noise)
    for name, values in together.items():
        figures[name] = figures.get(name, {}) | values
        for key, value in values.items():
            evidence[key].append(value)
    margin = CARRIED if carried else MARGIN
    keys = [key for key in (*WITHIN, *OVER_ALL) if key in evidence and key not in family.without]
    return Measured(family, figures, {key: span(key, evidence[key], margin) for key in keys})


def span(key: str, values: Sequence[float], margin: float = MARGIN) -> tuple[float, float]:
    """Return the range of a statistic's values, at least as wide as for their middle alone."""
    most = float("inf") if key.endswith("max_over_mean") else 1.0
    low, high = min(most, *values), min(most, max(values))
    middle = (low + high) / 2
    reach = max(LEAST, min(margin * middle, LACKING * (most - middle)))
    low, high = min(low, middle - reach), min(most, max(high, middle + reach))
    return round(low, DECIMALS), round(high, DECIMALS)


# ----------------------------------------------------------------------------- recordings


def read_texts(folder: Path) -> Texts:
    """Return a recording's routing, cut into windows like those of a scale model's texts.

    A sequence ends where its text begins to loop.  Texts that were read, not generated, are joined
    like documents in a scale model's windows.  Each generated text starts its own window, which is
    shorter if the text is.  A whole window's first half counts as its prompt; a shorter window has
    the recorded prompt.

    Raises InputError: the recording is missing or broken.
    """
    header, arrays, meta = read_published(folder)
    ends = {loop["sequence"]: loop["from_token"] for loop in meta.get("loops") or ()}
    number = arrays["sequence"]
    texts = [np.flatnonzero(number == n)[: ends.get(int(n))] for n in np.unique(number)]
    count = len(texts)
    if not arrays["phase"].any():
        texts = [np.concatenate(texts)]
    windows = [
        rows[start : start + WINDOW]
        for rows in texts
        for start in range(0, max(1, len(rows) - WINDOW + 1), WINDOW)
    ]
    sequences = [_sequence(arrays, rows, header.num_experts) for rows in windows[:WINDOWS]]
    return Texts(sequences, count, header.num_experts, header.top_k)


def _sequence(
    arrays: Mapping[str, np.ndarray], rows: np.ndarray, num_experts: int
) -> RoutedSequence:
    whole = len(rows) == WINDOW
    prompt = WINDOW // 2 if whole else int((arrays["phase"][rows] == 0).sum())
    ids_TLK, scores_TLE = arrays["ids"][rows].astype(np.int64), None
    if "top_scores" in arrays:
        scores_TLE = np.zeros((*ids_TLK.shape[:2], num_experts))
        np.put_along_axis(scores_TLE, ids_TLK, arrays["top_scores"][rows].astype(float), axis=2)
    return RoutedSequence(ids_TLK, prompt, scores_TLE)


def _random(like: Texts) -> Texts:
    """Return random routing (fixed seed) of as many tokens to equally weighted experts."""
    random = np.random.default_rng(0)
    sequences = []
    for window in like.windows:
        drawn = random.random((len(window.ids_TLK), RANDOM_LAYERS, like.num_experts))
        ids_TLK = np.argsort(drawn, axis=2)[:, :, : like.top_k]
        sequences.append(RoutedSequence(ids_TLK, window.prefill, np.ones_like(drawn)))
    return replace(like, windows=sequences)


#: As many whole windows as a scale model has; only their lengths are used.
_WHOLE = [RoutedSequence(np.zeros((WINDOW, 1, 1), int), WINDOW // 2)] * WINDOWS


def _of_texts(texts: Texts) -> dict[str, float]:
    """Return the statistics of single texts (`WITHIN`) that the texts' routing determines."""
    found = summary(texts.windows, texts.num_experts)
    # Recorded prompts are short, so the two halves of a text are compared, as for scale models.
    halves = [replace(w, prefill=len(w.ids_TLK) // 2) for w in texts.windows]
    found["prefill_decode_similarity"] = prefill_decode_similarity(halves, texts.num_experts)
    values = {key: value_at(found, key) for key in WITHIN}
    return {key: value for key, value in values.items() if value is not None}


def _over_all(recordings: Mapping[str, Texts]) -> dict[str, dict[str, float]]:
    """Return `OVER_ALL` statistics of each recording with several texts, and of all together."""
    several = {name: texts for name, texts in recordings.items() if texts.count > 1}
    if len(recordings) > 1:
        every = [window for texts in recordings.values() for window in texts.windows]
        first = next(iter(recordings.values()))
        several["all together"] = replace(first, windows=every)
    return {
        name: _popularity(popularity(texts.windows, texts.num_experts))
        | {SIMILARITY: sequence_similarity(texts.windows, texts.num_experts)}
        for name, texts in several.items()
    }


def _popularity(shares_LE: np.ndarray) -> dict[str, float]:
    found = concentration(shares_LE)
    return {f"popularity.{name}": float(found[name].mean()) for name in ("gini", "max_over_mean")}


def _of_totals(folder: Path, noise: float) -> dict[str, dict[str, float]]:
    """Return `OVER_ALL` statistics of a file with token counts by expert for several domains.

    Args:
        noise: similarity of random windows, by which the similarity of these long texts is scaled.

    Raises InputError: the file is missing or has another format.
    """
    file = folder / "popularity.json"
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["entries"]
        counts = [np.array(entries[name]["counts"], float) for name in TOTALS]
        shares_NLE = np.stack([c / c.sum(1, keepdims=True) for c in counts])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: holds no totals of {', '.join(TOTALS)} ({error})") from error
    alike = {SIMILARITY: mean_cosine(shares_NLE) * noise}
    figures = {
        f"totals, {name}": _popularity(s) for name, s in zip(TOTALS, shares_NLE, strict=True)
    }
    return {**figures, "totals, mixed": _popularity(shares_NLE.mean(0)) | alike}


# ----------------------------------------------------------------------------- output


def show(measured: Measured) -> None:
    """Print a family's figures by statistic, and the ranges that follow."""
    headers = ["statistic", *measured.figures, "range"]
    lines = [
        [
            key,
            *(f"{f[key]:.3f}" if key in f else "-" for f in measured.figures.values()),
            f"{low:.3f}-{high:.3f}",
        ]
        for key, (low, high) in measured.ranges.items()
    ]
    console.table(", ".join(measured.family.models), headers, lines)


def differences(found: Sequence[Measured]) -> list[str]:
    """Return the differences between the target file and the measured ranges, one line each."""
    shipped = {evidence.models: evidence for evidence in read_routing(ROUTING).measured}
    lines = []
    for measured in found:
        new, old = measured.evidence, shipped.pop(measured.evidence.models, None)
        name = ", ".join(new.models)
        if old is None or old.source != new.source:
            lines.append(f"{name}: measured on other recordings than the file says")
        was = old.ranges if old else {}
        for key in new.ranges.keys() | was.keys():
            if not _same(new.ranges.get(key), was.get(key)):
                lines.append(
                    f"{name}: {key} is {new.ranges.get(key)}, the file says {was.get(key)}"
                )
    lines += [f"{', '.join(models)}: in the file, not measured" for models in shipped]
    return sorted(lines)


def _same(new: tuple[float, float] | None, old: tuple[float, float] | None) -> bool:
    if new is None or old is None:
        return new is old
    return all(abs(a - b) < 1.5 * 10**-DECIMALS for a, b in zip(new, old, strict=True))


def write(found: Sequence[Measured]) -> None:
    """Write the measured ranges into the target file, after its hand-written part."""
    by_hand, heading, _ = ROUTING.read_text(encoding="utf-8").partition("\nmeasured:")
    entries = [m.evidence.model_dump(mode="json") for m in found]
    text = yaml.safe_dump(entries, sort_keys=False, default_flow_style=None, width=96)
    ROUTING.write_text(f"{by_hand}{heading}\n{text}", encoding="utf-8")
