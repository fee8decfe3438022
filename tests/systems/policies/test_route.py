"""Random substitution, the control of accuracy, on hand-made scores."""

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.systems.options import build
from moebench.systems.policies.route import RandomSubstitution
from moebench.systems.registry import POLICIES, policy_class
from tests.systems.views import shape, view

ROWS = np.random.default_rng(0).random((200, 8))


def routed(rows=ROWS, phase="decode", k=3, **options):
    policy = RandomSubstitution(**options)
    policy.start(shape(8, k), None)
    seen = view(rows, k, phase=phase)
    return policy.route(seen), seen.topk_ids_TK


def test_all_experts_are_replaced_by_different_inactive_ones():
    found, own_TK = routed()
    for ids, own in zip(found.ids_TK, own_TK, strict=True):
        assert not {*ids} & {*own}
        assert len({*ids}) == 3
    assert (found.weigh_as_TK == own_TK).all()
    assert np.bincount(found.ids_TK.ravel(), minlength=8).min() > 0


def test_a_share_is_replaced():
    found, own_TK = routed(share=0.5)
    assert 0.4 < (found.ids_TK != own_TK).mean() < 0.6
    assert all(len({*ids}) == 3 for ids in found.ids_TK)


def test_too_few_inactive_experts_leave_the_worst_active_ones():
    found, own_TK = routed(k=6)
    assert (found.ids_TK[:, 2:] == own_TK[:, 2:]).all()
    assert (found.ids_TK[:, :2] != own_TK[:, :2]).all()
    assert all(len({*ids}) == 6 for ids in found.ids_TK)


def test_prompts_are_exact_unless_asked():
    found, own_TK = routed(phase="prefill")
    assert (found.ids_TK == own_TK).all()
    found, own_TK = routed(phase="prefill", prefill=True)
    assert (found.ids_TK != own_TK).all()


def test_numbers_begin_anew_with_each_run():
    first, again, other = routed()[0], routed()[0], routed(seed=1)[0]
    assert (first.ids_TK == again.ids_TK).all()
    assert (first.ids_TK != other.ids_TK).any()


def test_it_is_lossless_only_without_a_share():
    assert not build("gpu-only", {"route": "random"}).lossless
    assert build("gpu-only", {"route": "random", "route.share": "0"}).lossless


@pytest.mark.parametrize("options", [{"share": -0.1}, {"share": 1.1}, {"seed": -1}])
def test_values_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match="allowed"):
        RandomSubstitution(**options)


def test_which_routings_keep_the_models_tokens_and_prompts():
    """By α: those that replace experts within a band of it keep them at 0 alone."""
    made = {name: policy_class("route", name)() for name in POLICIES["route"]}
    by_alpha = {"expert-cache", "set-order", "cache-prior"}
    assert {name for name, one in made.items() if one.has_alpha} == by_alpha
    assert {name for name, one in made.items() if one.lossless_at(0)} == {"exact", *by_alpha}
    assert {name for name, one in made.items() if one.lossless_at(0.25)} == {"exact"}
    learnt = {"masked", "hash-function"}
    assert {name for name, one in made.items() if not one.exact_prefill} == learnt
    assert not RandomSubstitution(prefill=True).exact_prefill
    assert {name for name, one in made.items() if one.resident_only} == {"masked"}
