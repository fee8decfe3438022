"""Validation of documents: each type, what is never absent, and stored pictures."""

import copy
import json
import zlib
from typing import Any

import pytest

from moebench.results.validation import LANES, picture, problem, spec_problem
from moebench.substrate.machines.protocol import Lane
from tests.reports.samples import RUN, spans

ID = RUN["run_id"]


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(RUN)
    *above, name = path.split(".")
    part = document
    for step in above:
        part = part[step]
    part[name] = value
    return document


def test_a_whole_document_has_no_problem() -> None:
    assert problem(RUN, ID) is None
    without_figures = {k: v for k, v in RUN.items() if k in ("spec", "provenance", "run_id")}
    assert problem(without_figures, ID) is None


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("badge", 3, "badge is 3, expected text"),
        ("simulated", 1, "simulated is 1, expected true or false"),
        ("spec", [], "spec is [], expected an object"),
        ("spec.batch", 1.5, "spec.batch is 1.5, expected a whole number"),
        ("spec.batch", True, "spec.batch is true, expected a whole number"),
        ("spec.cache_ratio", "1", 'spec.cache_ratio is "1", expected a number'),
        ("metrics.e2e_ms", True, "metrics.e2e_ms is true, expected a number"),
        ("metrics.e2e_ms", float("inf"), "expected a number"),
        ("metrics.tpot_ms", {"mean": "x"}, "expected an object of numbers"),
        ("metrics.lanes", [1], "metrics.lanes is [1], expected an object of numbers"),
        ("accuracy.n", 3.0, "accuracy.n is 3.0, expected a whole number"),
        ("accuracy.cut", "1", "accuracy.cut is"),
        ("accuracy.chance", "x", "accuracy.chance is"),
        ("accuracy.metric", 5, "accuracy.metric is 5, expected text"),
        ("notes", ["a", 1], "expected a list of texts"),
        ("notes", "a", "expected a list of texts"),
        ("provenance.created", 5, "provenance.created is 5, expected text"),
        ("interval.tpot_ms", {"low": "x"}, "expected an object of numbers"),
        ("run_id", "other", 'run_id is "other"'),
        ("spec.system", None, "spec.system is missing"),
        ("provenance.created", None, "provenance.created is missing"),
        ("simulated", None, "simulated is missing"),
        ("badge", None, "badge is missing"),
        ("spec.model", None, "spec.model is missing"),
        ("spec.batch", None, "spec.batch is missing"),
        ("spec.workload", None, "spec.workload is missing"),
    ],
)  # fmt: skip
def test_the_first_invalid_field_is_named(path: str, value: Any, says: str) -> None:
    found = problem(changed(path, value), ID)
    assert found is not None
    assert says in found.replace("True", "true").replace("'", '"')


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.batch", 3), ("metrics.e2e_ms", None), ("metrics.tpot_ms", {"mean": None}),
        ("accuracy", None), ("notes", []), ("interval", None), ("metrics.lanes", {}),
    ],
)  # fmt: skip
def test_what_is_unknown_may_be_null(path: str, value: Any) -> None:
    assert problem(changed(path, value), ID) is None


def test_a_document_is_an_object_under_its_own_id() -> None:
    assert problem([], ID) == "expected an object, found []"
    assert problem(RUN, "another") is not None
    assert problem({**RUN, "run_id": "../x"}, "../x") is not None


def test_a_spec_alone_is_checked_too() -> None:
    assert spec_problem(RUN["spec"]) is None
    assert spec_problem({}) is None
    assert spec_problem(3) == "expected an object, found 3"
    found = spec_problem({"batch": "x", "badge": 3})
    assert found is not None
    assert found.startswith("spec.batch is ")


# ----------------------------------------------------------------------------- pictures


SPAN = {"lane": "h2d", "kind": "load", "layer": 1, "experts": [2], "start_us": 0, "end_us": 1.5}


def test_a_picture_is_read_compressed_or_plain() -> None:
    plain = json.dumps(spans(2))
    assert picture(plain) == picture(zlib.compress(plain.encode())) == spans(2)
    assert picture(None) is None
    assert picture("[]") == []
    assert {lane.value for lane in Lane} == LANES


@pytest.mark.parametrize(
    "kept", ["", "{}", "3", "[3]", b"no zlib", zlib.compress(b"{"), "[" * 9999]
)
def test_a_damaged_picture_is_none(kept: str | bytes) -> None:
    assert picture(kept) is None


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"lane": "gpu"}, False),
        ({"lane": None}, False),
        ({"experts": None}, False),
        ({"experts": [1.5]}, False),
        ({"experts": [True]}, False),
        ({"experts": []}, False),  # a load names its expert
        ({"experts": [], "kind": "read"}, False),
        ({"experts": [], "kind": "attend"}, True),
        ({"experts": [], "kind": "attend", "instant": True}, False),
        ({"kind": "token", "instant": True}, True),
        ({"layer": None}, False),
        ({"start_us": "0"}, False),
        ({"end_us": float("nan")}, False),
        ({"kind": 3}, False),
    ],
)
def test_each_span_of_a_picture_is_checked(change: dict[str, Any], valid: bool) -> None:
    assert (picture(json.dumps([SPAN, {**SPAN, **change}])) is not None) is valid
