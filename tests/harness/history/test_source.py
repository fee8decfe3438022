"""The hash of a system at a commit is the hash that its runs have, however it is written."""

import sys
from pathlib import Path

import pytest

from moebench.harness.history.repository import opened
from moebench.harness.history.source import Entry, SourceHistory
from moebench.harness.run.identity import system_hash
from moebench.systems.options import build
from tests.harness.history.projects import Project, system
from tests.modules import forget

PLAIN = "from moebench.systems.smoe import SMoE\n\n"

#: By name: the files, and the class.
LAYOUTS: dict[str, tuple[dict[str, str], str]] = {
    "one file": ({"mine.py": system()}, "mine:MySystem"),
    "a helper, libraries and what is not there": (
        {"mine.py": system(above="import json\nimport numpy as np\nimport helper\n"
                                 "try:\n    import not_there\nexcept ImportError: pass\n"),
         "helper.py": "import deeper.part\n", "deeper/part.py": "A = 1\n"},
        "mine:MySystem",
    ),
    "a package": (
        {"pack/__init__.py": "from .inner import MySystem as Other\n",
         "pack/inner.py": system(above="from . import parts\nfrom .parts.one import A\n"),
         "pack/parts/__init__.py": "", "pack/parts/one.py": "A = 1\n", "pack/parts/two.py": ""},
        "pack.inner:MySystem",
    ),
    "a class that is imported by another name": (
        {"mine.py": "from pack.inner import MySystem as Mine\nB = 1\n",
         "pack/__init__.py": "", "pack/inner.py": system()},
        "mine:Mine",
    ),
    "a class of moebench": ({"mine.py": "from moebench.systems.smoe import SMoE\n"}, "mine:SMoE"),
    "declared files": (
        {"mine.py": PLAIN + "class Mine(SMoE):\n    sources = ('notes.txt', 'tables')\n",
         "notes.txt": "1", "tables/b.csv": "2", "tables/a/c.csv": "3"},
        "mine:Mine",
    ),
    "inherited declared files, in a package": (
        {"pack/__init__.py": "",
         "pack/base.py": PLAIN + "from typing import ClassVar\n\nclass Base(SMoE):\n"
                                 "    sources: ClassVar = ('../data',)\n",
         "pack/mine.py": "from .base import Base\n\nclass Mine(Base):\n    pass\n",
         "data/x": "1"},
        "pack.mine:Mine",
    ),
    "comments": ({"mine.py": '"""Says."""\n# why\n' + system()}, "mine:MySystem"),
    "a file that cannot be read and is imported": (
        {"mine.py": system(above="try:\n    import broken\nexcept SyntaxError: pass\n"),
         "broken.py": "def f(\n"},
        "mine:MySystem",
    ),
}  # fmt: skip


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(here)
    yield Project(here)
    forget(here)


def at(project: Project, name: str, commit: str = "HEAD", policies: tuple[str, ...] = ()) -> str:
    """Return the only hash of a system at a commit."""
    module, _, attribute = name.partition(":")
    entry = Entry(module, attribute, frozenset(policies))
    with opened(project.folder) as repository:
        top = module.partition(".")[0]
        folders = {top: repository.folders_of(top)}
        (version,) = SourceHistory((entry,), repository, folders, {None: None}, {}).at(commit, None)
    return version.hash


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_hash_at_a_commit_is_that_of_a_run(project: Project, layout: str) -> None:
    files, name = LAYOUTS[layout]
    first = project.commit("Begin", files)
    ran = system_hash(build(name))
    assert at(project, name) == ran
    # Every file whose content counts in a run counts at a commit, and no other.
    for file, text in files.items():
        project.commit(f"Edit {file}", {file: f"{text}\nEDITED = 1\n"})
        now = system_hash(build(name))
        assert at(project, name) == now, file
        project.commit(f"Restore {file}", {file: text})
    # The work tree is another one now.
    project.write({file: f"{text}\nOTHER = 1\n" for file, text in files.items()})
    assert at(project, name, first) == ran


def test_the_folder_of_the_system_may_be_below_the_root(here: Path, project: Project) -> None:
    project.commit("Begin", {"code/v1/mine.py": system(above="import helper\n"),
                             "code/v1/helper.py": "A = 1\n", "README": "x"})  # fmt: skip
    sys.path.insert(0, str(here / "code" / "v1"))
    try:
        assert at(project, "mine:MySystem") == system_hash(build("mine:MySystem"))
    finally:
        sys.path.remove(str(here / "code" / "v1"))


def test_a_policy_that_is_chosen_with_an_option_counts(project: Project) -> None:
    project.commit("Begin", {"mine.py": system()})
    ran = system_hash(build("mine:MySystem", {"evict": "arc"}))
    assert at(project, "mine:MySystem", policies=("moebench.systems.policies.caches",)) == ran
    assert at(project, "mine:MySystem") != ran


def test_a_module_that_is_only_in_the_work_tree_is_not_of_the_commit(project: Project) -> None:
    project.commit("Begin", {"mine.py": system(above="try: import helper\nexcept ImportError: 0")})
    ran = system_hash(build("mine:MySystem"))
    project.write({"helper.py": "A = 1\n"})
    assert system_hash(build("mine:MySystem")) != ran
    assert at(project, "mine:MySystem") == ran


def test_a_computed_import_is_not_known_without_running_it(project: Project) -> None:
    above = "import importlib\nimportlib.import_module('hel' + 'per')"
    project.commit("Begin", {"mine.py": system(above=above), "helper.py": "A = 1\n"})
    assert at(project, "mine:MySystem") != system_hash(build("mine:MySystem"))


def test_no_code_of_a_commit_is_run(project: Project) -> None:
    project.commit("Begin", {"mine.py": system(above="open('ran', 'w').close()")})
    at(project, "mine:MySystem")
    assert not (project.folder / "ran").exists()
