"""The comparison of two stores' documents."""

from copy import deepcopy

from benchmarks.documents import ASKED, FIGURES, compare


def document(**figures: object):
    spec = dict.fromkeys(ASKED, 0) | {"trace": None}
    parts = {part: {} for part in FIGURES}
    return {"spec": spec, **parts, "metrics": {"tpot_ms": 3.5, "hits": [1, None]}, **figures}


def test_equal_documents() -> None:
    lines, clean = compare([document()], [document(id="another")])
    assert clean
    assert lines == ["1 of 1 documents equal, 3 figures compared"]


def test_a_figure_that_moved_is_named() -> None:
    moved = deepcopy(document())
    moved["metrics"]["hits"][1] = 0
    lines, clean = compare([document()], [moved])
    assert not clean
    assert "    metrics.hits[1]: None -> 0" in lines
    assert lines[-1].startswith("0 of 1 ")


def test_a_figure_that_is_gone_differs_from_an_empty_one() -> None:
    gone = document(accuracy={"score": None})
    _, clean = compare([gone], [document()])
    assert not clean


def test_a_trace_may_be_in_another_folder() -> None:
    here, there = document(), document()
    here["spec"]["trace"], there["spec"]["trace"] = "a/t", "b/t"
    assert compare([here], [there])[1]
    assert not compare([here], [document()])[1]


def test_a_run_that_one_store_lacks_is_named() -> None:
    other = document()
    other["spec"] = {**other["spec"], "batch": 3}
    lines, clean = compare([document()], [document(), other])
    assert not clean
    assert lines[0].startswith("only after: ")
    assert not compare([], [])[1]
