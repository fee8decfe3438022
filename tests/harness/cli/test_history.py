"""``moebench report --since`` in a git repository whose versions were run."""

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import history as command
from moebench.harness.history import place, repository
from moebench.harness.history.repository import opened
from moebench.reports.compare import history as comparing
from moebench.reports.sections import history as sections
from moebench.reports.sections.history import Since
from moebench.reports.text import text_table
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
from moebench.systems import plugins
from tests.harness.commands import call, refused, run
from tests.harness.history.projects import FIRST, Project, system
from tests.modules import forget
from tests.reports.pages import Page

SLOT = ("--new-tokens", "8")


class Measured(Project):
    """A project whose versions are run."""

    def run(self, name: str = "mine:MySystem", *options: str) -> dict[str, Any]:
        return run(name, *SLOT, *options)

    def rows(self, *options: str) -> list[dict[str, Any]]:
        """Return the rows of the only history."""
        (history,) = call("report", "--since", "start", "--json", *options).json["histories"]
        rows: list[dict[str, Any]] = history["rows"]
        return rows


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch, tiny_models: None) -> Iterator[Measured]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = Measured(here)
    found.commit("Begin", {".gitignore": ".moebench/\n"})
    found.git("tag", "start")
    yield found
    forget(here)


def points(rows: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    return [(row["commit"], row["runs"]) for row in rows]


def stored(document: dict[str, Any], run_id: str, **provenance: Any) -> None:
    """Store a copy of a run that was made elsewhere."""
    copy = json.loads(json.dumps(document)) | {"run_id": run_id}
    copy["provenance"] |= provenance
    Store(Path(".moebench")).put(copy)


# ----------------------------------------------------------------------------- versions


@pytest.mark.slow
def test_a_slower_version_an_equal_one_and_one_under_another_condition(project: Measured) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    kept = project.run()
    project.commit("Add a readme", {"README": "text"})
    second = project.commit("Drop", {"mine.py": system(keep=False)})
    dropped = project.run()
    third = project.commit("Add an option", {"mine.py": system(keep=False, unused=1)})
    equal = project.run()
    project.commit("Explain", {"mine.py": '"""Says."""\n' + system(keep=False, unused=1)})
    assert project.run()["run_id"] == equal["run_id"], "a docstring is no version"
    fourth = project.commit("Keep again", {"mine.py": system(keep=True, unused=2)})
    other = project.run("mine:MySystem", "--software", "lean")

    rows = project.rows()
    ran = [(first, kept), (second, dropped), (third, equal), (fourth, other)]
    assert points(rows) == [(commit, [one["run_id"]]) for commit, one in ran]
    assert [row["value"] for row in rows] == [one["metrics"]["tpot_ms"]["mean"] for _, one in ran]
    none, slower, tied, changed = (row["change"] for row in rows)
    assert none is None
    ratio = dropped["metrics"]["tpot_ms"]["mean"] / kept["metrics"]["tpot_ms"]["mean"]
    assert ratio > 1.1
    assert slower == {
        "against": first[:10], "value": ratio, "low": None, "high": None, "differs": True,
        "step": True, "conditions": {},
    }  # fmt: skip
    assert (tied["value"], tied["differs"], tied["step"]) == (1.0, False, False)
    assert {*changed["conditions"]} == {"software", "profile"}  # its costs are in the profile
    assert changed["conditions"]["software"] == ["hf-eager", "lean"]
    assert (changed["differs"], changed["step"]) == (True, False)
    assert [row["verdict"] for row in rows[:3]] == ["first", "step: slower", "tied"]
    assert rows[3]["verdict"].startswith(
        "faster, no step of the system; changed conditions: software hf-eager → lean; profile "
    )


def test_a_version_is_compared_with_the_latest_one_under_equal_conditions(
    project: Measured,
) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    project.run()
    second = project.commit("Keep two", {"mine.py": system(keep=True, unused=1)})
    project.run("mine:MySystem", "--software", "lean")
    third = project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    rows = project.rows()
    assert [row["commit"] for row in rows] == [first, second, third]
    assert [row["change"] and row["change"]["against"] for row in rows] == [
        None, first[:10], first[:10],
    ]  # fmt: skip
    assert [row["verdict"] for row in rows][2] == "step: slower"


@pytest.mark.slow
def test_other_texts_are_a_changed_condition_and_several_texts_are_averaged(
    project: Measured,
) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    runs = [project.run("mine:MySystem", "--seed", seed) for seed in "01"]
    project.commit("Drop", {"mine.py": system(keep=False)})
    project.run("mine:MySystem", "--seed", "2")
    first, second = project.rows()
    times = [one["metrics"]["tpot_ms"]["mean"] for one in runs]
    assert first["value"] == pytest.approx(sum(times) / 2)
    assert {*first["runs"]} == {one["run_id"] for one in runs}
    assert second["change"]["conditions"] == {"seed": ["0, 1", "2"]}
    # One shared text is enough for a comparison, over this text alone.
    shared = project.run("mine:MySystem", "--seed", "1")
    _, second = project.rows()
    assert second["change"]["conditions"] == {}
    assert second["change"]["value"] == pytest.approx(
        shared["metrics"]["tpot_ms"]["mean"] / times[1]
    )


def test_a_renamed_file_continues_the_history(project: Measured) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    before = project.run()
    second = project.commit("Rename", {"mine.py": None, "ours.py": system(keep=True)})
    after = project.run("ours:MySystem")
    rows = project.rows()
    assert points(rows) == [(first, [before["run_id"]]), (second, [after["run_id"]])]
    assert [row["ran_as"] for row in rows] == ["mine:MySystem", "ours:MySystem"]
    assert rows[1]["verdict"] == "tied"
    (history,) = call("report", "--since", "start", "--json").json["histories"]
    assert history["system"].startswith("ours:MySystem")
    assert "Keep (as mine:MySystem)" in call("report", "--since", "start", "--markdown").out


def test_another_file_is_another_system(project: Measured) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    project.run()
    # Both exist, so nothing was renamed.
    project.commit("Add another one", {"ours.py": system(keep=False)})
    project.run("ours:MySystem")
    line = refused("report", "--since", "start")
    assert "no system has this figure of two versions in one setting in start..HEAD" in line
    assert "mine:MySystem, ours:MySystem" in line


def test_a_merge_is_one_version_and_its_branch_is_not_in_the_range(project: Measured) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    before = project.run()
    project.git("checkout", "-q", "-b", "side")
    inside = project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    project.commit("Add an option", {"mine.py": system(keep=False, unused=1)})
    merged_run = project.run()
    project.git("checkout", "-q", "main")
    project.commit("Add a readme", {"README": "text"})
    project.git("merge", "-q", "--no-ff", "-m", "Merge", "side")
    merge = project.git("rev-parse", "HEAD")
    called = call("report", "--since", "start", "--json")
    (history,) = called.json["histories"]
    assert points(history["rows"]) == [
        (first, [before["run_id"]]), (merge, [merged_run["run_id"]]),
    ]  # fmt: skip
    assert history["rows"][1]["verdict"] == "step: slower"
    said = (
        "1 run of mine:MySystem: their commits are not in start..HEAD along first parents "
        f"({inside[:10]})"
    )
    assert called.json["notes"] == [said]
    assert called.err == f"note: {said}\n"


def test_a_version_that_comes_back_has_its_run_twice(project: Measured) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    kept = project.run()
    second = project.commit("Drop", {"mine.py": system(keep=False)})
    dropped = project.run()
    project.git("revert", "--no-edit", "HEAD")
    third = project.git("rev-parse", "HEAD")
    rows = project.rows()
    assert points(rows) == [
        (first, [kept["run_id"]]), (second, [dropped["run_id"]]), (third, [kept["run_id"]]),
    ]  # fmt: skip
    assert [row["verdict"] for row in rows] == ["first", "step: slower", "step: faster"]


def test_uncommitted_versions_follow_the_commit_before_their_run(project: Measured) -> None:
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    kept = project.run()
    project.write({"mine.py": system(keep=False)})
    changed = project.run()
    # It is committed only after its run: then the run is that of the commit.
    assert [(row["commit"], row["committed"]) for row in project.rows()] == [
        (first, True), (first, False),
    ]  # fmt: skip
    project.write({"mine.py": system(keep=False, unused=1)})
    never = project.run()
    later = project.commit("Drop", {"mine.py": system(keep=False)}, at=FIRST + 10**6)
    rows = project.rows()
    assert [(row["commit"], row["committed"], row["runs"]) for row in rows] == [
        (first, True, [kept["run_id"]]),
        (first, False, [never["run_id"]]),
        (later, True, [changed["run_id"]]),
    ]
    assert [row["verdict"] for row in rows] == ["first", "step: slower", "tied"]
    assert rows[2]["change"]["against"] == f"{first[:10]} + uncommitted"
    shown = call("report", "--since", "start", "--markdown").out
    assert f"| {first[:10]} + uncommitted |" in shown


def test_versions_without_a_run_are_named(project: Measured) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    project.run()
    untested = project.commit("Keep two", {"mine.py": system(keep=True, unused=1)})
    project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    (history,) = call("report", "--since", "start", "--json").json["histories"]
    assert history["untested"] == [untested]
    shown = call("report", "--since", "start", "--markdown").out
    assert f"Commits that made a version without a run: {untested[:10]}." in shown


@pytest.mark.slow
def test_a_declared_file_makes_versions(project: Measured) -> None:
    text = system() + "    sources = ('notes.txt',)\n"
    first = project.commit("Keep", {"mine.py": text, "notes.txt": "1"})
    project.run()
    project.commit("Add a readme", {"README": "text"})
    second = project.commit("Edit", {"notes.txt": "2"})
    project.run()
    project.git("checkout", "-q", "-b", "side")
    outside = project.commit("Edit", {"notes.txt": "3"})
    project.run()
    project.git("checkout", "-q", "main")
    called = call("report", "--since", "start", "--json").json
    assert [row["commit"] for row in called["histories"][0]["rows"]] == [first, second]
    assert f"({outside[:10]})" in called["notes"][0]


def test_an_installed_package_has_a_history_under_its_name(project: Measured) -> None:
    metadata = project.folder / "moebench_own-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moebench-own\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[moebench.systems]\nown = pack.inner:MySystem\n")
    for folder in (project.folder, project.folder / "src"):
        sys.path.insert(0, str(folder))
    first = project.commit(
        "Keep", {"src/pack/__init__.py": "", "src/pack/outer.py": system(keep=True)}
    )
    (metadata / "entry_points.txt").write_text("[moebench.systems]\nown = pack.outer:MySystem\n")
    project.run("own")
    names = {"src/pack/outer.py": None, "src/pack/inner.py": system(keep=True)}
    second = project.commit("Rename", names)
    (metadata / "entry_points.txt").write_text("[moebench.systems]\nown = pack.inner:MySystem\n")
    plugins._offered.cache_clear()
    project.run("own")
    third = project.commit("Drop", {"src/pack/inner.py": system(keep=False)})
    project.run("own")
    assert [row["commit"] for row in project.rows()] == [first, second, third]
    plugins._offered.cache_clear()
    (metadata / "entry_points.txt").unlink()
    line = call("report", "--since", "start")
    assert line.code == 2
    assert "3 runs of own: its package is not installed, which names its modules" in line.err
    plugins._offered.cache_clear()


