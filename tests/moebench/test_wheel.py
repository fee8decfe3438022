"""Two wheels: each file is in one of them, and together they work next to equal package names.

`make wheels` builds the wheels as they are released, and gives their folder as MOEBENCH_WHEELS.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

#: Folders of ours whose names are common: another's package of that name must not be in the way.
FOREIGN = ("systems", "results", "harness", "reports", "workloads", "substrate")

#: Files of the wheel of the weights, as paths below `moebench/`.
WEIGHTS = re.compile(r"substrate/catalogue/scale/[^/]+/model\.safetensors")

pytestmark = pytest.mark.skipif(
    "MOEBENCH_WHEELS" not in os.environ and "MOEBENCH_REQUIRE" not in os.environ,
    reason="wheels take half a minute to build: make wheels",
)

#: The most bytes of the wheel of moebench itself.
MOST_BYTES = 10_000_000


def _run(*command: object, cwd: Path) -> str:
    done = _try(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _try(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )


class Wheels(NamedTuple):
    """The wheel of moebench itself, and that of the scale models' weights."""

    core: Path
    weights: Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what wheels are built from, so that no build folder is left in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "dependencies.txt", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "packages", copy / "packages", symlinks=True)
    (copy / "moebench").mkdir()
    for path in (ROOT / "moebench").iterdir():
        if path.name != "__pycache__":
            (copy / "moebench" / path.name).symlink_to(path.resolve())
    for folder in (copy, copy / "packages" / "weights"):
        shutil.rmtree(folder / "build", ignore_errors=True)
        # Weights do not compress, and trying takes longer than the rest of this test.
        (folder / "setup.cfg").write_text("[bdist_wheel]\ncompression = stored\n")
    return copy


