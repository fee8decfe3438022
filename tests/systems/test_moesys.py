"""MoESys by hand: a prefill and a decoded token with rings of two layer buffers and of one."""

import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.moesys import MoESys, WholeLayer
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import cache, shape, view

THREE = small_shape(layers=3, experts=3)

# Three layers of three experts, top-2; attention 30, a gate 3, an expert 10, the sum 2, the head 6,
# a load 40.  Control costs nothing.
#
#   link    L0's three experts 0..120, L1's 120..240: the ring is full
#   L0      attend 0..30, gate ..33; 0 has come at 40, 1 at 80; sum 90..92.  Its slots are free when
#           0 (50) and 1 (90) have been computed and 2 has come in vain (120)
#   link    L2's 240..360
#   L1      attend 92..122, gate ..125; 0 has come at 160, 1 at 200; sum 210..212
#   link    L0's for the next token 360..480
#   L2      attend 212..242, gate ..245; 1 has come at 320, 2 at 360; sum 370..372; head 372..378
#
# The next token begins at 378, and with it the fetch of L1.
#
#   link    L1's 480..600
#   L0      attend 378..408, gate ..411; 0 is there: 411..421; 2 comes at 480; sum 490..492
#   link    L2's 600..720
#   L1      attend 492..522, gate ..525; 0 is there: 525..535; 1 comes at 560; sum 570..572
#   link    L0's for a third token 720..840
#   L2      attend 572..602, gate ..605; 0 comes at 640, 1 at 680; sum 690..692; head 692..698

USES = [[[(0, 1)], [(0, 1)], [(1, 2)]], [[(0, 2)], [(0, 1)], [(0, 1)]]]
EXPERTS = [
    (0, (0,), 40, 50),
    (0, (1,), 80, 90),
    (1, (0,), 160, 170),
    (1, (1,), 200, 210),
    (2, (1,), 320, 330),
    (2, (2,), 360, 370),
    (0, (0,), 411, 421),
    (0, (2,), 480, 490),
    (1, (0,), 525, 535),
    (1, (1,), 560, 570),
    (2, (0,), 640, 650),
    (2, (1,), 680, 690),
]


@pytest.fixture
def two_tokens():
    made = MoESys()
    return run(made, model_of(THREE, USES), slots=made.most_slots(THREE), passes=2)


def test_the_link_brings_layer_after_layer_and_never_rests(two_tokens):
    layers = [0, 1, 2, 0, 1, 2, 0]
    brought = [(layer, (e,)) for layer in layers for e in range(3)]
    times = [(40 * i, 40 * (i + 1)) for i in range(21)]
    expected = [(*expert, *time) for expert, time in zip(brought, times, strict=True)]
    assert of(two_tokens, OpKind.LOAD) == expected


def test_experts_are_computed_as_they_come(two_tokens):
    assert of(two_tokens, OpKind.EXPERT) == EXPERTS
    assert [(start, end) for _, _, start, end in of(two_tokens, OpKind.HEAD)] == [
        (372, 378),
        (692, 698),
    ]


def test_nothing_is_loaded_after_a_gate_and_nothing_stays(two_tokens):
    decode = two_tokens.counts["decode"]
    assert (decode.active, decode.hits, decode.in_flight, decode.loads) == (6, 2, 4, 0)
    # Of nine experts loaded for the token, six were used; every layer was fetched whole.
    assert (decode.prefetched, decode.prefetched_used) == (9, 6)
    assert (decode.asked, decode.asked_all) == (3, 3)
    assert {victim for _, victim in evicted(two_tokens)} == {None}


def test_the_peak_is_two_layers(two_tokens):
    assert two_tokens.tier.peak_bytes == 2 * 3 * RECORD_BYTES
    assert two_tokens.timeline.bytes_moved(Lane.H2D) == 21 * RECORD_BYTES


def test_what_comes_for_a_third_token_does_not_count_if_there_is_none(two_tokens):
    timeline = two_tokens.timeline
    assert timeline.busy_ns(Lane.H2D) == 21 * 40
    timeline.finish(698)  # the 18th load is under way since 680
    assert timeline.busy_ns(Lane.H2D) == 698
    assert timeline.bytes_moved(Lane.H2D) == 17 * RECORD_BYTES


