"""`show`, `rm`, `gc`, `--version`: one run, and what the store no longer needs."""

import os
import re
import shlex
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from moebench.harness.run.repeat import repeat
from moebench.results.store import Store
from tests.harness.commands import SCALE_MODEL, SMALL, call, refused, run

pytestmark = pytest.mark.usefixtures("tiny_models")


def age(folder: Path) -> None:
    then = time.time() - 7200
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_version() -> None:
    said = call("--version")
    assert (said.code, said.out, said.err) == (0, f"moebench {version('moebench')}\n", "")


# --------------------------------------------------------------------------- show

CASES = [
    ("daop",),
    ("smoe", "--alpha", "0.3", "--set", "evict=lru", "--seed", "3"),
    ("smoe", "--variant", "shipped", "--batch", "2", "--prompts", "2"),
    ("moe-ondemand", "--slots", "9", "--software", "lean", "--expert-dtype", "int8"),
    ("smoe", "--capacity", "0.1", "--device-memory", "30GB", "--free-host-gb", "64"),
    ("gpu-only", "--allow-overcommit", "--scoring", "generation", "--few-shot", "1"),
    ("daop", "--calibrate-from", "passages", "--calibrate-texts", "4"),
    ("moe-ondemand", "--machine", "local", "--capacity", "0.5"),
    ("moe-ondemand", "--machine", "local", "--emulated-link", "4GB/s", "--slots", "9"),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_command_that_is_shown_repeats_the_run(here: Path, case: tuple[str, ...]) -> None:
    first = run(*case)
    shown = call("show", first["run_id"], "--json").json
    words = shlex.split(shown.pop("repeat"))
    assert shown == first
    assert words[0] == "moebench"
    again = call(*words[1:], "--no-interval", "--json", "--force")
    assert again.code == 0, again.err
    assert again.json["spec"] == first["spec"]
    if first["simulated"]:
        assert again.json["run_id"] == first["run_id"]


def test_the_command_says_what_differs_from_the_setting_alone(here: Path) -> None:
    document = run("smoe", "--alpha", "0.3")
    words = repeat(Store(Path(".moebench")), document)
    small = shlex.join(SMALL)
    assert words == f"moebench run --system smoe {small} --set alpha=0.3"


def test_show_says_where_a_run_comes_from(here: Path) -> None:
    document = run("daop")
    shown = call("show", document["run_id"][:6])
    assert shown.code == 0
    rows = [line.split("\t") for line in shown.out.splitlines()]
    assert ["spec.system", "daop"] in rows
    assert ["provenance.code_hash", document["provenance"]["code_hash"]] in rows
    assert {f"provenance.{name}" for name in document["provenance"]} <= {row[0] for row in rows}
    assert [text for what, text in rows if what == "note"] == document["notes"]
    (tpot,) = (text for what, text in rows if what == "TPOT")
    assert f"{document['metrics']['tpot_ms']['mean']:.2f} ms" in tpot


def test_an_unknown_run_is_one_line(here: Path) -> None:
    assert refused("show", "abc").startswith("moebench: no runs in .moebench")
    known = run("daop")["run_id"]
    assert known in refused("show", "zzz")


# --------------------------------------------------------------------------- rm, gc


def test_rm_removes_what_is_named_or_nothing(here: Path) -> None:
    stays, goes = (run(system)["run_id"] for system in ("daop", "moe-ondemand"))
    samples = here / ".moebench" / "samples"
    assert "zzz" in refused("rm", goes, "zzz")
    assert {path.stem for path in samples.iterdir()} == {stays, goes}
    removed = call("rm", goes[:8], goes)
    assert (removed.code, removed.out) == (0, "")
    assert [path.stem for path in samples.iterdir()] == [stays]
    store = Store(here / ".moebench")
    assert [document["run_id"] for document in store.runs()] == [stays]
    assert [cell.cell_id for cell in store.cells("done")] == [stays]


def test_gc_keeps_what_a_run_used_until_the_run_goes(here: Path) -> None:
    """Of every kind that runs prepare, so that a kind that gc does not know fails here."""
    ids = [
        run("daop")["run_id"],
        run("moe-ondemand", "--machine", "local", "--capacity", "0.5")["run_id"],
    ]
    folder = here / ".moebench"
    age(folder)
    prepared = {p for name in ("calibration", "experts") for p in (folder / name).iterdir()}
    assert {path.parent.name for path in prepared} == {"calibration", "experts"}
    listed = call("gc", "--json")
    assert (listed.code, listed.json["files"], listed.json["notes"]) == (0, [], [])
    assert call("rm", *ids).code == 0
    age(folder)
    dry = call("gc", "--dry-run", "--json")
    assert {row["path"] for row in dry.json["files"]} == {
        path.relative_to(folder).as_posix() for path in prepared
    }
    assert not dry.json["removed"]
    assert all(path.exists() for path in prepared)
    done = call("gc")
    assert done.code == 0
    assert re.search(rf"{len(prepared)} files and folders, .* removed; no run was", done.err)
    assert not any(path.exists() for path in prepared)


def test_gc_without_a_store_is_one_line(here: Path) -> None:
    assert "no store in .moebench" in refused("gc")
    assert list(here.iterdir()) == []


def test_a_run_without_a_setting_is_shown_with_the_fewest_options(here: Path) -> None:
    given = ("--system", "moe-ondemand", "--model", SCALE_MODEL, "--machine", "a6000",
             "--capacity", "0.25", "--workload", "arithmetic", "--prompts", "1",
             "--new-tokens", "4")  # fmt: skip
    first = call("run", *given, "--no-interval", "--json").json
    words = shlex.split(call("show", first["run_id"], "--json").json["repeat"])
    assert "--setting" not in words
    assert {"--model", "--machine", "--prompts"} <= set(words)
    assert "--seed" not in words, "the default is left out"
    again = call(*words[1:], "--no-interval", "--json", "--force").json
    assert again["run_id"] == first["run_id"]
