"""Single runs on the page by hand: list entries, spans by column, curves of at most 51 points."""

from typing import Any

import pytest

from moebench.reports.page import runs as page
from moebench.reports.page.runs import detailed, documents, listed, pictured, pictures, speeds
from moebench.reports.sections.throughput import Point
from tests.reports.samples import RUN, run


def test_an_entry_names_what_was_run() -> None:
    (one,) = listed([RUN], {RUN["run_id"]: "moebench run"}, {RUN["run_id"]})
    figures = one.pop("v")
    one.pop("notes")
    assert one == {
        "id": "3fa9c04be712", "system": one["system"], "base": "smoe", "where": "S3",
        "model": "qwen2-57b-a14b", "batch": 1, "workload": "gsm8k", "seed": 0, "routing": "model",
        "badge": "estimate", "simulated": True, "lossless": False, "command": "moebench run",
        "machine": "a6000", "capacity": 0.25, "alpha": None, "code": "commit 0123456789ab",
        "tpot": 61.23456,
    }  # fmt: skip
    assert figures["tpot_ms"] == "61.23"
    (brief,) = listed([RUN], {}, set())
    assert brief["command"] is None
    assert brief["v"].keys() < figures.keys() | brief["v"].keys()
    assert brief["v"]["tpot_ms"] == "61.23"
    assert "gb_per_token" not in brief["v"]


def test_without_a_setting_or_a_commit_there_are_others_in_their_place() -> None:
    document = run("a1", setting=None)
    document["provenance"]["commit"] = None
    (one,) = listed([document], {}, set())
    assert one["where"] == "qwen2-57b-a14b on a6000"
    assert one["code"] == "version 0.1.0"
    del document["provenance"]["versions"]["moebench"]
    assert listed([document], {}, set())[0]["code"] == "version unknown"


def test_of_many_runs_one_of_each_system_and_group_is_shown_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = [run("a"), run("b", seed=1), run("c", system="lru"), run("d", batch=3)]
    assert detailed(ran) == ["a", "b", "c", "d"]
    monkeypatch.setattr(page, "DETAILED", 4)
    assert detailed(ran) == ["a", "b", "c", "d"], "exactly as many"
    monkeypatch.setattr(page, "DETAILED", 3)
    assert detailed(ran) == ["a", "c", "d"]
    monkeypatch.setattr(page, "DETAILED", 2)
    assert detailed(ran) == ["a", "c"]


def test_documents_lose_their_answers_to_single_prompts_alone() -> None:
    with_items = run("a")
    with_items["accuracy"]["items"] = {"1": True}
    without = run("b") | {"accuracy": None}
    found = documents([with_items, without, None])
    assert found[0] == run("a")
    assert found[1:] == [without, None]
    assert "items" in with_items["accuracy"], "the store's own document keeps them"


SPANS: list[dict[str, Any]] = [
    {"lane": "h2d", "kind": "load", "layer": 1, "experts": [3], "start_us": 2.5, "end_us": 4.0},
    {"lane": "device", "kind": "evict", "layer": 1, "experts": [2], "start_us": 3.0, "end_us": 3.0,
     "instant": True},
    {"lane": "device", "kind": "expert", "layer": 1, "experts": [3, 4], "start_us": 4.0,
     "end_us": 4.0016},
    {"lane": "h2d", "kind": "load", "layer": 2, "experts": [5], "start_us": 3.5, "end_us": 9.0},
]  # fmt: skip


def test_a_picture_has_spans_by_column_in_nanoseconds() -> None:
    (found,) = pictures([run("a")], {"a": SPANS}, [True])
    assert found == {
        "lanes": ["h2d", "device"], "kinds": ["load", "expert"], "lane": [0, 1, 0],
        "kind": [0, 1, 0], "layer": [1, 1, 2], "experts": [[3], [3, 4], [5]],
        "start": [2500, 1500, -500], "ns": [1500, 2, 5500],
    }  # fmt: skip
    assert pictures([run("a")], {}, [False]) == [None]


def test_of_too_many_pictures_one_of_each_system_and_group_is_kept() -> None:
    ran = [run("a"), run("b", seed=1), run("c", system="lru"), run("d"), run("e", batch=3)]
    timelines = dict.fromkeys("abce", SPANS) | {"d": []}
    assert pictured(ran, timelines) == [True, True, True, False, True]
    assert pictured(ran, timelines, 4) == [True, True, True, False, True]
    assert pictured(ran, timelines, 3) == [True, False, True, False, True]
    assert pictured(ran, timelines, 1) == [True, False, False, False, False]


def test_a_curve_has_speeds_at_equal_steps_of_four_digits() -> None:
    long = [Point(float(at), at / 1000) for at in range(1001)]
    short = [Point(1.23456, 0.0), Point(2.0, 1.0)]
    found = speeds([run("a"), run("b"), run("c"), run("d")],
                   {"a": long, "b": short, "c": [Point(7.0, 0.0)]})  # fmt: skip
    assert found[0] == [20.0 * at for at in range(51)]
    assert found[1:] == [[1.235, 2.0], [7.0, 7.0], None]
