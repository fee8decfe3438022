"""What users rely on, written down: commands, options, names, a quick start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import moebench
from moebench.harness.cli.app import app

ROOT = Path(__file__).parents[2]

# --------------------------------------------------------------------------- names

COMMANDS = {"run", "sweep", "list", "report", "accuracy", "check", "trace", "models", "doctor"}

RUN_OPTIONS = {
    "--system", "--setting", "--workload", "--machine", "--model", "--weights", "--precision",
    "--batch", "--alpha", "--prompts", "--new-tokens", "--cache-ratio", "--allow-overcommit",
    "--free-host-gb", "--set", "--scoring", "--few-shot", "--calibrate-from", "--seed",
    "--data-dir", "--store", "--timeline", "--trace", "--reconstruct-scores", "--force", "--json",
}  # fmt: skip

PUBLIC = [
    "Assignment", "Engine", "Eviction", "HardwareProfile", "LayerView", "ModelShape",
    "MoeBenchError", "Placement", "Prefetching", "Routing", "RunSpec", "Store", "System",
    "build", "prepare", "resolve", "run",
]  # fmt: skip


MODELS_OPTIONS = {
    "list": {"--json"},
    "train": {"--data-dir", "--out", "--tokens", "--seed", "--balance", "--device", "--threads"},
    "import": {"--name", "--out"},
    "verify": {"--all", "--data-dir", "--quick", "--write", "--json"},
}


def options_of(*command: str) -> set[str]:
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    return {
        name
        for parameter in found.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and name != "--help"
    }


def test_commands() -> None:
    assert set(typer.main.get_command(app).commands) == COMMANDS  # type: ignore[attr-defined]


def test_options_of_run() -> None:
    found = options_of("run")
    # A switch that is off by default may also be spelled with --no-.
    assert {name for name in found if not name.startswith("--no-")} == RUN_OPTIONS


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("list", {"--json"}),
        ("report", {"--html", "--csv", "--latex", "--store", "--json"}),
        ("check", {"--update", "--jobs", "--json"}),
        ("doctor", {"--data-dir", "--store", "--json"}),
    ],
)
def test_options_of_others(command: str, options: set[str]) -> None:
    assert {n for n in options_of(command) if not n.startswith("--no-")} == options


def test_options_of_models() -> None:
    group = typer.main.get_command(app).commands["models"]  # type: ignore[attr-defined]
    assert set(group.commands) == set(MODELS_OPTIONS)
    for command, options in MODELS_OPTIONS.items():
        found = options_of("models", command)
        assert {name for name in found if not name.startswith("--no-")} == options


def test_public_names() -> None:
    assert moebench.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(moebench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = moebench.nothing


# --------------------------------------------------------------------------- light to start

HEAVY = ("torch", "transformers", "altair", "vl_convert", "pandas", "ray")
LIGHT = {
    "import moebench": "import moebench",
    "import moebench.harness.cli.app": "import moebench.harness.cli.app",
    **{
        f"moebench {arguments}": (
            f"from moebench.harness.cli.app import main\nmain({arguments.split()!r})"
        )
        for arguments in (
            "--help", "run --help", "list systems", "list settings", "list machines",
            "list workloads", "list policies", "list models", "report", "nonsense",
            "run --system nonsense --setting S3", "models --help", "models list",
            "models verify nonsense", "models train nonsense", "models import nonsense",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("what", LIGHT)
def test_nothing_heavy_is_imported(tmp_path: Path, what: str) -> None:
    tail = f"import json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{LIGHT[what]}\n{tail}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
