"""Prices and budgets of S3 (Qwen2-57B-A14B in bf16 on the A6000 box), worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.memory.capacity import plan
from moebench.substrate.models.catalogue import model_shape

A6000 = load_profile("a6000")
QWEN = model_shape("qwen2-57b-a14b")
COSTS = CostModel(A6000, QWEN, "bf16")

# hidden 3584, expert width 2560, shared width 20480, 28 layers of 64 experts (top-8), 28 heads of
# 128 with 4 key-value heads, vocabulary 151936.
EXPERT_PARAMS = 3 * 3584 * 2560
EXPERT_BYTES = 55_050_240
ATTENTION_PARAMS = 3584 * (3584 + 2 * 512) + 3584 * 3584 + (3584 + 2 * 512)
# bytes, or floating-point operations, per nanosecond
LARGE, SMALL = 768 * 0.85, 768 * 0.65
TENSOR = 154_800 * 0.6
HOST_FLOPS = 1570 * 0.75


def ns(kind: OpKind, lane: Lane = Lane.DEVICE, rows=(1,), context: int = 0) -> int:
    return COSTS.ns(Op(kind, 0, tuple(rows), tuple(range(len(rows))), context), lane)


def test_an_expert_on_every_lane():
    assert EXPERT_BYTES == 2 * EXPERT_PARAMS == COSTS.record_bytes
    # 2.5 µs and 25.5 GB/s, of which 86 % are reached between kernels
    assert ns(OpKind.LOAD, Lane.H2D, ()) == round(2_500 + EXPERT_BYTES / (25.5 * 0.86)) == 2_512_771
    # 20 µs to hand it over, 85 GB/s of the host's memory
    assert ns(OpKind.EXPERT, Lane.HOST) == round(20_000 + EXPERT_BYTES / 85) == 667_650
    # 768 GB/s, of which large reads reach 85 %
    assert ns(OpKind.EXPERT) == round(EXPERT_BYTES / LARGE) == 84_329
    # 50 µs and 4.6 GB/s, one read at a time
    assert ns(OpKind.READ, Lane.DISK, ()) == round(50_000 + EXPERT_BYTES / 4.6)
    # its output on the way back: 26 GB/s, two bytes a value
    assert ns(OpKind.RETURN, Lane.D2H, (3,)) == round(2_500 + 3 * 3584 * 2 / (26 * 0.86))


def test_the_parts_of_a_layer_on_the_device():
    assert ns(OpKind.GATE) == round(2 * (3584 * 64 + 3584) / SMALL)
    assert ns(OpKind.SHARED) == round(2 * 3 * 3584 * 20480 / LARGE)
    assert ns(OpKind.HEAD) == round(2 * 151_936 * 3584 / LARGE)
    assert ns(OpKind.COMBINE, rows=(5,)) == round(5 * (8 + 2) * 3584 * 2 / SMALL)
    weights = 2 * (ATTENTION_PARAMS + 3584) / LARGE
    assert ns(OpKind.ATTEND) == round(weights)
    cached = 1000 * 2 * 4 * 128 * 2 / LARGE
    assert ns(OpKind.ATTEND, context=1000) == round(weights + cached)
    gate = 2 * (3584 * 64 + 3584) / SMALL
    assert ns(OpKind.PREDICT) == round(gate)
    assert ns(OpKind.PREDICT, context=1000) == round(weights + cached + gate)


def test_experts_of_one_operation_add_up():
    assert ns(OpKind.EXPERT, rows=(1, 1, 1)) == round(3 * EXPERT_BYTES / LARGE)
    assert ns(OpKind.EXPERT, Lane.HOST, (1, 1)) == round(2 * (20_000 + EXPERT_BYTES / 85))


def test_many_rows_are_bound_by_arithmetic():
    assert ns(OpKind.EXPERT, rows=(4096,)) == round(2 * EXPERT_PARAMS * 4096 / TENSOR)
    by_flops = 2 * EXPERT_PARAMS * 64 / HOST_FLOPS
    assert by_flops > EXPERT_BYTES / 85
    assert ns(OpKind.EXPERT, Lane.HOST, (64,)) == round(20_000 + by_flops)


def test_the_control_thread_pays_for_launches_copies_and_reading_back():
    def control(kind: OpKind, lane: Lane = Lane.DEVICE, rows=(1,)) -> int:
        return COSTS.control_ns(Op(kind, 0, tuple(rows)), lane)

    assert control(OpKind.ATTEND) == 14 * 8_000
    assert control(OpKind.GATE) == 4 * 8_000
    assert control(OpKind.EXPERT, rows=(1, 9, 4)) == 3 * 5 * 8_000
    assert control(OpKind.SHARED) == 6 * 8_000
    assert control(OpKind.COMBINE) == 2 * 8_000
    assert control(OpKind.HEAD) == 3 * 8_000
    assert control(OpKind.LOAD, Lane.H2D) == control(OpKind.EXPERT, Lane.HOST) == 6_000
    assert (COSTS.sync_ns, COSTS.decision_ns) == (20_000, 50_000)


def test_pageable_copies_are_slower():
    link = A6000.link.model_copy(update={"pinned": False})
    pageable = CostModel(A6000.model_copy(update={"link": link}), QWEN, "bf16")
    load = Op(OpKind.LOAD, 0)
    assert pageable.ns(load, Lane.H2D) == round(2_500 + EXPERT_BYTES / (8.5 * 0.86))
    assert pageable.ns(load, Lane.H2D) > COSTS.ns(load, Lane.H2D)
    daop = CostModel(load_profile("a6000@daop"), QWEN, "bf16")
    assert daop.ns(load, Lane.H2D) > pageable.ns(load, Lane.H2D)


def test_a_quantised_record_moves_faster():
    four_bit = CostModel(A6000, QWEN, "4bit")
    assert four_bit.record_bytes == round(EXPERT_PARAMS * 4.15625 / 8)
    load = Op(OpKind.LOAD, 0)
    expected = round(2_500 + four_bit.record_bytes / (25.5 * 0.86))
    assert four_bit.ns(load, Lane.H2D) == expected


def test_only_device_operations_run_on_the_device():
    with pytest.raises(ValueError, match="load reads no weights"):
        COSTS.ns(Op(OpKind.LOAD, 0), Lane.DEVICE)


def test_every_price_is_a_positive_integer_on_every_machine():
    for name in ("rtx3080ti", "h100"):
        costs = CostModel(load_profile(name), model_shape("olmoe-1b-7b"), "4bit")
        for kind in (OpKind.ATTEND, OpKind.GATE, OpKind.COMBINE, OpKind.EXPERT, OpKind.HEAD):
            price = costs.ns(Op(kind, 0, (1,)), Lane.DEVICE)
            assert isinstance(price, int)
            assert price >= 1


ROWS = st.integers(1, 5000)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [OpKind.ATTEND, OpKind.GATE, OpKind.EXPERT, OpKind.SHARED, OpKind.COMBINE, OpKind.PREDICT,
         OpKind.HEAD]
    ),
    ROWS, ROWS, st.integers(0, 30_000), st.integers(0, 30_000),
)  # fmt: skip
def test_more_rows_or_more_context_never_cost_less(kind, rows, more_rows, context, more_context):
    here = ns(kind, rows=(rows,), context=context)
    assert ns(kind, rows=(rows + more_rows,), context=context) >= here
    assert ns(kind, rows=(rows,), context=context + more_context) >= here


@settings(max_examples=100, deadline=None)
@given(ROWS, ROWS)
def test_more_rows_never_cost_the_host_less(rows, more_rows):
    here = ns(OpKind.EXPERT, Lane.HOST, (rows,))
    assert ns(OpKind.EXPERT, Lane.HOST, (rows + more_rows,)) >= here


# ----------------------------------------------------------------------------- capacity

TOTAL = 28 * 64
LAYER_COMMON = ATTENTION_PARAMS + 2 * 3584 + 3 * 3584 * 20480 + 3584 + 3584 * 64
COMMON_BYTES = 2 * (2 * 151_936 * 3584 + 3584 + 28 * LAYER_COMMON)
FREE = 48 * 2**30 - 10**9 - COMMON_BYTES - 1000 * 28 * 2 * 4 * 128 * 2


def capacity(profile: HardwareProfile = A6000, **options):
    return plan(profile, QWEN, "bf16", **({"kv_tokens": 1000} | options))


def test_the_slots_of_s3():
    got = capacity()
    assert COMMON_BYTES == 16_167_287_808
    assert got.slots == FREE // EXPERT_BYTES == 623
    assert got.device.budget_bytes == 48 * 2**30
    assert got.device.free_bytes == FREE
    assert got.host.used_bytes == TOTAL * EXPERT_BYTES
    assert not got.from_disk
    assert not got.overcommitted


def test_a_cache_ratio_is_a_share_of_all_experts():
    assert capacity(cache_ratio=0.25).slots == TOTAL // 4
    assert capacity(cache_ratio=0.0).slots == 0


def test_longer_texts_leave_fewer_slots():
    assert capacity(kv_tokens=1000 + 2 * EXPERT_BYTES // 57_344).slots in (620, 621)


def test_what_does_not_fit_is_refused_in_one_line():
    with pytest.raises(BudgetError, match="--cache-ratio") as error:
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
    got = plan(A6000, olmoe, "bf16", kv_tokens=1000)
    assert got.slots == len(olmoe.moe_layers) * olmoe.num_experts


def test_attention_pays_for_the_pairs_of_each_sequence_not_of_the_batch():
    """Two prompts of 10,000 tokens: 2 · 10,000 · 10,001 / 2 pairs, 4 · H · D operations each."""
    tokens, pairs = 20_000, 10_000 * 10_001
    op = Op(OpKind.ATTEND, 0, (tokens,), (), tokens, pairs)
    flops = 154.8e12 * 0.6
    projections = 2 * (QWEN.attention_params + QWEN.norm_params) * tokens / flops * 1e9
    products = 4 * pairs * 28 * 128 / flops * 1e9
    assert COSTS.ns(op, Lane.DEVICE) == round(projections + products)


def test_a_prediction_without_attention_does_not_launch_it():
    gate = Op(OpKind.PREDICT, 0, (1,))
    full = Op(OpKind.PREDICT, 0, (1,), (), 100, 100)
    assert COSTS.control_ns(gate, Lane.DEVICE) == 4 * 8000
    assert COSTS.control_ns(full, Lane.DEVICE) == (14 + 4) * 8000
