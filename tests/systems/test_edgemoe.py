"""EdgeMoE by hand: the widths' search, the table of paths, eviction by use over distance."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.edgemoe import (
    FORMS,
    FULL,
    INT2,
    INT4,
    INT8,
    ActivationPaths,
    EdgeMoE,
    FrequencyOverDistance,
    OneWidthEach,
    PathTable,
    denominators,
    eviction_loss,
    widths_within,
)
from moebench.systems.options import build
from tests.harness.commands import refused
from tests.substrate.engine.fakes import (
    RECORD_BYTES,
    FlatCosts,
    prices,
    random_trace,
    rig,
    small_shape,
)
from tests.systems.views import cache, flags, shape, view

# --------------------------------------------------------------------------- eviction: case (a)

LAYERS, E = 6, 4


def policy_of(uses, current, **options):
    """Return a policy that has seen ``uses`` of experts, by (layer, expert), in a layer now."""
    policy, model = FrequencyOverDistance(**options), shape(E, 1, LAYERS)
    policy.start(model, cache(model, 8))
    for (layer, expert), count in uses.items():
        for _ in range(count):
            policy.used(layer, [expert])
    policy.used(current, [])
    return policy


def key(layer, expert=0):
    return layer * E + expert


def victim(policy, *keys):
    return policy.victim(flags(keys, LAYERS * E), key(policy._current, 3))


#: S = 6, I = 2: layer 3's expert was used 4 times, layer 1's 10 times, layer 5's 3 times.
USES, CURRENT = {(3, 0): 4, (1, 0): 10, (5, 0): 3}, 2


def test_by_the_text_the_next_layer_counts_most():
    i, f = np.array([3, 1, 5]), np.array([4, 10, 3])
    d = denominators(i, CURRENT, LAYERS, "text")
    assert d.tolist() == [1, 5, 3]
    assert eviction_loss(f, d).tolist() == [-4, -2, -1]
    assert victim(policy_of(USES, CURRENT), key(3), key(1), key(5)) == key(5)


def test_as_printed_the_next_layer_leaves_first():
    i, f = np.array([3, 1, 5]), np.array([4, 10, 3])
    d = denominators(i, CURRENT, LAYERS, "printed")
    assert d.tolist() == [5, 1, 3]
    assert eviction_loss(f, d) == pytest.approx([-0.8, -10, -1])
    printed = policy_of(USES, CURRENT, distance="printed")
    assert victim(printed, key(3), key(1), key(5)) == key(3)


def test_the_current_layer_is_the_farthest_by_the_text_and_never_first_as_printed():
    current = np.array([CURRENT])
    assert denominators(current, CURRENT, LAYERS, "text").tolist() == [LAYERS]
    assert denominators(current, CURRENT, LAYERS, "printed").tolist() == [0]
    assert eviction_loss(np.array([0]), np.array([0])).tolist() == [-np.inf]
    printed = policy_of(USES, CURRENT, distance="printed")
    assert victim(printed, key(2, 1), key(1)) == key(1)
    assert victim(printed, key(2, 1)) == key(2, 1)


def test_of_equal_losses_the_farther_layer_then_the_lower_key_leaves():
    unused = policy_of({}, CURRENT)
    assert victim(unused, key(3), key(1), key(1, 1)) == key(1)
    assert victim(unused) is None


def test_forms_of_an_expert_share_its_uses():
    policy = policy_of(USES, CURRENT)
    policy.used(LAYERS + 3, [1] * 9)  # form 1
    policy.used(CURRENT, [])
    records = LAYERS * E
    low = flags([records + key(3), records + key(3, 2)], 2 * records)
    assert policy.victim(low, records) == records + key(3, 2)


def test_dense_layers_have_no_distance():
    # Layers 1 and 3 of four have experts: S = 2, so layer 1 follows layer 3 at a distance of 1.
    model = shape(E, 1, 4, dense_layers=(0, 2), dense_width=4)
    policy = FrequencyOverDistance()
    policy.start(model, cache(model, 8))
    policy.used(1, [0, 1])
    policy.used(3, [0])
    # Layer 3 itself counts as 2: L = -1/1 and -1/2.
    assert policy.victim(flags([E, 3 * E], 4 * E), 3 * E + 1) == 3 * E


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 6)),
    st.integers(0, 5), st.sets(st.integers(0, LAYERS * E - 1), min_size=1),
    st.sampled_from(["text", "printed"]),
)  # fmt: skip
def test_the_victim_is_a_resident_with_the_largest_loss(uses, current, residents, distance):
    def loss(at):
        i, f = at // E, uses.get(divmod(at, E), 0)
        if distance == "printed":
            d = (LAYERS - i + current) % LAYERS
            return -f / d if d else -np.inf
        return -f / ((i - current) % LAYERS or LAYERS)

    found = victim(policy_of(uses, current, distance=distance), *residents)
    assert found in residents
    assert loss(found) == max(map(loss, residents))


# --------------------------------------------------------------------------- preloading: case (b)


def golden_table():
    """E_1 = 3 and E_2 = 1 were followed 27 times by 5, 3 times by 2 and once by 0."""
    table = PathTable(2)
    for expert, count in {5: 27, 2: 3, 0: 1}.items():
        for _ in range(count):
            table.add(np.array([[3], [1], [expert]]))
    return table


def test_probabilities_of_a_path_by_hand():
    found = golden_table().probabilities((2, ((3,), (1,))))
    assert [*found] == [5, 2, 0]
    assert [*found.values()] == pytest.approx([0.871, 0.097, 0.032], abs=5e-4)


def test_first_layers_have_shorter_keys_and_a_path_is_a_sorted_tuple():
    table = PathTable(2)
    history = [[4, 1], [2, 3], [6, 5]]
    assert table.key(0, history) == (0, ())
    assert table.key(1, history) == (1, ((1, 4),))
    assert table.key(2, history) == (2, ((1, 4), (2, 3)))
    assert table.key(3, history) == (3, ((2, 3), (5, 6)))
    assert PathTable(1).key(2, history) == (2, ((2, 3),))


def prefetching(**options):
    """Return the policy, learnt from the paths of the golden case and one more text."""
    ids = np.array([[[3], [1], [e]] for e, n in {5: 27, 2: 3, 0: 1}.items() for _ in range(n)])
    policy = ActivationPaths(**options)
    texts = [RoutedSequence(ids, 1), RoutedSequence(np.array([[[3], [2], [7]]]), 1)]
    policy.calibrate(texts, shape(8, 1, 3), Path())
    return policy


def on_path(*chosen, phase="decode"):
    """Return the view of the layer after which a token has chosen these experts."""
    seen = view([[0.0] * 8], 1, layer=len(chosen) - 1, layers=3, phase=phase)
    if len(chosen) == 3:
        seen.next_layer = None
    seen.forward.history[:] = [np.array([[e]]) for e in chosen]
    return seen


def test_the_next_layer_is_preloaded_in_descending_probability():
    policy = prefetching()
    assert policy.prefetch(on_path(3, 1), {}) == [Fetch(2, 5), Fetch(2, 2), Fetch(2, 0)]
    assert policy.prefetch(on_path(3), {}) == [Fetch(1, 1), Fetch(1, 2)]
    assert policy.opening("decode", 0) == [Fetch(0, 3)]
    assert prefetching(experts=1).prefetch(on_path(3, 1), {}) == [Fetch(2, 5)]
    assert policy.discipline == "speculative"


def test_an_unseen_path_and_prefill_preload_nothing():
    policy = prefetching()
    assert policy.prefetch(on_path(0, 1), {}) == []
    assert policy.prefetch(on_path(3, 1, 5), {}) == ()
    assert policy.prefetch(on_path(3, 1, phase="prefill"), {}) == ()
    assert policy.opening("prefill", 0) == ()


def test_of_several_rows_the_highest_probability_counts():
    policy, seen = prefetching(), on_path(3, 1)
    seen.forward.rows = 2
    seen.forward.history[:] = [np.array([[3], [3]]), np.array([[1], [2]])]
    # The second row's path has been followed by 7 alone.
    assert [fetch.expert for fetch in policy.prefetch(seen, {})] == [7, 5, 2, 0]


def test_what_was_learnt_says_how_many_paths_recur():
    # Of the last text's three keys, the one of layer 2 was in no other text.
    assert prefetching().learnt == {"keys": "4", "known": "66.7% of another text's"}


def test_a_table_of_another_model_is_refused():
    model = shape(4, 1, 3)
    with pytest.raises(UsageError, match="was learnt for 3 layers of 8 experts, the model has 3 "):
        prefetching().start(model, cache(model, 8))
    ActivationPaths().start(model, cache(model, 8))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3), st.integers(1, 3))
def test_probabilities_of_a_key_fall_and_sum_to_1(seed, k, before):
    random, table = np.random.default_rng(seed), PathTable(before)
    for _ in range(20):
        table.add(np.array([random.choice(5, k, replace=False) for _ in range(4)]))
    for found in table.counts:
        p = [*table.probabilities(found).values()]
        assert sum(p) == pytest.approx(1)
        assert p == sorted(p, reverse=True)


# --------------------------------------------------------------------------- widths: case (c)

#: Losses of uniform widths, and the extra loss of each expert at INT2 among INT4.
UNIFORM = {INT8: 0.1, INT4: 1.40}
EXTRA = [0.44, 0.59, 0.10, 0.20]


def additive(widths):
    """Return the loss of the golden case, which is taken as additive."""
    highest = min(widths)
    if highest == FULL:
        return UNIFORM[INT8] / 4 * sum(widths)
    if highest == INT2:
        return 2.73
    return UNIFORM[highest] + sum(EXTRA[e] for e, width in enumerate(widths) if width == INT2)


def test_the_least_sensitive_experts_get_the_lower_width():
    # K = 2 loses 1.70 %, K = 3 would lose 2.14 %.
    found = widths_within(2.0, additive, 4, range(4))
    assert found == [INT4, INT4, INT2, INT2]
    assert additive([INT4, INT4, INT2, INT4]) == pytest.approx(1.50)
    assert additive(found) == pytest.approx(1.70)
    assert additive([INT2, INT4, INT2, INT2]) == pytest.approx(2.14)


def test_tolerances_that_uniform_widths_meet():
    assert widths_within(3.0, additive, 4, range(4)) == [INT2] * 4
    assert widths_within(100, additive, 4, range(4)) == [INT2] * 4
    assert widths_within(2.73, additive, 4, [0, 3]) == [INT2] * 4, "the tolerance itself"
    assert widths_within(1.40, additive, 4, range(4)) == [INT4] * 4
    assert widths_within(0, additive, 4, range(4)) == [FULL] * 4


def test_experts_that_are_no_candidates_keep_the_higher_width():
    assert widths_within(2.0, additive, 4, [0, 3]) == [INT4, INT4, INT4, INT2]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0, 3), min_size=3, max_size=3), st.floats(0, 20),
    st.lists(st.floats(0, 4), min_size=1, max_size=9), st.integers(0, 99),
)  # fmt: skip
def test_the_loss_of_a_search_never_exceeds_the_tolerance(steps, tolerance, weights, seed):
    noise = np.random.default_rng(seed).random(99)

    def loss(widths):  # no formula: it may even fall where a width does
        if not any(widths):
            return 0.0
        part = sum(w * sum(steps[:width]) for w, width in zip(weights, widths, strict=True))
        return part + noise[sum(4**n * width for n, width in enumerate(widths)) % 99]

    found = widths_within(tolerance, loss, len(weights), range(len(weights)))
    assert loss(found) <= tolerance
    assert max(found) - min(found) <= 1


class Additive:
    """Losses of one layer of four experts, as in the golden case."""

    identity = "golden"

    def of(self, forms_LE, tokens):
        return additive(forms_LE[0].tolist())


def test_a_placement_stores_the_widths_that_its_search_found(tmp_path):
    policy, model = OneWidthEach(), shape(4, 1, 1)
    assert policy.chosen_forms(model).tolist() == [[FULL] * 4]
    ids = np.array([[[e]] for e in (1, 1, 3, 1, 0)])
    policy.calibrate([RoutedSequence(ids, 2)], model, tmp_path, lambda done, total: None)
    steps = []
    policy.measure(Additive(), model, tmp_path, lambda *at: steps.append(at))
    assert policy.chosen_forms(model).tolist() == [[INT4, INT4, INT2, INT2]]
    assert policy.learnt == {"tokens": "5", "widths": "2 int4, 2 int2", "loss": "1.7 %"}
    assert steps[-1] == (4, 4)
    assert list(policy.place(model, 2, "global")) == [(0, 1), (0, 0)]
    again = OneWidthEach()
    again.calibrate([RoutedSequence(ids, 2)], model, tmp_path, lambda done, total: None)
    again.measure(Kept(), model, tmp_path, lambda *at: None)
    assert again.chosen_forms(model).tolist() == [[INT4, INT4, INT2, INT2]]


class Kept(Additive):
    """Losses that must not be measured: the search's result is kept."""

    def of(self, forms_LE, tokens):
        raise AssertionError("it was found before")


