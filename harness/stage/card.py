"""Builds stages on this computer's CUDA device: page-locked records, streams, slots, engine."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from moebench.harness.stage.memory import Memory, Offer, check_common, offer_of_setting
from moebench.harness.stage.stage import Stage, StageRequest, on_this_computer
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.runtime import Supports
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.accelerator import WORKSPACE_BYTES, Accelerator
from moebench.substrate.machines.cuda import CardRecords, CudaMachine
from moebench.substrate.machines.free_memory import available_bytes
from moebench.substrate.machines.records import aligned
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Room
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.attention import attention_kind
from moebench.substrate.models.decoder import Decoder

#: Data type in which the GPU computes, by the run's precision.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class OnCard(Mapping[str, Tensor]):
    """Non-expert weights that are copied to the GPU when they are accessed.

    The decoder fuses some of them, so copying on access avoids two copies of all at one time.
    """

    def __init__(self, tensors: Mapping[str, Tensor], card: Accelerator) -> None:
        self._tensors, self._card = tensors, card

    def __getitem__(self, name: str) -> Tensor:
        return self._card.put(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class CardKind:
    """This computer's CUDA device; experts come from page-locked host memory."""

    def supports(self, spec: RunSpec) -> Supports:
        """Return the runtime options that can be measured with whole experts from host memory."""
        return on_this_computer(spec.precision, "host memory")

    def offer(self, spec: RunSpec) -> Offer:
        """Return the memory of the setting's machine, or what is free on the GPU and the host."""
        found = offer_of_setting(spec, raised=True)
        if found is not None:
            return found
        card = accelerator.Cuda()
        free, _ = card.memory()
        return Offer(Room(card.name, free, WORKSPACE_BYTES, available_bytes() or 0))

    def build(self, request: StageRequest, memory: Memory, stack: ExitStack) -> Stage:
        """Build a stage whose decoder computes with the experts in the GPU's slots."""
        card: Accelerator = accelerator.Cuda()
        spec, system, weights = request.spec, request.system, request.weights
        assert weights is not None, "a run on this computer has weights"
        _check(spec, memory)
        runtime = system.runtime
        shape, dtype = weights.shape, DTYPES[spec.precision]
        timeline = Timeline(request.keep_timeline)
        stride = aligned(shape.expert_params * dtype.itemsize, up=True)
        kv_values = shape.num_layers * math.prod(attention_kind(shape).entry(shape))
        sizes = {
            "common weights": shape.common_params * dtype.itemsize,
            "KV cache": request.longest * spec.batch * kv_values * dtype.itemsize,
        }
        offer, fit = _offered(spec, card), memory.capacity.slots
        if (spec.slots, spec.cache_ratio, spec.setting) == (None, None, None):  # no limit given
            fit = min(fit, max(0, offer.count_bytes - sum(sizes.values())) // stride)
        device = Tier(card.name, fit * stride)
        slots = system.place.slots(shape, fit) or fit
        cache = ExpertCache(shape, slots, system.scope, device, stride)
        said = _fit(card, offer, {"slots": cache.slots * stride, **sizes})
        check_common(shape, dtype, spec.precision)  # the weights are first read into host memory
        pinned = runtime.pinned_copies is not False
        records = stack.enter_context(CardRecords(weights, dtype, card, pinned))
        machine = stack.enter_context(
            CudaMachine(
                records,
                cache.slots,
                timeline,
                card,
                overlap=runtime.overlap,
                blocking_copies=bool(runtime.blocking_copies),
            )
        )
        experts = SlotExperts(cache, machine.slots, records.on_host)
        common = OnCard(weights.common(dtype), card)
        decoder = Decoder(shape, common, experts, device=card, reads_state=system.assign.uses_host)
        notes = [
            f"{request.ran} ran in {spec.precision}, measured on {card.name}: {said}",
            *records.notes,
        ]
        return Stage(
            engine=Engine(system, request.model(decoder), machine, cache, timeline),
            machine=machine,
            timeline=timeline,
            device=device,
            host=Tier("host", 0),
            profile=None,
            badge="measured",
            ran=request.ran,
            notes=[*notes, *memory.notes],
            slots=cache.slots,
            total=len(shape.moe_layers) * shape.num_experts,
            memory=memory.document(cache.slot_bytes, stride),
            load_ns=lambda placed: 0,
            card=card.uuid,
        )


def _check(spec: RunSpec, memory: Memory) -> None:
    """Refuse precisions and locations of weights that the GPU path does not compute with.

    Raises UsageError: the precision, expert data type or location is not supported.
    """
    if spec.precision not in DTYPES:
        raise UsageError(
            f"--precision {spec.precision}: a card computes with what it is given, and nothing is "
            f"quantised; allowed with --device cuda: {', '.join(DTYPES)}"
        )
    if spec.expert_dtype is not None:
        raise UsageError(
            f"--expert-dtype {spec.expert_dtype} and --device cuda: packed experts are computed on "
            "a processor only; allowed: --device cpu, or a simulated machine"
        )
    if {*memory.capacity.homes} != {"device"}:
        raise UsageError(
            f"--device cuda: {spec.title} leaves common weights to the host or streams them; "
            "allowed: a simulated machine, or --emulated-link 4GB/s with --device cpu"
        )


class _Allowed(NamedTuple):
    """GPU memory that weights, KV cache and experts may use, in bytes, and the limit's reason."""

    count_bytes: int
    why: str


def _offered(spec: RunSpec, card: Accelerator) -> _Allowed:
    free, _ = card.memory()
    left = _Allowed(max(0, free - WORKSPACE_BYTES), "are free beside a workspace")
    if spec.device_memory_gib is None:
        return left
    asked = round(spec.device_memory_gib * 2**30)
    return min(left, _Allowed(asked, "are allowed (--device-memory, or the setting's)"))


def _fit(card: Accelerator, offer: _Allowed, sizes: Mapping[str, int]) -> str:
    """Check that the sizes fit on the GPU, limit its memory to the offer, and return a note."""
    taken, total = sum(sizes.values()), card.memory()[1]
    parts = ", ".join(f"{what} {size / 1e9:.3g} GB" for what, size in sizes.items())
    offered = f"{offer.count_bytes / 1e9:.3g} GB {offer.why}"
    if taken > offer.count_bytes:
        raise BudgetError(
            f"{parts} are {taken / 1e9:.3g} GB; of the {total / 1e9:.3g} GB of {card.name} "
            f"{offered}; give a smaller --capacity or --slots, or a larger --device-memory"
        )
    card.limit(offer.count_bytes + WORKSPACE_BYTES)
    return f"{taken / 1e9:.3g} GB of its {total / 1e9:.3g} GB used ({parts}), {offered}"
