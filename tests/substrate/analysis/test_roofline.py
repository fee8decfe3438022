"""The hierarchical roofline model: MoE-Lightning's numbers, and its search by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.analysis.roofline import (
    LayerTime,
    Need,
    Policy,
    Roofs,
    Sizes,
    Texts,
    attainable,
    attention_intensity,
    device_need,
    ffn_intensity,
    first_turning_point,
    host_attainable,
    host_need,
    layer_time,
    requests_at,
    second_turning_point,
    throughput,
)
from moebench.substrate.analysis.roofline_inputs import roofs_of, sizes_of
from moebench.substrate.analysis.roofline_search import Case
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from tests.systems.views import shape

MIXTRAL = sizes_of(model_shape("mixtral-8x7b"), "mixtral-8x7b")
T4, L4 = (roofs_of(load_profile(f"{card}@moe-lightning")) for card in ("t4", "l4"))
#: MTBench, padded.
TEXTS = Texts(prompt=418, new=128)


def found(roofs: Roofs, prompt: int, new: int) -> tuple[int, int]:
    """Return (μ, q) of the best policy for Mixtral 8x7B."""
    best = Case(MIXTRAL, roofs, Texts(prompt=prompt, new=new)).search()
    assert best is not None
    return best.policy.micro_batch, best.policy.micro_batches


# --------------------------------------------------------------------------- golden numbers


def test_sizes_are_the_papers() -> None:
    h1, h2 = 4096, 14336
    assert MIXTRAL.expert_bytes == 6 * h1 * h2 * 8
    assert MIXTRAL.resident_bytes == 5 * h1**2 * 32
    assert MIXTRAL.kv_bytes == 4 * h1 * 8 / 32


def test_the_policy_of_table_5() -> None:
    best = Case(MIXTRAL, T4, TEXTS).search()
    assert best is not None
    policy, time = best.policy, best.time
    assert (policy.micro_batch, policy.batch, policy.micro_batches) == (36, 504, 14)
    assert round(policy.resident, 4) == 0.0004
    assert [round(s, 4) for s in (time.link, time.device, time.host)] == [0.1640, 0.1226, 0.0106]
    assert (time.limit, time.total) == ("link", time.link)
    assert best.tokens_per_s == pytest.approx(504 * 128 / (time.total * 127 * 32))


def test_the_helm_row_is_near_the_papers() -> None:
    assert found(L4, 242, 50) == (100, 18)  # the paper: 100 and 15


def test_turning_points_of_mixtrals_ffn() -> None:
    assert ffn_intensity(MIXTRAL, 128) == 32  # N / 4
    for roofs, p1 in ((T4, 186), (L4, 373)):
        assert round(requests_at(MIXTRAL, first_turning_point(roofs))) == p1
    p2 = second_turning_point(L4, ffn_intensity(MIXTRAL, 128))
    assert round(requests_at(MIXTRAL, p2)) == 2280


def test_one_request_is_faster_on_the_host() -> None:
    one = Case(MIXTRAL, T4, TEXTS).of_batch(1)
    assert one is not None
    assert round(one.time.link, 3) == 0.154
    policy = Policy(batch=1, micro_batch=1, experts_on_device=False)
    assert round(layer_time(MIXTRAL, T4, TEXTS, policy).host, 3) == 0.026


def test_turning_points_are_where_the_roofs_meet() -> None:
    p1 = first_turning_point(T4)
    assert host_attainable(T4, p1) == T4.host_flops == pytest.approx(T4.link_bandwidth * p1)
    on_device = ffn_intensity(MIXTRAL, 36)
    p2 = second_turning_point(T4, on_device)
    assert attainable(T4, on_device, p2) == pytest.approx(T4.gpu_bandwidth * on_device)
    assert attainable(T4, on_device, p2 / 2) == pytest.approx(T4.link_bandwidth * p2 / 2)
    assert attainable(T4, 1e9, 1e9) == T4.gpu_flops
    assert attention_intensity(MIXTRAL) < p1  # attention stays on the host


def test_a_link_as_fast_as_the_hosts_memory_always_pays() -> None:
    assert first_turning_point(replace(T4, link_bandwidth=T4.host_bandwidth)) == 0


# --------------------------------------------------------------------------- by hand

#: Two layers of two experts of 50 B, all rates 1: bytes and FLOPs are seconds.
TINY = Sizes(
    layers=2, moe_layers=2, hidden=2, width=1, experts=2, top_k=1, heads=1, query_width=2,
    kv_bytes=8, expert_bytes=100, shared_bytes=0, resident_bytes=10,
)  # fmt: skip
UNIT = Roofs(
    gpu_bytes=1e4, host_bytes=1e4, gpu_bandwidth=1, host_bandwidth=1, link_bandwidth=1,
    gpu_flops=1, host_flops=1,
)  # fmt: skip
SHORT = Texts(prompt=3, new=2)


def time(**changed: object) -> LayerTime:
    """Return the time of a layer of `TINY` for four requests in two micro-batches."""
    policy = replace(Policy(batch=4, micro_batch=2, resident=0.25), **changed)  # type: ignore[arg-type]
    return layer_time(TINY, UNIT, SHORT, policy)


def test_lanes_by_hand() -> None:
    # Attention: 4 · (8 + 5 · 8) bytes and 4 · 5 · 2 · 3 FLOPs.  FFN: 2 · (100 + 12) bytes read on
    # the device, 4 · 50 FLOPs, and 75 bytes moved.
    assert time() == LayerTime(link=75, host=192, device_attention=0, device_ffn=224)
    on_device = time(attention_on_device=True, cached=0.5)
    assert on_device == LayerTime(75 + 0.5 * 4 * 8 * 4, 0, 192, 224)
    # The host reads 75 of 100 bytes once, and three quarters of inputs and outputs (4 · 6 bytes).
    on_host = time(experts_on_device=False)
    assert on_host == LayerTime(0, 192 + 150, 0, 224 - 150)


def test_the_slowest_lane_is_the_layers() -> None:
    assert (time().total, time().limit) == (224, "device")
    slow = LayerTime(1, 3, 1, 1)
    assert (slow.device, slow.total, slow.limit) == (2, 3, "host")
    assert throughput(TINY, SHORT, 4, 2.0) == 4 * 2 / (2.0 * 1 * 2)


def test_memory_by_hand() -> None:
    policy = Policy(batch=4, micro_batch=2)
    # 10 + max(32, 48 + 48 + 96) + 2 · 100 + 2.4 · 2 · 3 · (2 + 3), and 200 - 200 for each r_w.
    need = device_need(TINY, SHORT, policy)
    assert need.fixed == pytest.approx(10 + 192 + 200 + 72)
    assert need.per_share == 0
    # 200 + 5 · 8 · 4 · 2 + 2 · 2 · 4 · 3 + 200, less 400 for each r_w.
    assert host_need(TINY, SHORT, policy) == Need(200 + 320 + 48 + 200, -400)
    on_device = replace(policy, attention_on_device=True, cached=1.0)
    assert device_need(TINY, SHORT, on_device).fixed == pytest.approx(need.fixed + 320 - 96)
    assert host_need(TINY, SHORT, on_device).fixed == 200 + 48 + 200
    without = replace(policy, experts_on_device=False)
    assert device_need(TINY, SHORT, without).per_share == 200
    assert host_need(TINY, SHORT, without) == Need(200 + 320 + 48, -200)


few = st.integers(1, 9)
shares = st.sampled_from([0.0, 0.25, 0.5, 1.0])
any_sizes = st.builds(
    Sizes, **dict.fromkeys(Sizes.__dataclass_fields__, few)
)  # fmt: skip
any_roofs = st.builds(Roofs, **{name: st.sampled_from([2, 3, 7, 20, 90]) for name in
                                Roofs.__dataclass_fields__})  # fmt: skip
any_policy = st.builds(
    lambda mu, q, **more: Policy(batch=mu * q, micro_batch=mu, **more), few, few,
    attention_on_device=st.booleans(), experts_on_device=st.booleans(), resident=shares,
    cached=shares,
)  # fmt: skip


@given(any_sizes, any_roofs, st.builds(Texts, prompt=few, new=few), any_policy)
def test_times_and_memory_are_the_papers_sums(
    z: Sizes, roofs: Roofs, texts: Texts, policy: Policy
) -> None:
    """Bytes and FLOPs of each lane, written out; rates differ, so none stands for another."""
    n, mu, s, t = policy.batch, policy.micro_batch, texts.prompt, texts.new
    q, off = n / mu, 1 - policy.resident
    core_bytes = 4 * n * z.query_width + n * (s + t) * z.kv_bytes
    core_flops = 2 * n * (s + t) * z.query_width + 2 * n * (s + t) * z.heads
    each = z.expert_bytes / z.experts
    routed = n * z.top_k * each  # 2 FLOPs for each weight of 2 bytes
    device = [
        q * (z.expert_bytes + z.shared_bytes) + 2 * n * (z.hidden + z.width),
        routed + n * z.shared_bytes,
    ]
    up = host = attention = 0.0
    if policy.attention_on_device:
        attention = max(core_bytes / roofs.gpu_bandwidth, core_flops / roofs.gpu_flops)
        up = n * z.kv_bytes * (s + t / 2) * (1 - policy.cached) / roofs.link_bandwidth
    else:
        host = max(core_bytes / roofs.host_bandwidth, core_flops / roofs.host_flops)
    if policy.experts_on_device:
        up += off * z.expert_bytes / roofs.link_bandwidth
    else:
        there = off * (z.expert_bytes + 2 * n * (z.hidden + z.width)), off * routed
        host += max(there[0] / roofs.host_bandwidth, there[1] / roofs.host_flops)
        device = [device[0] - q * off * z.expert_bytes, device[1] - there[1]]
    ffn = max(device[0] / roofs.gpu_bandwidth, device[1] / roofs.gpu_flops)
    time = layer_time(z, roofs, texts, policy)
    assert time == pytest.approx((up, host, attention, ffn))
    assert time.total == pytest.approx(max(up, host, attention + ffn))
    cache = (s + t) * z.kv_bytes * n * z.layers
    states = 4 * z.hidden * mu * s + 2 * z.hidden * n * s
    states += 2 * s * z.kv_bytes * mu * (1 - policy.cached)
    buffers = 2 * z.expert_bytes if policy.experts_on_device else 0
    kernel = 2.4 * mu * z.top_k * s * (z.hidden + 3 * z.width)
    fixed = z.resident_bytes + cache * policy.cached + max(4 * z.hidden * n, states) + buffers
    experts = z.expert_bytes * z.moe_layers
    assert device_need(z, texts, policy) == pytest.approx((fixed + kernel, experts - buffers))
    away = experts + buffers
    on_host = away + cache * (1 - policy.cached) + 2 * z.hidden * n * s
    assert host_need(z, texts, policy) == pytest.approx((on_host, -away))
    assert attention_intensity(z) == pytest.approx(2 * (z.query_width + z.heads) / z.kv_bytes)
    assert ffn_intensity(z, n) == pytest.approx(n * z.top_k / z.experts)
    assert requests_at(z, ffn_intensity(z, n)) == pytest.approx(n)


@given(any_roofs, few, few)
def test_roofs_limit_what_is_attainable(roofs: Roofs, on_device: int, over_link: int) -> None:
    own = min(roofs.gpu_flops, roofs.gpu_bandwidth * on_device)
    assert attainable(roofs, on_device, over_link) == min(own, roofs.link_bandwidth * over_link)
    assert host_attainable(roofs, over_link) == min(
        roofs.host_flops, roofs.host_bandwidth * over_link
    )
    assert second_turning_point(roofs, on_device) == own / roofs.link_bandwidth
    pays = roofs.link_bandwidth >= roofs.host_bandwidth
    wanted = 0 if pays else roofs.host_flops / roofs.link_bandwidth
    assert first_turning_point(roofs) == wanted


@pytest.mark.parametrize(
    ("need", "limit", "expected"),
    [
        (Need(10, 20), 15, (0, 0.25)),
        (Need(10, 20), 40, (0, 1)),
        (Need(30, -20), 15, (0.75, 1)),
        (Need(30, -20), 40, (0, 1)),
        (Need(10, 0), 10, (0, 1)),
    ],
)
def test_shares_that_fit_by_hand(need: Need, limit: float, expected: tuple[float, float]) -> None:
    assert need.shares(limit) == expected


@pytest.mark.parametrize("need", [Need(10, 20), Need(30, -20), Need(10, 0)])
def test_no_share_fits_a_limit_below_every_need(need: Need) -> None:
    low, high = need.shares(9)
    assert low > high


# --------------------------------------------------------------------------- the search

machines = st.builds(
    lambda gpu, host, link, memory: replace(
        T4, gpu_bandwidth=gpu, host_bandwidth=host, link_bandwidth=link, gpu_bytes=memory
    ),
    gpu=st.floats(5e10, 3e12), host=st.floats(2e10, 4e11), link=st.floats(4e9, 6e10),
    memory=st.floats(1.2e10, 1.2e11),
)  # fmt: skip
texts = st.builds(Texts, prompt=st.integers(1, 3000), new=st.integers(2, 500))


@given(machines, texts, st.sampled_from([1, 4, 36]))
def test_the_share_is_as_good_as_any_other(roofs: Roofs, lengths: Texts, micro_batch: int) -> None:
    case = Case(MIXTRAL, roofs, lengths)
    best = case.largest(micro_batch)
    if best is None:
        assert not case.fits(Policy(batch=micro_batch, micro_batch=micro_batch))
        return
    low, high = case.shares(best.policy)
    assert 0 <= low <= best.policy.resident <= high <= 1
    for step in range(21):
        share = low + (high - low) * step / 20
        other = case.timed(replace(best.policy, resident=share))
        assert best.time.total <= other.time.total * (1 + 1e-9)
        if share < best.policy.resident - 1e-9 and best.policy.resident > low:
            assert other.time.total > best.time.total * (1 - 1e-9)


@given(machines, texts, st.sampled_from([1, 4, 36]))
def test_the_largest_batch_fits_and_no_smaller_one_is_faster(
    roofs: Roofs, lengths: Texts, micro_batch: int
) -> None:
    case = Case(MIXTRAL, roofs, lengths)
    best = case.largest(micro_batch)
    if best is None:
        return
    policy, q = best.policy, best.policy.micro_batches
    assert device_need(MIXTRAL, lengths, policy).at(policy.resident) <= case.device_limit * 1.000001
    assert host_need(MIXTRAL, lengths, policy).at(policy.resident) <= case.host_limit * 1.000001
    assert not case.fits(replace(policy, batch=(q + 1) * micro_batch))
    for fewer in {1, 2, q // 2, q - 1} & set(range(1, q)):
        smaller = case.with_best_share(replace(policy, batch=fewer * micro_batch))
        assert smaller is not None
        assert smaller.tokens_per_s <= best.tokens_per_s * (1 + 1e-9)


@pytest.mark.slow
@given(machines, texts)
def test_no_micro_batch_beats_the_search(roofs: Roofs, lengths: Texts) -> None:
    case = Case(MIXTRAL, roofs, lengths)
    best = case.search()
    each = [case.largest(mu) for mu in (1, 2, 3, 4, 36, 68, 100, 132)]
    rates = [one.tokens_per_s for one in each if one is not None]
    assert (best is None) == (each[0] is None)
    assert best is None or max(rates) <= best.tokens_per_s * (1 + 1e-9)


def test_a_batch_gets_the_micro_batch_that_divides_it_best() -> None:
    case = Case(MIXTRAL, T4, TEXTS)
    one = case.of_batch(504)
    assert one is not None
    assert one.policy.batch == 504
    rates = [case.with_best_share(Policy(batch=504, micro_batch=mu)) for mu in (14, 28, 36)]
    assert one.tokens_per_s == max(rate.tokens_per_s for rate in rates if rate is not None)
    assert case.of_batch(10**9) is None


def test_a_small_model_may_have_every_expert_on_the_device() -> None:
    case = Case(MIXTRAL, replace(T4, gpu_bytes=200e9), TEXTS)
    one = case.with_best_share(
        Policy(batch=1, micro_batch=1, experts_on_device=False, attention_on_device=True)
    )
    assert one is not None
    assert one.policy.resident == 1


# --------------------------------------------------------------------------- inputs


def test_shared_experts_and_dense_layers_are_resident() -> None:
    model = shape(4, 2, 3, dense_layers=(0,), dense_width=8, shared_width=4)
    sizes = sizes_of(model, "by-hand")
    assert (sizes.layers, sizes.moe_layers) == (3, 2)
    attention = 3 * model.layer_attention_params(0)
    assert sizes.resident_bytes == 2 * (attention + 3 * 8 * 8 + 2 * 3 * 8 * 4)
    assert sizes.shared_bytes == 2 * 3 * 8 * 4
    assert sizes.expert_bytes == 2 * 4 * 3 * 8 * 4


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "gpt-oss-20b", "qwen3-next-80b-a3b"])
def test_other_kinds_of_attention_are_refused(model: str) -> None:
    with pytest.raises(UsageError, match=f"--model {model}: has latent, windowed or linear"):
        sizes_of(model_shape(model), model)


def test_a_machine_with_one_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--machine strix-halo: .* share one memory"):
        roofs_of(load_profile("strix-halo"))


def test_roofs_are_a_machines_memories_and_peaks() -> None:
    profile = load_profile("rtx4090")
    roofs = roofs_of(profile)
    assert roofs == Roofs(
        gpu_bytes=profile.gpu.memory.bytes, host_bytes=profile.host.memory.bytes,
        gpu_bandwidth=profile.gpu.bandwidth.bytes_per_s,
        host_bandwidth=profile.host.gemv_bandwidth.bytes_per_s,
        link_bandwidth=profile.link.pinned_h2d.bytes_per_s,
        gpu_flops=profile.gpu.tensor_bf16.flops_per_s,
        host_flops=profile.host.peak_fp32.flops_per_s,
    )  # fmt: skip
    assert len({*vars_of(roofs).values()}) == 7  # none could stand for another
    case = Case(MIXTRAL, roofs, TEXTS)
    assert (case.device_limit, case.host_limit) == pytest.approx(
        (0.86 * roofs.gpu_bytes, 0.8 * roofs.host_bytes)
    )


def test_sizes_name_each_number_of_a_shape() -> None:
    model = shape(6, 2, 5, dense_layers=(0, 3), dense_width=7, shared_width=3)
    assert vars_of(sizes_of(model, "by-hand")) == {
        "layers": 5, "moe_layers": 3, "hidden": 8, "width": model.expert_width, "experts": 6,
        "top_k": 2, "heads": model.num_heads, "query_width": model.num_heads * model.head_dim,
        "kv_bytes": 2 * 2 * model.num_kv_heads * model.head_dim,
        "expert_bytes": 2 * 6 * 3 * 8 * model.expert_width, "shared_bytes": 2 * 3 * 8 * 3,
        "resident_bytes": 2 * (5 * model.layer_attention_params(0) + 2 * 3 * 8 * 7 + 3 * 3 * 8 * 3),
    }  # fmt: skip


@given(machines, texts, few, few, st.booleans(), st.booleans())
def test_the_best_share_lets_the_link_take_no_longer_than_the_others(
    roofs: Roofs, lengths: Texts, mu: int, q: int, attention: bool, experts: bool
) -> None:
    case = Case(MIXTRAL, roofs, lengths)
    policy = Policy(
        batch=mu * q, micro_batch=mu, attention_on_device=attention, experts_on_device=experts
    )
    low, high = case.shares(policy)
    best = case.with_best_share(policy)
    assert (best is None) == (low > high) == (not case.fits(policy))
    if best is None:
        return
    if attention or not experts:
        wanted = high
    else:
        busy = max(best.time.host, best.time.device)
        wanted = min(max(1 - busy * roofs.link_bandwidth / MIXTRAL.expert_bytes, low), high)
    assert best.policy == replace(policy, resident=pytest.approx(wanted))
    assert best.time == layer_time(MIXTRAL, roofs, lengths, best.policy)
    assert best.tokens_per_s == throughput(MIXTRAL, lengths, mu * q, best.time.total)


@pytest.mark.slow
@given(machines, texts, few)
def test_the_most_micro_batches_are_found_one_by_one(roofs: Roofs, lengths: Texts, mu: int) -> None:
    case, q = Case(MIXTRAL, replace(roofs, host_bytes=1.3e11), lengths), 0
    while q < 40 and case.fits(Policy(batch=(q + 1) * mu, micro_batch=mu)):
        q += 1
    found = case.most(Policy(batch=mu, micro_batch=mu))
    assert found == q or q == 40 < found


def vars_of(one: Roofs | Sizes) -> dict[str, float]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}
