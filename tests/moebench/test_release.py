"""The files of a release: changelog, citation and container."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- changelog

SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def versions(changelog: str) -> dict[str, list[str]]:
    """Return each version of a changelog with its sections."""
    found: dict[str, list[str]] = {}
    for line in changelog.splitlines():
        if line.startswith("## "):
            match = re.fullmatch(r"## \[(Unreleased|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)\]?", line)
            assert match, line
            found[match[1].partition("]")[0]] = []
        elif line.startswith("### "):
            found[list(found)[-1]].append(line.removeprefix("### "))
    return found


def test_the_changelog_is_one_of_keep_a_changelog() -> None:
    found = versions(read("CHANGELOG.md"))
    assert next(iter(found)) == "Unreleased"
    for sections in found.values():
        assert sections == [name for name in SECTIONS if name in sections]
    assert PROJECT["version"] in read("CHANGELOG.md")


def test_the_form_of_a_changelog_is_checked() -> None:
    text = "# Changelog\n## [Unreleased]\n### Added\n## [0.1.0] - 2026-01-31\n### Fixed\n"
    assert versions(text) == {"Unreleased": ["Added"], "0.1.0": ["Fixed"]}
    for wrong in ("## 0.1.0", "## [0.1.0]", "## [0.1.0] - January"):
        with pytest.raises(AssertionError, match=re.escape(wrong)):
            versions(wrong)


# ---------------------------------------------------------------- citation


def test_the_citation_agrees_with_the_package() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {*citation} >= {"cff-version", "message", "title", "authors"}  # what the format requires
    assert (citation["title"], citation["version"], citation["license"]) == (
        PROJECT["name"], PROJECT["version"], PROJECT["license"],
    )  # fmt: skip
    assert citation["authors"] == [{"name": "The moebench developers"}]


# ---------------------------------------------------------------- container


def instructions(text: str) -> list[tuple[str, str]]:
    """Return a Containerfile's instructions and their arguments."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def goals(text: str) -> list[str]:
    """Return what a Containerfile makes when it is built, and when it is run."""
    found = []
    for name, argument in instructions(text):
        if name == "RUN":
            found += re.findall(r"(?:^|&& )make (\S+)", argument)
        elif name == "CMD":
            program, *names = yaml.safe_load(argument)
            assert program == "make", argument
            found += names
    return found


def makes(goal: str) -> bool:
    """Return whether the Makefile has a rule for a goal."""
    command = ["make", "--dry-run", "--always-make", goal]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return done.returncode == 0


def test_the_container_makes_what_the_readme_says() -> None:
    found = goals(read("Containerfile"))
    assert found == [".venv/installed", "run", "test"]
    assert all(makes(goal) for goal in found)
    for goal in ("run", "test"):
        assert f"make {goal}" in read("README.md")
    assert not makes("runn")
    assert goals('RUN ls && make a\nCMD ["make", "b"]\n') == ["a", "b"]
    with pytest.raises(AssertionError):
        goals('CMD ["moebench"]\n')


def test_the_container_has_what_the_readme_needs() -> None:
    steps = instructions(read("Containerfile"))
    assert [name for name, _ in steps] == ["FROM", "RUN", "WORKDIR", "COPY", "ARG", "RUN", "CMD"]
    (needs,) = re.findall(r"^Needs Linux, (.*?), Python ([\d.]+) or newer", read("README.md"), re.M)
    packages = steps[1][1].partition("install")[2].partition("&&")[0].split()
    assert {*needs[0].split(", ")} <= {*packages}
    (python,) = re.findall(r"/python:([\d.]+)-slim", steps[0][1])
    assert f">={python}" == PROJECT["requires-python"] == f">={needs[1]}"


def test_the_container_gets_every_tracked_file_and_no_other() -> None:
    assert ("COPY", ". .") in instructions(read("Containerfile"))
    ignored = [line for line in read(".gitignore").splitlines() if line]
    kept_out = [line for line in read(".dockerignore").splitlines() if not line.startswith("#")]
    assert kept_out == [".git", *(f"**/{line.rstrip('/')}" for line in ignored)]
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == ""