# ----------------------------------------------------------------------------- other conditions


def test_code_of_moebench_torch_and_processor_are_conditions(project: Measured) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    project.run()
    project.commit("Drop", {"mine.py": system(keep=False)})
    ran = project.run()
    Store(Path(".moebench")).remove([ran["run_id"]])
    versions = ran["provenance"]["versions"] | {"torch": "1.0"}
    stored(ran, "aa", versions=versions, code_hash="c0de" * 4)
    _, row = project.rows()
    assert {*row["change"]["conditions"]} == {"code of moebench", "torch"}
    assert row["change"]["conditions"]["torch"] == [ran["provenance"]["versions"]["torch"], "1.0"]
    assert not row["change"]["step"]


def test_runs_with_unknown_versions_of_moebench_are_left_out(project: Measured) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    ran = project.run()
    stored(ran, "aa", system_hash="0" * 16, commit="0123456789ab")
    stored(ran, "bb", system_hash="0" * 16, created="2001-01-01T00:00:00+00:00")
    called = call("report", "--since", "start")
    assert called.code == 2
    assert (
        "note: 1 run of mine:MySystem: no commit has their source with this version of moebench, "
        "and the version that they were made with is not here (0123456789ab)\n"
    ) in called.err
    assert (
        "note: 1 run of mine:MySystem: no commit has their source, and they were made before the "
        "first commit of start..HEAD\n"
    ) in called.err


