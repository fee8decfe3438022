"""ZeRO-Inference by hand: order and times of streaming, the recorded order, and the bucket."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models.catalogue import model_shape
from moebench.systems.deepspeed import RecordedOrder, ResidentOrStreamed
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, Rig, prices, rig, small_shape
from tests.substrate.engine.own import model_of, of, run
from tests.systems.views import cache, shape, view

TWO = small_shape(layers=2)
#: Elements of an expert, and of a layer's non-expert weights.
EXPERT, COMMON = TWO.expert_params, TWO.layer_common_params(0)
ALL = "stream"
SAME = [[(0, 1)], [(0, 1)]]


def streamed(uses, experts: str = "all", slots: int = 8, **options) -> Rig:
    """Run two layers of four experts, top-2, with a control thread that costs no time."""
    chosen = {f"prefetch.{name}": str(value) for name, value in options.items()}
    made = build("deepspeed", {"assign.experts": experts, **chosen})
    model = model_of(TWO, uses)
    return run(made, model, slots=slots, passes=len(uses), homes=(ALL,) * 3)


# ----------------------------------------------------------------------------- a timeline by hand

# A layer's non-expert weights take 300 on the link, an expert 40.
#
# Prefill records.  Layer 0: other weights 0..300, attention and gate until 333, experts 0 to 3
# until 493, for all of which the control thread waits; 0 and 1 are computed until 513, the sum
# until 515.  Layer 1 takes 515 as well; the head comes 1030..1330 and takes 6.
#
# Decode follows, from 1336, with a bucket of one layer's other weights and one expert.  At its
# beginning: layer 0's other weights 1336..1636 and expert 0 until 1676.  The gate is known at
# 1669: 1, 2 and 3 come 1676..1796.  0 and 1 are computed until 1816, the sum until 1818, when layer
# 1's other weights and expert 0 are requested: 1818..2118..2158.


def test_whole_layers_and_the_bucket_ahead():
    ran = streamed([SAME, SAME], bucket=COMMON + EXPERT)
    assert of(ran, OpKind.STREAM) == [
        (0, (), 0, 300), (1, (), 515, 815), (-1, (), 1030, 1330),
        (0, (), 1336, 1636), (1, (), 1818, 2118), (-1, (), 2300, 2600),
    ]  # fmt: skip
    loads = of(ran, OpKind.LOAD)
    assert loads[:4] == [(0, (e,), 333 + 40 * e, 373 + 40 * e) for e in range(4)]
    assert loads[8:] == [
        (0, (0,), 1636, 1676), *[(0, (e,), 1636 + 40 * e, 1676 + 40 * e) for e in (1, 2, 3)],
        (1, (0,), 2118, 2158), *[(1, (e,), 2118 + 40 * e, 2158 + 40 * e) for e in (1, 2, 3)],
    ]  # fmt: skip
    assert of(ran, OpKind.EXPERT)[4:] == [
        (0, (0,), 1796, 1806), (0, (1,), 1806, 1816), (1, (0,), 2278, 2288), (1, (1,), 2288, 2298),
    ]  # fmt: skip
    assert of(ran, OpKind.HEAD)[-1] == (-1, (), 2600, 2606)


@pytest.mark.parametrize("bucket", [0, 1, COMMON, COMMON + 1, COMMON + EXPERT + 1, 10**6])
def test_the_bucket_moves_no_byte_more_or_less(bucket):
    ran = streamed([SAME] * 3, bucket=bucket)
    assert ran.timeline.bytes_moved(Lane.H2D) == 3 * (2 * 4 + 3 * 10) * RECORD_BYTES
    # Each layer of each pass after the recorded one: non-expert weights, maybe with experts.
    whole = max(0, -(-(bucket - COMMON) // EXPERT))
    assert ran.counts["decode"].prefetched == 2 * 2 * min(4, whole)


def test_without_a_bucket_nothing_overlaps_the_next_attention():
    ran = streamed([SAME, SAME], bucket=0)
    ends = [end for *_, end in of(ran, OpKind.COMBINE)]
    asked = [start for layer, _, start, _ in of(ran, OpKind.STREAM) if layer == 1]
    assert asked == [ends[0], ends[2]]


def test_live_parameters_leave_less_to_fetch():
    # Four experts are live; one more is allowed; the other weights are larger than that.
    ran = streamed([SAME, SAME], bucket=10**6, max_live=5 * EXPERT)
    opened = ran.counts["decode"].prefetched
    assert opened == 3  # at the pass's beginning nothing is live: 240 elements, then 3 · 96
    ahead = [row for row in of(ran, OpKind.STREAM) if row[0] == 1]
    assert ahead[1][2] == of(ran, OpKind.COMBINE)[2][3]  # layer 1's non-expert weights
    assert (
        streamed([SAME, SAME], bucket=10**6, max_live=4 * EXPERT).counts["decode"].prefetched == 2
    )


# ----------------------------------------------------------------------------- the recorded order


def test_active_experts_alone_and_a_trace_that_does_not_hold():
    # Passes: recorded; other experts; recorded again; the same as that; the same in layer 0 only.
    uses = [
        [[(0, 1)], [(0, 1)]], [[(2, 3)], [(0, 1)]], [[(1, 2)], [(0, 3)]],
        [[(1, 2)], [(0, 3)]], [[(1, 2)], [(1, 2)]],
    ]  # fmt: skip
    ran = streamed(uses, "active", bucket=10**6)
    began = loaded_by_pass(ran)
    assert began == [
        {(0, 0), (0, 1), (1, 0), (1, 1)},
        {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)},  # the recorded 0 and 1 were in vain
        {(0, 1), (0, 2), (1, 0), (1, 3)},
        {(0, 1), (0, 2), (1, 0), (1, 3)},
        {(0, 1), (0, 2), (1, 0), (1, 3), (1, 1), (1, 2)},
    ]
    counts = ran.counts["decode"]
    assert (counts.prefetched, counts.prefetched_used) == (2 + 4 + 4, 4 + 2)


def loaded_by_pass(ran: Rig) -> list[set[tuple[int, int]]]:
    """Return the loads of each pass, which ends with its head."""
    found: list[set[tuple[int, int]]] = [set()]
    for span in ran.spans:
        if span.op.kind is OpKind.LOAD:
            found[-1].add((span.op.layer, span.op.experts[0]))
        elif span.op.kind is OpKind.HEAD:
            found.append(set())
    return found[:-1]


def test_whole_layers_are_never_out_of_order():
    policy = RecordedOrder(bucket=10**6)
    policy.start(shape(4, 2, 3), cache(shape(4, 2, 3), 8))
    for step in range(4):
        opened = policy.opening("decode" if step else "prefill", 0)
        assert len(opened) == (5 if step else 0)
        for layer in range(3):
            seen = view(np.eye(4)[[step]], 1, layer=layer, layers=3)
            seen.whole_layers = True
            policy.observe(seen)
            if layer < 2:
                ahead = policy.prefetch(seen, {})
                kept = [Fetch(layer + 1, e, keep=False) for e in range(4)]
                assert ahead == ([Fetch(layer + 1, None), *kept] if step else [])


# ----------------------------------------------------------------------------- charged sizes


def ahead_of(name: str) -> list[int | None]:
    """Return the fetches for layer 1 after layer 0's experts, for a full-size model."""
    full = model_shape(name)
    policy, rows = RecordedOrder(), np.eye(full.num_experts)[[0]]
    policy.full_size(full)
    small = shape(full.num_experts, full.top_k, full.num_layers)
    policy.start(small, cache(small, build("deepspeed").most_slots(full) or 0))
    for phase in "prefill", "decode":
        policy.opening(phase, 0)
        for layer in range(full.num_layers - 1):
            seen = view(rows, full.top_k, layer=layer, layers=full.num_layers)
            seen.whole_layers = True
            policy.observe(seen)
            if layer == 0 and phase == "decode":
                return [fetch.expert for fetch in policy.prefetch(seen, {}) if fetch.layer == 1]
    raise AssertionError


