"""A repository read from outside: commits, renames and files, beside a history made with git."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebench.harness.history.repository import Repository, opened
from moebench.substrate.errors import UsageError
from tests.harness.history.projects import FIRST, Project


class History:
    """Five commits: a package, a text, a rename, a side branch that is merged."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        commit = self.project.commit
        self.first = commit(
            "Begin", {"pack/one.py": "A = 1\n" * 9, "deep/in/two.py": "", "t.txt": "x"}
        )
        self.text = commit("Only\ttext", {"t.txt": "y"})
        self.renamed = commit("Rename", {"pack/one.py": None, "pack/new.py": "A = 1\n" * 9})
        self.project.git("checkout", "-q", "-b", "side", self.first)
        self.side = commit("Side", {"other/pack.py": "B = 1\n"})
        self.project.git("checkout", "-q", "main")
        self.project.git("merge", "-q", "--no-ff", "-m", "Merge", "side")
        self.merge = self.project.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("history") / "tree")


@pytest.fixture
def repository(history: History, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.chdir(history.project.folder)
    with opened(history.project.folder / "pack") as found:
        yield found


def test_commits_follow_first_parents_from_the_oldest(
    repository: Repository, history: History
) -> None:
    found = repository.commits_since("HEAD~3")
    assert [(one.id, one.subject) for one in found] == [
        (history.text, "Only\\ttext"), (history.renamed, "Rename"), (history.merge, "Merge"),
    ]  # fmt: skip
    assert found[0].time == FIRST + 2 * 60
    assert repository.commits_since(history.first) == found
    assert repository.root == history.project.folder.resolve()


@pytest.mark.parametrize(
    ("since", "says"),
    [
        ("HEAD", "--since HEAD: HEAD has no commit after it; give an earlier one, such as HEAD~5"),
        ("nope", "--since nope: no such commit in {}; allowed: a commit, branch or tag; see: git "
         "log --oneline"),
        ("--all", "--since --all: no such commit in {}; allowed: a commit, branch or tag; see: git "
         "log --oneline"),
    ],
)  # fmt: skip
def test_a_range_that_is_empty_or_unknown_is_refused(
    since: str, says: str, repository: Repository
) -> None:
    with pytest.raises(UsageError) as caught:
        repository.commits_since(since)
    assert str(caught.value) == says.format(repository.root)


def test_a_shallow_clone_lacks_commits(history: History, tmp_path: Path) -> None:
    clone = tmp_path / "shallow"
    source = f"file://{history.project.folder}"
    subprocess.run(["git", "clone", "-q", "--depth", "1", source, str(clone)], check=True)
    with opened(clone) as found, pytest.raises(UsageError, match="is a shallow clone, which lacks"):
        found.commits_since("HEAD")


def test_commits_of_all_branches_and_those_that_change_code(
    repository: Repository, history: History
) -> None:
    every = {history.first, history.text, history.renamed, history.side, history.merge}
    assert set(repository.every_commit(only_python=False)) == every
    python = set(repository.every_commit(only_python=True))
    assert {history.first, history.renamed, history.side} <= python
    assert history.text not in python
    assert repository.changing_python(history.first) == {history.renamed, history.merge}
    assert repository.renames(history.first) == {("pack/one.py", "pack/new.py")}
    assert repository.renames(history.renamed) == set()


def test_folders_that_ever_held_a_module_begin_with_this_one(
    repository: Repository, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository.folders_of("pack") == ["", "other/"]
    assert repository.folders_of("two") == ["deep/in/"]
    assert repository.folders_of("t") == []
    monkeypatch.chdir(history.project.folder / "other")
    assert repository.folders_of("pack") == ["other/", ""]


def test_files_are_read_as_they_were(repository: Repository, history: History) -> None:
    assert repository.read(history.first, "t.txt") == b"x"
    assert repository.read(history.text, "t.txt") == b"y"
    assert repository.read(history.first, "deep/in/two.py") == b""
    assert repository.read(history.renamed, "pack/one.py") is None
    assert repository.read(history.first, "pack") is None
    assert repository.read(history.first, "a\nb") is None
    assert repository.is_folder(history.first, "pack")
    assert not repository.is_folder(history.first, "t.txt")
    assert not repository.is_folder(history.first, "none")
    assert repository.has(history.side[:10])
    assert not repository.has("0" * 40)
    assert repository.files_below(history.merge, "") == [
        "deep/in/two.py", "other/pack.py", "pack/new.py", "t.txt",
    ]  # fmt: skip
    assert repository.files_below(history.merge, "deep") == ["in/two.py"]
    with pytest.raises(UsageError, match=r"^--since: git ls-tree failed in .*: fatal: "):
        repository.files_below(history.merge, "none")


def test_without_git_or_a_repository_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as caught, opened(tmp_path, "HEAD~3"):
        pass
    assert str(caught.value) == (
        f"--since HEAD~3: {tmp_path} is in no git repository; run it in the repository of your "
        "system, with the store's folder as --store"
    )
    monkeypatch.setattr(shutil, "which", lambda name: None)
    says = r"^--since x: needs git, which is not installed"
    with pytest.raises(UsageError, match=says), opened(tmp_path, "x"):
        pass
