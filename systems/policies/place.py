"""Chooses the experts that are on the device when a run starts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moebench.substrate.engine.policies import Placement
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence


@dataclass(kw_only=True)
class PlaceById(Placement):
    """Places equally many experts of each layer, lowest ids first; the rest in the first layers."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Every layer's expert 0, then every layer's expert 1, ..."""
        order = ((layer, e) for e in range(shape.num_experts) for layer in shape.moe_layers)
        return [pair for pair, _ in zip(order, range(slots), strict=False)]


def experts_of(
    layers: Iterable[int], shape: ModelShape, scope: Scope = "global"
) -> list[tuple[int, int]]:
    """All experts of these layers, for placements of whole layers.

    Raises:
        UsageError: each layer has slots of its own.
    """
    if scope == "layer":
        raise UsageError(
            "this system places whole layers, which share the device's slots; allowed: "
            "--set scope=global"
        )
    return [(layer, e) for layer in layers for e in range(shape.num_experts)]


@dataclass(kw_only=True)
class PlaceLastIds(Placement):
    """Places the same number of each layer, the highest ids (Mixtral-Offloading's demo).

    Slots that are left over, fewer than one a layer, stay empty.
    """

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Layer by layer, ids ascending."""
        each = min(slots // len(shape.moe_layers), shape.num_experts)
        return last_ids(shape, [each] * len(shape.moe_layers))


def last_ids(shape: ModelShape, counts: Sequence[int]) -> list[tuple[int, int]]:
    """So many of each MoE layer, the highest ids, ascending."""
    return [
        (layer, expert)
        for layer, count in zip(shape.moe_layers, counts, strict=True)
        for expert in range(shape.num_experts - count, shape.num_experts)
    ]


@dataclass(kw_only=True)
class PlaceByFirstLayers(Placement):
    """Places all experts of the first layer, then of the second, and so on (kTransformers).

    Where layers do not share slots, that is the same number of each.
    """

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """By layer, then by id."""
        order = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        return _as_far_as_there_is_room(order, shape, slots, scope)


@dataclass(kw_only=True)
class PlaceAtRandom(Placement):
    """Places experts that are drawn from those of all layers (kTransformers).

    Attributes:
        seed: of the draw.
    """

    seed: int = 42

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """The first ones of a random order."""
        pairs = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        order = np.random.default_rng(self.seed).permutation(len(pairs))
        return _as_far_as_there_is_room([pairs[i] for i in order], shape, slots, scope)


def _as_far_as_there_is_room(
    order: Sequence[tuple[int, int]], shape: ModelShape, slots: int, scope: Scope
) -> list[tuple[int, int]]:
    """The first pairs of an order; where layers do not share slots, equally many of each.

    Of slots that are left over, the first layers get one.
    """
    slots = max(slots, 0)
    if scope == "global":
        return list(order[:slots])
    each, rest = divmod(slots, len(shape.moe_layers))
    room = {layer: each + (row < rest) for layer, row in shape.moe_rows.items()}
    placed = []
    for layer, expert in order:
        if room[layer] > 0:
            room[layer] -= 1
            placed.append((layer, expert))
    return placed


@dataclass(kw_only=True)
class PlaceByPopularity(Placement):
    """Base of placements that count how often each expert is used.

    Attributes:
        popularity: how often each expert was used, ``[layer][expert]`` over all layers (dense
            layers' rows are ignored), in place of calibration.
    """

    popularity: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        self._counts = self.popularity
        self._tokens = 0

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Unless popularity was given."""
        return not self.popularity

    @property
    def learnt(self) -> Mapping[str, str]:
        """How many tokens were counted."""
        return {"tokens": str(self._tokens)} if self._tokens else {}

    def calibrate(
        self,
        sequences: Sequence[RoutedSequence],
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Count the experts that the texts use."""
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
        """The part of a text that counts: all of it."""
        return text.ids_TLK

    def counts(self, shape: ModelShape) -> Sequence[Sequence[float]]:
        """Uses as ``[layer][expert]``.

        Raises:
            UsageError: there are none, or they have not one row a layer.
        """
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
        equal_layers: the same number of experts in each layer, instead of the globally best.
    """

    equal_layers: bool = False

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Most popular first, within each layer or over all."""
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
    """Places no expert: common weights alone are loaded (FlashMoE §3.1, DuoServe-MoE §5)."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """No expert."""
        return ()
