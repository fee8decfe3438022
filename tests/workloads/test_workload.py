"""A workload's description: fields that stay as they are, and no others."""

import pytest
from pydantic import ValidationError

from moebench.workloads.catalogue import workload


def test_a_workload_is_not_changed_after_it_was_made() -> None:
    found = workload("arithmetic")
    with pytest.raises(ValidationError, match="frozen"):
        found.title = "Sums"
    with pytest.raises(ValidationError, match="colour"):
        type(found).model_validate(found.model_dump() | {"colour": "red"})
