"""How many experts fit: budgets of S3 (Qwen2-57B-A14B in bf16 on the A6000 box), by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.memory.capacity import Budget, Capacity, Request, Room, plan, slots_by_form
from moebench.substrate.memory.host import HostRecords
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import Form

A6000 = load_profile("a6000")
QWEN = model_shape("qwen2-57b-a14b")
EXPERT_BYTES = 2 * 3 * 3584 * 2560
ATTENTION_PARAMS = 3584 * (3584 + 2 * 512) + 3584 * 3584 + (3584 + 2 * 512)
TOTAL = 28 * 64
LAYER_COMMON = ATTENTION_PARAMS + 2 * 3584 + 3 * 3584 * 20480 + 3584 + 3584 * 64
COMMON_BYTES = 2 * (2 * 151_936 * 3584 + 3584 + 28 * LAYER_COMMON)
FREE = 48 * 2**30 - 10**9 - COMMON_BYTES - 1000 * 28 * 2 * 4 * 128 * 2


def planned(profile: HardwareProfile, shape, *, most_slots=None, kv_tokens=1000, **options):
    most = most_slots if callable(most_slots) else lambda: most_slots
    return plan(
        Request(
            room=Room.of(profile), shape=shape, precision="bf16", kv_tokens=kv_tokens,
            most_slots=most, **options,
        )
    )  # fmt: skip


def capacity(profile: HardwareProfile = A6000, **options):
    return planned(profile, QWEN, **options)


def test_the_slots_of_s3():
    got = capacity()
    assert COMMON_BYTES == 16_167_287_808
    assert got.slots == FREE // EXPERT_BYTES == 623
    assert got.device.budget_bytes == 48 * 2**30
    assert got.device.free_bytes == FREE
    assert got.host.used_bytes == TOTAL * EXPERT_BYTES
    assert not got.from_disk
    assert not got.overcommitted


@pytest.mark.parametrize(
    ("name", "gib", "slots"), [("deepseek-moe-16b", 10, 455), ("xverse-moe-a4.2b", 14, 415)]
)
def test_a_budget_of_device_memory_gives_the_authors_slots(name: str, gib: int, slots: int):
    """SMoE's code: (budget - common weights) / expert; context and workspace come on top."""
    shape = model_shape(name)
    got = planned(A6000, shape, kv_tokens=0, device_bytes=gib * 2**30)
    assert got.slots == slots
    assert slots == (gib * 2**30 - shape.common_bytes("bf16")) // shape.expert_bytes("bf16")
    assert got.device.budget_bytes == gib * 2**30 + 10**9


def test_s3_holds_an_unused_expert_in_each_layer():
    got = capacity(kv_tokens=0, device_bytes=43 * 2**30 - 28 * EXPERT_BYTES)
    assert got.slots == (43 * 2**30 - COMMON_BYTES) // EXPERT_BYTES - 28 == 517
    assert capacity(kv_tokens=256, device_bytes=round(41.56 * 2**30)).slots == 516


def test_a_budget_beyond_the_device_is_refused():
    with pytest.raises(BudgetError, match=r"--device-memory 48: .*A6000 has 47\.07 GiB beside"):
        capacity(device_bytes=48 * 2**30)


def test_a_cache_ratio_is_a_share_of_all_experts():
    assert capacity(cache_ratio=0.25).slots == TOTAL // 4
    assert capacity(cache_ratio=0.0).slots == 0


def test_slots_are_a_number_of_experts():
    assert capacity(slots=2).slots == 2
    assert capacity(slots=2, most_slots=1).slots == 1
    with pytest.raises(BudgetError, match="700 experts"):
        capacity(slots=700)


