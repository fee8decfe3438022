"""FlexGen's linear program against its cost model written out as sums, one number a time."""

from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.systems.flexgen_policy import (
    GIB,
    T4,
    TERA,
    USABLE,
    Rates,
    Work,
    host_flops,
    lanes_in_decode,
    lanes_in_prefill,
    memories,
    mixtral_layer_bytes,
    solve,
    upload_s,
)


def test_the_rates_are_those_of_flexgens_cost_model():
    """``CostModelConfig``: GiB/s of the links and the disk, TFLOP/s, and the memories in GiB."""
    assert (GIB, TERA, USABLE) == (1_073_741_824, 1_000_000_000_000, 0.8)
    assert Rates(
        up=12.89 * 2**30, down_cache=0.97 * 2**30, down_hidden=4.82 * 2**30,
        read=0.473 * 2**30, write_cache_pre=0.746 * 2**30, write_hidden_pre=2.015 * 2**30,
        write_gen=2.015 * 2**30, product_pre=21.24e12, product_gen=4.3e12,
        attention_pre=9.97e12, attention_gen=0.079e12, host=0.0123e12,
        gpu_bytes=15 * 2**30, cpu_bytes=204 * 2**30, disk_bytes=1500 * 2**30,
    ) == T4  # fmt: skip
    assert Work(1, 2, 3, 4, 5, 6, 7)[7:] == (512, 32, 1, 1)


def test_the_cpu_is_slower_for_small_micro_batches_and_wide_models():
    rates = T4._replace(host=1000.0)
    assert host_flops(rates, 4096, 64) == 1000
    assert host_flops(rates, 8192, 128) == 1000
    assert host_flops(rates, 4096, 16) == pytest.approx(1000 * (1 - 2 * 0.0328))
    assert host_flops(rates, 512, 64) == pytest.approx(1000 * (1 - 3 * 0.0621))
    both = 1 + 0.0168 * 2 * 3 - 0.0328 * 2 - 0.0621 * 3
    assert host_flops(rates, 512, 16) == pytest.approx(1000 * both)
    assert host_flops(rates, 1 / 2**10, 64) == 100  # no less than a tenth


def test_a_share_off_the_gpu_crosses_the_link():
    assert upload_s(120, 0.25, 10) == 3
    assert mixtral_layer_bytes(3, 5, 7) == 5 * 9 + 6 * 3 * 5 * 7


number = st.integers(1, 40)
shares = st.tuples(*[st.integers(0, 30)] * 3)


