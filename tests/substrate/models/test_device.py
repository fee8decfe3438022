"""The decoder on a device other than the CPU: devices of operands, and reads that wait.

The device is torch's ``meta``, whose tensors have shapes and no values: values that are read
without being told are an error.  So is an operation whose tensors are on two devices, or an index
from host memory, for which a card would be waited for.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.formats import unpack
from moebench.substrate.terms import Lookahead
from tests.substrate.models.checkpoints import EXPERTS, FAMILIES, make_checkpoint
from tests.substrate.models.driver import PROMPTS


class OneDevice(TorchDispatchMode):
    """Refuses operations whose tensors are on two devices; a number alone has none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        devices = {one.device for one in leaves if isinstance(one, Tensor) and one.dim()}
        assert len(devices) <= 1, f"{func} of tensors on {devices}"
        return func(*args, **(kwargs or {}))


class NoNumbers(TorchFunctionMode):
    """Refuses a list as an index of the device's tensors: torch would copy it there and wait."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device.type == "meta":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(one, list) for one in index), f"{func} by {index}"
        return func(*args, **(kwargs or {}))


class Card:
    """Fake GPU; ``reads`` holds the shape of each read-back."""

    def __init__(self) -> None:
        self.reads: list[list[tuple[int, ...]]] = []

    def put(self, values: Tensor) -> Tensor:
        return torch.empty(values.shape, dtype=values.dtype, device="meta")

    def index(self, places: list[int]) -> Tensor:
        return self.put(torch.tensor(places))

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return zeros of the tensor's shape, or distinct experts for a choice of experts."""
        assert {value.device.type for value in values} == {"meta"}
        self.reads.append([tuple(value.shape) for value in values])
        return tuple(
            (torch.arange(len(value))[:, None] + torch.arange(value.shape[1])) % EXPERTS
            if value.dtype == torch.int64 and value.dim() > 1
            else torch.zeros(value.shape, dtype=value.dtype)
            for value in values
        )


class Experts:
    """Expert records on the fake GPU and in host memory."""

    def __init__(self, shape, on_card: Tensor) -> None:
        self._shape, self._on_card = shape, on_card
        self._on_host = torch.zeros(shape.expert_params)

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, Tensor]:
        return unpack(self._shape, self._on_host if on_host else self._on_card)

    def stacked(self, layer: int, experts: Any) -> None:
        return None

    def all_of(self, layer: int) -> None:
        return None


@pytest.fixture(params=FAMILIES)
def checkpoint(request, tmp_path) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path, request.param))


def decoder_on(card: Card, checkpoint: Checkpoint) -> Decoder:
    shape = checkpoint.shape
    common = checkpoint.common(torch.float32)
    common = {name: card.put(tensor) for name, tensor in common.items()}
    experts = Experts(shape, torch.empty(shape.expert_params, device="meta"))
    return Decoder(shape, common, experts, device=card)


def test_every_verb_keeps_to_its_device_and_a_layer_reads_back_once(checkpoint) -> None:
    card, shape = Card(), checkpoint.shape
    decoder = decoder_on(card, checkpoint)
    with OneDevice(), NoNumbers(), torch.inference_mode():
        decoder.begin(PROMPTS, 3)
        for phase in ("prefill", "decode", "decode"):
            rows = decoder.embed(phase)
            for layer in range(shape.num_layers):
                card.reads.clear()
                decoder.attend(layer)
                if layer in shape.dense_layers:
                    decoder.dense(layer)
                    continue
                gate = decoder.gate(layer)
                active = list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK))
                decoder.compute(layer, active[1:])
                decoder.compute_on_host(layer, active[:1])
                if shape.shared_width:
                    decoder.shared(layer)
                decoder.combine(layer)
                e, k = shape.num_experts, shape.top_k
                on_host = [[(rows, k)]] if shape.weighs_input else []  # on the host's own stream
                assert card.reads == [
                    [(rows, e), (rows, k), (rows, shape.hidden_size)], *on_host
                ]  # fmt: skip
            card.reads.clear()
            assert decoder.head() == [0] * len(PROMPTS)
            assert len(card.reads) == 1
            assert decoder.history[-1].device.type == "cpu"


def test_predictions_and_states_are_read_back_by_its_device(checkpoint) -> None:
    card, shape = Card(), checkpoint.shape
    decoder = decoder_on(card, checkpoint)
    first = shape.moe_layers[0]
    with OneDevice(), NoNumbers(), torch.inference_mode():
        decoder.begin(PROMPTS[:1], 3)
        assert decoder.embedding().shape == (1, shape.hidden_size)
        decoder.embed("prefill")
        for layer in range(first + 1):
            decoder.attend(layer)
            if layer < first:
                decoder.dense(layer)
        gate = decoder.gate(first)
        active = list(decoder.dispatch(first, gate.ids_TK, gate.ids_TK))
        decoder.compute(first, active[:1])
        if shape.shared_width:
            decoder.shared(first)
        for lookahead in Lookahead:
            if lookahead not in (Lookahead.NONE, Lookahead.EXACT):
                scores = decoder.predict(first, first + 1, active[:1], lookahead)
                assert scores.shape == (len(PROMPTS[0]), shape.num_experts)
        decoder.route_ahead(first + 1, gate.ids_TK)
        decoder.compute_on_host(first + 1, active[:1], ahead=True)
        decoder.compute(first, active[2:])
        decoder.defer(first, active[1:2])
        decoder.combine(first)
        decoder.compute_on_host(first, active[1:2])
        assert decoder.hidden(first).shape == (len(PROMPTS[0]), shape.hidden_size)
        decoder.attend(first + 1)
        decoder.gate(first + 1)
        decoder.dispatch(first + 1, gate.ids_TK, gate.ids_TK)
        decoder.compute(first + 1, active[1:])
        if shape.shared_width:
            decoder.shared(first + 1)
        decoder.combine(first + 1)


def test_device_guards_detect_host_reads_and_mixed_devices() -> None:
    """Values read without being told, tensors of two devices, an index from host memory."""
    there = torch.empty(3, device="meta")
    with OneDevice(), NoNumbers():
        with pytest.raises(RuntimeError, match="meta"):
            there[0].item()
        with pytest.raises(AssertionError, match="of tensors on"):
            there + torch.zeros(3)
        with pytest.raises(AssertionError, match="of tensors on"):
            there[torch.tensor([0, 1])]
        with pytest.raises(AssertionError, match="by"):
            there[[0, 1]]