@pytest.fixture(scope="module")
def wheels(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Return the wheels that `make wheels` has built, or build them."""
    out = Path(os.environ.get("MOEBENCH_WHEELS") or tmp_path_factory.mktemp("wheels"))
    if "MOEBENCH_WHEELS" not in os.environ:
        offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
        both = (source, source / "packages" / "weights")
        _run(sys.executable, "-m", "pip", "wheel", *offline, "-w", out, *both, cwd=out)
    (core,), (weights,) = out.glob("moebench-*.whl"), out.glob("moebench_weights-*.whl")
    return Wheels(core, weights)


def _installed(wheel: Path) -> list[str]:
    """Return the files that a wheel installs, other than its metadata."""
    return [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]


def _metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    return Parser().parsestr(archive.read(name).decode())


def misplaced(core: Iterable[str], weights: Iterable[str], wanted: set[str]) -> set[str]:
    """Return the files below `moebench/` that are not in exactly the right one of two wheels."""
    light = {name for name in wanted if not WEIGHTS.fullmatch(name)}
    return (light ^ set(core)) | ((wanted - light) ^ set(weights)) | (set(core) & set(weights))


def test_each_file_is_in_the_right_wheel(wheels: Wheels) -> None:
    files = [f for name in (*FOREIGN, "moebench") for f in (ROOT / name).rglob("*") if f.is_file()]
    wanted = {
        file.relative_to(ROOT).as_posix().removeprefix("moebench/")
        for file in files
        if "__pycache__" not in file.parts
    }
    core, weights = _installed(wheels.core), _installed(wheels.weights)
    for names in (core, weights):
        assert {name.partition("/")[0] for name in names} == {"moebench"}
        assert len(names) == len(set(names))
    found = [[name.removeprefix("moebench/") for name in names] for names in (core, weights)]
    assert misplaced(*found, wanted) == set()


HEAVY, LIGHT = "substrate/catalogue/scale/x/model.safetensors", "substrate/a.py"


@pytest.mark.parametrize(
    ("core", "weights", "wrong"),
    [
        ({LIGHT}, {HEAVY}, set()),
        ({LIGHT}, set(), {HEAVY}),
        (set(), {HEAVY}, {LIGHT}),
        ({LIGHT, HEAVY}, {HEAVY}, {HEAVY}),
        ({LIGHT}, {HEAVY, LIGHT}, {LIGHT}),
        ({LIGHT, "old.py"}, {HEAVY}, {"old.py"}),
        ({HEAVY}, {LIGHT}, {HEAVY, LIGHT}),
    ],
)
def test_misplaced_files_are_found(core: set[str], weights: set[str], wrong: set[str]) -> None:
    assert misplaced(core, weights, {LIGHT, HEAVY}) == wrong


def test_core_wheel_is_small_and_requires_the_weights_of_its_version(wheels: Wheels) -> None:
    assert wheels.core.stat().st_size < MOST_BYTES < wheels.weights.stat().st_size
    core, weights = map(_metadata, wheels)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert core["Version"] == weights["Version"] == version
    assert f"moebench-weights=={version}" in core.get_all("Requires-Dist", [])
    assert weights.get_all("Requires-Dist") is None


#: Writes the metadata of an editable install, and builds one as front ends do that ask for none.
EDITABLE = """
import sys
sys.path.insert(0, "packages")
import core_backend
_, metadata, built = sys.argv  # which setuptools changes
core_backend.prepare_metadata_for_build_editable(metadata)
core_backend.build_editable(built)
"""


class Editable(NamedTuple):
    """Metadata of an editable install, and the wheel that installs it."""

    metadata: Path
    wheel: Path


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Editable:
    metadata, built = tmp_path_factory.mktemp("metadata"), tmp_path_factory.mktemp("editable")
    _run(sys.executable, "-c", EDITABLE, metadata, built, cwd=source)
    (written,), (wheel,) = metadata.glob("*/METADATA"), built.glob("*.whl")
    return Editable(written, wheel)


def test_an_editable_install_requires_no_weights(editable: Editable) -> None:
    for found in (Parser().parsestr(editable.metadata.read_text()), _metadata(editable.wheel)):
        needed = [re.split(r"[^\w-]", line)[0] for line in found.get_all("Requires-Dist", [])]
        assert "torch" in needed
        assert "moebench-weights" not in needed


Install = Callable[[Path], None]


@pytest.fixture
def environment(tmp_path: Path) -> tuple[Path, Install]:
    """Return the Python of a new environment with our dependencies, and a way to install there."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                     cwd=tmp_path).strip())  # fmt: skip
    # What we depend on, from this environment; its own installation of moebench is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    quiet = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *quiet)

    def install(wheel: Path) -> None:
        _run(*pip, wheel.absolute(), cwd=tmp_path)

    return python, install


def test_installed_wheels_run_next_to_packages_of_equal_names(
    wheels: Wheels, environment: tuple[Path, Install], tmp_path: Path
) -> None:
    python, install = environment
    install(wheels.core)
    site = Path(next((tmp_path / "venv").rglob("dependencies.pth"))).parent
    work = tmp_path / "work"
    for place in (site, work):
        for name in FOREIGN:
            (place / name).mkdir(parents=True)
            (place / name / "__init__.py").write_text("raise ImportError('not moebench')")
    moebench = (python, "-m", "moebench")
    where = _run(
        python, "-c", "import moebench.systems; print(moebench.systems.__file__)", cwd=work
    )
    assert Path(where.strip()).is_relative_to(site)
    assert "smoe" in _run(*moebench, "list", "systems", cwd=work)
    job = ("run", "--system", "smoe", "--setting", "S3", "--prompts", 1, "--new-tokens", 2)
    refused = _try(*moebench, *job, cwd=work)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        2,
        "moebench: the weights of the scale models are not installed; type: "
        "pip install moebench-weights",
    )
    doctor = _try(*moebench, "doctor", cwd=work)
    assert (doctor.returncode, doctor.stdout.count("BROKEN")) == (1, 1)
    assert "scale models\tBROKEN\tthe weights of the scale models are not" in doctor.stdout
    install(wheels.weights)
    assert "BROKEN" not in _run(*moebench, "doctor", cwd=work)
    assert "TPOT" in _run(*moebench, *job, cwd=work)
    assert "1 run in" in _try(*moebench, "report", "--html", "report.html", cwd=work).stderr


def test_weights_that_hide_an_editable_install_are_one_line(
    wheels: Wheels, editable: Editable, environment: tuple[Path, Install], tmp_path: Path
) -> None:
    python, install = environment
    install(editable.wheel)
    command = python.parent / "moebench"
    assert "smoe" in _run(command, "list", "systems", cwd=tmp_path)
    install(wheels.weights)
    hidden = _try(command, "list", "systems", cwd=tmp_path)
    assert (hidden.returncode, hidden.stdout, hidden.stderr) == (
        2, "",
        "moebench: the installed moebench-weights hide this checkout, which has its own; type: "
        "pip uninstall moebench-weights\n",
    )  # fmt: skip
