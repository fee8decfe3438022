"""Checks that policies share: networks of another model, and routers of groups."""

import pytest

from moebench.substrate.errors import UsageError
from moebench.systems.policies.checks import require_learnt_for, why_not_in_groups
from tests.systems.views import shape


@pytest.mark.parametrize("known", [(2, 8), (3, 8), (2, 9), (8, 2)])
def test_a_policy_that_was_trained_for_another_model_is_refused(known: tuple[int, int]) -> None:
    model = shape(8, 2, layers=3, dense_layers=(0,), dense_width=4)
    if known == (2, 8):
        require_learnt_for("it was trained for", model, known)
        return
    with pytest.raises(UsageError) as caught:
        require_learnt_for("it was trained for", model, known)
    assert str(caught.value) == (
        f"it was trained for {known[0]} layers of {known[1]} experts, the model has 2 of 8"
    )


def test_routers_of_one_group_choose_among_all() -> None:
    why = "defined for routers that choose among all experts, not in groups"
    groups = {None: None, (1, 1): None, (2, 1): why, (4, 2): why}
    assert {of: why_not_in_groups(shape(8, 2, gate_groups=of)) for of in groups} == groups
