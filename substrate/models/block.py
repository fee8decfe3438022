"""The routed experts of one layer: inputs, outputs and weighted sum, after the gate has chosen.

A *place* is one (row, rank) pair: a token and one of its chosen experts, as a flat index.  Shape
letters: T rows (all tokens of this pass), K chosen experts of each, H hidden.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from moebench.substrate.errors import IntegrityError
from moebench.substrate.models.device import Device
from moebench.substrate.models.fused import grouped_swiglu
from moebench.substrate.models.rows import Values

#: Returns an expert's output ``[n, H]`` for its input rows ``[n, H]``.
Compute = Callable[[int, Tensor], Tensor]


def places_of(ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the places that each active expert fills, by ascending expert.

    Args:
        ids: the expert of each place, or -1.
    """
    places: dict[int, list[int]] = {expert: [] for expert in sorted({*ids})}
    for place, expert in enumerate(ids):
        places[expert].append(place)
    places.pop(-1, None)
    return places


def _read(
    state: Values, rows: list[int] | Tensor, places: list[int] | Tensor, weights: Values | None
) -> Tensor:
    """Return the expert inputs ``[n, H]`` of some places, multiplied by input weights if any."""
    read = torch.as_tensor(state)[rows]
    if weights is None:
        return read
    return read * torch.as_tensor(weights).view(-1, 1)[places].to(read.dtype)


@dataclass(slots=True)
class Block:
    """Inputs, weights and outputs of one layer's experts, kept until all outputs are summed.

    Attributes:
        device: where the sum is computed.
        state: the rows that experts read ``[T, H]``.
        on_host: a copy of ``state`` in host memory, if experts are computed there.
        weights: of each place ``[T, K]``.
        ids: the expert of each place, or -1.
        places: the places that each active expert fills.
        outputs: of each place ``[T·K, H]``.
        together: all outputs were computed in one product.
        input_weights: factors of the experts' inputs ``[T, K]``, if the model has them.
        done: experts whose outputs are known.
        deferred: active experts whose outputs the next layer adds.
    """

    layer: int
    device: Device
    state: Values
    on_host: Values | None
    weights: Values
    ids: list[int]
    places: dict[int, list[int]]
    outputs: Values
    together: bool
    input_weights: Values | None = None
    done: set[int] = field(default_factory=set)
    deferred: frozenset[int] = frozenset()

    def compute(self, experts: Collection[int], compute: Compute, alone: bool = False) -> None:
        """Compute the outputs of some experts on the device; ``alone``: each by its own product."""
        if alone or not self.together:
            index, top_k = self.device.index, self.weights.shape[1]
            for expert in experts:
                places = self.places[expert]
                rows = index([p // top_k for p in places])
                read = _read(self.state, rows, index(places), self.input_weights)
                self.outputs[index(places)] = compute(expert, read)
        self.done.update(experts)

    def compute_on_host(
        self, experts: Collection[int], compute: Compute, alone: bool = False
    ) -> None:
        """Compute the outputs of some experts in host memory and copy them to the device."""
        if alone or not self.together:
            device, top_k, weights = self.device, self.weights.shape[1], self.input_weights
            assert self.on_host is not None, "no expert was to be computed on the host"
            if weights is not None:
                (weights,) = device.read(weights)
            for expert in experts:
                places = self.places[expert]
                rows = [p // top_k for p in places]
                out = compute(expert, _read(self.on_host, rows, places, weights))
                self.outputs[device.index(places)] = device.put(out)
        self.done.update(experts)

    def compute_stacked(self, experts: Sequence[int], gate_up: Tensor, down: Tensor) -> None:
        """Compute some experts in one grouped product on a CPU; matrices are in their order."""
        top_k, filled = self.weights.shape[1], [self.places[expert] for expert in experts]
        places = torch.tensor(list(chain.from_iterable(filled)))
        ends = torch.tensor(list(accumulate(map(len, filled))), dtype=torch.int32)
        read = _read(self.state, places // top_k, places, self.input_weights)
        self.outputs[places] = grouped_swiglu(read, gate_up, down, ends)
        self.done.update(experts)

    def take(self, outputs: Mapping[int, Tensor]) -> None:
        """Store expert outputs that were computed before the layer was dispatched."""
        for expert, out in outputs.items():
            self.outputs[self.device.index(self.places[expert])] = self.device.put(out)
        self.done.update(outputs)

    def weights_now(self) -> Values:
        """Return the weights ``[T, K]`` of this layer's sum, 0 for deferred experts.

        Raises IntegrityError: an expert of the sum was never computed.
        """
        self._check(self.places.keys() - self.deferred)
        if not self.deferred:
            return self.weights
        return torch.as_tensor(self.weights).masked_fill(self.filled_by(self.deferred), 0)

    def late_sum(self) -> Tensor:
        """Return the weighted sum ``[T, H]`` of the deferred experts' outputs.

        Raises IntegrityError: a deferred expert was never computed.
        """
        self._check(self.deferred)
        outputs_TKH = torch.as_tensor(self.outputs).view(*self.weights.shape, -1)
        late = torch.as_tensor(self.weights) * self.filled_by(self.deferred)
        return torch.bmm(late.to(outputs_TKH.dtype)[:, None], outputs_TKH).squeeze(1)

    def filled_by(self, experts: Collection[int]) -> Tensor:
        """Return a boolean mask ``[T, K]`` of the places that some experts fill."""
        chosen = set(experts)
        filled = torch.tensor([e in chosen for e in self.ids])
        return self.device.put(filled).view(self.weights.shape)

    def _check(self, experts: Collection[int]) -> None:
        if missing := sorted({*experts} - self.done):
            raise IntegrityError(f"layer {self.layer}: {missing} experts were never computed")


class RoutedAhead(NamedTuple):
    """Gate results of a layer that was routed one layer early, and its first host outputs.

    Attributes:
        on_host: the state ``[T, H]`` that it was routed by, in host memory.
        places: the places that each active expert fills.
        outputs: of experts that are computed already, in host memory.
        input_weights: as in `Block`, in host memory.
    """

    on_host: Values | None
    logits: Values
    scores: Values
    places: dict[int, list[int]]
    outputs: dict[int, Tensor]
    input_weights: Values | None = None

    def compute(self, experts: Collection[int], top_k: int, compute: Compute) -> None:
        """Compute some experts on the host, before the layer is dispatched."""
        assert self.on_host is not None, "no expert was to be computed on the host"
        for expert in experts:
            places = self.places[expert]
            rows = [place // top_k for place in places]
            read = _read(self.on_host, rows, places, self.input_weights)
            self.outputs[expert] = compute(expert, read)
