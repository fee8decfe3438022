"""DAOP by hand: Algorithm 1, placement, degradation, and a layer computed one layer ahead."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.terms import RoutedSequence
from moebench.systems.daop import (
    AllocateBySequence,
    OnlySwaps,
    PlaceByActivation,
    PredictedRouting,
    swaps,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig, small_shape
from tests.systems.views import active, shape, view

ROOT = Path(__file__).parents[2]

# --------------------------------------------------------------------------- Algorithm 1


def prefill_of(tokens: dict[int, int], resident: set[int], experts: int = 8):
    """Return a prefill of top-1 tokens with given numbers of tokens per expert."""
    own = [[expert] for expert, n in tokens.items() for _ in range(n)]
    return view(np.zeros((len(own), experts)), 1, resident, own=own, phase="prefill")


def test_the_busiest_host_expert_is_paired_with_the_idlest_device_expert():
    # Device: 0 (9 tokens), 1 (2), 2 (0).  Host: 3 (7), 4 (3), 5 (1), 6, 7 (0).
    seen = prefill_of({0: 9, 1: 2, 3: 7, 4: 3, 5: 1}, {0, 1, 2})
    # 7 > 1.05 * 0, 3 > 1.05 * 2, but 1 < 1.05 * 9.
    assert swaps(seen, 1.05) == {3: 2, 4: 1}
    assert swaps(seen, 1.6) == {3: 2}


def test_device_experts_beyond_the_last_that_has_a_token_are_partners_too():
    assert swaps(prefill_of({0: 20, 1: 5}, {6, 7}), 1.05) == {0: 7, 1: 6}


def test_similar_counts_are_not_swapped():
    assert swaps(prefill_of({0: 20, 1: 21}, {0}), 1.05) == {}
    assert swaps(prefill_of({0: 20, 1: 22}, {0}), 1.05) == {1: 0}
    assert swaps(prefill_of({0: 20, 1: 21}, {0}), 1.0) == {1: 0}


@given(
    tokens=st.dictionaries(st.integers(0, 7), st.integers(1, 30), min_size=1),
    resident=st.sets(st.integers(0, 7)),
)
def test_swaps_never_leave_the_device_with_fewer_tokens(tokens, resident):
    pairs = swaps(prefill_of(tokens, resident), 1.05)
    after = (resident - set(pairs.values())) | set(pairs)
    assert len(after) == len(resident)
    assert set(pairs).isdisjoint(resident)
    assert set(pairs.values()) <= resident
    count = Counter(tokens)
    assert sum(count[e] for e in after) >= sum(count[e] for e in resident)


def test_what_is_on_its_way_is_neither_brought_nor_replaced():
    seen = prefill_of({0: 9, 1: 2, 3: 7}, {0, 1})
    seen.in_flight_E[3] = True
    assert swaps(seen, 1.05) == {}
    seen.in_flight_E[[3, 1]] = seen.resident_E[1] = False
    seen.in_flight_E[1] = True
    assert swaps(seen, 1.05) == {}  # 7 < 1.05 * 9, and 1 is not there yet


def allocated(seen, **options):
    """Return (loads, host, device) of the experts that the view's tokens use."""
    found = AllocateBySequence(**options).assign(seen, active(seen))
    return list(found.load), list(found.host), list(found.device)


def test_a_swap_is_a_fetch_that_names_whom_it_replaces():
    seen = prefill_of({0: 9, 1: 2, 3: 7, 4: 3, 5: 1}, {0, 1, 2})
    # The rest is computed where it is; residents first, then what comes.
    swapped = [Fetch(0, 3, instead_of=2), Fetch(0, 4, instead_of=1)]
    assert allocated(seen) == (swapped, [5], [0, 1, 3, 4])
    assert allocated(seen, threshold=1.6) == (swapped[:1], [4, 5], [0, 1, 3])


def test_decode_moves_nothing():
    seen = view([[0.5, 0.3, 0.2, 0.0]], 2, {3})
    assert allocated(seen) == ([], [0, 1], [])


def test_a_transfer_under_way_is_waited_for_but_not_by_a_layer_that_is_routed_ahead():
    now = view([[0.5, 0.3, 0.2, 0.0]], 3, {0}, in_flight={2})
    assert allocated(now) == ([], [1], [0, 2])
    then = view([[0.5, 0.3, 0.2, 0.0]], 3, {0}, in_flight={2}, ahead=True)
    assert allocated(then) == ([], [1, 2], [0])


def test_eviction_itself_chooses_no_expert():
    policy = OnlySwaps()
    policy.start(shape(), None)  # type: ignore[arg-type]
    policy.observe(prefill_of({0: 9, 1: 2, 3: 7}, {0, 1, 2}))
    for expert in range(8):
        assert policy.victim(np.ones(16, dtype=bool), expert) is None