@pytest.mark.parametrize(
    ("spec", "provenance", "said"),
    [
        ({"system": "../x:Y"}, {}, "1 run of ../x:Y: its package is not installed"),
        ({"system": "mine:A:B"}, {"system_hash": "0"}, None),
        ({"system": "m*:A"}, {}, "1 run of m*:A: its package is not installed"),
        ({"system": "no.such:A"}, {}, "1 run of no.such:A: no commit of "),
        ({"options": {"evict": ["lru"]}}, {"system_hash": None}, None),
        ({}, {"system_hash": "0", "created": "soon"}, "they were made before the first commit"),
        ({}, {"system_hash": "0", "commit": "--help"}, "is not here (--help)"),
    ],
)
def test_damaged_runs_are_notes(
    project: Measured, spec: dict[str, Any], provenance: dict[str, Any], said: str | None
) -> None:
    project.commit("Keep", {"mine.py": system(keep=True)})
    ran = project.run()
    project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    stored({**ran, "spec": {**ran["spec"], **spec}}, "aa", **provenance)
    called = call("report", "--since", "start", "--json")
    assert called.code == 0, called.err
    assert called.json["histories"]
    assert called.err.count("\n") == len(called.json["notes"]) == (said is not None)
    assert said is None or said in called.err


#: Prints the hash of a system with the moebench that is imported.
SCRIPT = """
from moebench.harness.run.identity import system_hash
from moebench.systems.options import build
print(system_hash(build("mine:MySystem")))
"""


