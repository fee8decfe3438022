"""The table of equivalent code hashes maps old hashes to new ones and refuses invalid entries."""

import pytest

from benchmarks.equivalent import equivalent


def test_each_new_hash_stands_for_the_old_one() -> None:
    old = {"code": {"shared": "a"}, "systems": {"smoe": "b", "daop": "b"}}
    new = {"code": {"shared": "A"}, "systems": {"smoe": "B", "daop": "B", "newer": "C"}}
    assert equivalent(new, old) == ({"code": {"A": "a"}, "systems": {"B": "b"}}, [])


def test_one_hash_for_two_systems_is_refused() -> None:
    old = {"systems": {"smoe": "a", "daop": "b"}}
    with pytest.raises(ValueError, match="daop: A already replaces a"):
        equivalent({"systems": {"smoe": "A", "daop": "A"}}, old)


def test_of_swaps_that_become_equal_the_first_keeps_its_ids() -> None:
    old = {"systems": {"smoe published {}": "a", "smoe published {'evict': 'lru'}": "b"}}
    new = {"systems": dict.fromkeys(old["systems"], "A")}
    found = equivalent(new, old)
    assert found == ({"systems": {"A": "a"}}, ["smoe published {'evict': 'lru'}"])


def test_a_system_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="daop: it has no hash"):
        equivalent({"systems": {}}, {"systems": {"daop": "b"}})
