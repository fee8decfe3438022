"""Which runs are compared with each other, on documents that say nothing but their conditions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.api import compare as module
from moebench.harness.api.compare import (
    Compared,
    Pairs,
    _is_wanted,
    _nearest,
    _pairs,
    _Selected,
    _selected,
    _texts,
    _why_not,
    chosen,
    compare,
    runs_of,
    stated,
)
from moebench.substrate.errors import UsageError


def run(run_id: str, system: str = "smoe", **spec: Any) -> dict[str, Any]:
    base = {"system": system, "variant": "published", "overrides": {}, "setting": "S3",
            "workload": "facts", "batch": 1, "model": "mixtral-8x7b"}  # fmt: skip
    return {"run_id": run_id, "spec": base | spec}


@pytest.fixture(autouse=True)
def two_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs differ in their workload and their batch; a system's title is its name."""
    monkeypatch.setattr(module.pair, "NAMES", ("workload", "batch"))
    monkeypatch.setattr(module.pair, "texts", lambda one: {
        name: str(one["spec"][name]) for name in ("workload", "batch")})  # fmt: skip
    monkeypatch.setattr(module, "title_of", lambda one: one["spec"]["system"])
    monkeypatch.setattr(module, "system_of", lambda spec: spec["system"])


def selected(*runs: dict[str, Any], system: bool = True) -> _Selected:
    return _Selected(runs[0]["spec"]["system"], runs, system)


@pytest.mark.parametrize(
    ("value", "texts"), [("S3", ["S3"]), (1, ["1"]), ([1, 3], ["1", "3"]), (("a", "b"), ["a", "b"])]
)
def test_one_value_or_several_are_wanted(value: object, texts: list[str]) -> None:
    assert _texts(value) == texts


def test_a_run_is_wanted_by_all_of_its_values() -> None:
    one = run("1", batch=3)
    assert _is_wanted(one, {"system": ["daop", "smoe"], "batch": ["3"], "setting": None})
    assert _is_wanted(one, {})
    assert not _is_wanted(one, {"system": ["daop"]})
    assert not _is_wanted(one, {"system": ["smoe"], "batch": ["1"]})


def test_runs_under_equal_conditions_are_pairs_and_the_newest_counts() -> None:
    one = selected(run("1"), run("2", batch=3), run("3"), run("4", workload="mmlu"))
    other = selected(run("5", "daop"), run("6", "daop", batch=3), run("7", "daop", batch=2))
    found = _pairs(one, other, [])
    assert [(a["run_id"], b["run_id"]) for a, b in found] == [("3", "5"), ("2", "6")]
    mixed = _pairs(one, other, ["batch"])
    assert sorted((a["run_id"], b["run_id"]) for a, b in mixed) == [
        ("2", "5"), ("2", "6"), ("2", "7"), ("3", "5"), ("3", "6"), ("3", "7")
    ]  # fmt: skip


def test_two_runs_are_a_pair_whatever_their_conditions() -> None:
    one, other = run("1"), run("2", "daop", batch=3, workload="mmlu")
    assert _pairs(selected(one, system=False), selected(other, system=False), []) == [(one, other)]
    # A run and a system are compared under the run's conditions.
    for first, second in ((True, False), (False, True)):
        with pytest.raises(UsageError):
            _pairs(selected(one, system=first), selected(other, system=second), [])


def test_no_equal_conditions_names_the_nearest() -> None:
    one = selected(run("1", workload="a", batch=1), run("2", workload="b", batch=2))
    other = selected(
        run("3", "daop", workload="c", batch=9), run("4", "daop", workload="b", batch=3)
    )
    with pytest.raises(UsageError) as caught:
        _pairs(one, other, [])
    assert str(caught.value) == (
        "no runs of smoe and daop under equal conditions; the nearest differ in batch 2 and 3; "
        "allow it with --mixed batch"
    )
    with pytest.raises(UsageError) as caught:
        _pairs(one, selected(run("3", "daop", workload="c", batch=9)), ["batch"])
    assert str(caught.value).endswith(
        "differ in workload a and c; allow it with --mixed batch,workload"
    )
    same = selected(run("1"))
    with pytest.raises(UsageError, match="differ in nothing: they are one run; allow"):
        _pairs(same, same, [])


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({("a", "1")}, {("b", "2")}, {"x": ("a", "b"), "y": ("1", "2")}),
        ({("a", "1"), ("b", "1")}, {("b", "2")}, {"y": ("1", "2")}),
        ({("a", "1")}, {("a", "3"), ("a", "2")}, {"y": ("1", "2")}),  # the first of equally near
        ({("a", "1")}, {("c", "3"), ("b", "2")}, {"x": ("a", "b"), "y": ("1", "2")}),
        ({("a", "1")}, {("a", "1")}, {}),
        (set(), {("a", "1")}, {}),
    ],
)
def test_the_nearest_conditions(first: Any, second: Any, found: dict[str, Any]) -> None:
    assert _nearest(first, second, ["x", "y"]) == found


