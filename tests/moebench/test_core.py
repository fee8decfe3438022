"""The core imports what `dependencies.txt` names and what that needs, and no other package."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from moebench.harness.extras import EXTRAS, WEIGHTS
from moebench.substrate.models.catalogue import FOLDER_VARIABLE, scale_path
from tests.harness.tiny import make_catalogue

ROOT = Path(__file__).parents[2]

FEW = "--workload arithmetic --prompts 2 --new-tokens 3"

#: Two cells, for `moebench check`.
CELLS = {
    "common": {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 3},
    "product": {"system": ["smoe", "moe-ondemand"]},
}

#: Commands of the core in the order in which they are run, with their exit code.
CORE = [
    ("--version", 0),
    (f"run --system smoe --setting S3 {FEW}", 0),
    (f"run --system moe-ondemand --setting S3 {FEW}", 0),
    (f"sweep --systems daop --settings S3 --jobs 2 {FEW.replace('workload', 'workloads')}", 0),
    ("compare smoe moe-ondemand", 0),
    ("report", 0),
    ("report --markdown", 0),
    ("report --csv tables --latex tables", 0),
    *((f"list {what}", 0) for what in ("systems", "settings", "models", "policies", "metrics")),
    ("machines show a6000", 0),
    (f"advise --setting S3 --tpot-ms 500 --systems smoe {FEW}", 0),
    ("check --file cells.yaml --references accepted --jobs 0 --update", 0),
    ("check --file cells.yaml --references accepted --jobs 0", 0),
    ("doctor", 0),
]

#: Commands that need an optional package, with the beginning of the line and the extra.
REFUSED = [
    ("report --html report.html", "--html: vl-convert-python", "figures"),
    ("report --figures drawn", "--figures: vl-convert-python", "figures"),
    ("reproduce smoe --quick --figures drawn", "--figures: vl-convert-python", "figures"),
    ("sweep --systems smoe --settings S3 --ray local", "--ray: ray", "ray"),
    ("eval --engine lm-eval --tasks passages --system smoe --setting S3", "lm-eval", "eval"),
    (
        f"run --system smoe --setting S3 {FEW} --workload truthfulqa_gen --scoring generation "
        "--data-dir data",
        "--workload truthfulqa_gen: rouge-score", "eval",
    ),
    (
        f"run --system smoe --weights chat --machine local --cache-ratio 0.5 {FEW} --scoring "
        "generation",
        "transformers", "hf",
    ),
]  # fmt: skip

#: Hides packages from a Python process and its children: they are as if not installed.
HIDE = """
import os, sys

HIDDEN = set(os.environ["HIDDEN"].split())

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, *more)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

#: Runs commands given as a JSON list, and prints the exit code and stderr of each.
RUN = """
import contextlib, io, json, sys
from moebench.harness.cli.app import main

if __name__ == "__main__":
    found = []
    for command in json.loads(sys.argv[1]):
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(command.split())
        found.append((code, said.getvalue()))
    print(json.dumps(found))
"""


def needed() -> set[str]:
    """Return the distributions of the core: those of `dependencies.txt` and all that they need."""
    lines = (ROOT / "dependencies.txt").read_text().splitlines()
    waiting = [line for line in lines if not line.startswith("#")]
    found: set[str] = set()
    while waiting:
        one = Requirement(waiting.pop())
        name = canonicalize_name(one.name)
        if name in found or name == WEIGHTS:
            continue
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        found.add(name)
        try:
            waiting += requires(name) or []
        except PackageNotFoundError as error:
            raise AssertionError(f"{name} of dependencies.txt is not installed") from error
    return found


def hidden() -> set[str]:
    """Return the import names of all installed packages that the core does not need."""
    kept = needed() | {"moebench", "coverage"}  # coverage starts in every process
    return {
        module
        for module, names in packages_distributions().items()
        if not kept & set(map(canonicalize_name, names))
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to work in, next to the module that hides packages."""
    site = tmp_path_factory.mktemp("core")
    (site / "sitecustomize.py").write_text(HIDE)
    (site / "run.py").write_text(RUN)
    make_catalogue(site / "tiny")
    work = site / "work"
    chat, ours = work / "chat", scale_path("mixtral-8x7b")
    for new in (chat, work / "data"):
        new.mkdir(parents=True)
    for file in ours.iterdir():
        (chat / file.name).symlink_to(file)
    (chat / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (work / "cells.yaml").write_text(json.dumps(CELLS))
    return work


def python(
    folder: Path, *arguments: str, hide: bool = True, tiny: bool = False
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*([str(folder.parent)] if hide else []), str(ROOT)])
    settings = {"PYTHONPATH": path, "HIDDEN": " ".join(hidden()), "OMP_NUM_THREADS": "1"}
    if tiny:
        settings[FOLDER_VARIABLE] = str(folder.parent / "tiny")
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, check=False
    )  # fmt: skip


def called(folder: Path, commands: list[str], tiny: bool = False) -> list[tuple[int, str]]:
    done = python(folder, str(folder.parent / "run.py"), json.dumps(commands), tiny=tiny)
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_optional_packages_are_hidden_and_the_cores_are_not(folder: Path) -> None:
    assert {"altair", "pandas", "pytest", "vl_convert", *EXTRAS} - hidden() <= {
        "huggingface_hub",  # which tokenizers needs
        *(name for name in EXTRAS if name not in packages_distributions()),
    }
    assert {"torch", "scipy", "tokenizers", "pyarrow"}.isdisjoint(hidden())
    for module in ("transformers", "altair"):
        refused = python(folder, "-c", f"import {module}")
        assert f"No module named '{module}'" in refused.stderr
        assert python(folder, "-c", f"import {module}", hide=False).returncode == 0
    assert python(folder, "-c", "import numpy, yaml, moebench").returncode == 0


@pytest.mark.slow
def test_core_commands_run_without_optional_packages(folder: Path) -> None:
    shipped = f"run --system smoe --setting S3 {FEW} --store shipped"
    assert called(folder, [shipped])[0][0] == 0
    found = called(folder, [command for command, _ in CORE], tiny=True)
    for (command, wanted), (code, said) in zip(CORE, found, strict=True):
        assert code == wanted, f"{command}: {said}"
    assert {file.suffix for file in (folder / "tables").iterdir()} == {".csv", ".tex"}
    assert (folder / "accepted" / "cells.json").exists()


@pytest.mark.slow
def test_commands_that_need_an_optional_package_say_which(folder: Path) -> None:
    found = called(folder, [command for command, *_ in REFUSED])
    for (command, begins, extra), (code, said) in zip(REFUSED, found, strict=True):
        line = f"moebench: {begins} is not installed; type: pip install 'moebench[{extra}]'\n"
        assert code == 2, command
        assert said.endswith(line), f"{command}: {said}"
        assert "Traceback" not in said
    assert not (folder / "report.html").exists()
