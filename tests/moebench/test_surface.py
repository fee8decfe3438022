"""The public interface, written down: commands, options, names, a quick start."""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import moebench
from moebench.harness.cli.app import app
from tests.harness.commands import SMALL, call

ROOT = Path(__file__).parents[2]

# --------------------------------------------------------------------------- commands

OPTIONS = {
    "run": {
        "--system", "--variant", "--setting", "--workload", "--machine", "--software", "--model",
        "--weights", "--precision", "--batch", "--alpha", "--prompts", "--new-tokens",
        "--capacity", "--cache-ratio",
        "--slots", "--allow-overcommit", "--device-memory", "--free-host-gb",
        "--set", "--scoring", "--few-shot", "--plain-prompts", "--calibrate-from",
        "--calibrate-texts", "--seed", "--seeds", "--quick",
        "--data-dir", "--store", "--timeline", "--routing", "--trace", "--reconstruct-scores",
        "--clairvoyant",
        "--force", "--no-interval", "--json", "--emulated-link", "--page-cache",
        "--device", "--quant", "--expert-dtype", "--context", "--temperature", "--top-p",
    },
    "sweep": {
        "--systems", "--settings", "--models", "--machines", "--software", "--workloads",
        "--batches", "--alphas", "--capacities", "--cache-ratios", "--contexts",
        "--prompts", "--new-tokens", "--seeds",
        "--routings", "--temperatures",
        "--traces", "--set", "--jobs", "--ray", "--dry-run", "--force", "--retry-failed",
        "--no-samples", "--data-dir", "--store", "--json",
    },
    "search": {
        "--setting", "--settings", "--one-rule", "--model", "--machine", "--software", "--weights",
        "--precision", "--quant", "--expert-dtype", "--workload", "--batch", "--capacity",
        "--cache-ratio", "--slots", "--new-tokens", "--device-memory", "--free-host-gb",
        "--calibrate-texts", "--routing", "--seed", "--trials", "--hours", "--kl", "--systems",
        "--own", "--learned", "--name", "--out", "--jobs", "--ray", "--data-dir", "--store",
        "--json",
    },
    "list": {"--long", "--json"},
    "compare": {
        "--systems", "--settings", "--workloads", "--batches", "--mixed", "--store", "--markdown",
        "--json",
    },
    "report": {
        "--html", "--csv", "--latex", "--figures", "--markdown", "--intervals", "--accuracy",
        "--claims", "--since", "--metric", "--store", "--json", "--wandb", "--mlflow",
        "--shipped",
    },
    "show": {"--store", "--json"},
    "rm": {"--store"},
    "gc": {"--dry-run", "--store", "--json"},
    "accuracy": {
        "--settings", "--workloads", "--alphas", "--system", "--prompts", "--seed", "--jobs",
        "--out", "--data-dir", "--store",
    },
    "advise": {
        "--tpot-ms", "--accuracy-loss", "--by", "--setting", "--model", "--machine", "--software",
        "--weights", "--precision", "--quant", "--workload", "--batch", "--capacity",
        "--cache-ratio", "--systems", "--gpu", "--cpu", "--ram", "--memory", "--bandwidth",
        "--link", "--copies", "--disk", "--context", "--prompt", "--tokens", "--bits",
        "--lossless", "--engines", "--config", "--buy", "--html", "--fresh",
        "--alphas", "--prompts", "--new-tokens", "--calibrate-texts", "--seed", "--jobs",
        "--data-dir", "--store", "--json",
    },
    "check": {
        "--file", "--references", "--update", "--jobs", "--junit", "--markdown", "--data-dir",
        "--json",
    },
    "timeline": {"--out", "--store"},
    "calibrate": {
        "--weights", "--model", "--emulated-link", "--device", "--precision", "--out", "--quick",
        "--store", "--json",
    },
    "validate": {
        "--profile", "--weights", "--model", "--emulated-link", "--device", "--precision",
        "--systems", "--set", "--capacity", "--cache-ratio",
        "--workload", "--batch", "--prompts", "--new-tokens",
        "--calibrate-texts", "--repeats", "--data-dir", "--store", "--out", "--json",
        "--published", "--left-out", "--check", "--html", "--add-row",
    },
    "eval": {
        "--engine", "--tasks", "--system", "--variant", "--setting", "--machine", "--software",
        "--model", "--weights", "--precision", "--batch", "--alpha", "--prompts", "--few-shot",
        "--mode", "--max-length", "--capacity", "--cache-ratio",
        "--slots", "--allow-overcommit", "--set",
        "--calibrate-from", "--calibrate-texts", "--seed", "--task-files", "--keep", "--data-dir",
        "--store", "--force", "--json", "--quant", "--expert-dtype",
        "--device-memory", "--free-host-gb", "--emulated-link", "--page-cache", "--device",
        "--clairvoyant",
    },
    "reproduce": {
        "--quick", "--jobs", "--retry-failed", "--dry-run", "--markdown", "--out", "--figures",
        "--data-dir", "--store", "--json",
    },
    "doctor": {"--system", "--variant", "--jobs", "--data-dir", "--store", "--json"},
    "machines sensitivity": {
        "--system", "--variant", "--setting", "--machine", "--software", "--model", "--workload",
        "--routing", "--trace", "--batch", "--capacity", "--cache-ratio",
        "--set", "--tokens", "--data-dir",
        "--store", "--json", "--weights", "--precision", "--quant", "--expert-dtype", "--prompts",
        "--context",
        "--new-tokens", "--slots", "--allow-overcommit", "--device-memory", "--free-host-gb",
        "--seed", "--scoring", "--few-shot", "--plain-prompts", "--calibrate-from",
        "--calibrate-texts", "--reconstruct-scores", "--clairvoyant", "--temperature",
        "--top-p", "--alpha",
    },
    "machines components": {"--json"},
    "machines compose": {"--out", "--force"},
    "machines init": {"--force"},
    "machines list": {"--parts", "--kind", "--json"},
    "machines roofline": {
        "--model", "--machine", "--prompt", "--tokens", "--batch", "--micro-batch", "--attention",
        "--experts", "--resident", "--cached", "--svg", "--json",
    },
    "machines show": {"--software", "--json"},
    "machines diff": {"--software", "--json"},
    "models list": {"--json"},
    "models train": {
        "--from", "--data-dir", "--out", "--tokens", "--seed", "--balance", "--device", "--threads",
    },
    "models import": {"--dtype", "--out", "--scale"},
    "models fetch": {"--out", "--revision"},
    "models verify": {"--all", "--data-dir", "--quick", "--write", "--json"},
    "models targets": {"--data-dir", "--write", "--json"},
    "trace record": {
        "--out", "--setting", "--workload", "--workloads", "--all", "--system", "--model",
        "--weights", "--machine", "--capacity", "--cache-ratio",
        "--alpha", "--set", "--batch", "--prompts",
        "--new-tokens", "--seed", "--scores", "--states", "--data-dir",
    },
    "trace info": {"--tokens", "--json"},
    "trace caches": {
        "--policies", "--slots", "--count", "--scope", "--set", "--sequences", "--json",
    },
    "trace import": {"--out", "--model", "--prompt-tokens"},
    "trace fit": {"--write"},
    "trace synthesize": {
        "--model", "--out", "--like", "--static", "--ar1", "--rho", "--noise", "--common",
        "--depth", "--prefill-similarity", "--recall", "--spread", "--sequences",
        "--prompt-tokens", "--new-tokens", "--seed", "--json",
    },
}  # fmt: skip


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return every command, by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))