def test_longer_texts_leave_fewer_slots():
    assert capacity(kv_tokens=1000 + 2 * EXPERT_BYTES // 57_344).slots in (620, 621)


def test_what_does_not_fit_is_refused_in_one_line():
    with pytest.raises(BudgetError, match="--capacity") as error:
        capacity(cache_ratio=0.5)
    assert "896 experts of 55.05 MB do not fit" in str(error.value)
    assert "holds 623 of 1792" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(BudgetError, match="1792 experts"):
        capacity(all_resident=True)
    with pytest.raises(BudgetError, match=r"device memory: KV cache needs 57\.34 GB"):
        capacity(kv_tokens=1_000_000)
    with pytest.raises(BudgetError, match=r"device memory: common weights needs 16\.17 GB"):
        capacity(load_profile("rtx3080ti"))


def test_overcommitting_raises_the_device_just_enough():
    got = capacity(all_resident=True, allow_overcommit=True)
    assert got.slots == TOTAL
    assert got.overcommitted
    assert got.device.free_bytes == TOTAL * EXPERT_BYTES
    assert not capacity(allow_overcommit=True).overcommitted


def test_too_little_host_memory_sends_every_load_to_the_disk():
    needed = TOTAL * EXPERT_BYTES
    assert not capacity(free_host_bytes=needed).from_disk
    got = capacity(free_host_bytes=needed - 1)
    assert got.from_disk
    assert got.host.used_bytes == 0


def test_a_small_model_has_no_more_slots_than_experts():
    olmoe = model_shape("olmoe-1b-7b")
    got = planned(A6000, olmoe)
    assert got.slots == len(olmoe.moe_layers) * olmoe.num_experts


def test_a_systems_own_needs_and_wishes_leave_fewer_slots():
    assert capacity(own_bytes=EXPERT_BYTES).slots == 622
    assert capacity(own_bytes=EXPERT_BYTES).device.used_bytes == 48 * 2**30 - FREE + EXPERT_BYTES
    assert capacity(most_slots=100).slots == 100
    assert capacity(most_slots=100).room == capacity().room == 623
    assert capacity(slots=200, most_slots=100).room == 200
    assert capacity(most_slots=700).slots == 623
    assert capacity(most_slots=700, cache_ratio=0.25).slots == TOTAL // 4


def test_experts_of_another_precision_are_counted_at_it():
    record = 4 * 3 * 3584 * 2560
    got = capacity(expert_precision="fp32")
    assert got.slots == FREE // record == 311
    assert got.host.used_bytes == TOTAL * record
    assert got.common_bytes == COMMON_BYTES


# ----------------------------------------------------------------------------- homes

LAYER_BYTES = 2 * LAYER_COMMON
KV_LAYER = 1000 * 2 * 4 * 128 * 2


def at_homes(homes, **options) -> Capacity:
    return capacity(homes=lambda budget: homes, **options)


def test_what_a_placement_is_told_of_the_device():
    told: list[Budget] = []

    def homes(budget: Budget):
        told.append(budget)
        return ["device"] * 28

    assert capacity(homes=homes, own_bytes=5000).slots == capacity(own_bytes=5000).slots
    assert told == [
        Budget(
            device_bytes=48 * 2**30 - 10**9 - 5000,
            layer_bytes=(LAYER_BYTES,) * 28,
            kv_layer_bytes=KV_LAYER,
            other_bytes=2 * (2 * 151_936 * 3584 + 3584),
            head_bytes=2 * 151_936 * 3584,
            expert_bytes=EXPERT_BYTES,
        )
    ]


def test_a_layer_on_the_host_takes_its_weights_and_its_kv_cache_along():
    got = at_homes(["device"] * 24 + ["host"] * 4)
    assert got.homes == ("device",) * 24 + ("host",) * 4
    assert got.common_bytes == COMMON_BYTES - 4 * LAYER_BYTES
    assert got.device.free_bytes == FREE + 4 * (LAYER_BYTES + KV_LAYER)
    assert got.slots == (FREE + 4 * (LAYER_BYTES + KV_LAYER)) // EXPERT_BYTES
    assert got.host.used_bytes == TOTAL * EXPERT_BYTES + 4 * (LAYER_BYTES + KV_LAYER)


@pytest.mark.parametrize("share", [{"cache_ratio": 0.25}, {"slots": 448}])
def test_a_share_of_experts_is_a_budget_in_bytes(share):
    # 448 experts and all common weights: what leaves the device makes room for other experts.
    told: list[Budget] = []

    def homes(budget: Budget):
        told.append(budget)
        return ["device"] * 28

    everything = COMMON_BYTES + 28 * KV_LAYER + 448 * EXPERT_BYTES
    assert capacity(homes=homes, **share).slots == 448
    assert told[0].device_bytes == everything
    got = at_homes(["stream"] * 20 + ["device"] * 8, **share)
    assert got.slots == 448 + 18 * LAYER_BYTES // EXPERT_BYTES
    assert got.device.used_bytes + got.slots * EXPERT_BYTES <= 10**9 + everything
    got = at_homes(["host"] * 28, **share)
    assert got.slots == 448 + 28 * (LAYER_BYTES + KV_LAYER) // EXPERT_BYTES
    assert at_homes(["stream"] * 28, most_slots=100, **share).slots == 100


@given(st.lists(st.sampled_from(["device", "host", "stream"]), min_size=28, max_size=28))
@settings(max_examples=40, deadline=None)
def test_a_budget_counts_the_slots_that_there_will_be(homes):
    counted: list[int] = []

    def chosen(budget: Budget):
        counted.append(budget.slots(homes))
        return homes

    got = capacity(homes=chosen)
    assert [got.slots] == counted == [got.device.free_bytes // EXPERT_BYTES]


@pytest.mark.parametrize(("streamed", "buffers"), [(1, 1), (2, 2), (5, 2)])
def test_streamed_layers_share_two_buffers_and_keep_their_kv_cache(streamed, buffers):
    got = at_homes(["stream"] * streamed + ["device"] * (28 - streamed))
    assert got.common_bytes == COMMON_BYTES - streamed * LAYER_BYTES
    assert got.device.free_bytes == FREE + (streamed - buffers) * LAYER_BYTES
    assert got.host.used_bytes == TOTAL * EXPERT_BYTES + streamed * LAYER_BYTES


def test_what_leaves_the_device_can_send_experts_to_the_disk():
    experts = TOTAL * EXPERT_BYTES
    assert not at_homes(["device"] * 28, free_host_bytes=experts).from_disk
    got = at_homes(["device"] * 27 + ["stream"], free_host_bytes=experts)
    assert got.from_disk
    assert got.host.used_bytes == LAYER_BYTES, "experts are not in host memory then"
    assert not got.streams_from_disk


def test_common_weights_that_the_host_cannot_hold_are_streamed_from_the_disk():
    got = at_homes(["device"] * 27 + ["stream"], free_host_bytes=LAYER_BYTES - 1)
    assert got.streams_from_disk
    assert got.host.used_bytes == 0
    # What the host computes with must be there.
    with pytest.raises(BudgetError, match="host memory: common weights needs"):
        at_homes(["device"] * 27 + ["host"], free_host_bytes=LAYER_BYTES - 1)


def test_a_small_device_holds_a_large_model_whose_layers_are_streamed():
    small = load_profile("rtx3080ti")
    with pytest.raises(BudgetError):
        capacity(small)
    got = capacity(small, homes=lambda budget: ["stream"] * 28)
    other = 2 * (2 * 151_936 * 3584 + 3584)
    free = 12 * 2**30 - 10**9 - other - 2 * LAYER_BYTES - 28 * KV_LAYER
    assert got.slots == free // EXPERT_BYTES


def test_what_is_kept_at_most_may_depend_on_the_homes():
    asked: list[str] = []

    def homes(budget: Budget):
        asked.append("homes")
        return ["device"] * 28

    def most() -> int:
        asked.append("most")
        return 100

    assert capacity(homes=homes, most_slots=most).slots == 100
    assert asked == ["homes", "most"]


def test_a_streamed_head_leaves_its_bytes_to_a_buffer():
    head = 2 * 151_936 * 3584
    got = at_homes(["device"] * 28 + ["stream"])
    assert got.homes == ("device",) * 28 + ("stream",)
    assert got.common_bytes == COMMON_BYTES - head
    assert got.device.free_bytes == FREE
    assert got.host.used_bytes == TOTAL * EXPERT_BYTES + head
    # Beside streamed layers it takes one of two buffers.
    got = at_homes(["stream"] * 29)
    assert got.device.free_bytes == FREE + 27 * LAYER_BYTES
    # A head that is the embedding has no weights of its own to stream.
    tied = QWEN.model_copy(update={"tied_head": True})
    for homes in ["device"] * 28, ["device"] * 28 + ["stream"]:
        got = planned(A6000, tied, homes=lambda budget, to=homes: to)
        assert got.device.free_bytes == FREE + head


@pytest.mark.parametrize(
    "homes",
    [
        [], ["device"] * 27, ["device"] * 30, ["device"] * 27 + ["gpu"],
        ["device"] * 28 + ["host"], ["device"] * 28 + ["gpu"],
    ],
)  # fmt: skip
def test_homes_that_are_none_are_refused_in_one_line(homes):
    with pytest.raises(UsageError, match="device, host, stream for each of 28 layers") as error:
        at_homes(homes)
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["device", "host", "stream"]), min_size=28, max_size=28),
    st.integers(0, 2000),
    st.integers(0, 27),
)
def test_no_tier_is_overspent_and_the_host_never_costs_slots(homes, kv_tokens, changed):
    got = at_homes(homes, kv_tokens=kv_tokens)
    for tier in (got.device, got.host):
        assert 0 <= tier.used_bytes == tier.budget_bytes - tier.free_bytes <= tier.budget_bytes
    assert got.slots * EXPERT_BYTES <= got.device.free_bytes
    moved = [*homes]
    moved[changed] = "host"
    assert at_homes(moved, kv_tokens=kv_tokens).slots >= got.slots
    # Nothing is lost between the tiers: all weights are somewhere, buffers apart.
    buffers = min(homes.count("stream"), 2) * LAYER_BYTES
    kv = kv_tokens * 28 * 2 * 4 * 128 * 2
    spent = got.device.used_bytes + got.host.used_bytes
    assert spent == 10**9 + COMMON_BYTES + buffers + kv + TOTAL * EXPERT_BYTES


