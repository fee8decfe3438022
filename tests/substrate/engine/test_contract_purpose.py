"""An eviction knows what each slot is for while it is asked: a needed load or something ahead.

Attention takes 30, a gate 3, an expert 10, the sum 2, the head 6; a load takes 40, an expert on the
host 55 and its return 4; control costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from moebench.substrate.engine.decisions import Fetch, Plan, fetches, split
from moebench.substrate.engine.policies import Admission
from moebench.systems.policies.evict import LeastRecentlyUsed
from tests.substrate.engine.fakes import small_shape
from tests.substrate.engine.own import Asks, Guess, Placed, Plans, Routes, model_of, run, system

TWO = small_shape(layers=2)


@dataclass(kw_only=True)
class Purposes(LeastRecentlyUsed):
    """LRU that notes what it was asked for, by the key that came."""

    asked: list[tuple[str, int, str]] = field(default_factory=list)

    def victim(self, allowed, incoming):
        self.asked.append(("victim", incoming, self.purpose))
        return super().victim(allowed, incoming)

    def arrived(self, key):
        self.asked.append(("arrived", key, self.purpose))
        super().arrived(key)

    def grows(self, incoming):
        self.asked.append(("grows", incoming, self.purpose))
        return True

    def left(self, key):
        self.asked.append(("left", key, self.purpose))
        super().left(key)


def purposes(asked: Sequence[tuple[str, int, str]]) -> dict[int, set[str]]:
    """Return all purposes by key of the expert that came, of `grows`, `victim` and `arrived`."""
    found: dict[int, set[str]] = {}
    for what, key, purpose in asked:
        if what != "left":
            found.setdefault(key, set()).add(purpose)
    return found


@pytest.mark.parametrize("discipline", ["speculative", "committed"])
def test_a_prefetch_and_a_needed_load_differ(discipline):
    # Layer 0 needs 1 and asks for 4 + 2, which evicts 4 + 0; layer 1 needs 4 + 3, too.
    evict = Purposes()
    made = system(
        place=Placed(pairs=[(0, 0), (1, 0), (1, 1)]), evict=evict,
        prefetch=Asks(wanted={0: [Fetch(1, 2)]}, discipline=discipline),
    )  # fmt: skip
    run(made, model_of(TWO, [[[(0, 1)], [(2, 3)]]]), slots=4)
    found = purposes(evict.asked)
    assert found.pop(4 + 2) == {discipline}
    placed = {0, 4, 4 + 1}
    assert found == {key: {"needed"} for key in {1, 4 + 3} | placed}
    assert evict.purpose == "needed"


def test_an_upload_is_one_when_it_is_queued_and_when_it_has_ended():
    @dataclass(kw_only=True)
    class Uploads(Admission):
        def uploads(self, view, missed):
            return fetches(view.layer, missed)

    evict = Purposes()
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1)]), evict=evict, admit=Uploads(),
        assign=Plans(by=lambda view, active: Plan(active.resident, active.absent)),
    )  # fmt: skip
    model = model_of(small_shape(layers=1), [[[(0, 2)]], [[(0, 2)]], [[(0, 2)]]])
    run(made, model, slots=2, passes=3)
    of_2 = [(what, purpose) for what, key, purpose in evict.asked if key == 2]
    assert of_2 == [("victim", "upload"), ("arrived", "upload")]
    assert ("left", 1, "upload") in evict.asked


def test_a_layer_that_is_routed_ahead_needs_its_loads():
    evict = Purposes()
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1)]), evict=evict,
        route=Routes(ahead=[1], looks=Guess()),
        assign=Plans(by=lambda view, active: split(active, fetches(view.layer, active.absent))),
    )  # fmt: skip
    model = model_of(TWO, [[[(0, 1)], [(0, 1)]]] * 2, {(1, 0): (2, 3)})
    run(made, model, slots=4, passes=2)
    assert purposes(evict.asked)[4 + 2] == {"needed"}


def test_a_swap_after_the_prompt_is_committed():
    evict = Purposes()
    made = system(place=Placed(pairs=[(0, 0), (0, 1)], after=[Fetch(0, 2)]), evict=evict)
    run(made, model_of(small_shape(layers=1), [[[(0, 1)]]]), slots=2)
    assert purposes(evict.asked)[2] == {"committed"}


def test_the_first_of_a_refused_and_a_needed_transfer_is_named_right():
    # The speculative prefetch is refused; the load of the same expert that follows is needed.
    @dataclass(kw_only=True)
    class RefusesAhead(Purposes):
        def victim(self, allowed, incoming):
            found = super().victim(allowed, incoming)
            return None if self.purpose == "speculative" else found

    evict = RefusesAhead()
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)]), evict=evict,
        prefetch=Asks(wanted={0: [Fetch(1, 2)]}),
    )  # fmt: skip
    run(made, model_of(TWO, [[[(0, 1)], [(0, 2)]]]), slots=4)
    of_6 = [(what, purpose) for what, key, purpose in evict.asked if key == 4 + 2]
    assert of_6 == [
        ("victim", "speculative"), ("victim", "needed"), ("arrived", "needed"),
    ]  # fmt: skip