class Kept:
    """A store of runs."""

    directory = Path(".moebench")

    def __init__(self, *runs: dict[str, Any]) -> None:
        self._runs = runs

    def runs(self, brief: bool) -> list[dict[str, Any]]:
        assert brief
        return [*self._runs]

    def find(self, name: str) -> dict[str, Any]:
        return run(f"found {name}")


def test_runs_of_evaluators_are_left_out() -> None:
    one, other = run("1"), run("2") | {"evaluation": {}}
    assert runs_of(Kept(one, other)) == [one]  # type: ignore[arg-type]


def test_a_name_is_a_system_or_begins_a_runs_id() -> None:
    runs = [run("1"), run("2", "daop"), run("3", batch=3)]
    store: Any = Kept(*runs)
    assert _selected(store, runs, "smoe", {}) == ("smoe", [runs[0], runs[2]], True)
    assert _selected(store, runs, "smoe", {"batch": ["3"]}) == ("smoe", [runs[2]], True)
    assert _selected(store, runs, "7ab", {}) == ("7ab", [run("found 7ab")], False)
    with pytest.raises(UsageError) as caught:
        _selected(store, runs, "smoe", {"batch": ["8"]})
    assert str(caught.value) == "smoe: none of its 2 runs has these settings, workloads, ..."


def test_a_place_without_a_system_says_why() -> None:
    place = {"model": "qwen2-57b-a14b", "batch": 3}
    assert _why_not({"system": "moe-ondemand"}, place) is None
    why = _why_not({"system": "daop", "overrides": None, "variant": None}, place)
    assert why == _why_not({"system": "daop"}, place)
    for spec in (
        {"system": "mine:Own"}, {"system": "daop", "overrides": {"evict": "mine:Own"}},
        {"system": "daop", "overrides": {"no.such": "option"}},
    ):  # fmt: skip
        assert _why_not(spec, place) is None
    made = SimpleNamespace(why_not=lambda shape, batch: f"{shape.num_experts} experts, {batch}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "build_any", lambda *given: made)
        assert _why_not({"system": "daop"}, place) == "64 experts, 3"
        assert _why_not({"system": "daop"}, place | {"model": "no/such.json"}) is None
        patch.setattr(module, "build_any", lambda *given: SimpleNamespace(
            why_not=lambda shape, batch: given))  # fmt: skip
        spec = {"system": "daop", "overrides": {"a": "b"}, "variant": "shipped"}
        assert _why_not(spec, place) == ("daop", {"a": "b"}, "shipped")
        assert _why_not({"system": "daop"}, place) == ("daop", {}, "published")


def test_settings_state_what_a_run_can_change() -> None:
    found = stated()
    assert found["S3"] == {"software": "hf-eager", "device_memory_gib": 41.56}
    assert found["D1"] == {"software": "hf-eager", "cache_ratio": 0.469, "new_tokens": 512}


def test_compare_takes_two_names_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "Store", lambda folder: f"store {folder}")
    monkeypatch.setattr(module, "chosen", lambda *given: asked.append(given))
    monkeypatch.setattr(module, "paired", lambda *given: asked.append(given))
    wanted = {"system": ["smoe", "daop"], "setting": ["S3"], "workload": None, "batch": ["3"]}
    given: dict[str, Any] = {"system": ["smoe", "daop"], "setting": "S3", "batch": 3}
    compare(store="kept", mixed=["workload"], **given)
    compare("a", "b", store="kept", **given)
    assert asked == [("store kept", wanted, ["workload"]), ("store kept", ("a", "b"), wanted, ())]
    for names in (("a", None), (None, "b")):
        with pytest.raises(UsageError, match="give two runs or two systems, or neither"):
            compare(*names)


def test_no_such_runs_names_a_sweep_that_makes_them() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(Kept(run("1")), {"batch": ["3"]}, [])  # type: ignore[arg-type]
    assert str(caught.value) == (
        "no such runs in .moebench; run: moebench sweep --systems smoe,moe-ondemand --settings S3"
    )


def test_tables_and_pairs_are_frames_of_their_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "frame_of", lambda rows: SimpleNamespace(to_html=lambda: repr(rows))
    )
    monkeypatch.setattr(module, "records", lambda table: [f"{table}1", f"{table}2"])
    monkeypatch.setattr(module, "document", lambda table: {"of": table})
    tables = Compared(("a", "b"), ("left",))  # type: ignore[arg-type]
    assert tables._repr_html_() == repr(["a1", "a2", "b1", "b2"])
    assert tables.documents() == [{"of": "a"}, {"of": "b"}]
    monkeypatch.setattr(module.pair, "document", lambda one: {
        "first": "r1", "second": "r2", "workload": one,
        "figures": [{"title": "TPOT (ms)", "first": 1, "second": 2, "n": 3}]})  # fmt: skip
    assert Pairs(("facts",))._repr_html_() == repr([  # type: ignore[arg-type]
        {"runs": "r1 r2", "workload": "facts", "figure": "TPOT (ms)", "first": 1, "second": 2,
         "n": 3}
    ])  # fmt: skip
