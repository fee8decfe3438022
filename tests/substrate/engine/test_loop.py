"""What a batch's loop tells the model, the machine and the system before its first pass."""

import pytest

from moebench.substrate.progress_events import phase_listener
from tests.substrate.engine.fakes import FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import Placed, model_of, system

PASS = [[(0, 1)], [(2, 3)]]


def test_each_batch_begins_in_the_model_the_machine_and_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine begins before the system: what it measures from then on is the batch's own."""
    model, made = (
        model_of(small_shape(layers=2), [PASS, PASS]),
        system(place=Placed(pairs=[(0, 0)])),
    )
    ran, told = rig(made, model, slots=8, costs=FlatCosts(prices())), list[str]()
    for owner, method in (
        (ran.engine.model, "begin"), (ran.engine.machine, "begin"), (made, "begin_sequences"),
    ):  # fmt: skip
        own, name = getattr(owner, method), type(owner).__name__

        def noted(*given: object, own=own, name=name) -> object:
            told.append(name)
            return own(*given)

        monkeypatch.setattr(owner, method, noted)
    for _ in range(2):
        ran.engine.generate([[3]], 1)
    assert told == [type(model).__name__, "SimulatedMachine", type(made).__name__] * 2


def test_each_pass_is_reported_with_the_number_of_tokens_to_come() -> None:
    """How many tokens a decode has is known once it began; a prefill has none of its own."""
    ran = rig(system(place=Placed(pairs=[])), model_of(small_shape(layers=2), [PASS] * 3), slots=8)
    told: list[tuple[str, int, int | None]] = []
    with phase_listener(lambda *said: told.append(said)):
        ran.engine.generate([[3]], 3)
    assert told == [("prefill", 0, None), ("decode", 1, 3), ("decode", 2, 3)]
