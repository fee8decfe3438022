"""Where experts start."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moebench.substrate.engine.system import Placement
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape


@dataclass(kw_only=True)
class PlaceById(Placement):
    """The same number of experts in each layer, lowest ids first; the rest to the first layers."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Every layer's expert 0, then every layer's expert 1, ..."""
        order = ((layer, e) for e in range(shape.num_experts) for layer in shape.moe_layers)
        return [pair for pair, _ in zip(order, range(slots), strict=False)]


@dataclass(kw_only=True)
class PlacePopular(Placement):
    """The most popular experts of a calibration run, ties by layer and id (Fiddler §3.2).

    Attributes:
        popularity: how often each expert was used, ``[layer][expert]`` over all layers; dense
            layers' rows are ignored.  Without any, all are equally popular.
        equal_layers: the same number of experts in each layer, instead of the globally best.
    """

    popularity: Sequence[Sequence[float]] = ()
    equal_layers: bool = False

    def counts(self, shape: ModelShape) -> Sequence[Sequence[float]]:
        """``popularity`` as ``[layer][expert]``.

        Raises:
            UsageError: it has not one row of counts a layer.
        """
        count = self.popularity or [[0.0] * shape.num_experts] * shape.num_layers
        if [len(row) for row in count] != [shape.num_experts] * shape.num_layers:
            raise UsageError(
                f"place.popularity needs {shape.num_layers} rows of {shape.num_experts} counts, "
                "one row a layer; give it as JSON: --set 'place.popularity=[[3, 1, ...], ...]'"
            )
        return count

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