def options_of(command: str) -> set[str]:
    return {
        name
        for parameter in COMMANDS[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and name != "--help"
    }


def test_every_command_has_listed_options() -> None:
    assert set(COMMANDS) == set(OPTIONS)


@pytest.mark.parametrize("command", OPTIONS)
def test_command_has_exactly_the_listed_options(command: str) -> None:
    # A switch that is off by default may also be spelled with --no-.
    found = options_of(command)
    assert OPTIONS[command] <= found
    assert all(name.startswith("--no-") for name in found - OPTIONS[command])


DOCUMENTS = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]


def documented(file: Path) -> Iterator[list[str]]:
    """Return the words of every `moebench` call that a document shows."""
    text = file.read_text().replace("\\\n", " ")
    shown = re.findall(r"^[^\w`]*(?:\w+\$ |\S*/)?moebench ([a-z].*)$", text, re.MULTILINE)
    shown += re.findall(r"`moebench ([a-z][^`]*)`", text)
    for line in shown:
        yield shlex.split(line.replace("[", "").replace("]", ""), comments=True)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_commands_and_options_that_exist(file: Path) -> None:
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    for words in documented(file):
        below = words[1].split("|") if words[0] in groups else [""]
        for command in (f"{words[0]} {name}".strip() for name in below):
            assert command in COMMANDS, words
            assert {word for word in words if word.startswith("--")} <= options_of(command), words


def test_documents_show_commands() -> None:
    shown = {words[0] for file in DOCUMENTS for words in documented(file)}
    assert {name.split()[0] for name in COMMANDS} - shown <= {"doctor"}


# --------------------------------------------------------------------------- names

PUBLIC = [
    "Active", "Admission", "Assignment", "Budget", "Costs", "Engine", "Eviction", "ExpertCache",
    "Fetch", "Forecast", "Form", "ForwardPass", "HardwareProfile", "Home", "Lane", "LayerView",
    "Lookahead", "ModelShape", "MoeBenchError", "NO_EXPERT", "Op", "OpKind", "Placement", "Plan",
    "Policy", "Predictor", "Prefetching", "Prompts", "Routed", "RoutedSequence", "Routing",
    "RunSpec", "Store", "System", "UsageError", "advise",
    "best_scores", "build", "compare", "fetches", "run",
    "split", "sweep", "trace",
]  # fmt: skip