def test_the_rarest_experts_are_the_candidates(tmp_path):
    policy, model = OneWidthEach(measured=2, popularity=[[1, 2, 9, 0]]), shape(4, 1, 1)
    policy.measure(Additive(), model, tmp_path, lambda *at: None)
    assert policy.chosen_forms(model).tolist() == [[INT4, INT4, INT4, INT2]]


def test_one_width_for_all_needs_no_search():
    policy = OneWidthEach(width="int2")
    assert policy.learns_from == frozenset()
    assert policy.chosen_forms(shape(2, 1, 1)).tolist() == [[INT2, INT2]]
    assert OneWidthEach(popularity=[[1.0]]).calibrates
    assert not OneWidthEach(popularity=[[1.0]], width="int8").calibrates


@pytest.mark.parametrize("tolerance", ["-0.5", "101", "1e9"])
def test_a_tolerance_outside_0_to_100_percent_is_one_line(tolerance):
    sets = ("--set", f"place.tolerance={tolerance}")
    line = refused("run", "--system", "edgemoe", "--setting", "F1", *sets)
    assert "place.tolerance is " in line
    assert line.endswith("allowed: 0 to 100")


# --------------------------------------------------------------------------- bytes: case (d)


def test_bytes_of_an_expert_of_olmoe():
    olmoe = model_shape("olmoe-1b-7b")
    assert olmoe.expert_params == 6_291_456
    assert sum(rows for rows, _ in olmoe.expert_dims) == 4_096
    found = [form.record_bytes(olmoe, "bf16") for form in FORMS]
    assert found == [12_582_912, 6_299_648, 3_153_920, 1_581_056]


