"""The GitHub action: its structure, and its scripts run by bash with stand-ins for gh and pip."""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from moebench.substrate.machines.profile import MACHINES
from tests.harness.commands import call

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "actions" / "moebench-check"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")

# ----------------------------------------------------------------------------- structure


def problems(action: dict[str, Any]) -> list[str]:
    """Return what GitHub would refuse of a composite action, and what would be unsafe in it."""
    found = [key for key in ("name", "description") if not isinstance(action.get(key), str)]
    inputs = action.get("inputs", {})
    found += [f"input {name}" for name, one in inputs.items() if "description" not in one]
    found += [
        f"default of {name} is no text" for name, one in inputs.items()
        if not isinstance(one.get("default", ""), str)
    ]  # fmt: skip
    if action["runs"].get("using") != "composite":
        found.append("using")
    outputs: set[str] = set()
    for number, step in enumerate(action["runs"]["steps"]):
        found += [f"{number}: {key}" for key in {*step} - STEP_KEYS]
        if ("run" in step) == ("uses" in step):
            found.append(f"{number}: either run or uses")
        if "run" in step and step.get("shell") != "bash":
            found.append(f"{number}: shell")
        if "${{" in step.get("run", ""):
            found.append(f"{number}: an expression in a script")
        if "uses" in step and not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]):
            found.append(f"{number}: {step['uses']} has no version")
        found += [f"{number}: {name}" for name in _names(step) if not _known(name, inputs, outputs)]
        written = re.findall(r'echo "([\w-]+)=', step.get("run", ""))
        outputs |= {f"steps.{step.get('id')}.outputs.{name}" for name in written}
    for name, one in action.get("outputs", {}).items():
        found += [f"output {name}" for part in _names(one) if not _known(part, inputs, outputs)]
    used = _names(action["runs"])
    found += [f"unused input {name}" for name in inputs if f"inputs.{name}" not in used]
    return found


STEP_KEYS = {"name", "id", "if", "run", "shell", "env", "uses", "with", "working-directory"}


def _names(value: Any) -> list[str]:
    """Return the contexts that the expressions of a value read."""
    texts = [value] if isinstance(value, str) else []
    if isinstance(value, dict):
        conditions = [value["if"]] if isinstance(value.get("if"), str) else []
        names = [name for text in conditions for name in re.findall(r"\b\w+\.[\w.-]+", text)]
        return names + [name for one in value.values() for name in _names(one)]
    if isinstance(value, list):
        return [name for one in value for name in _names(one)]
    return [name for text in texts for name in EXPRESSION.findall(text)]


def _known(name: str, inputs: Any, outputs: set[str]) -> bool:
    if name.startswith("inputs."):
        return name.removeprefix("inputs.") in inputs
    return name in outputs or name.startswith(("github.", "runner."))


def test_the_action_has_the_structure_of_a_composite_action() -> None:
    assert problems(ACTION) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: a.pop("description"), "description"),
        (lambda a: a["runs"].update(using="node20"), "using"),
        (lambda a: a["runs"]["steps"][-1].pop("shell"), "shell"),
        (lambda a: a["runs"]["steps"][-1].update(uses="a/b@v1"), "either run or uses"),
        (lambda a: a["runs"]["steps"][-1].update(timeout=3), "timeout"),
        (lambda a: a["runs"]["steps"][-1].update(run="exit ${{ inputs.file }}"), "in a script"),
        (lambda a: a["runs"]["steps"][0].update(uses="actions/setup-python"), "no version"),
        (lambda a: a["inputs"].pop("comment"), "inputs.comment"),
        (lambda a: a["inputs"].update(other={"description": "x"}), "unused input other"),
        (lambda a: a["inputs"]["comment"].update(default=True), "default of comment"),
        (lambda a: a["runs"]["steps"].pop(1), "steps.files.outputs.pip"),
        (lambda a: a["outputs"]["exit-code"].update(value="${{ steps.x.outputs.y }}"), "output"),
    ],
)
def test_a_broken_action_is_refused(damage: Callable[[Any], Any], said: str) -> None:
    broken = copy.deepcopy(ACTION)
    damage(broken)
    assert any(said in line for line in problems(broken))


# ----------------------------------------------------------------------------- scripts

