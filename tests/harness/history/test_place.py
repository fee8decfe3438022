"""Parts of placing runs at commits: names of files, times of runs, and versions of moebench."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.history import place
from moebench.harness.history.source import Entry
from moebench.systems.registry import DECISIONS, POLICIES


def test_files_and_modules_name_each_other() -> None:
    assert place._files_of("mine", "") == ("mine.py", "mine/__init__.py")
    assert place._files_of("a.b", "src/") == ("src/a/b.py", "src/a/b/__init__.py")
    for module in ("mine", "a.b"):
        for folder in ("", "src/"):
            for file in place._files_of(module, folder):
                assert place._module_of(file, folder) == module


@pytest.mark.parametrize(
    ("created", "seconds"),
    [
        ("1970-01-01T00:01:00+00:00", 60.0), ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T02:00:00+02:00", 0.0), ("yesterday", -math.inf), (None, -math.inf),
    ],
)  # fmt: skip
def test_the_time_of_a_run_is_that_of_its_document(created: Any, seconds: float) -> None:
    assert place._seconds({"provenance": {"created": created}}) == seconds
    assert place._seconds({}) == -math.inf


def test_without_a_repository_of_its_own_moebench_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "opened", lambda root: pytest.fail("there is none"))
    for root in (None, tmp_path):
        monkeypatch.setattr(place, "checkout", lambda root=root: root)
        with place._own_repository() as found:
            assert found is None


class Repository:
    """A repository without commits, renames or files."""

    root = Path("/repository")

    def __init__(self, *commits: str) -> None:
        self.commits = commits

    def renames(self, since: str) -> list[tuple[str, str]]:
        return [("old.py", "new.py"), ("a/older.py", "old.py"), ("older.py", "old.py")]

    def changing_python(self, since: str) -> set[str]:
        return {"c2"}

    def folders_of(self, package: str) -> list[str]:
        return [""]

    def has(self, commit: str) -> bool:
        return commit in self.commits


def placing(ours: Any = None) -> Any:
    commits = [SimpleNamespace(id=f"c{n}", time=float(n)) for n in range(5)]
    return place._Placing(Repository(), commits, "c0", ours)  # type: ignore[arg-type]


def test_commits_without_other_python_files_are_alike() -> None:
    assert placing()._alike == {"c1": "c0", "c3": "c2", "c4": "c2"}


def run(system: str, **options: Any) -> dict[str, Any]:
    return {"spec": {"system": system, "options": options}, "provenance": {}}


def test_a_system_begins_in_its_module_with_its_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    one = placing()
    monkeypatch.setattr(place, "installed", lambda: SimpleNamespace(usable={}))
    assert one._entries(run("mine:Mine")) == (Entry("mine", "Mine", frozenset()),)
    decision = next(iter(DECISIONS))
    name, (module, *_) = next(iter(POLICIES[decision].items()))
    (entry,) = one._entries(run("a.b:Mine", **{decision: name, "other": "x"}))
    assert entry == Entry("a.b", "Mine", frozenset({f"moebench.systems.{module}"}))
    for name in ("smoe", "a-b:Mine", ":Mine", "mine:"):
        assert one._entries(run(name)) == ()
    assert one._entries({"spec": {"system": "mine:Mine"}}) == (Entry("mine", "Mine", frozenset()),)


def test_a_package_has_its_former_modules_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(value="new:Mine")
    monkeypatch.setattr(place, "installed", lambda: SimpleNamespace(usable={"theirs": plugin}))
    found = placing()._entries(run("theirs"))
    assert [one.module for one in found] == ["new", "old", "a.older", "older"]
    assert {one.name for one in found} == {"Mine"}


def test_versions_of_a_system_are_those_of_all_policies_that_its_runs_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = {"": [0, 3], "evict_a": [1, 3], "nowhere": [4]}
    one = placing()

    def entries(run: Any) -> Any:
        name, _, policy = run["spec"]["system"].partition("+")
        return (Entry(name, "S", frozenset({policy})),) if name != "gone" else ()

    def system(key: Any) -> Any:
        (policy,) = key[0].policies
        return SimpleNamespace(nowhere=policy == "nowhere", starts=lambda commits: starts[policy])

    monkeypatch.setattr(one, "_entries", entries)
    monkeypatch.setattr(one, "_system", system)
    monkeypatch.setattr(one, "_latest", lambda entries: dict.fromkeys(entries, "mine"))
    monkeypatch.setattr(one, "_placed", lambda run, name, system: [])
    runs = ("a", "a", "b+evict_a", "c+nowhere", "c+nowhere", "gone")
    found = one.found([run(name) for name in runs])
    assert found.versions == {"mine": [0, 1, 3]}
    assert found.left_out == [
        "2 runs of c+nowhere: no commit of /repository has c",
        "1 run of gone: its package is not installed, which names its modules",
    ]


class Renamed(Repository):
    """Files of a package were renamed twice; the last one is there."""

    def __init__(self, there: str) -> None:
        super().__init__()
        self.there = there

    def renames(self, since: str) -> list[tuple[str, str]]:
        return [("one.py", "two.py"), ("three/__init__.py", "two.py"), ("x.py", "y.py")]

    def read(self, commit: str, file: str) -> bytes | None:
        assert commit == "c4"
        return b"" if file == self.there else None


@pytest.mark.parametrize(
    ("there", "last"), [("one.py", "one:S"), ("two.py", "two:S"), ("three/__init__.py", "three:S")]
)
def test_renamed_systems_are_one_and_have_the_name_of_the_file_that_is_there(
    there: str, last: str
) -> None:
    """Other classes of the same files, and files that were not renamed, are others."""
    commits = [SimpleNamespace(id=f"c{n}", time=float(n)) for n in range(5)]
    one = place._Placing(Renamed(there), commits, "c0", None)  # type: ignore[arg-type]
    names = ("one:S", "two:S", "three:S", "two:T", "one:T", "four:S", "x:S")
    entries = {name: Entry(*name.split(":"), frozenset()) for name in names}
    found = one._latest(entries)
    assert {found[name] for name in names[:3]} == {last}
    # Without a file that is there, the last by name.
    others = {"one.py": "one:T", "two.py": "two:T"}.get(there, "two:T")
    assert {found[name] for name in ("one:T", "two:T")} == {others}
    assert {name: found[name] for name in ("four:S", "x:S")} == {"four:S": "four:S", "x:S": "x:S"}


def test_versions_of_moebench_that_a_run_may_have_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "code_hash", lambda: "code")
    monkeypatch.setattr(place, "Tree", lambda *given, **more: (given, more))

    def bases(made: Any, current: Any, ours: Any = None, code: str = "code") -> Any:
        monkeypatch.setattr(place, "commit", lambda: current)
        one = placing(ours)
        found = one._bases({"provenance": {"commit": made, "code_hash": code}})
        return found, set(one._ours)

    known = Repository("abcdef1")
    assert bases("abcdef1", "abcdef1") == (([None], True), {None})
    assert bases(None, None) == (([None], True), {None})
    assert bases(None, None, code="other") == (([None], False), {None})
    assert bases("abcdef1", "1234567") == (([None], False), {None})
    assert bases("abcdef1", "1234567", known) == ((["abcdef1", None], True), {None, "abcdef1"})
    for made in ("abcdef2", "abc", "--all  ", None):
        assert bases(made, "1234567", Repository("abc", "--all  ", "None")) == (
            ([None], False), {None}
        )  # fmt: skip


def test_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "installed", lambda: SimpleNamespace(usable={}))
    found = placing().found([run("gone"), run("gone"), run("other")])
    assert found.placed == []
    assert found.versions == {}
    first, second = found.left_out
    assert first.startswith("2 runs of gone: its package is not installed, which names its modules")
    assert second.startswith("1 run of other: its package is not installed")


def test_five_details_are_listed() -> None:
    assert place._listed(["", ""]) == ""
    assert place._listed(["b", "a", "b", ""]) == " (a, b)"
    assert place._listed(list("fedcb")) == " (b, c, d, e, f)"
    assert place._listed(list("gfedcba")) == " (a, b, c, d, e, ...)"
