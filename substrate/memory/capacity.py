"""How many experts fit: the byte budgets of a machine against the bytes of a model."""

from dataclasses import dataclass

from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ModelShape, Precision


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where the bytes go.

    Attributes:
        slots: experts on the device at once.
        from_disk: experts do not fit into the host's memory, every load starts on the disk.
        overcommitted: the device's budget was raised to hold everything.
    """

    device: Tier
    host: Tier
    slots: int
    from_disk: bool
    overcommitted: bool


def plan(
    profile: HardwareProfile,
    shape: ModelShape,
    precision: Precision,
    *,
    kv_tokens: int,
    cache_ratio: float | None = None,
    all_resident: bool = False,
    allow_overcommit: bool = False,
    free_host_bytes: int | None = None,
    own_bytes: int = 0,
    most_slots: int | None = None,
) -> Capacity:
    """Reserve everything that is always resident, then count the slots that are left.

    Args:
        kv_tokens: cached tokens over the whole batch.
        cache_ratio: share of routed experts on the device; None takes all free memory.
        all_resident: every expert must fit.
        free_host_bytes: host memory that experts may use; None is all of the machine's.
        own_bytes: what the system itself needs on the device.
        most_slots: how many experts it keeps there at most; None is all that fit.

    Raises:
        BudgetError: the device does not hold the common weights, or what was asked for.
    """
    total = len(shape.moe_layers) * shape.num_experts
    record = shape.expert_bytes(precision)
    host = Tier("host", profile.host.memory.bytes if free_host_bytes is None else free_host_bytes)
    from_disk = total * record > host.free_bytes
    if not from_disk:
        host.reserve("experts", total * record)

    device = Tier("device", profile.gpu.memory.bytes)
    device.reserve("context and workspace", profile.gpu.reserved_memory.bytes)
    device.reserve("common weights", shape.common_bytes(precision))
    device.reserve("KV cache", kv_tokens * shape.kv_bytes_per_token())
    device.reserve("the system's own", own_bytes)
    fits = device.free_bytes // record
    wanted = fits if cache_ratio is None else round(cache_ratio * total)
    if all_resident:
        wanted = total
    elif most_slots is not None:
        wanted = min(wanted, most_slots)
    overcommitted = wanted > fits and allow_overcommit
    if overcommitted:
        device.budget_bytes += wanted * record - device.free_bytes
    elif wanted > fits:
        raise BudgetError(
            f"{wanted} experts of {record / 1e6:.4g} MB do not fit: {profile.gpu.name} holds "
            f"{fits} of {total} beside the common weights; choose a larger machine, a smaller "
            "--cache-ratio, or --allow-overcommit to simulate a device that could"
        )
    return Capacity(device, host, min(wanted, total), from_disk, overcommitted)