# --------------------------------------------------------------------------- §IV-A


def test_equal_parts_and_the_remainder_by_frequency():
    popularity = [[9, 1, 5, 4], [2, 8, 7, 3], [6, 6, 1, 1]]
    place = PlaceByActivation(popularity=popularity)
    placed = list(place.place(shape(experts=4, top_k=1, layers=3), 5, "global"))
    # One each: 0/0, 1/1, 2/0 (ties to the lowest id); then 1/2 with 7 and 2/1 with 6.
    assert placed == [(0, 0), (1, 1), (2, 0), (1, 2), (2, 1)]


def test_decoded_tokens_alone_are_counted(tmp_path):
    # Two layers; the prompt uses expert 0 three times, the two decoded tokens use 2 and 3 in
    # layer 0 and 1 twice in layer 1.
    ids_TLK = np.array([[[0], [0]]] * 3 + [[[2], [1]], [[3], [1]]])
    place = PlaceByActivation()
    assert place.calibrates
    model = shape(experts=4, top_k=1, layers=2)
    place.calibrate([RoutedSequence(ids_TLK, 3)], model, tmp_path, lambda done, total: None)
    assert place.learnt == {"tokens": "2"}
    assert list(place.place(model, 3, "global")) == [(0, 2), (1, 1), (0, 3)]


# --------------------------------------------------------------------------- degradation

SCORES = [0.35, 0.25, 0.20, 0.12, 0.05, 0.03]


def routed(resident: set[int], k: int = 2, **options: int) -> list[int]:
    seen = view([SCORES], k, resident, layer=7, ahead=True)
    return PredictedRouting(**options).route(seen).ids_TK[0].tolist()


@pytest.mark.parametrize(
    ("resident", "expected"),
    [
        ({0, 1}, [0, 1]),  # both on the device
        ({0, 3}, [0, 1]),  # one on the host: it is computed there
        ({1, 3}, [0, 1]),
        ({3, 4}, [0, 3]),  # both on the host: the lower-scored one gives way to the next best
        ({5}, [0, 5]),
        (set(), [0, 1]),  # no alternative: the original stays
    ],
)
def test_two_experts_on_the_host_degrade(resident, expected):
    assert routed(resident) == expected


def test_degradation_for_other_top_k_and_most_host():
    assert routed({4, 5}, k=3) == [0, 1, 4]  # two may stay
    assert routed({4, 5}, k=3, most_host=1) == [0, 5, 4]  # the weakest takes the best
    assert routed({4, 5}, k=3, most_host=0) == [0, 5, 4]  # two alternatives for three
    assert routed({0, 4}, k=3, most_host=1) == [0, 1, 4]
    assert routed({4}, k=1) == [0]
    assert routed({4}, k=1, most_host=0) == [4]


def test_only_a_layer_that_is_routed_ahead_degrades():
    for phase in ("decode", "prefill"):
        seen = view([SCORES], 2, {3, 4}, layer=7, phase=phase)
        assert PredictedRouting().route(seen).ids_TK.tolist() == [[0, 1]]
    assert [PredictedRouting().routes_ahead(layer) for layer in (0, 4, 5, 31)] == [0, 0, 1, 1]
    assert [PredictedRouting(first=2).routes_ahead(layer) for layer in (1, 2)] == [False, True]


def test_options_out_of_range_are_one_line():
    for options in ({"route.first": "0"}, {"route.most_host": "-1"}, {"assign.threshold": "0.9"}):
        with pytest.raises(UsageError, match="allowed"):
            build("daop", options)


def test_the_threshold_is_an_option_of_the_assignment_alone():
    system = build("daop", {"assign.threshold": "1.5"})
    assert system.assign == AllocateBySequence(threshold=1.5)
    assert not system.lossless
    with pytest.raises(UnknownNameError, match=r"evict\.threshold.*nearest: assign\.threshold"):
        build("daop", {"evict.threshold": "3"})


# --------------------------------------------------------------------------- one layer ahead

LOAD, HOST, EXPERT = 90, 70, 10


def decoded_layers(first: int, **overrides: str) -> Rig:
    """Run one prompt token and one decoded token, for experts 0 and 1, through three layers.

    All of them are on the device but the last layer's expert 1.
    """
    scores = [[0.6, 0.4, 0.0, 0.0]]
    gates = {(p, layer): scores for p in range(2) for layer in range(3)}
    model = FixedModel(small_shape(), gates, gates)
    popularity = "[[3, 2, 0, 0], [3, 2, 0, 0], [3, 1, 0, 0]]"
    options = {"route.first": str(first), "place.popularity": popularity}
    system = build("daop", options | overrides)
    costs = FlatCosts(prices(load=LOAD, host=HOST), launch_ns=1, submit_ns=1, sync_ns=1)
    made = rig(system, model, slots=5, costs=costs)
    made.engine.generate([[1]], 2)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=5)
    return made


