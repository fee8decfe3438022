"""What a table is about, what must be equal in it, and how far a run is from its paper."""

import copy
import math
from typing import Any

import pytest

from moebench.reports.compare.conditions import (
    InputSet,
    cell_of,
    conditions,
    conditions_of,
    distance,
    lacks,
    newest,
    place_of,
    title_of,
)
from moebench.results.spec import OPTIONS
from tests.reports.samples import run

Document = dict[str, Any]
GIB = 2**30


@pytest.mark.parametrize(
    ("spec", "stated", "found"),
    [
        ({}, {}, (0, 0.0)),
        ({"batch": 2}, {"batch": 1}, (1, 0.0)),
        ({"batch": 2, "prompts": 7}, {"batch": 1, "prompts": 8, "seed": 0}, (2, 0.0)),
        ({"cache_ratio": 0.5}, {"cache_ratio": 0.25}, (0, math.log(2))),
        ({"cache_ratio": 0.25}, {"cache_ratio": 0.5, "device_memory_gib": 2}, (0, math.log(4))),
        ({"slots": 30}, {"slots": 10, "batch": 1}, (0, math.log(3))),
        ({"cache_ratio": None}, {"cache_ratio": 0.5}, (0, 0.0)),
    ],
)
def test_the_distance_of_a_run_from_its_setting(
    spec: dict[str, Any], stated: dict[str, Any], found: tuple[int, float]
) -> None:
    """The device offers 8 GiB."""
    one = run(**spec) | {"memory": {"offered_device_bytes": 8 * GIB}}
    assert distance(one, {"S3": stated}) == pytest.approx(found)
    assert distance(one, {"S1": stated}) == (0, 0.0)


def test_the_group_of_a_run() -> None:
    found = place_of(run(batch=3))
    assert found == ("S3", 3, "model", "qwen2-57b-a14b", "a6000", "bf16", True)
    assert found.title == "S3, batch 3"
    assert found.parts == {"model": "qwen2-57b-a14b", "machine": "a6000", "precision": "bf16",
                           "times": "simulated"}  # fmt: skip
    other = run(setting=None, trace="t", quant="q4_k_m") | {"simulated": False}
    del other["spec"]["batch"]
    found = place_of(other)
    assert found == ("qwen2-57b-a14b on a6000", 1, "replayed", "qwen2-57b-a14b", "a6000", "q4_k_m",
                     False)  # fmt: skip
    assert found.title == "qwen2-57b-a14b on a6000, batch 1, routing replayed"
    assert found.parts["times"] == "measured"


def test_the_input_set_of_a_run() -> None:
    one = run(seed=4)
    assert cell_of(one) == InputSet("gsm8k", "4", "cc" * 32)
    assert cell_of(one).title == "gsm8k, seed 4"
    one["provenance"]["trace_hash"] = "dd"
    del one["spec"]["seed"]
    assert cell_of(one) == InputSet("gsm8k", "0", "dd")


@pytest.mark.parametrize(
    ("spec", "more", "title"),
    [
        ({}, {}, "smoe"),
        ({"alpha": 0.25}, {}, "smoe alpha=0.25"), ({"alpha": 1.0}, {}, "smoe alpha=1"),
        ({"alpha": 0.25, "overrides": {"prefetch": "none", "alpha": "0.3", "evict": "lru"}}, {},
         "smoe alpha=0.3 evict=lru prefetch=none"),
        ({"variant": "shipped"}, {"oracle": True}, "smoe (shipped) (oracle)"),
    ],
)  # fmt: skip
def test_a_systems_title_has_all_of_its_changes(
    spec: dict[str, Any], more: dict[str, Any], title: str
) -> None:
    assert title_of(run(**spec) | more) == title


def test_options_of_a_system_are_in_its_title_unless_they_are_the_default() -> None:
    own = [one for one in OPTIONS.values() if one.part == "system"
           and one.name not in ("system", "variant", "overrides", "alpha")]  # fmt: skip
    assert own
    for option in own:
        assert title_of(run(**{option.name: option.default})) == "smoe"
        assert title_of(run(**{option.name: "other"})) == f"smoe {option.name}=other"


NEEDED = ("spec.system", "spec.workload", "spec.machine", "spec.model", "metrics", "badge",
          "simulated", "provenance")  # fmt: skip


@pytest.mark.parametrize("path", NEEDED)
def test_fields_that_a_comparison_needs(path: str) -> None:
    one = run()
    assert lacks(one) == []
    part, _, name = path.rpartition(".")
    (one[part] if part else one)[name] = None
    assert lacks(one) == [path]


def test_weights_and_profiles_are_told_by_eight_digits_of_their_hash() -> None:
    one = run()
    found = conditions_of(one)
    assert (found["weights"], found["profile"]) == ("bbbbbbbb", "aaaaaaaa")
    one["provenance"]["weights_hash"] = None
    assert conditions_of(one)["weights"] == "none"
    assert found["device-memory"] == "?"
    assert [one.name for one in conditions(())] == [
        "device-memory", "host-memory", "expert-precision", "weights", "profile",
    ]  # fmt: skip
    ranks = [OPTIONS[name.replace("-", "_")].rank for name in found
             if name.replace("-", "_") in OPTIONS
             and OPTIONS[name.replace("-", "_")].part == "condition"
             and name not in ("weights", "profile")]  # fmt: skip
    assert ranks == sorted(ranks)


def made(run_id: str, created: str, **hashes: str) -> Document:
    one = copy.deepcopy(run(run_id))
    one["provenance"] |= {"created": created} | {f"{k}_hash": v for k, v in hashes.items()}
    return one


@pytest.mark.parametrize("name", ["code", "system", "weights", "trace", "data", "profile"])
def test_of_equal_specs_those_of_the_newest_inputs_are_kept(name: str) -> None:
    old = made("old", "2026-01-01", **{name: "1"})
    new = made("new", "2026-01-03", **{name: "2"})
    again = made("again", "2026-01-02", **{name: "2"})
    other = made("other", "2025-01-01", **{name: "1"})
    other["spec"]["seed"] = 1
    kept, older = newest([old, new, again, other])
    assert [one["run_id"] for one in kept] == ["new", "again", "other"]
    assert [one["run_id"] for one in older] == ["old"]


def test_runs_of_another_memory_are_no_older_ones() -> None:
    """And resolved options are no part of what was asked."""
    one, other = made("a", "2026-01-01", code="1"), made("b", "2026-01-02", code="2")
    other["spec"]["options"] = {}
    assert [len(part) for part in newest([one, other])] == [1, 1]
    other["memory"] = {"offered_device_bytes": 10**9}
    assert [len(part) for part in newest([one, other])] == [2, 0]
    other["memory"] = {"offered_host_bytes": 10**9}
    assert [len(part) for part in newest([one, other])] == [2, 0]


def test_the_order_of_a_specs_fields_makes_no_other_spec() -> None:
    old, new = run("a"), run("b")
    new["spec"] = dict(reversed(new["spec"].items()))
    new["provenance"] |= {"code_hash": "other", "created": "2027-01-01T00:00:00+00:00"}
    assert newest([old, new]) == ([new], [old])
