"""EdgeMoE: one precision per expert, preloading by activation paths, eviction by use over distance.

"EdgeMoE: Fast On-Device Inference of MoE-based Large Language Models" (R. Yi et al., arXiv
2308.14352v2, IEEE TMC 2025).  Experts are on the disk; the device has one buffer for the experts of
all layers.  Each expert has one precision, chosen once so that the model's loss stays within a
tolerance.  Likely experts of the next layer are preloaded while a layer computes.  The authors'
code was not read.

    paper                                              moebench
    ─────                                              ────────
    E_n, the experts chosen in MoE layer n             a sorted tuple of ids
    P(E_n = i | E_{n-2}, E_{n-1}), offline, by counts  `PathTable`, ``prefetch.before``
    preloading in descending order of P                ActivationPaths, ``speculative``
    expert buffer, 10 experts                          slots of all layers, ``buffer``
    S, the number of MoE layers; I, the current one    ``len(shape.moe_layers)``, ``layer``
    f_ij, activations of expert j of layer i           ``uses``
    L = -f_ij / ((S - i + I) mod S)                    `eviction_loss`, ``evict.distance=printed``
    INT2, INT4, INT8, FP32; a scale for each channel   `FORMS`: ``row-int2``, ``row-int4``, ``int8``
    P, the tolerated loss of accuracy: 2 %             ``place.tolerance``
    loss of "expert e at INT2, all others INT4"        ``extra`` in `widths_within`
    K, the number of experts at the lower width        ``k`` in `widths_within`

Search.  Of the uniform widths FULL, INT8, INT4 and INT2, two neighbours enclose the tolerance.  The
K least sensitive experts get the lower one, with the largest K whose loss is at most P.

Distance.  The paper's text lets rarely used experts and layers farther away leave first.  Its
printed formula does the opposite with layers: the next layer has the largest denominator, and the
current layer has 0.  The default follows the text: d = (i - I) mod S, where 0 counts as S, and
L = -f / d; the largest L leaves.

Deviations and readings:

- The loss is the share of the calibration texts' tokens, as the model predicts each from those
  before it, that differ from those of the unrounded model.  The paper measures accuracy on a task.
- Form 0 is the precision in which the run stores weights, in the place of FP32.
- K is found by halving an interval: the paper does not state its step.
- Sensitivities are of INT2 among INT4, also where other widths enclose the tolerance.
- An expert with equal sensitivity is lowered first if its layer, then its id is lower.
- The texts hold ``place.tokens`` tokens, and ``place.measured`` can leave out often used experts.
- The scale of INT8 is bf16 and its rounding that of ``--expert-dtype int8``; the size is the same.
- Dequantising takes no time of its own on the device (the paper: 2.7 % of the time of a read).
- A slot has room for the largest record, and so has the host memory behind it.
- The buffer is all slots that fit into the bytes that a run offers; the paper's is ``buffer=10``.
- Decoding begins with the most used experts of the calibration texts; the paper states this of
  models with an encoder alone.
- The first MoE layers use shorter keys: the first one the experts' own frequencies.
- A key of several experts a layer is a sorted tuple, and an unseen key preloads nothing.
- P of several chosen experts is a share of all choices, so it sums to 1.
- The table counts all tokens of the texts.  The paper names no number of texts.
- Several rows, in another system: the highest probability of any row counts.
- Prefill loads on demand: the paper says that its ideas do not apply to it.
- f counts the passes of the run that use an expert, and does not age.
- Of equal L the one with the larger denominator leaves, then the one with the lower key.  With the
  printed formula experts of the current layer, denominator 0, leave last.
- Several records are read from the disk at once; ``parallel_reads=false`` reads one at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import Form, ModelShape
from moebench.substrate.terms import Ids, Learnt, Losses, Phase, RoutedSequence
from moebench.systems.learn.artefacts import Artefact, content_hash, kept
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.place import PlacePopular
from moebench.systems.policies.route import ExactRouting

#: The widths of records, as indices into `FORMS`.
FULL, INT8, INT4, INT2 = 0, 1, 2, 3
FORMS = (
    Form(), Form("int8", dtype="int8"), Form("int4", dtype="row-int4"),
    Form("int2", dtype="row-int2"),
)  # fmt: skip

Width = Literal["search", "int8", "int4", "int2"]

# ----------------------------------------------------------------------------- one width each


def widths_within(
    tolerance: float, loss: Callable[[Sequence[int]], float], experts: int,
    candidates: Sequence[int],
) -> list[int]:  # fmt: skip
    """Return the width of each expert, with a loss of at most ``tolerance``.

    Args:
        tolerance: P, in percent.
        loss: returns the loss of the widths of all experts, in percent; 0 if all are FULL.
        candidates: the experts that may get the lower of the two widths which enclose P.
    """
    lower = next((width for width in (INT8, INT4, INT2) if loss([width] * experts) > tolerance), 0)
    if not lower:
        return [INT2] * experts

    def lowered(chosen: Sequence[int], low: int, others: int) -> list[int]:
        widths = [others] * experts
        for expert in chosen:
            widths[expert] = low
        return widths

    extra = {expert: loss(lowered([expert], INT2, INT4)) for expert in candidates}
    order = sorted(candidates, key=lambda expert: (extra[expert], expert))
    k, above = 0, len(order) + 1
    while above - k > 1:
        middle = (k + above) // 2
        if loss(lowered(order[:middle], lower, lower - 1)) <= tolerance:
            k = middle
        else:
            above = middle
    return lowered(order[:k], lower, lower - 1)


@dataclass(kw_only=True)
class OneWidthEach(PlacePopular):
    """Stores each expert at one width, and starts with the most used experts.

    Attributes:
        tolerance: P, the largest loss in percent.
        width: ``search`` chooses by ``tolerance``; else the width of all experts.
        tokens: most tokens of the texts on which losses are measured.
        measured: how many experts may get the lower width, the least used ones; 0 is all.
    """

    tolerance: float = option(2.0, low=0, high=100, searched=(0.1, 10), scale="log")
    width: Width = option("search", searched=True)
    tokens: int = option(1024, low=1)
    measured: int = option(0, low=0)

    quick: ClassVar[Mapping[str, str]] = {"tokens": "64", "measured": "24"}
    without_losses = "width=int4"
    own_forms = FORMS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._forms_LE: Ids | None = None
        self._note: Mapping[str, str] = {}

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether texts are needed: to count uses, or to measure losses."""
        return not self.popularity or self.width == "search"

    @property
    def learns_from(self) -> frozenset[Learnt]:  # type: ignore[override]
        """Losses of rounded experts, unless the width is given."""
        return frozenset({"loss"}) if self.width == "search" else frozenset()

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of tokens counted, and of experts at each width, with their loss."""
        return {**super().learnt, **self._note}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Count how often each expert is used, unless ``popularity`` was given."""
        if not self.popularity:
            super().calibrate(sequences, shape, artefacts, progress)

    def measure(
        self, losses: Losses, shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Search the widths, or load those that an earlier search found."""
        places = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        uses, done = self.counts(shape), 0
        rarest = sorted(range(len(places)), key=lambda n: (uses[places[n][0]][places[n][1]], n))
        candidates = sorted(rarest[: self.measured or None])

        def forms_of(widths: Sequence[int]) -> Ids:
            forms_LE = np.zeros((shape.num_layers, shape.num_experts), dtype=np.int64)
            forms_LE[tuple(zip(*places, strict=True))] = widths
            return forms_LE

        def loss(widths: Sequence[int]) -> float:
            nonlocal done
            done += 1
            progress(min(done, len(candidates)), len(candidates))
            return losses.of(forms_of(widths), self.tokens)

        def search() -> Artefact:
            widths = widths_within(self.tolerance, loss, len(places), candidates)
            lost = loss(widths)
            named = {form.name: widths.count(n) for n, form in enumerate(FORMS)}
            counts = ", ".join(f"{count} {name}" for name, count in named.items() if count)
            return Artefact(
                {"forms": forms_of(widths)}, {"widths": counts, "loss": f"{lost:.3g} %"}
            )

        known = [losses.identity, self.tolerance, self.tokens, candidates]
        found = kept(artefacts / f"widths-{content_hash(known)}.safetensors", search)
        self._forms_LE, self._note = found.arrays["forms"], found.note

    def chosen_forms(self, shape: ModelShape) -> Ids:
        """Return the width of each expert ``[layers, E]``; before a search, FULL for all."""
        if self._forms_LE is not None:
            return self._forms_LE
        widths = {form.name: n for n, form in enumerate(FORMS)}
        width = widths.get(self.width, FULL)
        return np.full((shape.num_layers, shape.num_experts), width, dtype=np.int64)


# ----------------------------------------------------------------------------- preloading

#: The row of an MoE layer, and the experts chosen in the MoE layers before it.
Key = tuple[int, tuple[tuple[int, ...], ...]]


class PathTable:
    """How often each expert followed the experts chosen in the ``before`` MoE layers before."""

    def __init__(self, before: int) -> None:
        self.before = before
        self.counts: dict[Key, Counter[int]] = {}

    def key(self, row: int, history: Sequence[Ids | Sequence[int]]) -> Key:
        """Return the key of an MoE layer, by the experts ``[K]`` of all MoE layers before it."""
        last = history[max(0, row - self.before) : row]
        return row, tuple(tuple(sorted(map(int, ids))) for ids in last)

    def add(self, ids_LK: Ids) -> None:
        """Count the path of one token."""
        for row, chosen in enumerate(ids_LK):
            self.counts.setdefault(self.key(row, [*ids_LK]), Counter()).update(map(int, chosen))

    def probabilities(self, key: Key) -> dict[int, float]:
        """Return P of each expert that followed, in descending order, ties by id."""
        counts = self.counts.get(key, Counter[int]())
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return {expert: count / counts.total() for expert, count in ranked}


@dataclass(kw_only=True)
class ActivationPaths(Prefetching):
    """Preloads the next layer's experts in descending probability, until its gate is known.

    Attributes:
        before: how many MoE layers before are in a key.
        experts: most experts of a layer; 0 is all that followed the key.
    """

    before: int = option(2, low=1, searched=(1, 4))
    experts: int = option(0, low=0, searched=(1, 16), scale="log")

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 64  # pairs of choices need more texts than a frequency
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._table = PathTable(self.before)
        self._size = (0, 0)
        self._note: Mapping[str, str] = {}

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of keys, and the share of the last text's keys that other texts have."""
        return self._note

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Count the paths of all tokens."""
        table = self._table = PathTable(self.before)
        self._size = (len(shape.moe_layers), shape.num_experts)
        for text in sequences[:-1]:
            for ids_LK in text.ids_TLK:
                table.add(ids_LK)
        last_TLK, rows = sequences[-1].ids_TLK, range(len(shape.moe_layers))
        seen = [table.key(row, [*ids_LK]) in table.counts for ids_LK in last_TLK for row in rows]
        for ids_LK in last_TLK:
            table.add(ids_LK)
        share = sum(seen) / max(len(seen), 1)
        self._note = {"keys": str(len(table.counts)), "known": f"{share:.1%} of another text's"}

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Refuse a table of another model; without one nothing is preloaded."""
        if self._table.counts:
            require_learnt_for("prefetch=activation-paths was learnt for", shape, self._size)

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return the first MoE layer's experts by frequency, in decode."""
        return () if phase == "prefill" else self._fetches(layer, [self._table.key(0, ())])

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the next layer's experts by the paths of all rows; none in prefill."""
        if view.phase == "prefill" or view.next_layer is None:
            return ()
        row, history = view.shape.moe_rows[view.next_layer], view.forward.history
        paths = [[ids_TK[t] for ids_TK in history] for t in range(view.forward.rows)]
        return self._fetches(view.next_layer, [self._table.key(row, path) for path in paths])

    def _fetches(self, layer: int, keys: Iterable[Key]) -> list[Fetch]:
        best: dict[int, float] = {}
        for key in keys:
            for expert, p in self._table.probabilities(key).items():
                best[expert] = max(p, best.get(expert, 0.0))
        ranked = sorted(best, key=lambda expert: (-best[expert], expert))
        return fetches(layer, ranked[: self.experts or None])


# ----------------------------------------------------------------------------- eviction


def denominators(
    i: np.ndarray, layer: int, layers: int, distance: Literal["text", "printed"]
) -> np.ndarray:
    """Return the denominator of L of experts in MoE layers ``i``: far layers have a large one.

    Args:
        layer: I, the current MoE layer.
        layers: S.
        distance: by the paper's text, or as its formula is printed, where it can be 0.
    """
    if distance == "printed":
        return (layers - i + layer) % layers
    ahead = (i - layer) % layers
    return np.where(ahead == 0, layers, ahead)


def eviction_loss(uses: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return L = -f / denominator of experts, -inf where it is 0; the largest leaves."""
    found = np.full(len(uses), -np.inf)
    np.divide(-uses, denominator, out=found, where=denominator > 0)
    return found


@dataclass(kw_only=True)
class FrequencyOverDistance(Eviction):
    """Evicts the expert with the largest L, -f over the distance of its layer.

    Attributes:
        distance: ``text``: layers that come later leave first, as the paper's text says;
            ``printed``: the paper's formula, by which the next layer leaves first.
    """

    distance: Literal["text", "printed"] = "text"

    takes_forms = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without uses, before the first layer."""
        self._experts, self._layers = shape.num_experts, shape.num_layers
        self._rows = np.zeros(shape.num_layers, dtype=np.int64)
        self._rows[[*shape.moe_layers]] = range(len(shape.moe_layers))
        self._moe_layers = len(shape.moe_layers)
        self._current = self._moe_layers - 1
        self._uses = np.zeros(shape.num_layers * shape.num_experts, dtype=np.int64)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count the uses of experts, in whatever form; the layer is the current one."""
        layer %= self._layers
        self._current = int(self._rows[layer])
        self._uses[[layer * self._experts + expert for expert in experts]] += 1

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the largest L; of equal ones, that with the most distance."""
        keys = allowed.nonzero()[0]
        if not len(keys):
            return None
        at = keys % len(self._uses)
        i = self._rows[at // self._experts]
        far = denominators(i, self._current, self._moe_layers, self.distance)
        return int(keys[np.lexsort((keys, -far, -eviction_loss(self._uses[at], far)))[0]])


@dataclass(kw_only=True)
class EdgeMoE(System):
    """EdgeMoE with the paper's policies for its decisions, for one request at a time.

    Attributes:
        buffer: most experts on the device (10 in the paper); None is all that fit.
    """

    paper = "arXiv 2308.14352"
    max_batch = 1

    place: Placement = field(default_factory=OneWidthEach)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=ActivationPaths)
    evict: Eviction = field(default_factory=FrequencyOverDistance)
    buffer: int | None = option(None, low=1, searched=(2, 1024), scale="log")

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the size of the buffer; None is all that fit."""
        return self.buffer

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note on models whose paths rarely repeat."""
        if shape.top_k <= 2 or not isinstance(self.prefetch, ActivationPaths):
            return ()
        return (
            f"a token chooses {shape.top_k} of {shape.num_experts} experts a layer: few paths "
            "occur twice, and an unseen path preloads nothing (EdgeMoE's models choose one)",
        )
