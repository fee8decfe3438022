"""kTransformers by hand: a deferred expert, a layer-by-layer prefill, changing residents."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.ktransformers import Hybrid, KTransformers
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import active, cache, shape, view

# Two layers of four experts, top-2; expert 0 of each is on the device.  Attention 30, a gate 3, an
# expert 10, the sum 2, the head 6; on the host an expert 55 and its return 4.
#
# Prefill, one row, experts 0 and 1 everywhere:
#
#   L0   gate 33; device 0 33..43; host 1 33..88, back 92; sum 92..94
#   L1   attend 94..124, gate ..127; host 1 127..182, back 186; sum 186..188; head 188..194
#
# Decode with d = 1.  L0 uses 2 and then 1, L1 uses 1 and then 0:
#
#   L0   attend 194..224, gate ..227; host 2 227..282, back 286; sum 286..288.  1 is deferred: the
#        host computes it 282..337, its output is back at 341
#   L1   attend 288..318, gate ..321; device 0 321..331 (of the lowest weight, but resident);
#        host 1 337..392, back 396; sum 396..398, with L0's 1; head 398..404
#
# With d = 0 L0's sum waits for 1 (341..343), and L1 is 55 later: gate 376, host ..431, sum ..437.

TWO = small_shape(layers=2)
BY_ID = {"place": "by-id"}
TOKEN = [[[(0, 1)], [(0, 1)]], [[(2, 1)], [(1, 0)]]]


def decoded(defer: int):
    made = build("ktransformers", {"assign.defer": str(defer), "assign.threshold": "0", **BY_ID})
    late = [(), (), (1,), ()] if defer else ()
    return run(made, model_of(TWO, TOKEN), slots=2, passes=2, deferred=late)


def test_a_deferred_expert_is_added_one_layer_later():
    ran = decoded(1)
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [
        (0, (1,), 33, 88), (1, (1,), 127, 182),
        (0, (2,), 227, 282), (0, (1,), 282, 337), (1, (1,), 337, 392),
    ]  # fmt: skip
    assert [row[2:] for row in of(ran, OpKind.COMBINE)] == [
        (92, 94), (186, 188), (286, 288), (396, 398),
    ]  # fmt: skip
    assert ran.counts["decode"].deferred == 1
    assert ran.counts["prefill"].deferred == 0


def test_without_deferral_the_sum_waits():
    ran = decoded(0)
    assert [row[2:] for row in of(ran, OpKind.COMBINE)][2:] == [(341, 343), (435, 437)]


@pytest.mark.parametrize("defer", [0, 1])
def test_a_token_moves_no_expert(defer):
    ran = decoded(defer)
    assert of(ran, OpKind.LOAD) == []
    assert ran.tier.peak_bytes == 2 * RECORD_BYTES


# Three experts, all used by a prompt of two tokens; one resident of each layer, three slots staged.
#
#   L0   gate 33; 0 33..43; 1 comes 33..73 and is computed until 83, 2 comes ..113: ..123; sum ..125
#   L1   gate 158; 1 comes 158..198, 2 ..238; sum 248..250; head 250..256

THREE = small_shape(layers=2, experts=3)
PROMPT = [[(1, 0), (1, 2)], [(1, 0), (1, 2)]]
DECODE = [[(1, 0), (1, 0)], [(1, 0), (1, 0)]]


def prefilled(tokens: int = 2, uses=PROMPT, then=DECODE, **options: str):
    overrides = {f"assign.{option}": value for option, value in options.items()}
    made = build("ktransformers", overrides | BY_ID)
    return run(made, model_of(THREE, [uses, then]), slots=5, rows=tokens, passes=2)


def test_a_long_prompt_goes_layer_by_layer_through_the_device():
    ran = prefilled(threshold="2")
    assert of(ran, OpKind.LOAD) == [
        (0, (1,), 33, 73), (0, (2,), 73, 113), (1, (1,), 158, 198), (1, (2,), 198, 238),
    ]  # fmt: skip
    assert of(ran, OpKind.EXPERT, Lane.DEVICE)[:3] == [
        (0, (0,), 33, 43), (0, (1,), 73, 83), (0, (2,), 113, 123),
    ]  # fmt: skip
    # Nothing of it stays: decode has expert 0 alone on the device.
    counts = ran.counts["decode"]
    assert (counts.hits, counts.host, counts.loads) == (2, 2, 0)
    assert ran.tier.peak_bytes == 5 * RECORD_BYTES


def test_a_shorter_prompt_is_computed_where_its_experts_are():
    ran = prefilled(threshold="3")
    assert of(ran, OpKind.LOAD) == []
    assert [row[:2] for row in of(ran, OpKind.EXPERT, Lane.HOST)][:2] == [(0, (1, 2)), (1, (1, 2))]


def test_what_no_token_chose_is_brought_too():
    ran = prefilled(uses=[[(1, 0), (1, 0)]] * 2, threshold="2")
    assert [row[:2] for row in of(ran, OpKind.LOAD)] == [(0, (1,)), (0, (2,)), (1, (1,)), (1, (2,))]
    assert ran.counts["prefill"].unchosen == 2


def test_its_counts_choose_the_residents_anew():
    # 1 has two tokens, 0 and 2 have one: 1 stays instead of 0.  2, which does not stay, comes
    # first; the slot of 0 is idle by then.
    ran = prefilled(threshold="2", update="true")
    assert of(ran, OpKind.LOAD)[:2] == [(0, (2,), 33, 73), (0, (1,), 73, 113)]
    assert (1, 0) in evicted(ran)
    counts = ran.counts["decode"]
    assert (counts.hits, counts.host) == (2, 2)
    assert [row[:2] for row in of(ran, OpKind.EXPERT, Lane.DEVICE)][-2:] == [(0, (1,)), (1, (1,))]


# --------------------------------------------------------------------------- the policy


def planned(rows, resident=(), k: int = 3, **options):
    seen = view(rows, k, resident, layers=3, phase=options.pop("phase", "decode"),
                layer=options.pop("layer", 0))  # fmt: skip
    return Hybrid(**options).assign(seen, active(seen))


def best(*experts: int) -> list[float]:
    return [0.9 - 0.1 * experts.index(e) if e in experts else 0.01 for e in range(6)]


@pytest.mark.parametrize(
    ("defer", "host", "deferred"),
    [
        (0, [1, 3, 5], []),
        (1, [3, 5], [1]),
        (2, [5], [1, 3]),
        (3, [], [1, 3, 5]),
        (9, [], [1, 3, 5]),
    ],
)
def test_the_best_k_minus_d_are_immediate(defer, host, deferred):
    plan = planned([best(5, 3, 1)], defer=defer)
    assert (list(plan.host), list(plan.deferred)) == (host, deferred)


def test_what_is_immediate_for_one_token_is_so_for_all():
    # k - d = 2: the first row protects 5 and 3, the second 1 and 2.
    plan = planned([best(5, 3, 1), best(1, 2, 4)], defer=1)
    assert (list(plan.host), list(plan.deferred)) == ([1, 2, 3, 5], [4])


def test_a_resident_is_never_deferred():
    plan = planned([best(5, 3, 1)], resident=[1], defer=2)
    assert (list(plan.device), list(plan.host), list(plan.deferred)) == ([1], [5], [3])


def test_prefill_and_the_last_layer_defer_nothing():
    assert planned([best(5, 3, 1)], defer=2, phase="prefill").deferred == ()
    seen = view([best(5, 3, 1)], 3, layers=2)
    seen.next_layer = None
    assert Hybrid(defer=2).assign(seen, active(seen)).deferred == ()


def test_residents_are_updated_to_the_most_used():
    # Tokens of 0 to 5: 1, 4, 0, 4, 2, 1.  Two places: 1 and 3; of 0 and 5, who leave, 5 is later.
    own = np.array([[1, 3], [1, 3], [1, 3], [1, 3], [4, 0], [4, 5]])
    seen = view([[0.1] * 6] * 6, 2, resident=[0, 5], own=own, phase="prefill")
    plan = Hybrid(threshold=6, update=True).assign(seen, active(seen))
    assert list(plan.load) == [
        Fetch(0, 2, keep=False), Fetch(0, 4, keep=False),
        Fetch(0, 1, instead_of=0), Fetch(0, 3, instead_of=5),
    ]  # fmt: skip
    assert list(plan.device) == [0, 5, 4, 1, 3]


def test_of_equally_used_experts_those_stay_that_are_there():
    own = np.array([[0, 1], [2, 3]])
    seen = view([[0.1] * 6] * 2, 2, resident=[1, 3], own=own, phase="prefill")
    plan = Hybrid(threshold=1, update=True).assign(seen, active(seen))
    assert all(not fetch.keep for fetch in plan.load)


def test_one_layer_is_staged():
    model = shape(experts=8, top_k=2, layers=3)
    policy = Hybrid()
    policy.start(model, cache(model, 20))
    assert policy.reserve == 8
    policy.start(model, cache(model, 12, "layer"))  # four of each layer, of which one is empty
    assert policy.reserve == 3
    with pytest.raises(BudgetError, match=r"stages 8 .* has 7 slots; .*assign\.threshold=0"):
        policy.start(model, cache(model, 7))
    never = Hybrid(threshold=0)
    never.start(model, cache(model, 7))
    assert never.reserve == 0


@pytest.mark.parametrize(("prompt_tokens", "reserve"), [(1023, 0), (1024, 8)])
def test_a_layer_is_staged_only_where_prompts_can_be_long_enough(prompt_tokens, reserve):
    model, system = shape(experts=8, top_k=2, layers=3), build("ktransformers", BY_ID)
    system.expect(prompt_tokens)
    system.start(model, cache(model, 20))
    assert system.reserve == reserve
    assert len(system.remarks(model, 20)) == (reserve > 0)


def test_the_most_used_experts_of_all_layers_are_placed():
    # With counts of two layers the three most used are 2 and 0 of the second, and 1 of the first.
    counts = "[[0, 5, 1], [6, 2, 9]]"
    system = build("ktransformers", {"place.popularity": counts})
    assert list(system.place.place(shape(3, layers=2), 3, "global")) == [(1, 2), (1, 0), (0, 1)]
    uniform = build("ktransformers", BY_ID)
    assert list(uniform.place.place(shape(3, layers=2), 3, "global")) == [(0, 0), (1, 0), (0, 1)]
    assert system.place.calibrates is False
    assert build("ktransformers").place.calibrates


def test_the_notes_say_what_is_staged():
    model = shape(experts=8, top_k=2, layers=3)
    (line,) = KTransformers().remarks(model, 20)
    assert line.startswith("8 of 20 slots stage one layer's experts for prompts of 1024 tokens")
    assert build("ktransformers", {"assign.threshold": "0"}).remarks(model, 20) == ()


def test_deferral_alone_is_lossy():
    assert build("ktransformers").lossless
    assert not build("ktransformers", {"assign.defer": "1"}).lossless


def test_options_out_of_range_are_one_line():
    for option in ("defer", "threshold"):
        with pytest.raises(UsageError, match=rf"assign\.{option} is -1; allowed: 0"):
            Hybrid(**{option: -1})
    with pytest.raises(UsageError, match=r"assign\.update=true .* assign\.threshold=0"):
        Hybrid(update=True, threshold=0)
