"""Each expert has one record, in a form of its own: slots, transfers and computations."""

import numpy as np
import pytest

from moebench.substrate.engine.runtime import check_forms
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import Form
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, small_shape
from tests.substrate.engine.own import Placed, model_of, of, run, system

ONE = small_shape(layers=1)
QUARTER = (RECORD_BYTES, RECORD_BYTES // 4)
#: Experts 1 and 3 of four have a quarter of a record.
CHOSEN = np.array([[0, 1, 0, 1]])


def ran(gates, **more):
    costs = FlatCosts(prices(), form_bytes=QUARTER)
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]))
    model = model_of(ONE, gates)
    return run(made, model, costs=costs, chosen=CHOSEN, **more), model


def test_a_plain_fetch_moves_and_computes_the_only_record():
    found, model = ran([[[(1, 3)]], [[(0, 3)]]], slots=4, passes=2)
    (load,) = [span for span in found.spans if span.op.kind is OpKind.LOAD]
    assert (load.op.experts, load.op.form, load.moved_bytes) == ((3,), 1, RECORD_BYTES // 4)
    assert model.forms == {(0, 0, 1): 1, (0, 0, 3): 1, (1, 0, 3): 1}
    # In the second pass both are there: one operation of each form.
    done = [(s.op.experts, s.op.form) for s in found.spans if s.op.kind is OpKind.EXPERT]
    assert done == [((1,), 1), ((3,), 1), ((0,), 0), ((3,), 1)]
    assert found.tier.used_bytes == 3 * RECORD_BYTES  # a slot has room for the largest record


def test_records_of_different_forms_replace_each_other():
    found, _ = ran([[[(2, 3)]], [[(0, 1)]]], slots=2, passes=2)
    assert [row[1] for row in of(found, OpKind.LOAD)] == [(2,), (3,), (0,), (1,)]
    assert found.cache.capacity == 2


def test_more_experts_than_slots_are_loaded_in_turn():
    _, model = ran([[[(0, 1), (2, 3)]]], slots=2, rows=2)
    assert sorted(model.computed) == [(0, 0, e) for e in range(4)]
    assert model.forms == {(0, 0, 1): 1, (0, 0, 3): 1}


def test_records_on_the_disk_are_read_in_their_form():
    found, _ = ran([[[(2, 3)]]], slots=4, host_records=2)
    reads = [span for span in found.spans if span.op.kind is OpKind.READ]
    assert [(s.op.experts, s.op.form, s.moved_bytes) for s in reads] == [
        ((2,), 0, RECORD_BYTES), ((3,), 1, RECORD_BYTES // 4)
    ]  # fmt: skip


def test_keys_do_not_depend_on_the_form():
    cache = ExpertCache(ONE, 4, "global", Tier("device", 4), 1, chosen=CHOSEN)
    assert [cache.key(0, e, form) for e in range(4) for form in (0, 1)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [cache.form_of(key) for key in range(4)] == [0, 1, 0, 1]
    assert (cache.forms, cache.used_forms, cache.chosen_forms(0)) == (1, [0, 1], {1: 1, 3: 1})
    plain = ExpertCache(ONE, 4, "global", Tier("device", 4), 1)
    assert (plain.used_forms, plain.chosen_forms(0)) == (range(1), {})


def test_forms_of_one_record_each_need_no_pools():
    forms = (Form(), Form("int2", "row-int2"))
    check_forms(forms, one_each=True)
    with pytest.raises(UsageError, match="pool between 0 and 1"):
        check_forms(forms)
    with pytest.raises(UsageError, match="allowed: the whole record"):
        check_forms(forms[1:], one_each=True)


def test_a_system_with_forms_of_its_own_takes_no_placement_that_chooses_them():
    with pytest.raises(UsageError, match="place is OneWidthEach, which chooses one form for each"):
        build("hobbit", {"place": "one-width"})
    assert len(build("moe-ondemand", {"place": "one-width", "evict": "arc"}).forms) == 4
