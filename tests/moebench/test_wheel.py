"""The wheel installs one import name, and works next to packages with its folders' names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Folders of ours whose names are common: another's package of that name must not be in the way.
FOREIGN = ("systems", "results", "harness", "reports", "workloads", "substrate")


def _run(*command: object, cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of this checkout outside of it, so that no build folder is left there."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "moebench").mkdir()
    for path in (ROOT / "moebench").iterdir():
        if path.name != "__pycache__":
            (source / "moebench" / path.name).symlink_to(path.resolve())
    # Weights do not compress, and trying takes longer than the rest of this test.
    (source / "setup.cfg").write_text("[bdist_wheel]\ncompression = stored\n")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    _run(sys.executable, "-m", "pip", "wheel", *offline, "-w", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_contains_every_file_once(wheel: Path) -> None:
    files = [f for name in (*FOREIGN, "moebench") for f in (ROOT / name).rglob("*") if f.is_file()]
    expected = {
        file.relative_to(ROOT).as_posix().removeprefix("moebench/")
        for file in files
        if "__pycache__" not in file.parts
    }
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    assert {name.partition("/")[0] for name in names} == {"moebench"}
    assert {name.removeprefix("moebench/") for name in names} == expected


def test_installed_wheel_runs_next_to_packages_of_equal_names(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                     cwd=tmp_path).strip())  # fmt: skip
    # What we depend on, from this environment; its own installation of moebench is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    quiet = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *quiet)
    _run(*pip, wheel, cwd=tmp_path)
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
    assert "TPOT" in _run(*moebench, *job, cwd=work)
    assert "1 runs in" in subprocess.run(
        [*map(str, moebench), "report", "--html", "report.html"],
        cwd=work, capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
