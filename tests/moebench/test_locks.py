"""The locks: versions of constraints.txt with hashes, complete, and kept by pip."""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-docs.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Requirements of the core that an editable install has: all but the weights.
CORE = [
    line for line in (ROOT / "dependencies.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith(("#", "moebench"))
]  # fmt: skip

#: Not in the lock: torch, the packages that only its builds for GPUs need, and the weights, which
#: are in the checkout.
UNHASHED = re.compile(r"torch|triton|nvidia-.*|cuda-.*|moebench-weights")


def read_lock(text: str) -> dict[str, Requirement]:
    """Return a lock's packages by name; each must have a version and SHA-256 hashes."""
    found = {}
    for entry in re.split(r"(?<!\\)\n", re.sub(r"^#.*\n", "", text, flags=re.M).strip()):
        package, *hashes = re.split(r"\s+\\\n\s+", entry)
        requirement = Requirement(package)
        assert str(requirement.specifier).startswith("=="), entry
        assert hashes, entry
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), entry
        found[canonicalize_name(requirement.name)] = requirement
    return found


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    split = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in split}


def lock(name: str) -> dict[str, Requirement]:
    return read_lock((ROOT / name).read_text(encoding="utf-8"))


def needed(names: list[str]) -> Iterator[str]:
    """Yield every package that requirements need in this environment, theirs included."""
    locked = lock("requirements.lock").values()
    elsewhere = {
        canonicalize_name(one.name) for one in locked if one.marker and not one.marker.evaluate()
    }
    open_, seen = [Requirement(name) for name in names], set()
    while open_:
        requirement = open_.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            yield name
            if name in elsewhere:  # not installed here, so its own requirements are not known
                continue
            for below in map(Requirement, importlib.metadata.requires(name) or ()):
                if UNHASHED.fullmatch(canonicalize_name(below.name)):
                    continue
                if below.marker is None or below.marker.evaluate({"extra": extra}):
                    open_.append(below)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_the_versions_of_the_constraints(name: str) -> None:
    found, pinned = lock(name), pins()
    # A package with a marker may be of another platform, on which no test was run.
    unmarked = {one for one, requirement in found.items() if requirement.marker is None}
    assert unmarked - set(pinned) == set(), "add these to constraints.txt, then: make lock"
    assert {one: str(found[one].specifier) for one in set(found) & set(pinned)} == {
        one: f"=={pinned[one]}" for one in set(found) & set(pinned)
    }, "make lock"
    assert not any(UNHASHED.fullmatch(one) for one in found)


def test_the_lock_holds_all_that_moebench_and_its_tests_need() -> None:
    extras = PROJECT["optional-dependencies"]
    found = set(needed([*CORE, *extras["dev"]])) - {"torch", "moebench"}
    assert {"numpy", "sympy", "pytest", "tokenizers"} <= found
    assert found - set(lock("requirements.lock")) == set(), "make lock"
    named = {canonicalize_name(Requirement(one).name) for one in extras["docs"]}
    assert named <= set(lock("requirements-docs.lock")), "make lock"


def test_what_a_lock_lacks_is_found() -> None:
    assert "tqdm" in set(needed(["transformers"]))
    assert "tqdm" not in set(needed(["pytest"]))
    digest = "0" * 64
    good = f"# made by\na==1 \\\n    --hash=sha256:{digest}\nb==2 ; sys_platform == 'win32' \\\n"
    good += f"    --hash=sha256:{digest} \\\n    --hash=sha256:{digest}\n"
    assert set(read_lock(good)) == {"a", "b"}
    for wrong in ("a==1\n", "a>=1 \\\n    --hash=sha256:" + digest, "a==1 \\\n    --hash=md5:0"):
        with pytest.raises(AssertionError):
            read_lock(wrong)


def made(target: str) -> list[str]:
    """Return the pip commands with which `make` makes a target from nothing."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = done.stdout.replace("\\\n", " ")
    return re.findall(r"-m pip install (.*?) >>", text)


HASHED = "--require-hashes --no-deps --no-build-isolation"


def test_make_installs_by_hash_what_is_in_a_lock() -> None:
    setuptools, rest, torch, own = (" ".join(line.split()) for line in made(".venv/installed"))
    assert setuptools.endswith(f"{HASHED} -r .venv/setuptools.lock")
    assert rest.endswith(f"{HASHED} -r requirements.lock")
    assert torch.endswith("-c constraints.txt torch")
    assert own.endswith("--no-deps --no-build-isolation -e .")
    (docs,) = made(".venv-docs/installed")
    assert " ".join(docs.split()).endswith(f"{HASHED} -r requirements-docs.lock")


def wheel(folder: Path, content: Mapping[str, str]) -> Path:
    """Write a wheel of a package `tiny`."""
    path = folder / "tiny-1-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        for name, text in about.items():
            archive.writestr(f"tiny-1.dist-info/{name}", text)
    return path


@pytest.mark.parametrize("changed", [False, True], ids=["the same file", "another file"])
def test_pip_refuses_a_file_whose_hash_is_not_in_the_lock(tmp_path: Path, changed: bool) -> None:
    file = wheel(tmp_path, {"tiny.py": "x = 1\n"})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "tiny.lock").write_text(f"tiny==1 \\\n    --hash=sha256:{digest}\n")
    if changed:
        wheel(tmp_path, {"tiny.py": "x = 2\n"})
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *HASHED.split(), "--no-index", "--find-links",
         tmp_path, "--target", tmp_path / "site", "-r", tmp_path / "tiny.lock"],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == changed, done.stderr
    assert ("DO NOT MATCH THE HASHES" in done.stderr) == changed
    assert (tmp_path / "site" / "tiny.py").exists() != changed
