"""The order in which a divided pass submits its tasks: by hand, and what each must wait for."""

from collections import Counter

import pytest

from moebench.substrate.engine.micro_batches import AHEAD, Part, Task, order

SHORT = {
    Part.PROJECT: "p", Part.QKV: "q", Part.CORE: "c", Part.STATE: "s", Part.FINISH: "f",
    Part.STAGE: "G", Part.PAGE: "P",
}  # fmt: skip


def written(layers: int, micro_batches: int, paged: bool = True) -> str:
    """Each task as part, layer and micro-batch."""
    return " ".join(f"{SHORT[t.part]}{t.layer}{t.micro_batch}"
                    for t in order(layers, micro_batches, paged))  # fmt: skip


def test_two_cores_are_submitted_ahead() -> None:
    assert AHEAD == 2
    assert written(1, 3) == (
        "p00 q00 c00 G10 p01 q01 c01 G11 s00 P10 f00 p02 q02 c02 G12 s01 P11 f01 s02 P12 f02"
    )


def test_the_next_layers_first_cores_are_submitted_in_this_layer() -> None:
    assert written(2, 2) == (
        "p00 q00 c00 G10 p01 q01 c01 G11 s00 P10 f00 p10 q10 c10 G20 s01 P11 f01 p11 q11 c11 G21 "
        "s10 P20 f10 s11 P21 f11"
    )


def test_one_micro_batch_has_nothing_ahead_of_it() -> None:
    assert written(2, 1) == "p00 q00 c00 G10 s00 P10 f00 p10 q10 c10 G20 s10 P20 f10"


def test_experts_in_one_transfer_are_staged_and_copied_once_a_layer() -> None:
    assert written(2, 2, paged=False) == (
        "G10 p00 q00 c00 p01 q01 c01 P10 s00 f00 G20 p10 q10 c10 s01 f01 p11 q11 c11 P20 s10 f10 "
        "s11 f11"
    )


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7])
def test_every_task_comes_once_and_after_what_it_waits_for(
    layers: int, micro_batches: int, paged: bool
) -> None:
    tasks = [*order(layers, micro_batches, paged)]
    assert max(Counter(tasks).values()) == 1
    at = {task: place for place, task in enumerate(tasks)}
    pages = micro_batches if paged else 1
    assert len(tasks) == layers * (5 * micro_batches + 2 * pages)
    for layer in range(layers):
        for j in range(micro_batches):
            own = [at[Task(part, layer, j)] for part in
                   (Part.PROJECT, Part.QKV, Part.CORE, Part.STATE, Part.FINISH)]  # fmt: skip
            assert own == sorted(own)
            if layer:
                assert at[Task(Part.FINISH, layer - 1, j)] < own[0]
        for page in range(pages):
            assert at[Task(Part.STAGE, layer + 1, page)] < at[Task(Part.PAGE, layer + 1, page)]
            # The experts of the next layer are on their way before its first rows need them.
            if layer + 1 < layers:
                assert at[Task(Part.PAGE, layer + 1, page)] < at[Task(Part.FINISH, layer + 1, 0)]