def test_host_experts_of_a_predicted_layer_start_in_the_layer_before():
    def of_last_layer(spans: list, kind: OpKind, lane: Lane) -> list:
        return [s for s in spans if s.op.layer == 2 and s.op.kind is kind and s.lane is lane]

    ahead, plain = decoded_layers(first=2), decoded_layers(first=9)
    for made, before in ((ahead, True), (plain, False)):
        host = of_last_layer(made.spans, OpKind.EXPERT, Lane.HOST)[-1]
        attend = of_last_layer(made.spans, OpKind.ATTEND, Lane.DEVICE)[-1]
        assert (host.start_ns < attend.start_ns) is before
    # The predicted layer computes no gate of its own, and the token ends earlier.
    assert len(of_last_layer(ahead.spans, OpKind.GATE, Lane.DEVICE)) == 1
    assert len(of_last_layer(plain.spans, OpKind.GATE, Lane.DEVICE)) == 2
    assert ahead.spans[-1].end_ns < plain.spans[-1].end_ns


def test_host_experts_of_a_predicted_layer_read_the_state_of_the_layer_before():
    ahead, plain = decoded_layers(first=2), decoded_layers(first=9)
    assert ahead.engine.model.stale == [(1, 2, 1)]
    assert ahead.engine.model.ahead == [(1, 2)]
    assert plain.engine.model.stale == plain.engine.model.ahead == []


#: The last blocks of the paper's Fig. 7 in docs/engines/daop.md: experts on the device, by block.
FIG_7 = {0: [0, 1], 1: [0], 2: [2], 3: []}


def token_of_fig_7(first: int) -> tuple[Rig, int, list]:
    """Return a run of one prompt token and one decoded token, the latter's start and its spans.

    Every block wants experts 0 and 1, but the prompt's token wants 2 and 3 in block 2, so that
    Algorithm 1 exchanges nothing.
    """
    own, of_2 = [0.5, 0.3, 0.15, 0.05], [0.05, 0.1, 0.5, 0.35]
    gates = {(p, i): [of_2 if (p, i) == (0, 2) else own] for p in range(2) for i in FIG_7}
    counts = [[9 * (e in experts) for e in range(4)] for experts in FIG_7.values()]
    options = {"route.first": str(first), "place": "popular", "place.popularity": str(counts)}
    system = build("daop", options)
    model = FixedModel(small_shape(layers=4), gates, gates)
    made = rig(system, model, slots=4, costs=FlatCosts(prices()))
    made.engine.generate([[1]], 2)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=4)
    (end, _) = (span.end_ns for span in made.spans if span.op.kind is OpKind.HEAD)
    return made, end, [span for span in made.spans if span.start_ns >= end]


def test_the_papers_fig_7():
    """Both tables of docs/engines/daop.md, whose times follow from its rules and prices by hand."""
    made, start, spans = token_of_fig_7(first=1)

    def at(layer: int, kind: OpKind, lane: Lane, named: bool = False) -> str:
        found = sorted(
            (
                span
                for span in spans
                if (span.op.layer, span.op.kind, span.lane) == (layer, kind, lane)
            ),
            key=lambda span: span.start_ns,
        )
        times = [f"{span.start_ns - start} to {span.end_ns - start}" for span in found]
        names = [", ".join(map(str, span.op.experts)) for span in found]
        return "; ".join(
            [f"{n}: {t}" for n, t in zip(names, times, strict=True)] if named else times
        )

    page = (ROOT / "docs" / "engines" / "daop.md").read_text(encoding="utf-8")
    for layer in FIG_7:
        cells = [
            str(layer), at(layer, OpKind.ATTEND, Lane.DEVICE),
            at(layer, OpKind.PREDICT, Lane.DEVICE),
            at(layer, OpKind.EXPERT, Lane.DEVICE, named=True),
            at(layer, OpKind.EXPERT, Lane.HOST, named=True),
            at(layer, OpKind.COMBINE, Lane.DEVICE),
        ]  # fmt: skip
        line = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
        assert line in page, line
    used = {layer: {e for p, at, e in made.engine.model.computed if (p, at) == (1, layer)}
            for layer in FIG_7}  # fmt: skip
    assert used == {0: {0, 1}, 1: {0, 1}, 2: {0, 2}, 3: {0, 1}}
    for layer, experts in FIG_7.items():
        row = [str(layer), ", ".join(map(str, experts)), "0, 1", ", ".join(map(str, used[layer]))]
        assert "|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" in page
    # The host computes on the state of the block before, the device on the block's own.
    assert sorted(made.engine.model.stale) == [(1, 1, 1), (1, 2, 0), (1, 3, 0), (1, 3, 1)]
    decode = made.counts["decode"]
    assert (decode.loads, decode.host, decode.routed_ahead, decode.degraded) == (0, 4, 6, 1)


