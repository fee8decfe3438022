"""Builds a run on this computer's CUDA device: pinned records, streams, slots and engine."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from moebench.harness.stage.local import check, check_common
from moebench.harness.stage.stage import Memory, Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.accelerator import WORKSPACE_BYTES, Accelerator
from moebench.substrate.machines.cuda import CardRecords, CudaMachine
from moebench.substrate.machines.records import aligned
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.attention import attention_kind
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import Weights
from moebench.substrate.models.protocol import Model

#: What a card computes in, by the run's precision.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class OnCard(Mapping[str, Tensor]):
    """Common weights that are copied to the card when they are asked for.

    The decoder fuses some: not all of them are there twice at any time.
    """

    def __init__(self, tensors: Mapping[str, Tensor], card: Accelerator) -> None:
        self._tensors, self._card = tensors, card

    def __getitem__(self, name: str) -> Tensor:
        return self._card.put(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def on_card(
    spec: RunSpec,
    system: System,
    weights: Weights,
    ran: str,
    longest: int,
    memory: Memory,
    keep: bool,
    stack: ExitStack,
    model: Callable[[Decoder], Model] = lambda decoder: decoder,
) -> tuple[Stage, Decoder]:
    """Build a run on the card, whose decoder computes with what is in its slots.

    Args:
        ran: what its figures are of.
        longest: tokens of the longest text, new ones included.
        memory: from `memory_for`.
        keep: keep every span, not only the picture's.
        stack: closes threads, and lets go of memory.
        model: what answers the engine, by way of the decoder.

    Raises:
        UsageError: there is no card, or the system cannot run on it.
        BudgetError: it has less memory than the run takes, or the host cannot pin enough.
    """
    card: Accelerator = accelerator.Cuda()
    check(spec, system)
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
    shape, dtype = weights.shape, DTYPES[spec.precision]
    timeline = Timeline(keep)
    stride = aligned(shape.expert_params * dtype.itemsize, up=True)
    kv_values = shape.num_layers * math.prod(attention_kind(shape).entry(shape))
    sizes = {
        "common weights": shape.common_params * dtype.itemsize,
        "KV cache": longest * spec.batch * kv_values * dtype.itemsize,
    }
    offer, fit = _offered(spec, card), memory.capacity.slots
    if (spec.slots, spec.cache_ratio, spec.setting) == (None, None, None):  # all that is left
        fit = min(fit, max(0, offer.count_bytes - sum(sizes.values())) // stride)
    device = Tier(card.name, fit * stride)
    slots = system.place.slots(shape, fit) or fit
    cache = ExpertCache(shape, slots, system.scope, device, stride)
    said = _fit(card, offer, {"slots": cache.slots * stride, **sizes})
    check_common(shape, dtype, spec.precision)  # they are read into the host's memory first
    pinned = system.pinned_copies is not False
    records = stack.enter_context(CardRecords(weights, dtype, card, pinned))
    machine = stack.enter_context(
        CudaMachine(
            records,
            cache.slots,
            timeline,
            card,
            overlap=system.overlap,
            blocking_copies=system.blocking_copies,
        )
    )
    experts = SlotExperts(cache, machine.slots, records.on_host)
    common = OnCard(weights.common(dtype), card)
    decoder = Decoder(shape, common, experts, device=card, reads_state=system.assign.uses_host)
    notes = [f"{ran} ran in {spec.precision}, measured on {card.name}: {said}", *records.notes]
    stage = Stage(
        engine=Engine(system, model(decoder), machine, cache, timeline),
        machine=machine,
        timeline=timeline,
        device=device,
        host=Tier("host", 0),
        profile=None,
        badge="measured",
        ran=ran,
        notes=[*notes, *memory.notes],
        slots=cache.slots,
        total=len(shape.moe_layers) * shape.num_experts,
        memory=memory.document(cache.slots, stride),
        load_ns=lambda placed: 0,
        card=card.uuid,
    )
    return stage, decoder


class _Offer(NamedTuple):
    """Bytes of the card that weights, KV cache and experts may use, and why not more."""

    count_bytes: int
    why: str


def _offered(spec: RunSpec, card: Accelerator) -> _Offer:
    free, _ = card.memory()
    left = _Offer(max(0, free - WORKSPACE_BYTES), "are free beside a workspace")
    if spec.device_memory_gib is None:
        return left
    asked = round(spec.device_memory_gib * 2**30)
    return min(left, _Offer(asked, "are allowed (--device-memory, or the setting's)"))


def _fit(card: Accelerator, offer: _Offer, sizes: Mapping[str, int]) -> str:
    """Check that the card has room, and let no more be used; what the notes say of it."""
    taken, total = sum(sizes.values()), card.memory()[1]
    parts = ", ".join(f"{what} {size / 1e9:.3g} GB" for what, size in sizes.items())
    offered = f"{offer.count_bytes / 1e9:.3g} GB {offer.why}"
    if taken > offer.count_bytes:
        raise BudgetError(
            f"{parts} are {taken / 1e9:.3g} GB; of the {total / 1e9:.3g} GB of {card.name} "
            f"{offered}; give a smaller --cache-ratio or --slots, or a larger --device-memory"
        )
    card.limit(offer.count_bytes + WORKSPACE_BYTES)
    return f"{taken / 1e9:.3g} GB of its {total / 1e9:.3g} GB used ({parts}), {offered}"
