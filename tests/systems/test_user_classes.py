"""What users' policies return is accepted in every form that means the same, and no other."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.systems.user_classes import _fetches, _pairs


@pytest.mark.parametrize("value", [[], (), [(0, 1)], ([0, 1], (np.int64(2), 3))])
def test_pairs_of_layer_and_expert(value: object) -> None:
    assert _pairs(value)


@pytest.mark.parametrize("value", [None, 3, {(0, 1)}, [(0,)], [(0, 1, 2)], [(0, 1.0)], [(True, 1)]])
def test_what_is_no_list_of_pairs(value: object) -> None:
    assert not _pairs(value)


def test_lists_of_fetches() -> None:
    assert _fetches([Fetch(0, 1)])
    assert _fetches((Fetch(0, 1),))
    assert not _fetches([(0, 1)])
    assert not _fetches({Fetch(0, 1): 1})
