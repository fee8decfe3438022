"""Prices of S3 (Qwen2-57B-A14B in bf16 on the A6000 box), worked out by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.machines.compose import composed as parts_of_a_machine
from moebench.substrate.machines.costs import FUSED_TENSORS, CostModel, HostProducts
from moebench.substrate.machines.profile import HardwareProfile, load_profile, load_software
from moebench.substrate.machines.profile_ranges import moved
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.quantity import WeightRate
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import ModelShape

A6000 = load_profile("a6000+host.gemv_bandwidth=78")
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
HOST_FLOPS = 785 * 0.75


def ns(kind: OpKind, lane: Lane = Lane.DEVICE, rows=(1,), context: int = 0) -> int:
    return COSTS.ns(Op(kind, 0, tuple(rows), tuple(range(len(rows))), context), lane)


def test_an_expert_on_every_lane():
    assert EXPERT_BYTES == 2 * EXPERT_PARAMS == COSTS.record_bytes
    # 2.5 µs and 26 GB/s, as the authors state it between their own kernels
    assert ns(OpKind.LOAD, Lane.H2D, ()) == round(2_500 + EXPERT_BYTES / 26) == 2_119_817
    # 20 µs to hand it over, 78 GB/s of the host's memory
    assert ns(OpKind.EXPERT, Lane.HOST) == round(20_000 + EXPERT_BYTES / 78) == 725_772
    # 768 GB/s, of which large reads reach 85 %
    assert ns(OpKind.EXPERT) == round(EXPERT_BYTES / LARGE) == 84_329
    # 50 µs and 4.6 GB/s, one read at a time
    assert ns(OpKind.READ, Lane.DISK, ()) == round(50_000 + EXPERT_BYTES / 4.6)
    queued = Op(OpKind.READ, 0, queued=True)  # its access goes on while another is transferred
    assert COSTS.ns(queued, Lane.DISK) == round(EXPERT_BYTES / 7.32)
    # its output on the way back: 26 GB/s, two bytes a value
    assert ns(OpKind.RETURN, Lane.D2H, (3,)) == round(2_500 + 3 * 3584 * 2 / 26)


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


def test_experts_of_one_operation_add_up_and_are_handed_over_once():
    assert ns(OpKind.EXPERT, rows=(1, 1, 1)) == round(3 * EXPERT_BYTES / LARGE)
    assert ns(OpKind.EXPERT, Lane.HOST, (1, 1)) == round(20_000 + 2 * EXPERT_BYTES / 78)


def test_many_rows_are_bound_by_arithmetic():
    assert ns(OpKind.EXPERT, rows=(4096,)) == round(2 * EXPERT_PARAMS * 4096 / TENSOR)
    by_flops = 2 * EXPERT_PARAMS * 64 / HOST_FLOPS
    assert by_flops > EXPERT_BYTES / 78
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


def test_eager_software_pays_for_layers_and_experts():
    eager = CostModel(load_profile("a6000+host.gemv_bandwidth=78", "hf-eager"), QWEN, "bf16")

    def control(kind: OpKind, lane: Lane = Lane.DEVICE, rows=(1,)) -> int:
        return eager.control_ns(Op(kind, 0, tuple(rows)), lane)

    assert control(OpKind.ATTEND) == 840_000 + 14 * 8_000
    assert control(OpKind.EXPERT, rows=(1, 9, 4)) == 3 * (42_000 + 11 * 8_000)
    assert control(OpKind.EXPERT, Lane.HOST) == 42_000 + 6_000
    assert control(OpKind.ATTEND, Lane.HOST) == 840_000 + 6_000
    assert control(OpKind.GATE) == 4 * 8_000
    layer = control(OpKind.ATTEND) + control(OpKind.GATE) + control(OpKind.COMBINE)
    assert layer == 1_000_000
    # What lies on the lanes is the machine's: the same whoever launches it.
    for op in (Op(OpKind.EXPERT, 0, (1,), (0,)), Op(OpKind.ATTEND, 0, (1,), (), 10, 10)):
        for lane in (Lane.DEVICE, Lane.HOST):
            assert eager.ns(op, lane) == COSTS.ns(op, lane)
    assert (eager.waits_each_layer, COSTS.waits_each_layer) == (True, False)


def test_eager_software_dispatches_an_experts_operators_on_the_host_too():
    """But not where the host's bandwidth was inferred from an expert's time, which holds that."""
    expert, attention = Op(OpKind.EXPERT, 0, (1, 1), (0, 1)), Op(OpKind.ATTEND, 0, (1,), (), 10, 10)
    for machine, dispatches in (("a6000+host.gemv_bandwidth=78", 0), ("rtx4090", 2 * 11 * 8_000)):
        lean = CostModel(load_profile(machine, "lean"), QWEN, "bf16")
        eager = CostModel(load_profile(machine, "hf-eager"), QWEN, "bf16")
        more = eager.ns(expert, Lane.HOST) - lean.ns(expert, Lane.HOST)
        assert more == pytest.approx(dispatches, abs=1)
        profile = load_profile(machine, "hf-eager")
        fused = CostModel(profile, QWEN, "bf16", host=HostProducts("fused"))  # one call of C++ code
        assert fused.ns(expert, Lane.HOST) == lean.ns(expert, Lane.HOST)
        assert eager.ns(attention, Lane.HOST) == lean.ns(attention, Lane.HOST)


def test_a_prediction_that_runs_attention_pays_the_python_of_a_layer():
    eager = load_profile("a6000+host.gemv_bandwidth=78", "hf-eager")
    paying, free = (
        CostModel(eager, QWEN, "bf16", prediction_python=pays) for pays in (True, False)
    )
    attention = Op(OpKind.PREDICT, 0, (1,), (), 10, 10)
    gates = Op(OpKind.PREDICT, 0, (1, 1, 1))
    launches = (14 + 4) * 8_000
    assert paying.control_ns(attention, Lane.DEVICE) == launches + 840_000
    assert free.control_ns(attention, Lane.DEVICE) == launches
    assert COSTS.control_ns(attention, Lane.DEVICE) == launches  # lean has no Python
    for costs in (paying, free):
        assert costs.control_ns(gates, Lane.DEVICE) == 3 * 4 * 8_000


@pytest.mark.parametrize(
    ("precision", "kernels", "gb_s"),
    [("4bit", "fused", 0.78 * 78 / 4.15625), ("2bit", "fused", 0.6 * 78 / 3.015625),
     ("4bit-g64", "fused", 0.78 * 78 / 4.5),
     ("4bit", "unpacking", 78 / 4.9 / 16), ("2bit", "unpacking", 78 / 4.9 / 16),
     ("bf16", "fused", 78 / 16), ("bf16", "unpacking", 78 / 16)],
)  # fmt: skip
def test_quantised_experts_on_the_host_cost_what_its_kernels_do(precision, kernels, gb_s):
    """``gb_s``: weights, each as one bit, that the host multiplies in a nanosecond."""
    costs = CostModel(A6000, QWEN, "bf16", expert_precision=precision, host=HostProducts(kernels))
    took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
    assert took == pytest.approx(EXPERT_PARAMS / 8 / gb_s, rel=1e-4)
    # The rest of the model has another precision, and the device its own kernels.
    assert costs.ns(Op(OpKind.ATTEND, 0, (1,)), Lane.HOST) == ns(OpKind.ATTEND, Lane.HOST)


def test_torchs_packed_experts_are_fused_whatever_the_system():
    for kernels in ("fused", "unpacking"):
        costs = CostModel(A6000, QWEN, "bf16", expert_precision="int8", host=HostProducts(kernels))
        took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
        assert took == round(costs.record_bytes / (78 * 0.95))


def test_the_totals_of_eager_software_hold_their_launches():
    eager = load_profile("a6000+host.gemv_bandwidth=78", "hf-eager")
    slow = CostModel(moved(eager, "software.launch", 12.0), QWEN, "bf16")
    parts = (OpKind.ATTEND, OpKind.GATE, OpKind.COMBINE)
    assert sum(slow.control_ns(Op(kind, 0, (1,)), Lane.DEVICE) for kind in parts) == 1_000_000
    expert = Op(OpKind.EXPERT, 0, (1,), (0,))
    assert slow.control_ns(expert, Lane.DEVICE) == 11 * 12_000, (
        "launches alone are more than 130 us"
    )


# ----------------------------------------------------------------------------- transfers

LOAD = Op(OpKind.LOAD, 0)


def test_pageable_copies_are_slower():
    link = A6000.link.model_copy(update={"pinned": False})
    of_box = CostModel(A6000.model_copy(update={"link": link}), QWEN, "bf16")
    of_system = CostModel(A6000, QWEN, "bf16", pinned=False)
    for pageable in (of_box, of_system):
        assert pageable.ns(LOAD, Lane.H2D) == round(2_500 + EXPERT_BYTES / 8.5)
        assert pageable.ns(LOAD, Lane.H2D) > COSTS.ns(LOAD, Lane.H2D)
        assert pageable.h2d_bytes_per_ns == pytest.approx(8.5)
    # A system's own way of copying goes before the box's.
    pinned = CostModel(of_box.profile, QWEN, "bf16", pinned=True)
    assert pinned.ns(LOAD, Lane.H2D) == COSTS.ns(LOAD, Lane.H2D)
    daop = CostModel(load_profile("a6000@daop"), QWEN, "bf16")
    assert daop.ns(LOAD, Lane.H2D) > of_box.ns(LOAD, Lane.H2D)


def test_a_quantised_record_moves_faster():
    four_bit = CostModel(A6000, QWEN, "4bit")
    assert four_bit.record_bytes == round(EXPERT_PARAMS * 4.15625 / 8)
    expected = round(2_500 + four_bit.record_bytes / 26)
    assert four_bit.ns(LOAD, Lane.H2D) == expected


def test_experts_may_be_stored_at_another_precision_than_the_rest():
    mixed = CostModel(A6000, QWEN, "bf16", expert_precision="4bit")
    four_bit = CostModel(A6000, QWEN, "4bit")
    assert (mixed.precision, mixed.expert_precision) == ("bf16", "4bit")
    expert, gate = Op(OpKind.EXPERT, 0, (1,), (0,)), Op(OpKind.GATE, 0, (1,))
    stream = Op(OpKind.STREAM, 0)
    for op, lane, like in (
        (LOAD, Lane.H2D, four_bit),
        (Op(OpKind.READ, 0), Lane.DISK, four_bit),
        (Op(OpKind.WRITE_BACK, 0), Lane.D2H, four_bit),
        (expert, Lane.DEVICE, four_bit),
        (expert, Lane.HOST, four_bit),
        (gate, Lane.DEVICE, COSTS),
        (Op(OpKind.SHARED, 0, (1,)), Lane.DEVICE, COSTS),
        (Op(OpKind.HEAD, 0, (1,)), Lane.DEVICE, COSTS),
        (stream, Lane.H2D, COSTS),
    ):
        other = COSTS if like is four_bit else four_bit
        assert mixed.ns(op, lane) == like.ns(op, lane) != other.ns(op, lane)
    assert mixed.moved_bytes(LOAD) == mixed.record_bytes == four_bit.record_bytes
    assert mixed.moved_bytes(stream) == COSTS.moved_bytes(stream)


def test_a_write_back_crosses_the_link_the_other_way():
    # 26 GB/s to the host
    back = Op(OpKind.WRITE_BACK, 0, (), (3,))
    assert COSTS.ns(back, Lane.D2H) == round(2_500 + EXPERT_BYTES / 26)
    assert COSTS.moved_bytes(back) == EXPERT_BYTES
    assert COSTS.control_ns(back, Lane.D2H) == 6_000
    # An engine that reaches half of the link's rate reaches half of it in both directions.
    half = CostModel(load_profile("a6000+link.in_engine_efficiency=0.5"), QWEN, "bf16")
    assert half.ns(back, Lane.D2H) == round(2_500 + EXPERT_BYTES / 13)
    assert half.ns(Op(OpKind.LOAD, 0), Lane.H2D) == round(2_500 + EXPERT_BYTES / 13)


def test_a_streamed_layer_is_all_that_is_no_routed_expert_of_it():
    # attention, two norms, shared experts with their gate, router
    layer = ATTENTION_PARAMS + 2 * 3584 + 3 * 3584 * 20480 + 3584 + 3584 * 64
    op = Op(OpKind.STREAM, 5)
    assert COSTS.moved_bytes(op) == 2 * layer
    assert COSTS.ns(op, Lane.H2D) == round(2_500 + 2 * layer / 26)


def test_layers_that_differ_are_streamed_at_their_own_price():
    dense_first = model_shape("deepseek-moe-16b")
    costs = CostModel(A6000, dense_first, "bf16")
    moved = [costs.moved_bytes(Op(OpKind.STREAM, layer)) for layer in (0, 1, 2)]
    assert moved == [2 * dense_first.layer_common_params(layer) for layer in (0, 1, 2)]
    prices = [costs.ns(Op(OpKind.STREAM, layer), Lane.H2D) for layer in (0, 1, 2)]
    assert prices == [round(2_500 + size / 26) for size in moved]
    assert prices[0] != prices[1] == prices[2]


@pytest.mark.parametrize("chunks", [2, 4, 7])
def test_a_part_of_a_record_costs_its_bytes_and_every_part_the_fixed_time(chunks):
    share, part = 1 / chunks, Op(OpKind.LOAD, 0, chunk=(1, chunks))
    assert COSTS.moved_bytes(part) == round(EXPERT_BYTES * share)
    assert COSTS.ns(part, Lane.H2D) == pytest.approx(2_500 + EXPERT_BYTES * share / 26, abs=1)
    read = Op(OpKind.READ, 0, chunk=(1, chunks))
    assert COSTS.ns(read, Lane.DISK) == pytest.approx(50_000 + EXPERT_BYTES * share / 4.6, abs=1)


# ----------------------------------------------------------------------------- predictions

NETWORK = (300, 100, 64)


def network_ns() -> float:
    """Two layers with biases, in fp32, read at the speed of small reads."""
    return sum(4 * (a * b + b) / SMALL for a, b in ((300, 100), (100, 64)))


def test_a_network_costs_the_same_among_the_devices_operations_and_beside_them():
    op = Op(OpKind.PREDICT, 0, (1,), network=NETWORK)
    for lane in (Lane.DEVICE, Lane.PREDICT):
        assert COSTS.ns(op, lane) == round(network_ns())
        assert COSTS.control_ns(op, lane) == 2 * 3 * 8_000
        assert COSTS.first_launch_ns(op, lane) == 8_000


def test_a_network_on_the_host_reads_the_hosts_memory():
    params = 300 * 100 + 100 + 100 * 64 + 64
    op = Op(OpKind.PREDICT, 0, (1,), network=NETWORK)
    assert COSTS.ns(op, Lane.HOST) == round(4 * params / 78)
    assert COSTS.control_ns(op, Lane.HOST) == 6_000


@pytest.mark.parametrize("context", [0, 1000])
def test_gates_of_several_layers_share_one_attention_at_most(context):
    ops = [Op(OpKind.PREDICT, 0, (1,) * gates, (), context, context) for gates in (1, 2, 3)]
    gate = 2 * (3584 * 64 + 3584) / SMALL
    for lane in (Lane.DEVICE, Lane.PREDICT):
        one, two, three = (COSTS.ns(op, lane) for op in ops)
        assert two - one == pytest.approx(gate, abs=1)
        assert three - two == pytest.approx(gate, abs=1)
        attention = 14 * 8_000 if context else 0
        launches = [attention + gates * 4 * 8_000 for gates in (1, 2, 3)]
        assert [COSTS.control_ns(op, lane) for op in ops] == launches


# ----------------------------------------------------------------------------- everywhere


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


def test_a_hook_brings_each_matrix_of_an_expert_by_itself():
    hooked = CostModel(A6000, QWEN, "bf16", module_hooks=True)
    load = Op(OpKind.LOAD, 0, (), (0,))
    # Three copies of a third each: 2.5 µs each on the link, 6 + 60 µs each on the control thread.
    assert hooked.ns(load, Lane.H2D) == round(3 * 2_500 + EXPERT_BYTES / 26)
    assert (hooked.load_submit_ns, COSTS.load_submit_ns) == (3 * 66_000, 6_000)


def test_hooks_are_counted_as_accelerate_was_measured():
    """67 loads a token for four layers of Qwen2-MoE, embedding, norm and head among them."""
    four = QWEN.model_copy(update={"num_layers": 4})
    layers = sum(four.layer_common_tensors(layer) + FUSED_TENSORS for layer in range(4))
    assert layers + 3 == 67


def test_fused_experts_share_two_copies():
    fused = CostModel(A6000, QWEN, "bf16", module_hooks=True, fused_experts=True)
    load = Op(OpKind.LOAD, 0, (), (0,))
    assert fused.ns(load, Lane.H2D) == round(2 * 2_500 / 64 + EXPERT_BYTES / 26)
    assert fused.load_submit_ns == 2 * 66_000 // 64
    # Without hooks a copy is a copy.
    assert CostModel(A6000, QWEN, "bf16", fused_experts=True).load_submit_ns == 6_000


def test_a_hook_brings_each_tensor_of_a_streamed_layer_by_itself():
    hooked = CostModel(A6000, QWEN, "bf16", module_hooks=True)
    stream = Op(OpKind.STREAM, 3)
    # Queries, keys and values with their biases, output, two norms, the gate; three matrices of
    # the shared expert and its gate.
    assert hooked.ns(stream, Lane.H2D) - COSTS.ns(stream, Lane.H2D) == (14 - 1) * 2_500
    assert hooked.control_ns(stream, Lane.H2D) == 14 * 66_000
    assert COSTS.control_ns(stream, Lane.H2D) == 6_000


# ------------------------------------------------------------------------- files of mixed formats


def composed(core_rate: float | None) -> HardwareProfile:
    number = {"value": core_rate, "unit": "Gweights/s", "source": "hand", "badge": "estimate"}
    rate = None if core_rate is None else WeightRate.model_validate(number)
    host = A6000.host.model_copy(update={"core_rate": rate})
    return A6000.model_copy(update={"host": host})


@pytest.mark.parametrize(
    ("threads", "bits", "rate", "weights_per_ns"),
    [
        (2, 4.5, 1.0, 16),  # two cores of 8 weights a ns
        (2, 4.5, 0.5, 8),  # codebook formats take a core twice as long
        (64, 4.5, 1.0, 78 * 8 / 4.5),  # the memory's 78 GB/s
        (64, 8.5, 1.0, 78 * 8 / 8.5),
        (64, 2.0, 1.0, 312),  # two bits are no faster than the memory allows, nor the kernels
    ],
)
def test_threads_and_the_memory_limit_products_on_the_host(
    threads: int, bits: float, rate: float, weights_per_ns: float
) -> None:
    use = HostProducts("fused", threads, rate)
    costs = CostModel(composed(8.0), QWEN, 5.0, expert_precision=bits, host=use)
    assert costs.record_bytes == round(EXPERT_PARAMS * bits / 8)
    took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
    assert took == pytest.approx(EXPERT_PARAMS / weights_per_ns, rel=1e-4)


@given(st.integers(1, 128), st.floats(1.5, 16.0), st.floats(1.0, 40.0))
def test_more_threads_or_faster_cores_never_make_the_host_slower(
    threads: int, bits: float, core_rate: float
) -> None:
    op = Op(OpKind.EXPERT, 0, (1,), (0,))

    def took(threads: int, core_rate: float) -> int:
        use = HostProducts("fused", threads)
        profile = composed(core_rate)
        return CostModel(profile, QWEN, 16.0, expert_precision=bits, host=use).ns(op, Lane.HOST)

    assert took(threads + 1, core_rate) <= took(threads, core_rate)
    assert took(threads, core_rate * 1.5) <= took(threads, core_rate)
    memory_ns = EXPERT_PARAMS * bits / 8 / 78
    assert took(threads, core_rate) >= memory_ns + 20_000 - 1


@pytest.mark.parametrize(
    ("threads", "precision", "weights_per_ns"),
    [
        (2, "4bit", 16),  # two cores of 8 weights a ns
        (None, "4bit", 6 * 8),  # as many as the machine has cores
        (6, "4bit", 6 * 8),
        (64, "4bit", 78 * 0.78 * 8 / 4.15625),  # fused kernels' share of the memory's 78 GB/s
        (2, "bf16", 78 / 2),  # a core's rate is that of quantised weights
    ],
)
def test_threads_limit_fused_products_of_named_precisions(
    threads: int | None, precision: Any, weights_per_ns: float
) -> None:
    assert A6000.host.cores.count == 6
    use = HostProducts("fused", threads)
    costs = CostModel(composed(8.0), QWEN, "bf16", expert_precision=precision, host=use)
    took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
    assert took == pytest.approx(EXPERT_PARAMS / weights_per_ns, rel=1e-4)


def test_products_of_many_rows_take_the_share_of_cores_that_multiply() -> None:
    op = Op(OpKind.EXPERT, 0, (4096,), (0,))
    times = {
        threads: CostModel(A6000, QWEN, "bf16", host=HostProducts("fused", threads)).ns(
            op, Lane.HOST
        ) - 20_000
        for threads in (None, 1, 3, 6, 12)
    }  # fmt: skip
    assert times[None] == times[6] == times[12]
    assert times[3] == pytest.approx(2 * times[6], rel=1e-4)
    assert times[1] == pytest.approx(6 * times[6], rel=1e-4)


def test_kernels_of_a_kind_of_software_on_the_host() -> None:
    one, many = (Op(OpKind.EXPERT, 0, (rows,), (0,)) for rows in (1, 4096))

    def took(kind: str, op: Op, precision: Any = "2bit") -> int:
        profile = load_profile("a6000+host.gemv_bandwidth=78", kind)
        use = HostProducts("fused")
        costs = CostModel(profile, QWEN, "bf16", expert_precision=precision, host=use)
        return costs.ns(op, Lane.HOST) - 20_000

    # ik_llama.cpp's kernels are 1.3 times as fast, up to the memory's bandwidth.
    assert took("ggml", one) == pytest.approx(1.3 * took("ik", one), rel=1e-4)
    assert took("ggml", one, "int8") == pytest.approx(took("ik", one, "int8") / 0.95, rel=1e-4)
    # With many rows a core has 0.7, 2.7 and 3.6 times its rate with one, if that is known.
    machine = HardwareProfile.from_mapping(parts_of_a_machine("rtx-3090+ryzen-5950x"))
    rate = machine.host.core_rate
    assert rate is not None
    for kind, gain in ("ggml", 0.7), ("ik", 2.7), ("kt", 3.6):
        assert took(kind, many, "bf16") == took("lean", many, "bf16")
        profile = machine.model_copy(update={"software": load_software(kind)})
        costs = CostModel(profile, QWEN, "bf16", host=HostProducts("fused", 8))
        needed = EXPERT_PARAMS * 4096 / (8 * rate.per_s * gain / 1e9)
        assert costs.ns(many, Lane.HOST) - 20_000 == pytest.approx(needed, rel=1e-4)


def test_copies_and_products_share_the_hosts_memory() -> None:
    """45 GB/s for a copy of 25 and a product that reads 41: each loses a third beside the other."""
    machine = HardwareProfile.from_mapping(parts_of_a_machine("rtx-3090+ryzen-5950x"))
    costs = CostModel(machine, QWEN, "bf16")
    both = costs.h2d_bytes_per_ns + machine.host.gemv_bandwidth.bytes_per_s / 1e9
    assert costs.lost_together == pytest.approx(1 - 45.06 / both)
    assert 0.25 < costs.lost_together < 0.35
    assert CostModel(A6000, QWEN, "bf16").lost_together == 0


def test_without_a_cores_rate_bits_take_the_share_of_the_nearest_precision() -> None:
    for bits, share in ((2.6, 0.6), (4.5, 0.78), (8.5, 0.95), (16.0, 1.0)):
        costs = CostModel(A6000, QWEN, bits, host=HostProducts("fused"))
        took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
        assert took == pytest.approx(EXPERT_PARAMS * bits / 8 / (78 * share), rel=1e-4)


def test_windows_bound_what_attention_reads() -> None:
    oss = model_shape("gpt-oss-20b")  # every second layer has a window of 128 positions
    costs = CostModel(A6000, oss, "bf16")
    size, _ = costs.work(Op(OpKind.ATTEND, 0, (1,), (), 8000, 8000))
    weights = 2 * (oss.attention_params + oss.norm_params)
    assert size - weights == (8000 + 128) / 2 * 2 * 8 * 64 * 2
    both, _ = costs.work(Op(OpKind.ATTEND, 0, (2,), (), 16000, 16000))
    assert both - weights == 2 * (size - weights)
    _, flops = costs.work(Op(OpKind.ATTEND, 0, (1000,), (), 1000, 500_500))
    products = 2 * (oss.attention_params + oss.norm_params) * 1000
    assert flops - products == 4 * (500_500 + 128_000) / 2 * 64 * 64


def test_decode_attention_over_latent_vectors_is_arithmetic() -> None:
    """DeepSeek-V2-Lite: 16 heads, vectors of 512 and 64 rotary values, 8,000 cached tokens."""
    lite = model_shape("deepseek-v2-lite")
    costs = CostModel(A6000, lite, "bf16")
    decoded, prompt = (
        Op(OpKind.ATTEND, 0, (rows,), (), 8000, pairs)
        for rows, pairs in ((1, 8000), (8000, 32_004_000))
    )
    products = 2 * 16 * (2 * 512 + 64) * 8000
    weights = 2 * (lite.attention_params + lite.norm_params)
    assert costs.work(decoded) == (weights + 8000 * 576 * 2, products + weights)
    without = costs.ns(Op(OpKind.ATTEND, 0, (1,)), Lane.DEVICE)
    # 768 GB/s, of which large reads reach 0.87 (the profile), and latent vectors 0.09 of that.
    read = 768 * A6000.gpu.large_read_efficiency.ratio * 0.09
    assert costs.ns(decoded, Lane.DEVICE) - without == pytest.approx(8000 * 576 * 2 / read, abs=1)
    _, flops = costs.work(prompt)
    assert flops - weights * 8000 == 2 * 16 * (128 + 64 + 128) * 32_004_000


def test_a_gain_of_many_rows_needs_a_cores_rate() -> None:
    """Without one, a core's share of the peak limits a product of one row: 98 GFLOPS of 589."""
    profile = load_profile("a6000+host.gemv_bandwidth=78", "kt")
    assert profile.software.host_rows_gain is not None
    assert profile.host.core_rate is None
    costs = CostModel(profile, QWEN, "bf16", expert_precision="2bit", host=HostProducts("fused", 1))
    took = costs.ns(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST) - 20_000
    assert took == pytest.approx(2 * EXPERT_PARAMS / (HOST_FLOPS / 6), rel=1e-4)