# --------------------------------------------------------------------------- the whole system


def test_the_system_is_lossy_and_for_one_request():
    system = build("edgemoe")
    assert not system.lossless
    assert "defined for 1 sequence(s) at once, not 2" in system.why_not(shape(), 2)
    assert system.forms == FORMS
    plain = build("edgemoe", {"place": "popular"})
    assert plain.lossless
    assert len(plain.forms) == 1
    assert EdgeMoE(buffer=10).most_slots(shape()) == 10
    with pytest.raises(UsageError, match="buffer is 0; allowed: 1 or more"):
        EdgeMoE(buffer=0)


def test_a_model_with_many_experts_a_token_is_remarked():
    (remark,) = build("edgemoe").remarks(shape(64, 8), 10)
    assert remark.startswith("a token chooses 8 of 64 experts a layer")
    assert build("edgemoe").remarks(shape(8, 2), 10) == ()
    assert build("edgemoe", {"prefetch": "none"}).remarks(shape(64, 8), 10) == ()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(2, 14), st.sampled_from(["text", "printed"]))
def test_any_routing_in_any_buffer(seed, slots, distance):
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[2]], 6)
    chosen = np.random.default_rng(seed).integers(0, 4, (3, 6))
    sizes = (RECORD_BYTES, RECORD_BYTES // 2, RECORD_BYTES // 4, RECORD_BYTES // 8)
    options = {"place.width": "int4", "evict.distance": distance}
    system = build("edgemoe", options)
    ids = np.array([[gate.ids_TK[0] for gate in done.gates.values()] for done in trace.batches[0]])
    for policy in (system.place, system.prefetch):
        policy.calibrate([RoutedSequence(ids, 1)] * 2, model, Path(), lambda done, total: None)
    made = rig(system, TracedModel(trace), slots=slots, chosen=chosen,
               costs=FlatCosts(prices(), form_bytes=sizes), host_records=3)  # fmt: skip
    made.engine.generate([[1, 1]], 6)
    check_timeline(
        made.spans, made.events, num_experts=6, num_layers=3, capacity=slots,
        record_bytes=sizes, budget_bytes=slots * RECORD_BYTES, one_form=True,
    )  # fmt: skip
    loads = [span for span in made.spans if span.op.kind is OpKind.LOAD]
    assert all(s.op.form == chosen[s.op.layer, s.op.experts[0]] for s in loads)
