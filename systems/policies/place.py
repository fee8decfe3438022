"""Placement policies: choose the experts that are on the device when a run starts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Placement
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence


@dataclass(kw_only=True)
class PlaceById(Placement):
    """Places equally many experts of each layer, lowest ids first; the rest in the first layers."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return expert 0 of every layer, then expert 1, and so on, up to the number of slots."""
        order = ((layer, e) for e in range(shape.num_experts) for layer in shape.moe_layers)
        return [pair for pair, _ in zip(order, range(slots), strict=False)]


def experts_of(
    layers: Iterable[int], shape: ModelShape, scope: Scope = "global"
) -> list[tuple[int, int]]:
    """Return all experts of whole layers as (layer, expert); refuse layers with own slots."""
    if scope == "layer":
        raise UsageError(
            "this system places whole layers, which share the device's slots; allowed: "
            "--set scope=global"
        )
    return [(layer, e) for layer in layers for e in range(shape.num_experts)]


@dataclass(kw_only=True)
class PlaceLastIds(Placement):
    """Places the highest ids of each layer (Mixtral-Offloading's demo).

    Attributes:
        equal_layers: place equally many experts of each layer: remaining slots, fewer than one per
            layer, stay empty.  Otherwise the first layers get one of them each.
    """

    equal_layers: bool = option(False, searched=True)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the highest ids of each layer, layer by layer, in ascending order."""
        layers = len(shape.moe_layers)
        each, rest = divmod(min(max(slots, 0), layers * shape.num_experts), layers)
        if self.equal_layers:
            rest = 0
        return last_ids(shape, [each + (row < rest) for row in range(layers)])


def last_ids(shape: ModelShape, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ``counts[l]`` highest expert ids of each MoE layer, in ascending order."""
    return [
        (layer, expert)
        for layer, count in zip(shape.moe_layers, counts, strict=True)
        for expert in range(shape.num_experts - count, shape.num_experts)
    ]


@dataclass(kw_only=True)
class PlaceByFirstLayers(Placement):
    """Places all experts of the first layer, then of the second, and so on (kTransformers).

    Where layers do not share slots, each layer gets the same number.
    """

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the first pairs (layer, expert) that fit, ordered by layer, then by id."""
        order = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        return _as_far_as_there_is_room(order, shape, slots, scope)


@dataclass(kw_only=True)
class PlaceAtRandom(Placement):
    """Places experts drawn at random from all layers (kTransformers)."""

    seed: int = option(42, low=0)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the first pairs (layer, expert) of a random order that fit."""
        pairs = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        order = np.random.default_rng(self.seed).permutation(len(pairs))
        return _as_far_as_there_is_room([pairs[i] for i in order], shape, slots, scope)


def room_of_layers(shape: ModelShape, slots: int) -> list[int]:
    """Return equal parts of the slots for the MoE layers; the first layers get the rest."""
    each, rest = divmod(slots, len(shape.moe_layers))
    return [each + (row < rest) for row in range(len(shape.moe_layers))]


def _as_far_as_there_is_room(
    order: Sequence[tuple[int, int]], shape: ModelShape, slots: int, scope: Scope
) -> list[tuple[int, int]]:
    """Return the first pairs of an order that fit; without shared slots, equally many per layer.

    Remaining slots go to the first layers, one each.
    """
    slots = max(slots, 0)
    if scope == "global":
        return list(order[:slots])
    room = dict(zip(shape.moe_layers, room_of_layers(shape, slots), strict=True))
    placed = []
    for layer, expert in order:
        if room[layer] > 0:
            room[layer] -= 1
            placed.append((layer, expert))
    return placed


@dataclass(kw_only=True)
class PlaceByPopularity(Placement):
    """Base of placements that count how often each expert is used.

    ``popularity`` has the uses as ``[layer][expert]`` over all layers, in place of calibration;
    rows of dense layers are ignored.
    """

    popularity: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = self.popularity
        self._tokens = 0

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether texts must be counted: true unless ``popularity`` was given."""
        return not self.popularity

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of calibration tokens, for the run's provenance; empty without calibration."""
        return {"tokens": str(self._tokens)} if self._tokens else {}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Count how often each expert is used in the calibration texts."""
        counts_LE = np.zeros((shape.num_layers, shape.num_experts))
        self._tokens = 0
        for text in sequences:
            ids_TLK = self._counted(text)
            self._tokens += len(ids_TLK)
            for layer, row in shape.moe_rows.items():
                used = ids_TLK[:, row].ravel()
                counts_LE[layer] += np.bincount(used, minlength=shape.num_experts)
        self._counts = counts_LE.tolist()

    def _counted(self, text: RoutedSequence) -> np.ndarray:
        """Return the expert ids of a text that are counted: all of them."""
        return text.ids_TLK

    def counts(self, shape: ModelShape) -> Sequence[Sequence[float]]:
        """Return the uses of each expert as ``[layer][expert]``; refuse missing or wrong ones."""
        if not self._counts:
            raise UsageError(
                f"{type(self).__name__} places by popularity and knows none: calibrate it, or give "
                "counts as JSON: --set 'place.popularity=[[3, 1, ...], ...]'"
            )
        if [len(row) for row in self._counts] != [shape.num_experts] * shape.num_layers:
            raise UsageError(
                f"place.popularity needs {shape.num_layers} rows of {shape.num_experts} counts, "
                "one row a layer; give it as JSON: --set 'place.popularity=[[3, 1, ...], ...]'"
            )
        return self._counts


@dataclass(kw_only=True)
class PlacePopular(PlaceByPopularity):
    """Places the most used experts of a calibration run, ties by layer and id (Fiddler §3.2).

    Attributes:
        equal_layers: place the same number of experts in each layer, not the globally best.
    """

    equal_layers: bool = option(False, searched=True)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the most used experts first, ranked within each layer or over all layers."""
        count = self.counts(shape)
        ranked = [
            sorted((-count[layer][e], layer, e) for e in range(shape.num_experts))
            for layer in shape.moe_layers
        ]
        if self.equal_layers or scope == "layer":
            order = [entry for rank in zip(*ranked, strict=True) for entry in rank]
        else:
            order = sorted(entry for layer in ranked for entry in layer)
        return [(layer, e) for _, layer, e in order[: max(slots, 0)]]


@dataclass(kw_only=True)
class PlaceNothing(Placement):
    """Places no expert: only non-expert weights are loaded (FlashMoE §3.1, DuoServe-MoE §5)."""

    leaves_slots = True

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return no experts."""
        return ()
