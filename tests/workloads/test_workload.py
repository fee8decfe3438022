"""A workload's description: fields that stay as they are, and no others."""

from typing import Any

import pytest
from pydantic import ValidationError

from moebench.workloads.catalogue import workload
from moebench.workloads.workload import Workload


def test_a_workload_is_not_changed_after_it_was_made() -> None:
    found = workload("arithmetic")
    with pytest.raises(ValidationError, match="frozen"):
        found.title = "Sums"
    with pytest.raises(ValidationError, match="colour"):
        type(found).model_validate(found.model_dump() | {"colour": "red"})


#: The least that a workload says of itself.
LEAST = {
    "name": "x", "title": "X", "category": "exam", "source": "generated", "metric": "text",
    "max_new_tokens": 1,
}  # fmt: skip


def test_what_a_workload_leaves_out_has_defaults() -> None:
    found = Workload.model_validate(LEAST)
    assert found.template.format(prompt="Why?") == "Question: Why?\nAnswer:"
    assert found.stop == ("\nQuestion:",), "an answer ends where a new question begins"
    assert (found.few_shot, found.few_shot_in, found.likelihood, found.chance) == (
        0,
        {},
        None,
        None,
    )
    assert found.max_new_tokens == 1, "the least"
    none = Workload.model_validate(LEAST | {"few_shot": 0, "few_shot_in": {"SMoE": 0}})
    assert none.few_shot_in == {"SMoE": 0}
    assert (found.per_byte, found.train_split_available) == (False, True)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"few_shot": -1}, "few_shot"),
        ({"few_shot_in": {"SMoE": -1}}, "few_shot_in"),
        ({"few_shot_in": {"another": 1}}, "few_shot_in"),
        ({"category": "x"}, "category"),
        ({"metric": "x"}, "metric"),
        ({"likelihood": "x"}, "likelihood"),
        ({"source": "x"}, "source"),
    ],
)
def test_what_no_workload_has_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Workload.model_validate(LEAST | change)


@pytest.mark.parametrize(
    ("metric", "scored"),
    [("exact_number", True), ("choice", True), ("rouge", True), ("text", True), ("none", False),
     ("perplexity", False)],
)  # fmt: skip
def test_only_answers_are_scored(metric: str, scored: bool) -> None:
    assert Workload.model_validate(LEAST | {"metric": metric}).scored is scored
