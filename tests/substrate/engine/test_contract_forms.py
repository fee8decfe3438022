"""Records in two forms: which one is computed, what its transfer takes, and what is refused."""

from collections.abc import Callable

import pytest

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, split
from moebench.substrate.engine.runtime import check_forms
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.models.shape import Form
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, Rig, prices, small_shape
from tests.substrate.engine.own import Asks, Chunks, Placed, Plans, WritesBack, model_of, of, system
from tests.substrate.engine.own import run as run_one

ONE, TWO = small_shape(layers=1), small_shape(layers=2)
#: Form 1 takes a quarter of everything.
QUARTER = (RECORD_BYTES, RECORD_BYTES // 4)
LAYER_0 = {"place": Placed(pairs=[(0, 0), (0, 1)])}


def run(made, model, *, slots=4, form_1=2, **more) -> Rig:
    costs = FlatCosts(prices(), form_bytes=QUARTER)
    return run_one(made, model, slots=slots, costs=costs, more=[form_1], **more)


def loads_in(form: int) -> Callable[[LayerView, Active], Plan]:
    return lambda view, a: split(a, [Fetch(view.layer, e, form=form) for e in a.absent])


def forms_of(ran: Rig) -> list[tuple[int, tuple[int, ...], int]]:
    """Layer, experts and form of each computation on the device."""
    return [(s.op.layer, s.op.experts, s.op.form) for s in ran.spans if s.op.kind is OpKind.EXPERT]


def test_a_record_comes_and_is_computed_in_the_form_that_is_fetched():
    model = model_of(ONE, [[[(0, 2)]], [[(0, 2)]]])
    ran = run(system(**LAYER_0, assign=Plans(by=loads_in(1))), model, passes=2)
    (load,) = [span for span in ran.spans if span.op.kind is OpKind.LOAD]
    assert (load.op.form, load.moved_bytes) == (1, RECORD_BYTES // 4)
    assert load.end_ns - load.start_ns == 40 / 4
    # In the second pass both are there: one operation of each form.
    assert forms_of(ran) == [(0, (0,), 0), (0, (2,), 1), (0, (0,), 0), (0, (2,), 1)]
    assert [end - start for *_, start, end in of(ran, OpKind.EXPERT)] == [10, 2, 10, 2]
    assert model.forms == {(0, 0, 2): 1, (1, 0, 2): 1}
    assert ran.tier.used_bytes == 2 * RECORD_BYTES + RECORD_BYTES // 4


def better(now: int) -> Callable[[LayerView, Active], Plan]:
    """Load 2 in form 1 in the first pass, and in form 0 in the second; compute it in ``now``."""

    def plan(view: LayerView, active: Active) -> Plan:
        if active.absent:
            return loads_in(1)(view, active)
        full, _ = view.residency.forms
        load = [] if full.is_held(2) else [Fetch(view.layer, 2, form=0)]
        return Plan(list(active.rows), load=load, forms={2: now} if load and now else {})

    return plan


@pytest.mark.parametrize("now", [0, 1])
def test_of_several_forms_the_best_is_computed_unless_the_plan_says(now):
    model = model_of(ONE, [[[(0, 2)]]] * 3)
    ran = run(system(**LAYER_0, assign=Plans(by=better(now))), model, passes=3)
    assert model.forms == {(0, 0, 2): 1} | ({(1, 0, 2): 1} if now else {})
    assert [s.op.form for s in ran.spans if s.op.kind is OpKind.LOAD] == [1, 0]
    later = [s for s in ran.spans if s.op.kind is OpKind.EXPERT and 2 in s.op.experts][1]
    load = [s for s in ran.spans if s.op.kind is OpKind.LOAD][1]
    assert (later.start_ns >= load.end_ns) is (now == 0), "what comes for later is not waited for"


def test_more_loads_of_a_form_than_it_has_slots_wait_for_each_other():
    shape = small_shape(layers=1, top_k=3)
    model = model_of(shape, [[[(1, 2, 3)]]])
    made = system(place=Placed(pairs=[(0, 0)]), assign=Plans(by=loads_in(1)))
    ran = run(made, model, form_1=1)
    assert model.forms == {(0, 0, e): 1 for e in (1, 2, 3)}
    assert len({claim.slot for claim in ran.claims if not claim.placed}) == 1
    assert ran.cache.holds(ran.cache.key(0, 0)), "no record leaves for one of another form"


@pytest.mark.parametrize("kind", [Asks, Chunks])
@pytest.mark.parametrize("discipline", ["speculative", "committed"])
def test_a_prefetch_brings_the_form_that_it_names(kind, discipline):
    if (kind, discipline) == (Chunks, "committed"):
        pytest.skip("only speculative transfers go in chunks")
    asks = kind(wanted={0: [Fetch(1, 2, form=1)]}, discipline=discipline)
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0)])
    model = model_of(TWO, [[[(0, 1)], [(0, 2)]]])
    ran = run(system(place=place, assign=Plans(by=loads_in(0)), prefetch=asks), model)
    loads = [span for span in ran.spans if span.op.kind is OpKind.LOAD]
    assert {span.op.form for span in loads} == {1}
    assert sum(span.moved_bytes for span in loads) == RECORD_BYTES // 4
    assert model.forms == {(0, 1, 2): 1}


