"""Every command of the README is carried out, on tiny models and with few prompts."""

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from moebench.substrate.models.catalogue import scale_path
from tests.harness.commands import SCALE_MODEL, call

pytestmark = pytest.mark.usefixtures("tiny_models")

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")

#: What makes a command small, by its first word; a reproduction only lists its cells.
FEW = ("--workload", "arithmetic", "--prompts", "1", "--new-tokens", "3", "--no-interval")
SMALLER = {
    "run": FEW,
    "sweep": ("--workloads", "arithmetic", "--prompts", "1", "--new-tokens", "3"),
    "reproduce": ("--dry-run",),
    "eval": ("--prompts", "1"),
    "advise": ("--systems", "smoe,moe-ondemand", "--prompts", "1", "--new-tokens", "3"),
    "doctor": ("--system", "moe-ondemand"),
    "search": ("--systems", "moe-ondemand,fiddler", "--trials", "1", "--jobs", "0",
               "--workload", "arithmetic", "--new-tokens", "3", "--calibrate-texts", "2"),
}  # fmt: skip
#: Commands whose exit code says what they found: no system within a budget, a finding, nothing.
FINDS = ("advise", "doctor", "search")
#: Systems that learn from hundreds of texts.
LEARN, FROM_FEW = ("flashmoe", "duoserve"), ("--calibrate-texts", "2")

#: Packages that a command needs, and how they are installed.
NEEDS = {
    "native-llamacpp": ("llama_cpp", "make native"),
    "lm-eval": ("lm_eval", "pip install '.[eval]'"),
}


def typed() -> Iterator[str]:
    """Yield each command of the table of tasks, and those of the text."""
    for row in re.findall(r"^\| [^|]+ \| (`moebench .*`) \|$", README, re.MULTILINE):
        yield from re.findall(r"`moebench ([^`]+)`", row)
    yield "--help"
    for what in re.findall(r"moebench list ([a-z|]+)", README)[0].split("|"):
        yield f"list {what}"


COMMANDS = list(typed())


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 25
    assert {line.split()[0] for line in COMMANDS} >= {"run", "sweep", "compare", "advise", "show"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has the runs that some commands read."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name, (package, how) in NEEDS.items():
        if name in line and find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {how}")
    words = shlex.split(line)
    smaller = () if "--gpu" in words else SMALLER.get(words[0], ())
    more = (*smaller, *(FROM_FEW if {*LEARN} & {*words} else ()))
    if words[0] in ("compare", "report", "show"):
        for system in ("smoe", "moe-ondemand"):
            made = call("run", "--system", system, "--setting", "S3", *FEW, "--json")
            assert made.code == 0, made.err
        run_id = made.json["run_id"]
        words = [run_id if word == "RUN" else word for word in words]
    words = [str(scale_path(SCALE_MODEL)) if word == "DIR" else word for word in words]
    called = call(*words, *more)
    assert called.code in ((0, 1) if words[0] in FINDS else (0,)), called.err
    assert "Traceback" not in called.err
    assert called.out or words[0] == "sweep" or "--html" in words


def test_the_example_system_runs_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(source)
    (command,) = re.findall(r"`moebench (run --system mine:MySystem [^`]+)`", README)
    called = call(*shlex.split(command), *FEW)
    assert called.code == 0, called.err
