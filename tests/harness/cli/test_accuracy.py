"""`moebench accuracy` and `check`: cells that are asked for, options that exclude others."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.guard import accuracy_table, check, outputs
from moebench.harness.sweep import execute
from moebench.workloads.exercises import FAMILIES
from tests.harness.commands import call, refused


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cells of tables, without running them."""
    given: list[Any] = []

    def run_all(specs: Any, *rest: Any) -> list[int]:
        rest[-1](1, 1)
        given.append((specs, rest[:-1]))
        return [1, 2, 3]

    monkeypatch.setattr(accuracy_table, "cells", lambda *what: what)
    monkeypatch.setattr(execute, "run_all", run_all)
    monkeypatch.setattr(
        accuracy_table, "write_rows", lambda documents, table: given.append((documents, table))
    )
    return given


def test_a_table_has_the_generated_families_by_default(asked: list[Any]) -> None:
    called = call("accuracy", "--jobs", "2")
    assert (called.code, called.out) == (0, "")
    (specs, (folder, store, jobs)), (documents, table) = asked
    given = {"system": "smoe", "prompts": 50, "seed": 0}
    assert specs == (None, [*FAMILIES], ["S1", "S2", "S3"], accuracy_table.ALPHAS, given)
    assert (folder, store, jobs) == (None, Path(".moebench"), 2)
    assert (documents, table) == ([1, 2, 3], Path(".moebench/alpha.csv"))
    assert called.err.splitlines() == ["accuracy: 1/1", "3 cells in .moebench/alpha.csv"]


def test_a_table_with_data_has_the_papers_sets_too(asked: list[Any]) -> None:
    call("accuracy", "--data-dir", ".")
    assert asked[0][0][:2] == (Path(), [*FAMILIES, *accuracy_table.REAL])


def test_typed_cells_are_asked_for(asked: list[Any]) -> None:
    called = call(
        "accuracy", "--settings", "S1, D1", "--workloads", "facts ,gsm8k", "--alphas", "0, 0.5",
        "--system", "mine", "--prompts", "7", "--seed", "3", "--out", "mine.csv", "--store", "runs",
    )  # fmt: skip
    assert called.code == 0, called.err
    given = {"system": "mine", "prompts": 7, "seed": 3}
    assert asked[0][0] == (None, ["facts", "gsm8k"], ["S1", "D1"], [0.0, 0.5], given)
    assert asked[0][1][1] == Path("runs")
    assert asked[1][1] == Path("mine.csv")
    assert "--alphas 0,much: allowed: numbers" in refused("accuracy", "--alphas", "0,much")
    assert "--out .: this is a folder" in refused("accuracy", "--out", ".")
    Path("file").write_text("")
    assert "file is not a folder" in refused("accuracy", "--store", "file")
    said = refused("accuracy", "--store", "file", "--out", "mine.csv")
    assert "file is not a folder" in said, "the store, not the table"
    assert len(asked) == 2


# ------------------------------------------------------------------------------ check


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the guard was given; it finds a regression."""
    given: list[Any] = []
    monkeypatch.setattr(
        check, "check_command", lambda *what, **more: given.append((what, more)) or 1
    )
    monkeypatch.setattr(
        check, "own", lambda *what: check.Guarded({}, what[1] / "x.json", *what[:1])
    )
    monkeypatch.setattr(outputs.Files, "require", lambda self, files: given.append(files))
    return given


def test_the_shipped_cells_are_checked(checked: list[Any]) -> None:
    assert call("check", "--jobs", "0", "--junit", "j.xml", "--json").code == 1
    required, (what, more) = checked
    assert required == [check.REFERENCES]
    assert what == (False, 0, True)
    assert more == {"files": outputs.Files(Path("j.xml"), None)}


def test_cells_of_ones_own_are_checked(checked: list[Any]) -> None:
    assert call("check", "--file", "f.yaml", "--references", "refs", "--update").code == 1
    required, (what, more) = checked
    assert required == [Path("f.yaml"), Path("refs/x.json")]
    update, _, as_json, guarded, files = what
    assert (update, as_json, more) == (True, False, {})
    assert (guarded.references, files) == (Path("refs/x.json"), outputs.Files(None, None))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--file", "f.yaml"), "--file FILE.yaml and --references DIR go together"),
        (("--references", "refs"), "--file FILE.yaml and --references DIR go together"),
        (("--update", "--junit", "j"), "--update judges nothing: leave out --junit and"),
        (("--update", "--markdown", "m"), "--update judges nothing"),
        (("--data-dir", "."), "--data-dir is for cells of your own"),
        (("--data-dir", "none"), "--data-dir none: no such folder"),
    ],
)
def test_options_that_exclude_each_other(
    options: tuple[str, ...], said: str, checked: list[Any]
) -> None:
    assert said in refused("check", *options)
    assert checked == []