def test_package_exports_the_public_names() -> None:
    assert sorted(moebench.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(moebench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = moebench.nothing


# --------------------------------------------------------------------------- a quick start

#: A system with a policy of one's own for every decision that has no default.
OWN = """
from dataclasses import dataclass, field

from moebench import (
    Assignment, Eviction, Placement, Prefetching, Routing, System, fetches, split,
)


class PlaceNothing(Placement):
    def place(self, shape, slots, scope):
        return ()


class LoadAbsent(Assignment):
    def assign(self, view, active):
        return split(active, fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class EvictByLayer(Eviction):
    last: bool = True

    def victim(self, allowed, incoming):
        keys = allowed.nonzero()[0].tolist()
        return (max if self.last else min)(keys, default=None)


@dataclass(kw_only=True)
class MySystem(System):
    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=Routing)
    assign: Assignment = field(default_factory=LoadAbsent)
    prefetch: Prefetching = field(default_factory=Prefetching)
    evict: Eviction = field(default_factory=EvictByLayer)
"""


def readme() -> str:
    """Return the code of the system that the readme shows."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(code)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the readme's system as ``mine.py`` into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


@pytest.mark.slow
@pytest.mark.parametrize("source", [readme(), OWN], ids=["readme", "from public names alone"])
def test_a_system_of_ones_own_is_written_with_public_names(mine: Path, source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "moebench":
            assert {alias.name for alias in node.names} <= set(PUBLIC)
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            assert module == "dataclasses" or (
                source != OWN and module.startswith("moebench.systems.")
            )
        assert not isinstance(node, ast.Import)
    mine.write_text(source)
    importlib.invalidate_caches()
    called = call("run", "--system", "mine:MySystem", *SMALL, "--json")
    assert called.code == 0, called.err
    document = called.json
    assert document["metrics"]["experts"]["decode"]["active"] > 0
    if source == OWN:
        assert document["spec"]["options"]["evict"] == "EvictByLayer"
        assert document["spec"]["options"]["evict.last"] == "True"
        assert document["lossless"]


# --------------------------------------------------------------------------- light to start

HEAVY = ("torch", "transformers", "altair", "vl_convert", "pandas", "ray")
LIGHT = [
    "--help", "run --help", "list systems", "list systems --long", "list settings",
    "list machines", "list workloads", "list policies", "list models", "report", "nonsense",
    "--version", "rm nonsense", "gc",
    "run --system nonsense --setting S3",
    "sweep --systems smoe,moe-ondemand --settings S3 --workloads arithmetic --prompts 2 --dry-run",
    "models --help", "models list", "models verify nonsense", "models train nonsense",
    "models import nonsense",
]  # fmt: skip

#: Says what ``import moebench`` brings, what the command line does, and, of processes that are
#: forked from there, what each command does besides.
SCRIPT = """
import json, os, sys

def heavy():
    return [name for name in {heavy!r} if name in sys.modules]

before = set(sys.modules)
import moebench
brought = [m for m in set(sys.modules) - before if m.split(".")[0] not in sys.stdlib_module_names]
from moebench.harness.cli.app import main
found = {{"import moebench": sorted(brought), "the command line": heavy()}}
for command in {light!r}:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1), os.dup2(nowhere, 2)
        try:
            main(command.split())
            os.write(write, json.dumps(heavy()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    found[command] = json.loads(text) if text else ["it ended early"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return heavy packages that each command imports, and all that ``import moebench`` does."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(heavy=HEAVY, light=LIGHT)],
        cwd=tmp_path_factory.mktemp("empty"), env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_importing_moebench_imports_nothing_else(imported: dict[str, list[str]]) -> None:
    assert imported["import moebench"] == ["moebench"]


@pytest.mark.parametrize("what", ["the command line", *LIGHT])
def test_nothing_heavy_is_imported(imported: dict[str, list[str]], what: str) -> None:
    assert imported[what] == []


@pytest.mark.slow
def test_modules_of_the_current_folder_replace_no_library(tmp_path: Path) -> None:
    for name in ("yaml", "json", "torch", "typer", "rich", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "mine.py").write_text(
        "from moebench.systems.smoe import SMoE\n\n\nclass Mine(SMoE):\n    pass\n"
    )
    for arguments, said in (
        (["list", "settings"], "S3"),
        (["show", "abc"], "no runs"),
        (["run", "--system", "nowhere:Mine", "--setting", "S3"], "cannot import nowhere"),
        (
            [
                "sweep",
                "--systems",
                "mine:Mine",
                "--settings",
                "S3",
                "--routings",
                "drawn",
                "--prompts",
                "1",
                "--new-tokens",
                "2",
                "--jobs",
                "0",
            ],
            "1 done",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "moebench", *arguments], cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert "wrong module" not in done.stderr
        assert said in done.stdout + done.stderr