# ------------------------------------------------------------------- what every system is offered


def test_all_memory_is_offered_unless_a_number_of_experts_is_asked_for():
    kv = 1000 * 28 * 2 * 4 * 128 * 2
    assert capacity().offered_bytes == FREE + COMMON_BYTES + kv == 48 * 2**30 - 10**9
    assert capacity(slots=8).offered_bytes == COMMON_BYTES + kv + 8 * EXPERT_BYTES
    # What a system leaves unused, or stores in fewer bits, it was offered all the same.
    assert capacity(slots=8, most_slots=2).offered_bytes == capacity(slots=8).offered_bytes
    small = capacity(slots=8, expert_precision="4bit")
    assert small.offered_bytes == capacity(slots=8).offered_bytes


def test_overcommitting_offers_more():
    everything = capacity(all_resident=True, allow_overcommit=True)
    assert everything.offered_bytes > capacity().offered_bytes
    assert everything.offered_bytes == capacity(slots=0).offered_bytes + TOTAL * EXPERT_BYTES


def test_homes_are_chosen_within_what_is_offered():
    seen: list[Budget] = []

    def homes(budget: Budget):
        seen.append(budget)
        return ["device"] * 28

    capacity(slots=8, homes=homes)
    assert seen[0].device_bytes == capacity(slots=8).offered_bytes


