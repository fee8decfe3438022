"""Which experts of a layer are complete, on their way or absent at one instant, in any form."""

from moebench.substrate.memory.residency import InForms, Whereabouts

#: At time 10: complete since 3, complete now, coming at 11, absent, absent with an old time.
READY, HELD = [3, 10, 11, 99, 99], bytes([1, 1, 1, 0, 0])


def test_experts_are_divided_in_their_order() -> None:
    there = Whereabouts(READY, HELD, 10)
    assert there.divide([4, 2, 1, 0]) == ([1, 0], [2], [4])
    assert there.divide([]) == ([], [], [])
    assert there.resident_E.tolist() == [True, True, False, False, False]
    assert there.in_flight_E.tolist() == [False, False, True, False, False]
    assert [there.is_resident(e) for e in range(5)] == there.resident_E.tolist()
    assert [there.is_held(e) for e in range(5)] == [True, True, True, False, False]
    assert there.forms == (there,)
    assert there.resident_E is there.resident_E
    assert there.in_flight_E is there.in_flight_E


def test_of_several_forms_the_best_one_counts() -> None:
    other = Whereabouts([99, 5, 99, 12, 99], bytes([0, 1, 0, 1, 0]), 10)
    both = InForms([Whereabouts([99, 99, 11, 99, 99], bytes([0, 0, 1, 0, 0]), 10), other], 10)
    assert both.divide(range(5)) == ([1], [2, 3], [0, 4])
    assert both.resident_E.tolist() == [False, True, False, False, False]
    assert both.in_flight_E.tolist() == [False, False, True, True, False]
    assert [one.is_held(3) for one in both.forms] == [False, True]
    # Expert 1 is complete in form 1, expert 2 comes in form 0, 3 in form 1; 0 is nowhere.
    assert [both.best(e) for e in range(4)] == [0, 1, 0, 1]
    first = InForms([Whereabouts(READY, HELD, 10), Whereabouts(READY, HELD, 10)], 10)
    assert [first.best(e) for e in range(5)] == [0] * 5
    # Complete in form 1 is better than coming in form 0.
    mixed = InForms([Whereabouts([20], b"\1", 10), Whereabouts([1], b"\1", 10)], 10)
    assert (mixed.best(0), mixed.divide([0])) == (1, ([0], [], []))