#: Lists, adds and changes comments as `gh api` does, in a file; fails where the file is not there.
GH = """
import json, os, pathlib, shutil, subprocess, sys
words = sys.argv[1:]
file = pathlib.Path(os.environ["COMMENTS"])
assert words.pop(0) == "api" and os.environ["GH_TOKEN"] == "token"
if not file.exists():
    sys.exit("HTTP 403: Resource not accessible by integration")
comments = json.loads(file.read_text())
if words[0] == "--paginate":
    assert words[1] == "repos/me/mine/issues/7/comments"
    assert words[2] == "--jq" and "env.MARK" in words[3]
    if shutil.which("jq"):
        sys.exit(subprocess.run(["jq", words[3], str(file)]).returncode)
    for one in comments:
        own = one["user"]["login"] == "github-actions[bot]"
        if own and one["body"].startswith(os.environ["MARK"]):
            print(one["id"])
    sys.exit()
assert words[0] == "--method"
field = words[words.index("--field") + 1]
assert field.startswith("body=@")
body = pathlib.Path(field.removeprefix("body=@")).read_text()
if words[1:3] == ["POST", "repos/me/mine/issues/7/comments"]:
    comments.append({"id": len(comments), "user": {"login": "github-actions[bot]"}, "body": body})
else:
    assert words[1] == "PATCH"
    start, _, number = words[2].rpartition("/")
    assert start == "repos/me/mine/issues/comments"
    comments[int(number)]["body"] = body
file.write_text(json.dumps(comments))
"""

PIP = """
import os, sys
if sys.argv[1:] == ["cache", "dir"]:
    print("/cache/of pip")
else:
    with open(os.environ["PIP_CALLS"], "a") as file:
        print(*sys.argv[1:], sep="\\t", file=file)
"""

MOEBENCH = "from moebench.__main__ import main\nraise SystemExit(main())\n"

#: A guard that passes at once.
PASSING = """
import pathlib, sys
file = pathlib.Path(sys.argv[sys.argv.index("--markdown") + 1])
file.parent.mkdir(parents=True)
file.write_text("Nothing moved.")
"""


class Job(NamedTuple):
    """What a job of the action left: exit code, log, summary, comments and calls of pip."""

    code: int
    log: str
    summary: str
    pip: list[list[str]]
    outputs: dict[str, str]


class Runner:
    """Runs the action's scripts as a GitHub runner does, in a folder of its own.

    Steps that use other actions are left out.
    """

    def __init__(self, folder: Path, moebench: str) -> None:
        self.folder = folder
        self.comments = folder / "comments.json"
        self.calls = folder / "pip.tsv"
        (folder / "bin").mkdir(parents=True)
        for name, text in (("gh", GH), ("pip", PIP), ("moebench", moebench)):
            program = folder / "bin" / name
            program.write_text(f"#!{sys.executable}\n{text}")
            program.chmod(0o755)

    def run(self, event: str = "pull_request", **inputs: str) -> Job:
        values = {name.replace("_", "-"): text for name, text in inputs.items()}
        unknown = values.keys() - ACTION["inputs"].keys()
        assert not unknown
        known = {
            f"inputs.{name}": values.get(name, one["default"])
            for name, one in ACTION["inputs"].items()
        } | {
            "github.token": "token", "github.event_name": event,
            "github.event.pull_request.number": "7" if event == "pull_request" else "",
        }  # fmt: skip
        summary, log = self.folder / "summary.md", ""
        summary.write_text("")
        self.calls.write_text("")
        code = 0
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if "uses" in step or not _true(step.get("if", ""), known):
                continue
            written = self.folder / f"output-{number}"
            written.write_text("")
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                env=self._environment(written, summary)
                | {key: _filled(text, known) for key, text in step.get("env", {}).items()},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            log += done.stdout + done.stderr
            for line in written.read_text().splitlines():
                name, _, value = line.partition("=")
                known[f"steps.{step['id']}.outputs.{name}"] = value
            code = done.returncode
            if code:
                break
        calls = [line.split("\t") for line in self.calls.read_text().splitlines()]
        return Job(code, log, summary.read_text(), calls, known)

    def _environment(self, written: Path, summary: Path) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "GITHUB_ACTION_PATH": str(FOLDER), "RUNNER_TEMP": str(self.folder / "a temp"),
            "GITHUB_OUTPUT": str(written), "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_REPOSITORY": "me/mine", "COMMENTS": str(self.comments),
            "PIP_CALLS": str(self.calls),
        }  # fmt: skip


def _filled(text: str, known: dict[str, str]) -> str:
    return EXPRESSION.sub(lambda found: known[found[1]], text)


def _true(condition: str, known: dict[str, str]) -> bool:
    """Return whether all equalities of a condition hold."""
    pairs = re.findall(r"([\w.]+) == '([^']*)'", condition)
    assert " && ".join(f"{name} == '{text}'" for name, text in pairs) == condition
    return all(known[name] == text for name, text in pairs)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path / "runner", PASSING)