def test_a_system_may_keep_most_experts_on_the_disk():
    assert not capacity(host_experts=TOTAL).from_disk
    few = capacity(host_experts=5)
    assert few.from_disk
    assert HostRecords(few.host, EXPERT_BYTES, 5).capacity == 5


def test_a_budget_of_the_whole_device_is_allowed_and_one_byte_more_is_not():
    everything = 48 * 2**30 - 10**9
    assert capacity(device_bytes=everything).slots == capacity().slots
    with pytest.raises(BudgetError, match="--device-memory"):
        capacity(device_bytes=everything + 1)


# ------------------------------------------------------------------- one memory for both


def pool(gib: int) -> HardwareProfile:
    """The S3 box as a machine whose device and host have one memory of so many GiB."""
    size = A6000.gpu.memory.model_copy(update={"value": float(gib)})
    return A6000.model_copy(
        update={
            "pool": True,
            "gpu": A6000.gpu.model_copy(update={"memory": size}),
            "host": A6000.host.model_copy(update={"memory": size}),
        }
    )


def test_a_pool_with_room_for_all_experts_offloads_nothing():
    got = capacity(pool(128))
    assert (got.slots, got.from_disk) == (TOTAL, False)
    assert got.host.used_bytes == 0
    assert got.host.budget_bytes == 128 * 2**30 - got.device.used_bytes - TOTAL * EXPERT_BYTES