def test_of_mixtral_nothing_is_fetched_ahead():
    full = model_shape("mixtral-8x7b")
    assert 8 * full.expert_params > 10**9
    assert full.expert_params > 5 * 10**7
    assert ahead_of("mixtral-8x7b") == []


def test_of_small_experts_several_fit_the_bucket():
    full = model_shape("olmoe-1b-7b")
    fits = 1 + (5 * 10**7 - full.layer_common_params(1)) // full.expert_params
    assert ahead_of("olmoe-1b-7b") == [None, *range(fits)]
    assert fits == 6


@pytest.mark.parametrize(
    ("name", "experts", "slots"),
    [
        ("mixtral-8x7b", "all", 8),  # a block has more elements than may be live
        ("mixtral-8x7b", "active", 6),  # 1e9 / 1.76e8
        ("qwen2-57b-a14b", "all", 64),
        ("olmoe-1b-7b", "all", 159),  # 1e9 / 6.3e6
        ("deepseek-moe-16b", "family", 116),
    ],
)
def test_slots_hold_a_block_and_what_may_be_live(name, experts, slots):
    made = build("deepspeed", {"assign.experts": experts})
    assert made.most_slots(model_shape(name)) == slots


@pytest.mark.parametrize("option", ["bucket", "max_live"])
def test_options_that_cannot_be(option):
    with pytest.raises(UsageError, match=rf"prefetch\.{option} is -1; allowed: 0 or more"):
        build("deepspeed", {f"prefetch.{option}": "-1"})


