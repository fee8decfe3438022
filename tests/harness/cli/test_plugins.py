"""A system of another package: really installed, found by its entry point, run by its name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.commands import SMALL, call, run

pytestmark = pytest.mark.usefixtures("tiny_models")

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "moebench-newest"
version = "0.3"
description = "Keeps the newest experts"

[project.entry-points."moebench.systems"]
newest = "moebench_newest:Newest"
needs-nosuch = "moebench_newest.broken:Newest"
smoe = "moebench_newest:Newest"

[tool.setuptools]
packages = ["moebench_newest"]
"""

SOURCE = '''
"""Newest: keeps what came last."""

from dataclasses import dataclass, field

from moebench import Eviction
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.evict import FirstInFirstOut


@dataclass(kw_only=True)
class Oldest(FirstInFirstOut):
    """Evicts what came first."""


@dataclass(kw_only=True)
class Newest(MoEOnDemand):
    paper = "nowhere"
    evict: Eviction = field(default_factory=Oldest)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package was installed."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site-packages")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "moebench_newest").mkdir()
    (source / "moebench_newest" / "__init__.py").write_text(SOURCE)
    (source / "moebench_newest" / "broken.py").write_text("import nosuch_module")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation")
    offline = ("--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, *offline, "--target", site, source], check=True, capture_output=True)
    return site


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "moebench_newest"]:
        del sys.modules[name]


@pytest.mark.slow
def test_it_is_listed_and_nothing_of_it_is_imported():
    called = call("list", "systems", "--json")
    rows = {row["system"]: row for row in called.json}
    about = "of moebench-newest 0.3: Keeps the newest experts"
    assert rows["newest"] == {"system": "newest", "what": about, "shipped": None, "earlier": None}
    assert rows["needs-nosuch"]["what"] == about
    assert "substitute" in rows["smoe"]["what"]
    assert called.err.count("\n") == 1
    assert "moebench-newest 0.3 offers a system 'smoe', but moebench has one" in called.err
    assert "moebench_newest" not in sys.modules


def test_it_is_described_and_a_broken_one_is_a_line():
    called = call("list", "systems", "--long")
    assert called.code == 0
    assert "## newest\n\nNewest: keeps what came last.  nowhere." in called.out
    assert "needs-nosuch (of moebench-newest 0.3): cannot import" in called.err
    assert called.err.count("\n") == 2


def test_it_runs_by_its_name_as_any_other():
    document = run("newest", "--capacity", "0.25")
    assert document["spec"]["system"] == "newest"
    assert document["spec"]["options"]["evict"] == "Oldest"
    same = run("moe-ondemand", "--capacity", "0.25", "--set", "evict=fifo")
    assert document["metrics"]["tpot_ms"] == same["metrics"]["tpot_ms"]


def test_another_version_of_it_is_another_run(site: Path):
    first = run("newest")
    file = site / "moebench_newest" / "__init__.py"
    source = file.read_text()
    try:
        file.write_text(source + "\nCHANGED = 1\n")
        assert run("newest")["run_id"] != first["run_id"]
    finally:
        file.write_text(source)
    assert run("newest")["run_id"] == first["run_id"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["0", "1"])
def test_it_runs_in_sweeps_here_and_in_other_processes(jobs: str):
    called = call(
        "sweep", "--systems", "newest,moe-ondemand", "--settings", "S3", "--workloads",
        "arithmetic", "--prompts", "1", "--new-tokens", "2", "--jobs", jobs, "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert [cell["error"] for cell in called.json["cells"]] == [None, None]


def test_a_broken_one_is_one_line():
    called = call("run", "--system", "needs-nosuch", *SMALL)
    assert (called.code, called.out, called.err.count("\n")) == (2, "", 1)
    said = "cannot import moebench_newest.broken (ModuleNotFoundError: No module named 'nosuch_"
    assert said in called.err


def test_a_shadowed_name_is_ours_and_a_line_says_so():
    called = call("run", "--system", "smoe", *SMALL, "--no-interval", "--json")
    assert called.code == 0
    assert called.json["spec"]["options"]["evict"] == "score"
    assert "rename the entry point in the group moebench.systems" in called.err


def test_an_unknown_name_is_compared_with_theirs_too():
    assert "nearest: newest" in call("run", "--system", "newset", *SMALL).err