def test_what_leaves_is_written_back_in_its_form():
    model = model_of(ONE, [[[(0, 2)]], [[(0, 3)]]])
    made = system(**LAYER_0, assign=Plans(by=loads_in(1)), evict=WritesBack())
    ran = run(made, model, form_1=1, passes=2)
    (back,) = [span for span in ran.spans if span.op.kind is OpKind.WRITE_BACK]
    assert (back.op.form, back.op.experts, back.moved_bytes) == (1, (2,), RECORD_BYTES // 4)


def test_the_host_computes_in_form_0_or_in_the_plans():
    def plan(view, active):
        return split(active, host=active.absent)._replace(forms={3: 1})

    shape = small_shape(layers=1, top_k=3)
    model = model_of(shape, [[[(0, 2, 3)]]])
    ran = run(system(place=Placed(pairs=[(0, 0)]), assign=Plans(by=plan)), model)
    assert model.forms == {(0, 0, 3): 1}
    assert [s.end_ns - s.start_ns for s in ran.spans if s.lane == "host"] == [55, 14]


def test_records_of_each_form_pass_through_host_memory_by_themselves():
    model = model_of(ONE, [[[(0, 2)]], [[(0, 2)]]])
    ran = run(
        system(**LAYER_0, assign=Plans(by=better(1))), model, passes=2, host_records=2,
    )  # fmt: skip
    reads = [span for span in ran.spans if span.op.kind is OpKind.READ]
    assert [(s.op.form, s.moved_bytes) for s in reads] == [(1, 250), (0, 1000)]


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (loads_in(2), "form 2 of a record; allowed: 0 to 1"),
        (
            lambda view, a: loads_in(1)(view, a)._replace(forms={2: 0}),
            "computes expert 2 in form 0",
        ),
        (
            lambda view, a: Plan([*a.resident, *a.absent], load=[Fetch(0, 0), Fetch(0, 2)]),
            "loads expert 0, which is on the device",
        ),
    ],
)
def test_a_plan_of_other_forms_than_there_are(plan, says):
    made = system(**LAYER_0, assign=Plans(by=plan))
    with pytest.raises(UsageError, match=says):
        run(made, model_of(ONE, [[[(0, 2)]]]))


@pytest.mark.parametrize("discipline", ["speculative", "committed"])
@pytest.mark.parametrize("forms", [1, 2])
def test_a_prefetch_in_a_form_that_the_system_has_not(discipline, forms):
    asks = Asks(wanted={0: [Fetch(1, 2, form=forms)]}, discipline=discipline)
    made = system(place=Placed(pairs=[(0, 0), (0, 1), (1, 0)]), prefetch=asks)
    model = model_of(TWO, [[[(0, 1)], [(0, 1)]]])
    with pytest.raises(UsageError, match=f"form {forms} of a record; allowed: 0 to {forms - 1}"):
        run(made, model) if forms == 2 else run_one(made, model, slots=4)


@pytest.mark.parametrize(
    ("forms", "says"),
    [
        ((), "form 0 is None"),
        ((Form("int4", "int4"),), "allowed: the whole record"),
        ((Form(), Form("half", share=0.5)), "pool between 0 and 1"),
        ((Form(), Form("none", share=0, pool=0.5)), "share more than 0 to 1"),
        ((Form(), Form("a", "int4", pool=0.5), Form("b", "int8", pool=0.5)), "no slot to form 0"),
    ],
)
def test_forms_that_no_system_can_have(forms, says):
    with pytest.raises(UsageError, match=says):
        check_forms(forms)