def test_a_quantised_expert_is_unpacked_on_the_device_for_more_than_one_row() -> None:
    """Unpacking takes as long as 100 rows; one row's product reads the packed weights alone."""
    profile = load_profile("a6000", "ik")
    assert profile.software.unpacking_rows is not None
    rows = profile.software.unpacking_rows.model_copy(update={"value": 100.0})
    changed = profile.software.model_copy(update={"unpacking_rows": rows})
    profile = profile.model_copy(update={"software": changed})

    def took(precision: Any, *rows: int) -> int:
        op = Op(OpKind.EXPERT, 0, rows, tuple(range(len(rows))))
        return CostModel(profile, QWEN, precision).ns(op, Lane.DEVICE)

    packed = QWEN.expert_bytes("4bit") / SMALL  # less than 20 MB

    def products(rows: int) -> float:
        return 2 * EXPERT_PARAMS * rows / TENSOR

    assert took("4bit", 1) == round(packed)
    assert took("4bit", 2) == round(products(2 + 100))
    assert took("4bit", 1, 64, 2) == round(packed + products(64 + 100) + products(2 + 100))
    assert took("bf16", 2) == round(EXPERT_BYTES / LARGE)
    assert took("bf16", 512) == round(products(512))


@pytest.mark.parametrize(("columns", "rate"), [(9_999, SMALL), (10_000, LARGE)])
def test_reads_of_20_million_bytes_are_large(columns: int, rate: float) -> None:
    """Of an output head of 1000 inputs in bf16, and of a network's weights and biases in fp32."""
    shape = ModelShape(**QWEN.model_dump() | {"hidden_size": 1000, "vocab_size": columns})
    costs = CostModel(A6000, shape, "bf16")
    assert costs.ns(Op(OpKind.HEAD, 0, (1,)), Lane.DEVICE) == round(2 * 1000 * columns / rate)
    network = Op(OpKind.PREDICT, 0, (1,), network=(4999, columns // 10))
    weights = 4 * 5000 * (columns // 10)
    assert costs.ns(network, Lane.DEVICE) == round(weights / rate)
