"""The package of docs/adding-a-system.md is built, installed, run and checked as described."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import moebench
from moebench.conformance import CHECKS
from moebench.systems.registry import DECISIONS, policy_class
from tests.harness.commands import SMALL, call

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-system.md").read_text(encoding="utf-8")


def files() -> dict[str, str]:
    """Return the package's files: each code block follows a line that begins with its name."""
    found = re.findall(r"^`([\w.]+)` [^\n]*\n\n```\w+\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the page's package is installed."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site-packages")
    for name, text in files().items():
        (source / name).write_text(text)
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation")
    offline = ("--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, *offline, "--target", site, source], check=True, capture_output=True)
    (site / "test_cheaper.py").write_text(files()["test_cheaper.py"])
    return site


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    yield
    sys.modules.pop("moebench_cheaper", None)


def test_the_example_is_short_and_uses_public_names():
    source = files()["moebench_cheaper.py"]
    assert len(source.splitlines()) < 60
    tree = ast.parse(source)
    assert set(re.findall(r"\bmb\.(\w+)", source)) <= set(moebench.__all__)
    modules = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [name for name in modules if name.startswith("moebench")]
    assert all(name.startswith("moebench.systems.") for name in ours)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_example_system_is_listed_and_runs():
    listed = call("list", "systems").out
    assert "cheaper\tof moebench-cheaper 0.1: An expert that is missing goes" in listed
    options = ("--set", "assign.margin=2", "--set", "evict=lfu")
    called = call("run", "--system", "cheaper", *SMALL, *options, "--json")
    assert called.code == 0, called.err
    document = called.json
    assert document["lossless"]
    assert document["spec"]["options"]["assign"] == "LoadOrCompute"
    assert document["spec"]["options"]["assign.margin"] == "2.0"
    decode = document["metrics"]["experts"]["decode"]
    assert min(decode["loads"], decode["host"]) >= 0
    assert document["metrics"]["prefetch"]["issued"] > 0
    described = call("list", "systems", "--long").out
    assert "- The next layer's likeliest experts are fetched ahead." in described


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_doctor_accepts_the_example_system():
    called = call("doctor", "--system", "cheaper", "--jobs", "1")
    assert called.code == 0, called.out + called.err
    assert called.out.splitlines()[1] == "cheaper\tok\tok\tok\tok\tok"


@pytest.mark.slow
def test_example_systems_own_test_passes(site: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "loose and mixtral",
         site / "test_cheaper.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_methods_and_attributes_on_the_page_exist():
    """Methods and attributes that the page names."""
    plain = dict(zip(DECISIONS, ("none", "exact", "load", "none", "all", "lru"), strict=True))
    table = re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+)\(([\w, ]*)\)` \|", PAGE, re.MULTILINE)
    decision = ""
    for given, method, arguments in table:
        decision = given or decision
        code = getattr(policy_class(decision, plain[decision]), method).__code__
        named = code.co_varnames[1 : code.co_argcount]
        assert named == tuple(filter(None, arguments.split(", "))), (decision, method)
    assert len(table) == 12
    assert re.findall(r"^\| `(\w+)` \| [^|`]+", PAGE, re.MULTILINE)[-len(CHECKS) :] == list(CHECKS)