@pytest.mark.slow
def test_a_run_of_an_earlier_moebench_is_found_by_its_source(
    project: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier checkout of moebench, in which smoe.py was another file."""
    root, earlier = Path(__file__).parents[3], Project(tmp_path / "earlier")
    data = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.npy", "*.npz", ".git")
    for link in (root / "moebench").iterdir():
        if link.is_symlink():
            shutil.copytree(root / link.name, earlier.folder / link.name, ignore=data)
    shutil.copytree(root / "moebench", earlier.folder / "moebench", symlinks=True, ignore=data)
    smoe = (earlier.folder / "systems" / "smoe.py").read_text()
    made = earlier.commit("Earlier", {"systems/smoe.py": f"{smoe}\nEARLIER = 1\n"})

    @contextmanager
    def own_repository() -> Iterator[Any]:
        with opened(earlier.folder) as repository:
            yield repository

    monkeypatch.setattr(place, "_own_repository", own_repository)
    first = project.commit("Keep", {"mine.py": system(keep=True)})
    ran = project.run()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=project.folder, check=True, capture_output=True,
        env={"PYTHONPATH": f"{earlier.folder}:{project.folder}"}, text=True,
    )  # fmt: skip
    before = done.stdout.strip()
    assert before != ran["provenance"]["system_hash"]
    Store(Path(".moebench")).remove([ran["run_id"]])
    stored(ran, "aa", system_hash=before, commit=made[:12])
    second = project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    rows = project.rows()
    assert [(row["commit"], row["committed"]) for row in rows] == [(first, True), (second, True)]
    ((name, (was, now)),) = rows[1]["change"]["conditions"].items()
    assert name == "systems of moebench"
    assert was.startswith("moebench.systems.smoe ")
    assert was != now
    assert not rows[1]["change"]["step"]


# ----------------------------------------------------------------------------- outputs and errors


@pytest.fixture
def two(project: Measured) -> Measured:
    project.commit("Keep | <b>", {"mine.py": system(keep=True)})
    project.run()
    project.commit("Drop", {"mine.py": system(keep=False)})
    project.run()
    return project


@pytest.mark.slow
def test_every_output_has_the_history(two: Measured) -> None:
    called = call("report", "--since", "start", "--csv", "csv", "--html", "r.html", "--latex",
                  "tex", "--figures", "figures", "--json")  # fmt: skip
    assert called.code == 0, called.err
    (history,) = called.json["histories"]
    with (two.folder / "csv" / "history.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["commit"] for line in lines] == [row["commit"] for row in history["rows"]]
    assert [float(line["value"]) for line in lines] == [row["value"] for row in history["rows"]]
    assert [line["change.step"] for line in lines] == ["", "True"]
    assert (two.folder / "tex" / "history-1.tex").exists()
    assert (two.folder / "figures" / "history-mine-MySystem-alpha-0.25-S3-batch-1.svg").exists()
    text = (two.folder / "r.html").read_text()
    assert '<section id="history">' in text
    assert "Keep | &lt;b&gt;" in text
    drawn = Page(text).packed["data"]["drawn"]["history-1"]
    assert [row["kind"] for row in drawn["rows"]] == ["no step", "step"]
    assert [row["value"] for row in drawn["rows"]] == [row["value"] for row in history["rows"]]
    assert call("report", "--html", "plain.html").code == 0
    assert '<section id="history">' not in (two.folder / "plain.html").read_text()


def test_a_pipe_has_one_table_and_each_figure_has_a_history(two: Measured) -> None:
    for name, read in (
        ("ttft_ms", lambda run: run["metrics"]["ttft_ms"]["mean"]),
        ("hit_ratio", lambda run: run["metrics"]["cache_ratio"]),
        ("kl", lambda run: run["accuracy"]["kl"]),
    ):
        header, *lines = call("report", "--since", "start", "--metric", name).out.splitlines()
        rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
        store = Store(Path(".moebench"))
        assert [float(row["value"]) for row in rows] == [
            read(store.get(row["runs"])) for row in rows
        ]
        assert {row["figure"] for row in rows} == {name}


@pytest.mark.slow
def test_wrong_input_is_one_line(two: Measured, tmp_path: Path, monkeypatch: Any) -> None:
    assert "--metric tpot: allowed: tpot_ms, ttft_ms, hit_ratio, kl" in refused(
        "report", "--since", "start", "--metric", "tpot"
    )
    assert "--metric kl: needs a range of commits; add --since REV" in refused(
        "report", "--metric", "kl"
    )
    for name in ("v9", "start..HEAD", "--all", "HEAD:mine.py"):
        line = refused("report", f"--since={name}")
        assert f"--since {name}: no such commit in" in line
        assert "git log --oneline" in line
    assert "--since HEAD: HEAD has no commit after it" in refused("report", "--since", "HEAD")
    two.commit("Add a readme", {"README": "text"})
    line = refused("report", "--since", "HEAD~1")
    assert "no system has this figure of two versions" in line

    store = str(two.folder / ".moebench")
    clone = tmp_path / "clone"
    two.git("clone", "-q", "--depth", "1", f"file://{two.folder}", str(clone))
    monkeypatch.chdir(clone)
    assert "is a shallow clone, which lacks commits; run: git fetch --unshallow" in refused(
        "report", "--since", "HEAD", "--store", store
    )
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(tmp_path / "outside")
    assert "is in no git repository; run it in the repository of your system" in refused(
        "report", "--since", "start", "--store", store
    )
    other = Project(tmp_path / "other")
    other.commit("Begin", {"other.py": "A = 1\n"})
    other.commit("Go on", {"other.py": "A = 2\n"})
    monkeypatch.chdir(other.folder)
    called = call("report", "--since", "HEAD~1", "--store", store)
    assert called.code == 2
    assert f"2 runs of mine:MySystem: no commit of {other.folder} has mine\n" in called.err
    assert "has no run of a system of this repository in HEAD~1..HEAD" in called.err
    monkeypatch.setenv("PATH", "")
    assert "needs git, which is not installed" in refused(
        "report", "--since", "start", "--store", store
    )


def test_only_systems_that_ship_with_moebench_are_no_history(project: Measured) -> None:
    project.commit("Add a readme", {"README": "text"})
    project.run("smoe")
    assert "has no run of a system of this repository in start..HEAD" in refused(
        "report", "--since", "start"
    )


# ------------------------------------------------------------------------------ words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_histories_are_printed_in_four_ways(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"a": 1, "b": None}, {"a": "x", "b": 2.5}]
    table = text_table("t", ["h"], [["1"]])
    found: Any = SimpleNamespace(tables={"one": table, "two": table})
    monkeypatch.setattr(sections, "records", lambda since: rows)
    monkeypatch.setattr(sections, "document", lambda since: {"d": 1})
    command.print_history(found, False, False)
    assert capsys.readouterr().out.splitlines() == ["a\tb", "1\t", "x\t2.5"]
    command.print_history(found, True, True)
    assert capsys.readouterr().out == '{"d": 1}\n'
    command.print_history(found, False, True)
    assert capsys.readouterr().out.count("### t") == 2
    shown: list[Any] = []
    monkeypatch.setattr(command.console, "text_table", shown.append)
    monkeypatch.setattr(sys, "stdout", Terminal())
    command.print_history(found, False, False)
    assert shown == [table, table]


def test_why_there_is_no_history_is_said() -> None:
    store: Any = SimpleNamespace(directory=Path("runs"))
    example = "for example: moebench run --system mine:MySystem --setting S3 --store runs"
    assert command._nothing("v1", store, []) == (
        "--since v1: runs has no run of a system of this repository in v1..HEAD; run each "
        f"version, {example}"
    )
    placed: Any = [SimpleNamespace(system=name) for name in ("b", "a", "b")]
    assert command._nothing("v1", store, placed) == (
        "--since v1: no system has this figure of two versions in one setting in v1..HEAD; a, b: "
        f"run another version, {example}"
    )


def test_runs_of_own_systems_are_placed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    @contextmanager
    def opened(folder: Path, since: str) -> Any:
        given.append((folder, since))
        yield SimpleNamespace(commits_since=lambda since: ["c1", "c2"])

    def placing(runs: Any, repository: Any, commits: Any, since: str) -> Any:
        given.append((list(runs), commits, since))
        return SimpleNamespace(placed=["p"], versions={"mine": [0]}, left_out=["one is damaged"])

    monkeypatch.setattr(repository, "opened", opened)
    monkeypatch.setattr(place, "place", placing)
    monkeypatch.setattr(comparing, "histories", lambda *what: given.append(what) or ["shown"])
    whole = {"run_id": "b", "whole": True, "spec": {"system": "mine:B"}}
    store: Any = SimpleNamespace(get={"b": whole}.get, directory=Path("s"))
    runs = [{"run_id": name, "spec": {"system": system}}
            for name, system in (("a", "smoe"), ("b", "mine:B"), ("c", "mine:C"))]  # fmt: skip
    assert command.over_commits(None, None, store, runs) is None
    found = command.over_commits("v1", None, store, runs)
    assert found == Since("v1", ["shown"], ["one is damaged"])  # type: ignore[arg-type]
    assert given[0] == (Path.cwd(), "v1")
    assert given[1] == ([whole, runs[2]], ["c1", "c2"], "v1")
    placed, commits, figure, versions = given[2]
    assert (placed, commits, versions) == (["p"], ["c1", "c2"], {"mine": [0]})
    assert figure.key == "tpot_ms"
    assert capsys.readouterr().err == "note: one is damaged\n"
    command.over_commits("v1", "kl", store, runs)
    assert given[-1][2].key == "kl"
    with pytest.raises(UsageError, match="--metric x: allowed: tpot_ms, ttft_ms"):
        command.over_commits("v1", "x", store, runs)
    with pytest.raises(UsageError, match="--metric kl: needs a range of commits; add --since REV"):
        command.over_commits(None, "kl", store, runs)
