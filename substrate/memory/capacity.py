"""Capacity planning: how many experts fit into a machine's byte budgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.memory.host import READ_BUFFERS
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ExpertDtype, Form, ModelShape, Precision, stored_bytes
from moebench.substrate.terms import Ids

#: Where a layer's non-expert weights are: on the device, in host memory where the host computes
#: with them, or in host memory and streamed to the device for every pass.  The head, which may
#: follow the layers, is on the device or streamed.
Home = Literal["device", "host", "stream"]

#: Buffers of streamed layers: one layer computes while the next one is copied.
STREAM_BUFFERS = 2


class Budget(NamedTuple):
    """The bytes that a device offers to a system, and the bytes of the weights to place.

    Attributes:
        device_bytes: bytes for weights and KV cache: all memory except workspace and the system's
            own needs; or, if a share or number of experts was requested, the bytes of these, of all
            non-expert weights and of the KV cache.
        layer_bytes: non-expert weights of each layer.
        kv_layer_bytes: KV cache of one layer; 0 where the host has it.
        other_bytes: embedding, head and final norm.
        head_bytes: of these, the head's own weights: none where it is the embedding.
        expert_bytes: one routed expert.
    """

    device_bytes: int
    layer_bytes: tuple[int, ...]
    kv_layer_bytes: int
    other_bytes: int
    head_bytes: int
    expert_bytes: int

    def slots(self, homes: Sequence[Home]) -> int:
        """Return how many experts fit in addition to non-expert weights with these homes."""
        layers = len(self.layer_bytes)
        used = self.other_bytes + sum(self.layer_bytes) - sum(self.elsewhere(homes))
        used += (layers - homes.count("host")) * self.kv_layer_bytes + self.buffer_bytes(homes)
        return max(0, self.device_bytes - used) // self.expert_bytes

    def elsewhere(self, homes: Sequence[Home]) -> list[int]:
        """Return the bytes of layers, and of the head, that are not always on the device."""
        sizes = (*self.layer_bytes, self.head_bytes)
        return [size for size, home in zip(sizes, homes, strict=False) if home != "device"]

    def buffer_bytes(self, homes: Sequence[Home]) -> int:
        """Return the bytes of the device's buffers for streamed layers: the largest of them."""
        sizes = (*self.layer_bytes, self.head_bytes)
        streamed = [size for size, home in zip(sizes, homes, strict=False) if home == "stream"]
        return sum(sorted(streamed)[-STREAM_BUFFERS:])