# ----------------------------------------------------------------------------- NVMe, and MII


def test_from_nvme_each_expert_is_read_for_each_use():
    made = build("deepspeed", {"assign.experts": "all"})
    model = model_of(TWO, [SAME, SAME])
    homes = (ALL,) * 3
    ran = rig(made, model, slots=8, costs=FlatCosts(prices()), homes=homes, host_records=5)
    ran.engine.generate([[3]], 2)
    assert len(of(ran, OpKind.READ)) == len(of(ran, OpKind.LOAD)) == 2 * 8


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_mii_holds_everything_or_streams_everything(spare, fits):
    model = shape(4, 2, 2)
    place = ResidentOrStreamed()
    # Embedding 15 and head 5, two layers of 10 with a KV cache of 2, eight experts of 3.
    room = Budget(20 + 2 * 12 + 8 * 3 + spare, (10, 10), 2, 20, 5, 3)
    assert set(place.homes(model, room)) == {"device" if fits else "stream"}
    assert len(list(place.place(model, 8, "global"))) == (8 if fits else 0)


def test_resident_mii_moves_nothing():
    made = build("deepspeed-mii")
    made.place.fits = True
    ran = run(made, model_of(TWO, [SAME, SAME]), slots=8, passes=2, homes=("device",) * 3)
    assert {span.lane for span in ran.spans} == {Lane.DEVICE}
    assert made.remarks(TWO, 8) == ["DeepSpeed-MII: the model is resident"]


def test_mii_has_slots_for_everything_or_for_what_passes_through():
    made, model = build("deepspeed-mii"), model_shape("mixtral-8x7b")
    assert made.most_slots(model) == build("deepspeed").most_slots(model) == 8
    made.place.fits = True
    assert made.most_slots(model) is None


def test_mii_that_streams_says_so():
    made = build("deepspeed-mii")
    said, which = made.remarks(model_shape("mixtral-8x7b"), 120)
    assert "it does not fit: these are the times of ZeRO-Inference" in said
    assert "all 8 experts" in which


@pytest.mark.parametrize(
    ("experts", "note"),
    [
        ("all", "ZeRO gathers all 6 experts of a layer, as one leaf module"),
        ("active", "ZeRO gathers active experts alone, each a module: where routing differs from "
         "the recorded pass, the trace is invalid and nothing is fetched ahead"),
    ],
)  # fmt: skip
def test_a_note_says_which_experts_are_gathered(experts: str, note: str) -> None:
    made = build("deepspeed", {"assign.experts": experts})
    assert made.remarks(shape(6, 2, 2), 6) == [note]
