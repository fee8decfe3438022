"""Places that a search has not seen: other workloads, machines, and moved numbers."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moebench.harness.search import held_out
from moebench.harness.search.question import Question
from moebench.substrate.errors import InputError
from moebench.substrate.machines.profile import HardwareProfile, load_profile, profile_names
from moebench.workloads.catalogue import workload

ON = {"model": "qwen2-57b-a14b", "machine": "a6000", "workload": "arithmetic"}


def question(**more: Any) -> Question:
    return Question(name="here", given=ON, live=False, **{"data_dir": None, **more})


def places(
    asked: Question, possible: Callable[[Question], bool] = lambda question: True
) -> dict[str, Any]:
    found = held_out.held_out(asked, "qwen2-57b-a14b", "a6000", "arithmetic", possible)
    return {one.name: {k: v for k, v in one.given.items() if ON.get(k) != v} for one in found}


def test_one_other_workload_one_machine_and_six_moved_numbers() -> None:
    found = places(question())
    first, second, *moved = found
    assert found[first].keys() == {"workload"}
    assert found[first] != "arithmetic"
    assert first == f"workload {found[first]['workload']}"
    assert workload(found[first]["workload"]).source == "generated", "it needs no data folder"
    assert second == f"machine {found[second]['machine']}"
    assert moved == ["link × 0.7", "link × 1.3", "host × 0.7", "host × 1.3", "hand-off × 0.7",
                     "hand-off × 1.3"]  # fmt: skip
    own = dict(load_profile("a6000").quantities())
    for name in moved:
        group, _, factor = name.partition(" × ")
        other = dict(load_profile(found[name]["machine"]).quantities())
        for field in own:
            times = float(factor) if field in held_out.GROUPS[group] else 1
            assert other[field].value == pytest.approx(own[field].value * times, rel=1e-3), field


def test_the_most_alike_machine_is_taken_on_which_it_can_run() -> None:
    asked = question()
    names = held_out._neighbours(asked, "a6000")
    assert names
    assert all(load_profile(name).gpu.name != load_profile("a6000").gpu.name for name in names)
    tried: list[str] = []

    def possible(place: Question) -> bool:
        tried.append(place.given["machine"])
        return len(tried) == 3

    assert f"machine {names[2]}" in places(asked, possible)
    assert tried == names[:3]
    assert not any(name.startswith("machine ") for name in places(asked, lambda place: False))


def machine(link: float, host: float, gpu: float, card: str = "x") -> HardwareProfile:
    units = {"GB/s": 1e9, "MB/s": 1e6}
    numbers = {
        field: SimpleNamespace(value=value, unit=unit, UNITS=units)
        for field, value, unit in (
            ("link.pinned_h2d", link, "GB/s"), ("host.gemv_bandwidth", host * 1000, "MB/s"),
            ("gpu.bandwidth", gpu, "GB/s"), ("gpu.memory", 99.0, "GB/s"),
        )
    }  # fmt: skip
    return cast(
        HardwareProfile, SimpleNamespace(quantities=numbers.items, gpu=SimpleNamespace(name=card))
    )


def test_machines_are_as_far_apart_as_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(10, 50, 900)
    assert held_out._distance(here, machine(10, 50, 900)) == 0
    ln2 = pytest.approx(0.693147, abs=1e-6)
    for other in (machine(20, 50, 900), machine(10, 25, 900), machine(10, 50, 1800)):
        assert held_out._distance(here, other) == held_out._distance(other, here) == ln2
    assert held_out._distance(here, machine(20, 25, 1800)) == pytest.approx(3 * 0.693147, abs=1e-5)
    known = {
        "own": machine(10, 50, 900), "same card": machine(10, 50, 900),
        "far": machine(40, 50, 900, "y"), "b": machine(20, 50, 900, "y"),
        "a": machine(5, 50, 900, "y"),
    }  # fmt: skip
    monkeypatch.setattr(held_out, "profile_names", lambda: [*known])
    monkeypatch.setattr(held_out, "load_profile", lambda name, software: known[name])
    assert held_out._neighbours(question(), "own") == ["a", "b", "far"]


def test_recordings_are_a_place_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = question(data_dir=tmp_path)
    name = "recordings of the real model"
    for found, there in (([1], True), ([], False)):
        monkeypatch.setattr(held_out, "recordings", lambda *given, found=found: found)
        assert (places(asked).get(name) == {"routing": "real"}) == there
        assert (name in places(asked)) == there
        assert name not in places(question())

    def broken(model: str, folder: Path) -> None:
        assert (model, folder) == ("qwen2-57b-a14b", tmp_path)
        raise InputError("a broken recording")

    monkeypatch.setattr(held_out, "recordings", broken)
    assert name not in places(asked)


def test_a_number_that_cannot_be_moved_gives_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = held_out.GROUPS["link"]
    assert held_out._moved(question(), "a6000", fields, 1e9) is None
    moved = held_out._moved(question(), "a6000", (*fields, "no.number"), 1.1)
    assert moved is not None
    again = held_out._moved(question(), moved, ("host.handoff",), 2)
    assert again is not None
    own, both = (dict(load_profile(name).quantities()) for name in ("a6000", again))
    assert both["host.handoff"].value == pytest.approx(2 * own["host.handoff"].value)
    assert both[fields[0]].value == pytest.approx(1.1 * own[fields[0]].value, rel=1e-3)
    assert len({*profile_names()}) > 3