class Room(NamedTuple):
    """A machine's memory, in bytes; ``reserved_bytes`` of the device's are never for weights.

    ``shared``: device and host have the same memory, and an expert on the device is on the host.
    """

    device: str
    device_bytes: int
    reserved_bytes: int
    host_bytes: int
    shared: bool = False

    @classmethod
    def of(cls, profile: HardwareProfile) -> "Room":
        """Return the memory of a hardware profile's machine."""
        gpu, host_bytes = profile.gpu, profile.host.memory.bytes
        reserved_bytes = gpu.reserved_memory.bytes
        return cls(gpu.name, gpu.memory.bytes, reserved_bytes, host_bytes, profile.pool)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The plan of a machine's memory: tiers, homes of non-expert weights, and slots.

    Attributes:
        homes: where each layer's non-expert weights are; then the head's, if that was chosen.
        common_bytes: non-expert weights that are always on the device.
        slots: experts on the device at once.
        room: experts that the device has room for, of which the system may use fewer.
        from_disk: experts do not fit into host memory and are on the disk; free host memory caches
            some of them.
        streams_from_disk: streamed non-expert weights do not fit there either, and are on the disk.
        overcommitted: the device's budget was raised to hold everything.
        offered_bytes: device memory that any system may use for weights, KV cache and itself: the
            free memory, or the bytes of non-expert weights, KV cache and the requested experts.
    """

    device: Tier
    host: Tier
    offered_bytes: int
    homes: tuple[Home, ...]
    common_bytes: int
    slots: int
    room: int
    from_disk: bool
    streams_from_disk: bool
    overcommitted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The weights and budgets of a run, from which `plan` divides a machine's memory.

    Attributes:
        room: the machine's memories.
        precision: of all weights, unless one of the next two says otherwise of routed experts; a
            number is bits per weight.
        expert_precision: the precision of routed experts in this system, if it differs.
        expert_dtype: the quantised format of routed experts in any system of the run.
        kv_tokens: cached tokens of each text of the batch.
        texts: of the batch.
        homes: returns where each layer's non-expert weights are, and optionally the head's; None is
            the device.
        cache_ratio, slots: routed experts on the device, as a share or in number, if all non-expert
            weights are there: these bytes are the device's budget.  Without either it is all free
            memory.
        all_resident: every expert must fit.
        allow_overcommit: raise the device's budget where experts do not fit.
        device_bytes: device memory for weights, KV cache and the system itself; None is all but
            context and workspace.
        free_host_bytes: host memory that experts may use; None is all of the machine's.
        own_bytes: device memory that the system's policies need.
        most_slots: returns how many experts the system keeps on the device at most, called after
            ``homes``; None is all that fit.
        host_experts: how many experts host memory keeps at most; None is all that fit.
        forms: the forms of the system's records; host memory has a record of each precision.
        chosen_forms: the form of each expert's only record ``[layers, E]``; host memory has that
            one, in the room of the largest.
        kept: returns how many experts of so many slots stay on the device and need no host memory,
            called after ``homes``.
        kv_on_host: host memory has the KV cache of every layer, whatever the homes.
    """

    room: Room
    shape: ModelShape
    precision: Precision | float
    kv_tokens: int
    texts: int = 1
    expert_precision: Precision | None = None
    expert_dtype: ExpertDtype | float | None = None
    homes: Callable[[Budget], Sequence[Home]] | None = None
    cache_ratio: float | None = None
    slots: int | None = None
    all_resident: bool = False
    allow_overcommit: bool = False
    device_bytes: int | None = None
    free_host_bytes: int | None = None
    own_bytes: int = 0
    most_slots: Callable[[], int | None] = lambda: None
    host_experts: int | None = None
    forms: Sequence[Form] = (Form(),)
    chosen_forms: Ids | None = None
    kept: Callable[[int], int] = lambda slots: 0
    kv_on_host: bool = False

    @property
    def experts(self) -> int:
        """The number of routed experts of the model."""
        return len(self.shape.moe_layers) * self.shape.num_experts

    @property
    def asked(self) -> int | None:
        """The number of experts that the device must hold; None is as many as fit."""
        if self.all_resident:
            return self.experts
        return self.slots if self.cache_ratio is None else round(self.cache_ratio * self.experts)

    @property
    def plain_record_bytes(self) -> int:
        """Bytes of one expert as the run stores it, for any system."""
        return self.shape.expert_bytes(self.expert_dtype or self.precision)

    @property
    def record_bytes(self) -> int:
        """Bytes of one expert as this system stores it."""
        precision = self.expert_precision
        return self.plain_record_bytes if precision is None else self.shape.expert_bytes(precision)

    @property
    def host_record_bytes(self) -> int:
        """Bytes of one expert in all precisions that this system moves."""
        if self.chosen_forms is not None:
            stored_as = self.expert_dtype or self.expert_precision or self.precision
            sizes = [form.record_bytes(self.shape, stored_as) for form in self.forms]
            return max(sizes[form] for form in used_forms(self.shape, self.chosen_forms))
        others = {form.dtype for form in self.forms} - {None}
        return self.record_bytes + sum(self.shape.expert_bytes(dtype) for dtype in others if dtype)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.texts * self.shape.kv_bytes(self.kv_tokens)

    def host_bytes(self, held: int) -> int:
        """Return the host's memory, without what the device holds of a shared memory, in bytes."""
        if self.free_host_bytes is not None:
            return self.free_host_bytes
        return max(0, self.room.host_bytes - (held if self.room.shared else 0))

    def device(self) -> Tier:
        """Return the device's tier, with context and workspace reserved.

        Raises BudgetError: it has less memory than is asked for.
        """
        workspace, tier = self.room.reserved_bytes, Tier("device", self.room.device_bytes)
        if self.device_bytes is not None:
            if self.device_bytes + workspace > tier.budget_bytes:
                raise BudgetError(
                    f"--device-memory {self.device_bytes / 2**30:g}: {self.room.device} has "
                    f"{(tier.budget_bytes - workspace) / 2**30:.4g} GiB beside context and "
                    "workspace"
                )
            tier.budget_bytes = self.device_bytes + workspace
        tier.reserve("context and workspace", workspace)
        return tier

    def offered(self, device: Tier) -> tuple[Budget, int]:
        """Return the system's budget, and the bytes that any system would be offered here."""
        shape, common = self.shape, self.shape.common_bytes(self.precision)
        layers = tuple(
            stored_bytes(shape.layer_common_params(layer), self.precision)
            for layer in range(shape.num_layers)
        )
        offered = wanted = device.free_bytes
        if self.asked is not None:
            # A system that stores experts in fewer bits is offered the same bytes as any other.
            wanted = common + self.kv_bytes + self.asked * self.record_bytes
            offered = wanted + self.asked * (self.plain_record_bytes - self.record_bytes)
        budget = Budget(
            device_bytes=wanted - (self.own_bytes if self.asked is None else 0),
            layer_bytes=layers,
            kv_layer_bytes=0 if self.kv_on_host else self.kv_bytes // shape.num_layers,
            other_bytes=common - sum(layers),
            head_bytes=stored_bytes(shape.own_head_params, self.precision),
            expert_bytes=self.record_bytes,
        )
        return budget, offered

    def chosen(self, budget: Budget) -> tuple[Home, ...]:
        """Return where each layer's non-expert weights are, and the head's if that is named.

        Raises UsageError: there is not one known home for each layer, or the head's is not allowed.
        """
        layers, on_device = self.shape.num_layers, get_args(Home)[0]
        chosen = tuple(self.homes(budget)) if self.homes else (on_device,) * layers
        head = chosen[layers:]
        known = {*chosen} <= {*get_args(Home)} and head in ((), ("device",), ("stream",))
        if not known or len(chosen) - len(head) != layers:
            allowed = ", ".join(get_args(Home))
            raise UsageError(
                f"homes of common weights: {list(chosen)}; allowed: one of {allowed} for each of "
                f"{layers} layers, then device or stream for the head"
            )
        return chosen