@pytest.fixture
def real(tmp_path: Path) -> Runner:
    """Return a runner with the real command in place of a guard that passes."""
    return Runner(tmp_path / "runner", MOEBENCH)


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a guard of one cell without computation and accept it; return its machine's profile."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    common = {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 3,
              "routing": "drawn", "machine": "desk.yaml", "system": "moe-ondemand"}  # fmt: skip
    (folder / "a guard.yaml").write_text(json.dumps({"common": common}))
    profile = folder / "desk.yaml"
    profile.write_text((MACHINES / "a6000.yaml").read_text())
    made = ("check", "--file", "a guard.yaml", "--references", "accepted", "--jobs", "0")
    assert call(*made, "--update").code == 0
    return profile


GUARD = {"file": "a guard.yaml", "references": "accepted", "arguments": "--jobs  0\n--json"}


@pytest.mark.slow
def test_a_passing_then_a_failing_guard_keep_one_comment(real: Runner, guard: Path) -> None:
    runner = real
    others = [{"id": 0, "user": {"login": "someone"}, "body": "<!-- moebench check: mine -->"},
              {"id": 1, "user": {"login": "github-actions[bot]"}, "body": "coverage"}]  # fmt: skip
    runner.comments.write_text(json.dumps(others))
    passed = runner.run(name="mine", **GUARD)
    assert passed.code == 0, passed.log
    assert "Nothing moved." in passed.summary
    assert '"verdict": "pass"' in passed.log, "--json reached the command"
    first = json.loads(runner.comments.read_text())
    assert first[:2] == others
    assert first[2]["body"] == f"<!-- moebench check: mine -->\n{passed.summary}"

    text = guard.read_text()
    link = "pinned_h2d:\n    {value: 26, unit: GB/s, range: [26, 27.5]"
    assert link in text
    guard.write_text(text.replace(link, link.replace("26", "13")))
    failed = runner.run(name="mine", **GUARD)
    assert failed.code == 1
    assert "| regressed |" in failed.summary
    second = json.loads(runner.comments.read_text())
    assert second[:2] == others
    assert len(second) == 3, "the comment is replaced"
    assert second[2]["body"] == f"<!-- moebench check: mine -->\n{failed.summary}"
    assert failed.outputs["steps.check.outputs.exit-code"] == "1"
    folder = Path(failed.outputs["steps.files.outputs.folder"])
    assert sorted(path.name for path in folder.iterdir()) == ["junit.xml", "summary.md"]


def test_a_token_that_may_not_comment_does_not_change_the_result(runner: Runner) -> None:
    job = runner.run(**GUARD)
    assert job.code == 0
    assert "::warning::" in job.log
    assert "Nothing moved." in job.summary


@pytest.mark.parametrize("change", [{"event": "push"}, {"comment": "false"}])
def test_without_a_pull_request_or_by_choice_there_is_no_comment(
    runner: Runner, change: dict[str, str]
) -> None:
    runner.comments.write_text("[]")
    assert runner.run(**GUARD, **change).code == 0
    assert json.loads(runner.comments.read_text()) == []


def test_a_guard_that_is_refused_fails_with_its_line(
    real: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = real.run(file="$(touch hacked); nope.yaml", arguments="; touch hacked")
    assert job.code == 2
    assert "moebench: " in job.log
    assert job.summary == ""
    assert not Path("hacked").exists()


def test_the_action_installs_its_own_checkout_with_pinned_versions(
    runner: Runner, tmp_path: Path
) -> None:
    torch, own = runner.run(event="push", **GUARD).pip
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert torch[:2] == ["install", f"torch=={pinned[1]}"]
    assert own[:2] == ["install", "-c"]
    assert Path(own[2]).resolve() == ROOT / "constraints.txt"
    assert [Path(one).resolve() for one in own[3:]] == [ROOT / "packages" / "weights", ROOT]
    _, other = (
        Runner(tmp_path / "other", PASSING).run(event="push", package="a package", **GUARD).pip
    )
    assert other[3:] == ["a package"]


@pytest.mark.parametrize("name", ["", "a b", "a-->", "../x", "$(id)"])
def test_a_name_that_could_end_the_mark_or_the_folder_is_refused(runner: Runner, name: str) -> None:
    job = runner.run(name=name)
    assert job.code == 2
    assert "::error::name may have" in job.log
    assert job.pip == []