def test_one_buffer_is_refilled_as_soon_as_its_layer_is_launched():
    # As DuoServe-MoE measured it.  L0's gate is known at 33, and the link is busy until 120; L1's
    # attention runs 92..122.
    made = build("moesys", {"prefetch.buffers": "1"})
    ran = run(made, model_of(THREE, USES[:1]), slots=made.most_slots(THREE))
    assert of(ran, OpKind.LOAD) == [
        *((0, (e,), 40 * e, 40 * e + 40) for e in range(3)),
        *((1, (e,), 120 + 40 * e, 160 + 40 * e) for e in range(3)),
        *((2, (e,), 240 + 40 * e, 280 + 40 * e) for e in range(3)),
    ]
    assert ran.tier.peak_bytes == 3 * RECORD_BYTES


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_slot_is_handed_over_when_its_expert_has_been_computed(buffers):
    # Loads of 5: L0's are there at 15.  0 and 1 are one operation, 33..53; 2 came in vain.
    made = build("moesys", {"prefetch.buffers": str(buffers)})
    ran = run(made, model_of(THREE, USES[:1]), slots=3 * buffers, costs=FlatCosts(prices(load=5)))
    assert of(ran, OpKind.EXPERT)[0] == (0, (0, 1), 33, 53)
    then = of(ran, OpKind.LOAD)[3 * buffers : 3 * buffers + 3]
    assert then == [(buffers, (0,), 33, 38), (buffers, (1,), 53, 58), (buffers, (2,), 58, 63)]


@pytest.mark.parametrize("buffers", [3, 4])
def test_with_buffers_for_all_layers_everything_is_brought_once(buffers):
    made = build("moesys", {"prefetch.buffers": str(buffers)})
    assert made.most_slots(THREE) == 9
    ran = run(made, model_of(THREE, USES), slots=9, passes=2)
    assert len(of(ran, OpKind.LOAD)) == 9
    assert ran.counts["decode"].hits == 6


# --------------------------------------------------------------------------- the policy


def started(buffers: int) -> WholeLayer:
    ring = WholeLayer(buffers=buffers)
    model = shape(experts=4, top_k=2, layers=5, dense_layers=(0,), dense_width=8)
    ring.start(model, cache(model, 16))
    return ring


def fetched(layer: int) -> list[Fetch]:
    return [Fetch(layer, e, keep=False) for e in range(4)]


def test_the_ring_closes_over_layers_with_experts():
    # Layers 1 to 4 have experts.
    two, three = started(2), started(3)
    seen = [view([[1.0] * 4], 2, layer=layer, layers=6) for layer in (1, 2, 3)]
    assert [two.prefetch(s, {}) for s in seen] == [fetched(3), fetched(4), fetched(1)]
    assert [three.prefetch(s, {}) for s in seen] == [fetched(4), fetched(1), fetched(2)]
    for phase in ("prefill", "decode"):
        assert two.opening(phase, 1) == fetched(1) + fetched(2)
    assert WholeLayer().discipline == "committed"  # none is dropped at the next gate


def test_where_two_buffers_do_not_fit_there_is_one_and_a_note():
    ran = run(MoESys(), model_of(THREE, USES[:1]), slots=5)
    # L1's come behind L0's gate, at 33, the first two into the slots that are left over.
    order = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert [row[:2] for row in of(ran, OpKind.LOAD)] == [(layer, (e,)) for layer, e in order]
    (line,) = MoESys().remarks(THREE, 5)
    assert line == "5 slots hold 1 of 2 layer buffers of 3 experts"
    assert MoESys().remarks(THREE, 6) == ()
    assert build("moesys", {"prefetch": "none"}).remarks(THREE, 5) == ()


def test_too_few_slots_are_one_clear_line():
    model = shape(experts=4, top_k=2, layers=4)
    with pytest.raises(BudgetError, match=r"needs 4 slots .* has 3; give --slots 8, or"):
        WholeLayer().start(model, cache(model, 3))
    with pytest.raises(UsageError, match="leave out scope=layer"):
        WholeLayer().start(model, cache(model, 12, "layer"))
    with pytest.raises(UsageError, match=r"prefetch\.buffers is 0; allowed: 1 or more"):
        WholeLayer(buffers=0)


def test_the_ring_says_how_many_slots_it_has():
    model = shape(experts=8, layers=4)
    assert MoESys().most_slots(model) == 16
    assert build("moesys", {"prefetch": "none"}).most_slots(model) is None
    assert MoESys().lossless