def test_a_pool_is_not_counted_twice():
    """115 GiB hold all weights once; a device and a host of this size need the experts twice."""
    assert not capacity(pool(128), cache_ratio=0.25).from_disk
    got = capacity(pool(128), cache_ratio=0.25)
    assert got.slots == TOTAL // 4
    assert got.host.used_bytes == (TOTAL - TOTAL // 4) * EXPERT_BYTES
    assert got.device.used_bytes + got.slots * EXPERT_BYTES + got.host.budget_bytes == 128 * 2**30


def test_a_small_pool_keeps_room_for_experts_from_the_disk():
    got = capacity(pool(64))
    assert got.from_disk
    assert 0 < got.slots < TOTAL
    assert got.host.free_bytes >= 2 * EXPERT_BYTES
    assert got.host.free_bytes < 3 * EXPERT_BYTES
    assert HostRecords(got.host, EXPERT_BYTES).capacity == 2


def test_given_host_memory_counts_in_a_pool_too():
    assert capacity(pool(128), free_host_bytes=5 * EXPERT_BYTES, slots=9).from_disk
    assert capacity(pool(128), free_host_bytes=5 * EXPERT_BYTES, slots=9).host.budget_bytes == (
        5 * EXPERT_BYTES
    )


# ----------------------------------------------------------------------------- records

#: Forms of records: whole, half in the run's own precision, and in 8 bits.
FORMS = (Form(), Form("half", share=0.5), Form("int8", dtype="int8"))


def request(**options) -> Request:
    return Request(
        room=Room.of(A6000), shape=QWEN, precision="bf16", kv_tokens=1000, **options
    )  # fmt: skip


def of_form(*chosen: int):
    """Return the forms of all experts' only records: the first of them, but for a few."""
    found = np.full((28, 64), chosen[0])
    found[3, : len(chosen)] = chosen
    return found


@pytest.mark.parametrize(
    ("options", "plain", "own", "host"),
    [
        ({}, "bf16", "bf16", ["bf16"]),
        ({"expert_dtype": "int4"}, "int4", "int4", ["int4"]),
        ({"expert_precision": "fp32"}, "bf16", "fp32", ["fp32"]),
        ({"expert_precision": "fp32", "expert_dtype": "int4"}, "int4", "fp32", ["fp32"]),
        ({"expert_dtype": 6.0}, 6.0, 6.0, [6.0]),
        # Host memory has a record of each precision, and none of a part of one.
        ({"forms": FORMS}, "bf16", "bf16", ["bf16", "int8"]),
        ({"forms": FORMS[:2]}, "bf16", "bf16", ["bf16"]),
    ],
)
def test_records_have_the_bytes_of_their_precision(options, plain, own, host):
    found = request(**options)
    assert found.plain_record_bytes == QWEN.expert_bytes(plain)
    assert found.record_bytes == QWEN.expert_bytes(own)
    assert found.host_record_bytes == sum(map(QWEN.expert_bytes, host))


@pytest.mark.parametrize(
    ("chosen", "options", "size"),
    [
        ((0,), {}, QWEN.expert_bytes("bf16")),
        ((1,), {}, QWEN.expert_bytes("bf16") // 2),
        ((2,), {}, QWEN.expert_bytes("int8")),
        ((1, 2), {}, QWEN.expert_bytes("int8")),
        ((2, 0), {}, QWEN.expert_bytes("bf16")),
        ((1,), {"expert_precision": "fp32"}, QWEN.expert_bytes("fp32") // 2),
        ((0,), {"expert_precision": "fp32", "expert_dtype": 6.0}, QWEN.expert_bytes(6.0)),
        ((2,), {"expert_precision": "fp32"}, QWEN.expert_bytes("int8")),
    ],
)
def test_only_records_take_the_room_of_the_largest_form(chosen, options, size):
    found = request(forms=FORMS, chosen_forms=of_form(*chosen), **options)
    assert found.host_record_bytes == size


def test_forms_have_the_share_of_slots_that_their_pools_have_of_the_bytes():
    """Of 1000 bytes a quarter is for small records of 30, and a tenth for those of 50."""
    forms = (Form(), Form("small", share=0.3, pool=0.25), Form("half", share=0.5, pool=0.1))
    found = slots_by_form(forms, (100, 30, 50), 10)
    assert found[1:] == [8, 2]
    assert found[0] == (1000 - 8 * 30 - 2 * 50) // 100 == 6
    assert slots_by_form(forms[:1], (100,), 10) == [10]


@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, None), ({"slots": 7}, 7), ({"cache_ratio": 0.25}, 448), ({"all_resident": True}, TOTAL),
     ({"cache_ratio": 0.0003}, 1), ({"cache_ratio": 0.5, "all_resident": True}, TOTAL)],
)  # fmt: skip
def test_experts_that_are_asked_for(options, asked):
    assert request(**options).asked == asked
    assert request(**options).experts == TOTAL == 28 * 64
