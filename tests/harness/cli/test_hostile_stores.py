"""Stores from anybody: reading imports nothing, deletes nothing elsewhere, and shows changes."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import CHANGED, Store
from tests.harness.commands import SMALL, call, refused, run
from tests.reports.pages import Page

pytestmark = pytest.mark.usefixtures("tiny_models")

RUN = ("run", "--system", "moe-ondemand", *SMALL, "--no-interval")
SWEEP = (
    "sweep", "--systems", "moe-ondemand", "--settings", "S3", "--workloads", "arithmetic",
    "--prompts", "1", "--new-tokens", "4", "--jobs", "0",
)  # fmt: skip
#: Every command that reads stored runs; ID stands for the run's id, OTHER for a sound run's.
READERS = [
    ("show", "ID"),
    ("show", "ID", "--json"),
    ("timeline", "ID"),
    ("compare",),
    ("compare", "ID", "OTHER"),
    ("report",),
    ("report", "--html", "page.html"),
    ("report", "--csv", "tables"),
    ("report", "--latex", "tables"),
    ("gc", "--dry-run"),
    SWEEP,
    ("rm", "ID"),
]


def rewrite(run_id: str, text: str, new_id: str | None = None, digest: str = "digest") -> None:
    """Change a row of the store as an editor of SQLite files does."""
    with closing(sqlite3.connect(".moebench/runs.sqlite")) as db:
        db.execute(
            f"UPDATE runs SET document = ?, run_id = ?, digest = {digest} WHERE run_id = ?",
            (text, new_id or run_id, run_id),
        )
        db.commit()


def arguments(reader: tuple[str, ...], run_id: str, other: str) -> list[str]:
    return [{"ID": run_id, "OTHER": other}.get(word, word) for word in reader]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=" ".join)
@pytest.mark.parametrize("place", ["system", "policy"])
def test_reading_imports_no_code_that_a_document_names(
    here: Path, reader: tuple[str, ...], place: str
) -> None:
    Path("evilmod.py").write_text("open('imported', 'w').close()\nclass X: pass\n")
    other = run("smoe")
    document = run("moe-ondemand")
    if place == "system":
        document["spec"]["system"] = "evilmod:X"
    else:
        document["spec"]["overrides"] = {"evict": "evilmod:X"}
    with closing(sqlite3.connect(".moebench/runs.sqlite")) as db:
        text = json.dumps(document["spec"])
        db.execute("UPDATE cells SET spec = ? WHERE run_id = ?", (text, document["run_id"]))
        db.commit()
    # The digest is that of the changed text: whoever writes a store can write digests too.
    rewrite(document["run_id"], json.dumps(document), digest="NULL")
    said = call(*arguments(reader, document["run_id"], other["run_id"]))
    assert "Traceback" not in said.err
    assert not Path("imported").exists()


def test_removing_a_run_deletes_nothing_outside_the_store(here: Path) -> None:
    document = run("moe-ondemand")
    outside = Path("elsewhere/data.parquet")
    outside.parent.mkdir()
    outside.write_text("mine")
    path = "../../elsewhere/data"
    run_id = document["run_id"]
    rewrite(run_id, json.dumps(document | {"run_id": path}))
    line = refused("show", run_id)
    assert f"run_id is '{path}'" in line
    assert "moebench rm" in line
    assert call("rm", run_id).code == 0
    assert outside.read_text() == "mine"

    document = run("moe-ondemand", "--force")
    rewrite(run_id, json.dumps(document | {"run_id": path}), new_id=path)
    assert f"run_id is '{path}'" in refused("show", path)
    assert call("rm", path).code == 0
    assert outside.read_text() == "mine"
    assert Store(Path(".moebench")).ids() == []


DAMAGED: list[Any] = [
    {}, [], None, {"notes": 5}, {"notes": [5]}, {"spec": {}}, {"spec": []}, {"provenance": 3},
    {"metrics": []}, {"accuracy": "good"}, {"badge": 7}, {"interval": 1},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=" ".join)
def test_a_damaged_document_is_one_line_for_every_reader(
    here: Path, reader: tuple[str, ...]
) -> None:
    other = run("smoe")["run_id"]
    sound = run("moe-ondemand")
    run_id = sound["run_id"]
    for damage in DAMAGED:
        whole = isinstance(damage, dict) and damage
        text = json.dumps(sound | damage if whole else damage)
        Store(Path(".moebench")).put(sound)
        rewrite(run_id, text)
        said = call(*arguments(reader, run_id, other))
        assert "Traceback" not in said.err, damage
        assert said.code in (0, 2), damage
        lines = [line for line in said.err.splitlines() if line.startswith("moebench: ")]
        assert len(lines) == (said.code == 2), damage
        if reader[0] in ("show", "timeline") or ("ID" in reader[1:2] and reader[0] == "compare"):
            assert said.code == 2, damage
            assert run_id in lines[0], damage


def edited() -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a system, then change its TPOT in the store; return its document before and after."""
    before = run("moe-ondemand")
    after = json.loads(json.dumps(before))
    after["metrics"]["tpot_ms"]["mean"] = 1.0
    rewrite(before["run_id"], json.dumps(after))
    return before, after


@pytest.mark.slow
def test_an_edited_document_says_so_wherever_it_is_shown(here: Path) -> None:
    before, _ = edited()
    run("smoe")
    run_id = before["run_id"]
    shown = call("show", run_id)
    assert CHANGED in shown.out
    assert CHANGED in call("show", run_id, "--json").json["notes"]
    assert CHANGED in call("report").out.replace("\n", " ")
    assert CHANGED in call("compare", "--json").out
    assert call("report", "--csv", "tables").code == 0
    assert CHANGED in Path("tables/runs.csv").read_text()
    assert call("report", "--html", "page.html").code == 0
    assert CHANGED in json.dumps(Page(Path("page.html").read_text()).data)
    assert call("timeline", run_id).code == 0
    assert CHANGED in Path(f"{run_id}.trace.json").read_text()


def test_an_unchanged_document_says_nothing_of_it(here: Path) -> None:
    document = run("moe-ondemand")
    assert CHANGED not in call("show", document["run_id"]).out
    again = call(*RUN)
    assert "was stored" in again.err


def test_an_edited_document_is_computed_again(here: Path) -> None:
    before, _ = edited()
    again = call(*RUN, "--json")
    assert again.json["metrics"]["tpot_ms"] == before["metrics"]["tpot_ms"]
    assert "was stored" not in again.err
    assert CHANGED not in call("show", before["run_id"]).out


@pytest.mark.slow
def test_a_sweep_computes_an_edited_cell_again(here: Path) -> None:
    assert "1 done (0 were known)" in call(*SWEEP).err
    assert "1 done (1 were known)" in call(*SWEEP).err
    (run_id,) = Store(Path(".moebench")).ids()
    document = Store(Path(".moebench")).find(run_id)
    tpot = document["metrics"]["tpot_ms"]["mean"]
    document["metrics"]["tpot_ms"]["mean"] = 1.0
    rewrite(run_id, json.dumps(document))
    assert "1 done (0 were known)" in call(*SWEEP).err
    found = Store(Path(".moebench")).find(run_id)
    assert found["metrics"]["tpot_ms"]["mean"] == tpot
    assert CHANGED not in found["notes"]


def test_a_store_without_digests_is_read_as_it_is(here: Path) -> None:
    document = run("moe-ondemand")
    rewrite(document["run_id"], json.dumps(document), digest="NULL")
    assert Store(Path(".moebench")).find(document["run_id"]) == document
