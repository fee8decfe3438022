"""A layer's routed experts on their way from the gate's choice to the layer's sum.

Shape letters: T rows (all tokens of this pass), K chosen experts of each, H hidden.
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
from moebench.substrate.terms import Ids

#: An expert's output ``[n, H]`` on so many rows ``[n, H]``.
Compute = Callable[[int, Tensor], Tensor]


def places_of(ids_TK: Ids) -> dict[int, list[int]]:
    """For each active expert, ascending, the flat (row, rank) places that it fills."""
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(ids_TK.ravel().tolist()):
        places.setdefault(expert, []).append(place)
    places.pop(-1, None)
    return dict(sorted(places.items()))


def _read(
    state: Tensor, rows: list[int] | Tensor, places: list[int] | Tensor, weights: Tensor | None
) -> Tensor:
    """What the experts of some places read ``[n, H]``: their rows, weighed if their weights are."""
    read = state[rows]
    return read if weights is None else read * weights.view(-1, 1)[places].to(read.dtype)


@dataclass(slots=True)
class Block:
    """One layer's experts.  Some may be computed while later layers are: it keeps what they read.

    Attributes:
        device: where it is computed.
        state: the rows that experts read ``[T, H]``.
        on_host: the same in host memory, if experts are computed there.
        weights: of each (row, rank) place ``[T, K]``.
        ids: the expert of each place, or -1.
        places: those that each active expert fills.
        outputs: of each place ``[T·K, H]``.
        together: these were computed in one product.
        input_weights: by what each place's expert multiplies what it reads ``[T, K]``, if it does.
        done: experts whose outputs are there.
        deferred: of the active experts, those that the next layer adds.
    """

    layer: int
    device: Device
    state: Tensor
    on_host: Tensor | None
    weights: Tensor
    ids: list[int]
    places: dict[int, list[int]]
    outputs: Tensor
    together: bool
    input_weights: Tensor | None = None
    done: set[int] = field(default_factory=set)
    deferred: frozenset[int] = frozenset()

    def compute(self, experts: Collection[int], compute: Compute) -> None:
        """Fill these experts' places."""
        if not self.together:
            index, top_k = self.device.index, self.weights.shape[1]
            for expert in experts:
                places = self.places[expert]
                rows = index([p // top_k for p in places])
                read = _read(self.state, rows, index(places), self.input_weights)
                self.outputs[index(places)] = compute(expert, read)
        self.done.update(experts)

    def compute_on_host(self, experts: Collection[int], compute: Compute) -> None:
        """The same in host memory; the outputs are then copied to the device."""
        if not self.together:
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
        """The same in one grouped product on a CPU, with the experts' matrices in their order."""
        top_k, filled = self.weights.shape[1], [self.places[expert] for expert in experts]
        places = torch.tensor(list(chain.from_iterable(filled)))
        ends = torch.tensor(list(accumulate(map(len, filled))), dtype=torch.int32)
        read = _read(self.state, places // top_k, places, self.input_weights)
        self.outputs[places] = grouped_swiglu(read, gate_up, down, ends)
        self.done.update(experts)

    def take(self, outputs: Mapping[int, Tensor]) -> None:
        """Fill experts' places with what was computed before the layer was dispatched."""
        for expert, out in outputs.items():
            self.outputs[self.device.index(self.places[expert])] = self.device.put(out)
        self.done.update(outputs)

    def weights_now(self) -> Tensor:
        """Weights ``[T, K]`` of this layer's sum: what is deferred weighs nothing.

        Raises:
            IntegrityError: an expert of it was never computed.
        """
        self._check(self.places.keys() - self.deferred)
        if not self.deferred:
            return self.weights
        return self.weights.masked_fill(self.filled_by(self.deferred), 0)

    def late_sum(self) -> Tensor:
        """The weighted sum ``[T, H]`` of what was deferred.

        Raises:
            IntegrityError: an expert of it was never computed.
        """
        self._check(self.deferred)
        outputs_TKH = self.outputs.view(*self.weights.shape, -1)
        late = self.weights * self.filled_by(self.deferred)
        return torch.bmm(late.to(outputs_TKH.dtype)[:, None], outputs_TKH).squeeze(1)

    def filled_by(self, experts: Collection[int]) -> Tensor:
        """Which places some experts fill ``[T, K]``."""
        chosen = set(experts)
        filled = torch.tensor([e in chosen for e in self.ids])
        return self.device.put(filled).view(self.weights.shape)

    def _check(self, experts: Collection[int]) -> None:
        if missing := sorted({*experts} - self.done):
            raise IntegrityError(f"layer {self.layer}: {missing} experts were never computed")


class RoutedAhead(NamedTuple):
    """A layer that was routed early: with these logits and scores.

    Attributes:
        on_host: the state ``[T, H]`` by which it was, in host memory.
        places: those of its experts.
        outputs: of experts that are computed already, in host memory.
        input_weights: as of the `Block`, in host memory.
    """

    on_host: Tensor | None
    logits: Tensor
    scores: Tensor
    places: dict[int, list[int]]
    outputs: dict[int, Tensor]
    input_weights: Tensor | None = None

    def compute(self, experts: Collection[int], top_k: int, compute: Compute) -> None:
        """Compute some experts on the host, before the layer is dispatched."""
        assert self.on_host is not None, "no expert was to be computed on the host"
        for expert in experts:
            places = self.places[expert]
            rows = [place // top_k for place in places]
            read = _read(self.on_host, rows, places, self.input_weights)
            self.outputs[expert] = compute(expert, read)
