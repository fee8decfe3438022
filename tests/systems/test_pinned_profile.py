"""Pinned profile by hand: the top of each layer, what fits, hits and misses of one layer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.terms import RoutedSequence
from moebench.systems.compatible import why_not
from moebench.systems.options import build
from moebench.systems.pinned_profile import PinnedProfile, PinTopOfEachLayer, pinned_per_layer
from tests.substrate.engine.fakes import small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import shape

# Two layers of six experts; a third of a layer is two slots for copies.
MODEL = shape(experts=6, top_k=2, layers=2)
COUNTS = ((5, 0, 9, 5, 1, 0), (0, 7, 0, 0, 0, 0))


def pinned(slots: int, **options) -> list[tuple[int, int]]:
    return list(PinTopOfEachLayer(popularity=COUNTS, **options).place(MODEL, slots, "global"))


def test_the_most_used_of_each_layer_are_pinned_ties_to_the_lowest_id():
    # Six slots, two of them for copies: two of each layer.  In layer 0 those are 2 (nine uses), and
    # 0 before 3 (five each); in layer 1 only 1 was ever used, and one slot stays empty.
    assert sorted(pinned(6)) == [(0, 0), (0, 2), (1, 1)]
    assert sorted(pinned(8)) == [(0, 0), (0, 2), (0, 3), (1, 1)]


def test_layers_get_equally_many_and_the_rest_stays_empty():
    assert sorted(pinned(7)) == sorted(pinned(6))
    assert pinned(3) == []  # one slot beside the copies is less than one of each layer


def test_slots_can_be_given():
    assert sorted(pinned(8, slots_each=1)) == [(0, 2), (1, 1)]
    with pytest.raises(BudgetError, match=r"place\.slots_each=4: .* room for 3 experts of each"):
        pinned(8, slots_each=4)
    with pytest.raises(UsageError, match=r"place\.slots_each is 0; allowed: 1 or more"):
        PinTopOfEachLayer(slots_each=0)
    with pytest.raises(UsageError, match=r"place=pinned-profile .*: --set scope=global"):
        PinTopOfEachLayer(popularity=COUNTS).place(MODEL, 8, "layer")


def test_more_than_a_layers_experts_are_all_of_them():
    everything = [[1] * 6] * 2
    found = list(PinTopOfEachLayer(popularity=everything).place(MODEL, 40, "global"))
    assert len(found) == len({*found}) == 12
    assert list(PinTopOfEachLayer(popularity=everything, slots_each=9).place(MODEL, 40, "global"))


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9), st.integers(0, 4))
def test_what_is_pinned_and_the_copies_fit(slots, layers, experts, staged):
    each = pinned_per_layer(slots, layers, experts, staged)
    assert 0 <= each <= experts
    room = slots - staged if slots >= staged else slots
    assert each * layers <= room
    assert each == experts or (each + 1) * layers > room


def test_decoded_tokens_alone_are_counted(tmp_path: Path):
    # A prompt of two tokens, then one decoded token, over two layers.
    ids_TLK = np.array([[[0, 1], [0, 1]], [[0, 1], [0, 1]], [[4, 5], [2, 3]]])
    policy = PinTopOfEachLayer()
    assert policy.calibrates
    text = RoutedSequence(ids_TLK, prefill=2)
    policy.calibrate([text], MODEL, tmp_path, lambda done, total: None)
    assert sorted(policy.place(MODEL, 6, "global")) == [(0, 4), (0, 5), (1, 2), (1, 3)]
    assert policy.learnt == {"tokens": "1"}


# --------------------------------------------------------------------------- a run

# Two layers of four experts, top-2, four slots: two are for copies, so each layer has one pinned
# expert, 1.  Attention 30, a gate 3, an expert 10, the sum 2; on the host an expert 55, return 4.
#
# Both tokens use 1 and 3 in layer 0, 0 and 2 in layer 1.
#
#   L0   gate 33; 1 on the device 33..43, 3 on the host 33..88, back 92; sum 92..94
#   L1   gate 127; 0 and 2 on the host, 127..237, back 241; sum 241..243
#
# With ``overlap=false`` the host begins when the device has ended, or the other way round.

TWO = small_shape(layers=2)
USED = "[[0, 5, 1, 0], [0, 5, 0, 1]]"
TOKEN = [[(1, 3)], [(0, 2)]]


def ran(passes: int = 1, **options: str):
    made = build("pinned-profile", {"place.popularity": USED, **options})
    return run(made, model_of(TWO, [TOKEN] * passes), slots=4, passes=passes)


def test_hits_are_on_the_device_while_misses_are_on_the_host():
    found = ran()
    assert of(found, OpKind.EXPERT, Lane.DEVICE) == [(0, (1,), 33, 43)]
    assert of(found, OpKind.EXPERT, Lane.HOST)[0] == (0, (3,), 33, 88)
    assert [row[:2] for row in of(found, OpKind.EXPERT, Lane.HOST)] == [(0, (3,)), (1, (0, 2))]
    assert of(found, OpKind.COMBINE)[0][2:] == (92, 94)


def test_no_expert_moves():
    found = ran(passes=3)
    assert of(found, OpKind.LOAD) == []
    assert evicted(found) == []
    assert found.counts["decode"].hits == 2
    assert found.counts["decode"].host == 6


def test_without_asynchronous_splits_the_chains_run_one_after_the_other():
    found = ran(overlap="false")
    (device,) = of(found, OpKind.EXPERT, Lane.DEVICE)
    host = of(found, OpKind.EXPERT, Lane.HOST)[0]
    assert device[2] >= host[3] or host[2] >= device[3]


def test_a_long_prompt_copies_its_misses_and_drops_them():
    made = build("pinned-profile", {"place.popularity": USED, "assign.min_batch": "1"})
    found = run(made, model_of(TWO, [TOKEN] * 1), slots=4)
    assert [row[:2] for row in of(found, OpKind.LOAD)] == [(0, (3,)), (1, (0,)), (1, (2,))]
    assert all(victim is None for _, victim in evicted(found))


def test_the_system_is_lossless_and_refuses_models_without_gguf():
    assert PinnedProfile().lossless
    assert PinnedProfile().place.calibrates
    assert "no GGUF file" in PinnedProfile().why_not(MODEL, 1)


def test_a_long_prompts_copies_need_the_slots_that_placement_leaves_empty():
    given = {"place.popularity": USED}
    assert why_not(build("pinned-profile", given)) is None
    assert "place leaves none" in str(why_not(build("pinned-profile", {"place": "by-id"})))