def used_forms(shape: ModelShape, chosen: Ids) -> list[int]:
    """Return the forms of all experts' only records, ``chosen`` as ``[layers, E]``, ascending."""
    found: list[int] = np.unique(chosen[[*shape.moe_layers]]).tolist()
    return found


def slots_by_form(forms: Sequence[Form], sizes: Sequence[int], slots: int) -> list[int]:
    """Divide the device's bytes for experts among the slots of each form of records.

    Args:
        sizes: bytes of a record in each form.
        slots: records of form 0 that fit into these bytes.
    """
    whole = slots * sizes[0]
    more = [int(form.pool * whole) // size for form, size in zip(forms[1:], sizes[1:], strict=True)]
    taken = sum(count * size for count, size in zip(more, sizes[1:], strict=True))
    return [(whole - taken) // sizes[0], *more]


def plan(request: Request) -> Capacity:
    """Reserve all weights that are always resident, then count the slots that fit beside them.

    Raises:
        BudgetError: the device cannot hold the non-expert weights, or the requested experts.
        UsageError: the system names homes that do not exist.
    """
    device, record, total = request.device(), request.record_bytes, request.experts
    budget, offered = request.offered(device)
    chosen = request.chosen(budget)
    elsewhere, kv_bytes = budget.elsewhere(chosen), request.kv_bytes
    common = request.shape.common_bytes(request.precision) - sum(elsewhere)
    kv_elsewhere = kv_bytes * chosen.count("host") // request.shape.num_layers
    if request.kv_on_host:
        kv_elsewhere = kv_bytes
    device.reserve("common weights", common)
    device.reserve("KV cache", kv_bytes - kv_elsewhere)
    device.reserve("the system's own", request.own_bytes)
    device.reserve("buffers of streamed layers", budget.buffer_bytes(chosen))

    fits, wanted = device.free_bytes // record, budget.slots(chosen)
    if request.room.shared and request.asked is None and wanted < total:
        # Experts on the disk need room in the one memory that the device would fill.
        buffers = READ_BUFFERS * request.host_record_bytes
        unused = request.room.host_bytes - device.used_bytes - buffers
        wanted = max(0, min(wanted, unused // record))
    room, most = min(wanted, total), request.most_slots()
    if most is not None and not request.all_resident:
        wanted = min(wanted, most)

    on_device = min(wanted, total) if request.room.shared else 0
    host = Tier("host", request.host_bytes(device.used_bytes + on_device * record))
    streams_from_disk = "host" not in chosen and sum(elsewhere) > host.free_bytes
    host.reserve("common weights", 0 if streams_from_disk else sum(elsewhere))
    host.reserve("KV cache", kv_elsewhere)
    on_disk = request.host_experts is not None and request.host_experts < total
    on_host = (total - on_device) * request.host_record_bytes
    kept = 0 if request.room.shared else request.kept(min(wanted, total))
    from_disk = on_disk or on_host - kept * request.host_record_bytes > host.free_bytes
    if not from_disk:  # a file that is mapped fills free memory, also with what the device keeps
        host.reserve("experts", min(on_host, host.free_bytes))

    overcommitted = wanted > fits and request.allow_overcommit
    if overcommitted:
        device.budget_bytes += wanted * record - device.free_bytes
    elif wanted > fits:
        raise BudgetError(
            f"{wanted} experts of {record / 1e6:.4g} MB do not fit: {request.room.device} holds "
            f"{fits} of {total} beside the common weights; choose a larger machine, a smaller "
            "--capacity or --slots, or --allow-overcommit to simulate a device that could"
        )
    return Capacity(
        device, host, offered, chosen, common, min(wanted, total), room, from_disk,
        streams_from_disk, overcommitted,
    )  # fmt: skip
