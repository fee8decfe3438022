"""Fuzzing of every kind of input, with a small part of the cases of `make fuzz`."""

import pytest

from tests.fuzz_inputs.door import WRONG, Door, try_door
from tests.fuzz_inputs.fuzz import DOORS

pytestmark = pytest.mark.usefixtures("tiny_models")

#: Cases of each door in the suite.
CASES = 40


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_every_case_is_refused_in_one_line_or_right(door: Door) -> None:
    tried = try_door(door, CASES)
    wrong = [f"{what}: {case.arguments}: {said}" for what, (case, said) in tried.wrong.items()]
    assert not wrong, "\n".join(wrong)
    assert not any(tried.verdicts[verdict] for verdict in WRONG)
    assert sum(tried.verdicts.values()) >= CASES * 0.9