def test_fig_7_with_and_without_predictions():
    taken = []
    for first in (1, 9):
        _, start, spans = token_of_fig_7(first)
        taken.append(spans[-1].end_ns - start)
    # Without: 55 for block 0, then three blocks of 33 before their experts, of which 1, 2 and 2 are
    # on the host; each block's results come back 4 after its last expert.
    assert taken == [272, 55 + (33 + 55 + 4 + 2) + 2 * (33 + 110 + 4 + 2) + 6]
    page = (ROOT / "docs" / "engines" / "daop.md").read_text(encoding="utf-8")
    assert "the token takes 272." in page
    assert "takes 453." in page


def test_what_became_of_experts_and_predictions():
    decode = decoded_layers(first=2).counts["decode"]
    assert (decode.active, decode.hits, decode.host, decode.loads) == (6, 5, 1, 0)
    assert (decode.routed_ahead, decode.routed_ahead_right, decode.degraded) == (2, 2, 0)


def test_no_load_but_a_swap_can_evict():
    with pytest.raises(UsageError, match=r"OnlySwaps .* layer 2 must load"):
        decoded_layers(first=2, assign="load")


def test_a_swap_evicts_its_partner_and_no_other():
    # One layer, two slots with experts 0 and 1; three of four prompt tokens use 2, one 0: 2 is
    # exchanged for 1 although 0's slot could be had too.  The decoded token uses 3: it is computed
    # on the host.
    model = small_shape(layers=1, top_k=1)
    gates = {(0, 0): [[0, 0, 1, 0]] * 3 + [[1, 0, 0, 0]], (1, 0): [[0, 0, 0, 1]]}
    system = build("daop", {"place.popularity": "[[4, 3, 2, 1]]"})
    made = rig(system, FixedModel(model, gates), slots=2)
    made.engine.generate([[1] * 4], 2)
    exchanged = [claim for claim in made.claims if not claim.placed]
    assert [(claim.key, claim.victim) for claim in exchanged] == [(2, 1)]
    back = [span for span in made.spans if span.op.kind is OpKind.WRITE_BACK]
    assert [(span.op.experts, span.lane) for span in back] == [((1,), Lane.D2H)]
    assert made.counts["prefill"].loads == 1
    assert (made.counts["decode"].host, made.counts["decode"].loads) == (1, 0)


def prefill_spans(tokens: list[int], *kinds: OpKind) -> list[tuple[tuple[int, ...], int, int]]:
    """Return (experts, start, end) of a prefill layer; experts 0 and 1 of six are resident."""
    model = small_shape(layers=1, top_k=1, experts=6)
    rows = [[float(e == expert) for e in range(6)] for expert in tokens]
    system = build("daop", {"place.popularity": "[[6, 5, 4, 3, 2, 1]]"})
    made = rig(system, FixedModel(model, {(0, 0): rows}), slots=2, costs=FlatCosts(prices()))
    made.engine.generate([[1] * len(tokens)], 1)
    found = [span for span in made.spans if span.op.kind in kinds]
    return [(span.op.experts, span.start_ns, span.end_ns) for span in found]


def test_what_a_swap_replaces_is_copied_to_the_host_before_its_slot_is_used():
    # Attention 30, gate 3: at 33 expert 1, which has no token, begins to leave: 35 ns over d2h.
    # Expert 2 then takes 40 over h2d and 10 to compute; 0 is computed at once.
    kinds = (OpKind.WRITE_BACK, OpKind.LOAD, OpKind.EXPERT)
    assert sorted(prefill_spans([2, 2, 2, 0], *kinds)) == [
        ((0,), 33, 43),
        ((1,), 33, 68),
        ((2,), 68, 108),
        ((2,), 108, 118),
    ]


def test_the_copies_of_several_swaps_overlap_in_their_two_directions():
    # 2 (three tokens) for 1, 3 (two) for 0: d2h is busy 33..68..103, h2d 68..108 and then 108..148.
    assert prefill_spans([2, 2, 2, 3, 3], OpKind.WRITE_BACK) == [((1,), 33, 68), ((0,), 68, 103)]
    assert prefill_spans([2, 2, 2, 3, 3], OpKind.LOAD) == [((2,), 68, 108), ((3,), 108, 148)]


def test_an_active_expert_is_computed_before_it_is_copied_back():
    # 2 has three tokens, 1 has one: 0 and 1 are one operation, 33..53.
    assert prefill_spans([2, 2, 2, 1, 0, 0], OpKind.WRITE_BACK) == [((1,), 53, 88)]
    assert prefill_spans([2, 2, 2, 1, 0, 0], OpKind.LOAD) == [((2,), 88, 128)]
