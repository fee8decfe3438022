"""Time to load a model, for OLMoE in bf16 on FlashMoE's machine, by hand."""

from dataclasses import replace

import pytest

from moebench.harness.stage.memory import _kept
from moebench.harness.stage.simulated import loading_ns, threads_notes, threads_used
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.memory.capacity import Capacity, Request, Room, plan
from moebench.substrate.models.catalogue import model_shape
from moebench.systems.options import build

BOX = load_profile("rtx5070ti")
OLMOE = model_shape("olmoe-1b-7b")
COSTS = CostModel(BOX, OLMOE, "bf16")

#: Embedding and head, then sixteen layers of attention, gate and norms.
COMMON_BYTES = 2 * (2 * 50_304 * 2048 + 16 * (4 * 2048**2 + 64 * 2048) + (16 * 4 + 1) * 2048)
EXPERT_BYTES = 2 * 3 * 2048 * 1024
LINK = BOX.link.pinned_h2d.bytes_per_s * BOX.link.in_engine_efficiency.ratio / 1e9
DISK = BOX.disk


def capacity(free_host_bytes: int | None) -> Capacity:
    return plan(
        Request(
            room=Room.of(BOX), shape=OLMOE, precision="bf16", kv_tokens=1000,
            free_host_bytes=free_host_bytes,
        )
    )  # fmt: skip


def test_common_weights_come_over_the_link_or_from_the_disk() -> None:
    system = build("flashmoe", {})
    in_memory = loading_ns(0, COSTS, capacity(None), system)
    assert in_memory == pytest.approx(COMMON_BYTES / LINK)
    from_disk = loading_ns(0, COSTS, capacity(10**9), system)
    alone = DISK.queue1_bandwidth.bytes_per_s / 1e9
    assert from_disk == pytest.approx(COMMON_BYTES / alone)
    assert from_disk > 2 * in_memory


@pytest.mark.parametrize("parallel", [True, False])
def test_placed_experts_come_as_the_system_reads(parallel: bool) -> None:
    system = build("moe-ondemand", {"parallel_reads": str(parallel)})
    given = capacity(10**9)
    fifty = loading_ns(50, COSTS, given, system) - loading_ns(0, COSTS, given, system)
    if parallel:
        each = EXPERT_BYTES / (DISK.max_bandwidth.bytes_per_s / 1e9)
    else:
        each = DISK.access_latency.ns + EXPERT_BYTES / (DISK.queue1_bandwidth.bytes_per_s / 1e9)
    assert fifty == pytest.approx(50 * each)


def test_a_layer_that_stays_in_host_memory_is_read_all_the_same() -> None:
    system, given = build("moe-ondemand", {}), capacity(10**9)
    less = replace(given, common_bytes=given.common_bytes // 2)
    assert loading_ns(0, COSTS, less, system) == loading_ns(0, COSTS, given, system)


@pytest.mark.parametrize(
    ("machine", "threads", "used", "said"),
    [
        ("rtx5070ti", None, None, ""),
        ("rtx5070ti", 1, 1, "threads=1 limits products of many rows alone: the profile has no"),
        ("rtx-3090+ryzen-5950x", 4, 4, ""),  # sixteen cores, whose rate is known
        ("rtx-3090+ryzen-5950x", 16, 16, ""),
        ("rtx-3090+ryzen-5950x", 17, 16, "threads=17 counts as 16: the host has 16 cores"),
    ],
)
def test_threads_of_the_host_are_at_most_its_cores(
    machine: str, threads: int | None, used: int | None, said: str
) -> None:
    runtime = build("llamacpp", {} if threads is None else {"threads": str(threads)}).runtime
    profile = load_profile(machine)
    assert runtime.threads == threads
    assert threads_used(runtime, profile) == used
    notes = threads_notes(runtime, profile)
    assert bool(notes) == bool(said)
    assert all(note.startswith(said) for note in notes)
    assert build("fiddler").runtime.threads is None


def test_a_mapped_file_may_leave_what_the_device_keeps_but_not_what_training_decides() -> None:
    fixed = build("llamacpp", {"place": "by-id"})
    assert _kept(fixed, OLMOE, 40) == 40
    trained = build("llamacpp", {"place": "popular"})  # its experts are known after training
    assert _kept(trained, OLMOE, 40) == 0
    assert _kept(build("llamacpp", {"place": "by-id", "pinned_copies": "true"}), OLMOE, 40) == 0