@settings(max_examples=60)
@given(
    st.tuples(*[number] * 11), st.lists(number, min_size=15, max_size=15), shares, shares, shares
)
def test_times_and_memories_are_flexgens_sums(sizes, given_rates, w, c, h):
    """Each row, at any shares, is what FlexGen's formulas give for them."""
    work, rates = Work(*sizes), Rates(*map(float, given_rates))
    point = [*w, *c, *h, 3.0, 5.0, 1.0]
    (wg, wc, wn), (cg, cc, cn), (hg, hc, hn) = w, c, h
    layers, wi, ops, h1, h2, nh, kv, s, n, bls, gbs = sizes
    micro_rows = log2(64 / gbs)
    slow = max(0.1, 1 + (0.0168 * micro_rows - 0.0621) * log2(4096 / h1) - 0.0328 * micro_rows)
    mean = s + n / 2
    prefill = [
        (wi * (wc + wn) + 2 * s * h1 * bls * (hc + hn)) / rates.up,
        kv * (s + 1) * bls * (cc + cn) / rates.down_cache
        + 2 * s * h1 * bls * (hc + hn) / rates.down_hidden,
        (wi * wn + 2 * s * h1 * bls * hn) / rates.read,
        kv * (s + 1) * bls * cn / rates.write_cache_pre
        + 2 * s * h1 * bls * hn / rates.write_hidden_pre,
        bls * s * ops / rates.product_pre + 4 * bls * s * s * h1 / rates.attention_pre,
    ]
    decode = [
        (wi * (wc + wn) + 2 * h1 * bls * (hc + hn)) / rates.up,
        2 * h1 * bls * (hc + hn) / rates.down_hidden,
        (kv * bls * mean * cn + 2 * h1 * bls * hn) / rates.read + wi * wn / (0.95 * rates.read),
        (kv * bls * cn + 2 * h1 * bls * hn) / rates.write_gen,
        bls * ops / rates.product_gen
        + 4 * h1 * bls * mean * cg / rates.attention_gen
        + 4 * h1 * bls * mean * (cc + cn) / (rates.host * slow),
    ]
    for made, by_hand in ((lanes_in_prefill, prefill), (lanes_in_decode, decode)):
        assert [row @ point for row in made(work, rates)] == pytest.approx(by_hand)
    whole = (s + n) * kv * bls * layers
    on_gpu = wi * layers * wg + whole * cg + 2 * wi * (1 - wg)
    working = (14 * h1 + 2 * h2) + cg * (2 * kv * (s + n) + 4 * h1 + 2 * nh * (s + n))
    in_use = [
        on_gpu + 2 * s * h1 * bls * hg + 2 * s * h1 * gbs * (1 - hg)
        + gbs * (18 * s * h1 + 2 * s * h2 + 2 * nh * s * s),
        on_gpu + 2 * h1 * bls * hg + 2 * h1 * gbs * (1 - hg) + gbs * working,
        wi * layers * wc + 2 * s * h1 * bls * hc + s * kv * bls * layers * cc
        + wi * (1 - wg) + 2 * s * h1 * gbs * (1 - hg),
        wi * layers * wc + 2 * h1 * bls * hc + whole * cc + wi * wn + 4 * h1 * gbs * hn
        + 2 * (s + n) * kv * gbs * cn + (2 * nh * (s + n) + 2 * h1) * gbs,
        wi * layers * wn + 2 * s * h1 * bls * hn + whole * cn,
    ]  # fmt: skip
    found = memories(work, rates)
    assert [row @ point for row, _ in found] == pytest.approx(in_use)
    gpu, cpu, disk = rates.gpu_bytes, rates.cpu_bytes, rates.disk_bytes
    assert [room for _, room in found] == [gpu, gpu, cpu, cpu, disk]


def evaluated(rows, found):
    """Return what rows give at a solution."""
    return [
        row @ [*found.w, *found.c, *found.h, found.prefill_s, found.decode_s, 1] for row in rows
    ]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_layers_time_is_its_slowest_lane_by_the_form(on_gpu):
    size = 24 * 2048**2
    work = Work(12, size, size, 2048, 8192, 16, 8192, 128, 16, block=64, micro=16)
    rates = T4._replace(gpu_bytes=1.0 * GIB, cpu_bytes=3.0 * GIB)
    if on_gpu:
        rates = rates._replace(gpu_bytes=2.4 * GIB)
    for form in ("code", "max"):
        found = solve(work, rates, form, on_gpu)
        up, down, read, write, compute = evaluated(lanes_in_prefill(work, rates), found)
        up_gen, *others = evaluated(lanes_in_decode(work, rates), found)
        if form == "code":
            wanted = max(up + read, down + write, compute), up_gen + max(others)
        else:
            wanted = max(up, down, read, write, compute), max(up_gen, *others)
        assert (found.prefill_s, found.decode_s) == pytest.approx(wanted)
        assert found.total_s == pytest.approx(12 * (found.prefill_s + 15 * found.decode_s))
        assert found.h.disk == pytest.approx(0)
        assert [sum(one) for one in found[:3]] == pytest.approx([1, 1, 1])
        assert (found.c.gpu == pytest.approx(1) and found.h.gpu == pytest.approx(1)) == on_gpu
        assert 0 < found.w.gpu < 1
