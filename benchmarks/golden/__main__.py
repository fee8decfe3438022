"""Records a checkout's results and printed texts, and compares two recordings.

    python -m benchmarks.golden record quick|full|text --checkout DIR --out FILE [--jobs N]
    python -m benchmarks.golden compare BEFORE AFTER [--intended FILE]

``quick`` and ``full`` record documents and all spans of runs (`runs.yaml`), ``text`` what command
lines print (`lines.txt`, and ``--help`` of every command).  `compare` names each difference and
ends with exit code 1 if there is one.  FILE holds regular expressions for lines that name intended
differences; an expression that matches no difference is an error.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent

#: Parts of a measured run's document that depend on time.  All other parts must be equal.
TIMED = re.compile(
    r"\.(tpot_ms|ttft_ms|e2e_ms|tokens_per_s|load_ms|lanes|stall_ms|energy\w*|tokens_per_kj|process|"
    r"interval|bound|steady|measured|cache_ratio\w*|prefetch|experts|hits|reads|bytes_\w+|"
    r"host_memory|offered_\w+|repeated_4grams|agreement|kl|score|stderr|peak_\w+)\b"
)
#: Parts of a document that state when, where and with which commit a run was computed.
WHERE_AND_WHEN = re.compile(
    r"\.provenance\.(commit|created|wall_s|versions|machine|profile_hash|kept|threads)\b"
)

Job = dict[str, Any]


def commands(checkout: Path) -> list[str]:
    """Return the words of every command and group of commands that has help."""
    script = (
        "import typer\nfrom moebench.harness.cli.app import app\n"
        "def walk(command, words):\n"
        "    print(' '.join(words))\n"
        "    for name, below in getattr(command, 'commands', {}).items():\n"
        "        walk(below, [*words, name])\n"
        "walk(typer.main.get_command(app), [])\n"
    )
    return sorted(line.strip() for line in _printed(checkout, script))


def text_jobs(checkout: Path) -> list[Job]:
    """Return a job for every command's ``--help`` and for each line of `lines.txt`."""
    lines = [f"{words} --help".strip() for words in commands(checkout)]
    listed = (HERE / "lines.txt").read_text(encoding="utf-8").splitlines()
    lines += [line for line in listed if line and not line.startswith("#")]
    return _unique([{"kind": "text", "name": line} for line in lines])


def run_jobs(kind: str, checkout: Path) -> list[Job]:
    """Return the jobs of a kind of recording, one for each run."""
    asked = yaml.safe_load((HERE / "runs.yaml").read_text(encoding="utf-8"))[kind]
    script = (
        "from moebench.systems import registry\n"
        "from moebench.systems.registry import SHIPPED, SYSTEMS\n"
        "print(*(f'--system {s}' for s in SYSTEMS), sep='\\n')\n"
        "print(*(f'--system {s} --variant shipped' for s in SHIPPED), sep='\\n')\n"
        "earlier = getattr(registry, 'EARLIER', {})\n"
        "print(*(f'--system {s} --variant earlier' for s in earlier), sep='\\n')\n"
    )
    lines = [f"{s} {rest}" for s in _printed(checkout, script) for rest in asked["systems"]]
    jobs = []
    for line in [*lines, *asked["runs"]]:
        given = line.split()
        defaults = asked["every"].split()
        pairs = zip(defaults[::2], defaults[1::2], strict=True)
        more = [w for o, v in pairs if o not in given for w in (o, v)]
        if "native-" in line:  # a package has no calibration
            more = more[: more.index("--calibrate-texts")]
        jobs.append({"kind": "document", "name": line, "argv": ["run", *given, *more]})
    return _unique(jobs)


def _unique(jobs: list[Job]) -> list[Job]:
    names = [job["name"] for job in jobs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"listed twice: {', '.join(twice)}")
    return jobs


def _environment(checkout: Path) -> dict[str, str]:
    """Return environment variables that select a checkout's moebench and fix its output format."""
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **plain, "PYTHONPATH": str(checkout.resolve())}


def _printed(checkout: Path, script: str) -> list[str]:
    """Return the lines that a script prints with a checkout's moebench."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=_environment(checkout), stdout=subprocess.PIPE,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def record(kind: str, checkout: Path, out: Path, jobs: int) -> None:
    """Record a checkout's results in a file; processes with separate folders share the runs."""
    listed = text_jobs(checkout) if kind == "text" else run_jobs(kind, checkout)
    parts = [listed] if kind == "text" else [listed[first::jobs] for first in range(jobs)]
    with tempfile.TemporaryDirectory() as name:
        running = []
        for number, part in enumerate(parts):
            folder = Path(name, str(number))
            folder.mkdir()
            (folder / "jobs.json").write_text(json.dumps(part))
            running.append((folder, _start(checkout, folder)))
        for folder, process in running:
            if process.wait():
                raise RuntimeError(f"the driver failed in {folder}")
        found: dict[str, Any] = {}
        for folder, _ in running:
            found |= json.loads((folder / "out.json").read_text())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"kind": kind, "found": found}, indent=1, sort_keys=True))
    print(f"{out}: {len(found)} recorded")


def _start(checkout: Path, folder: Path) -> "subprocess.Popen[bytes]":
    driver = [sys.executable, str(HERE / "driver.py"), "jobs.json", "out.json"]
    return subprocess.Popen(driver, cwd=folder, env=_environment(checkout))


# --------------------------------------------------------------------------- comparing


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every nested value with its path; an empty list or mapping is a value."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for i, below in enumerate(value):
            yield from leaves(below, f"{path}[{i}]")
    else:
        yield path, value


def compared(run: Any) -> dict[str, object]:
    """Return the values of a recorded run or command line that must be equal."""
    found = dict(leaves(run))
    if "document" not in run:
        return found
    timed = run["document"]["simulated"] is False
    return {
        path: value
        for path, value in found.items()
        if not WHERE_AND_WHEN.search(path)
        and not (timed and (TIMED.search(path) or path.endswith(".run_id")))
        and not (timed and ".notes[" in path and re.search(r"\d", str(value)))
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], int]:
    """Return one line for each difference, and the number of compared values."""
    lines = [f"only before: {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"only after: {name}" for name in sorted(after.keys() - before.keys())]
    count = 0
    for name in sorted(before.keys() & after.keys()):
        old, new = compared(before[name]), compared(after[name])
        count += len(old)
        for path in sorted(old.keys() | new.keys()):
            if path not in new:
                lines.append(f"{name}: {path}: {_short(old[path])} is gone")
            elif path not in old:
                lines.append(f"{name}: {path}: {_short(new[path])} is new")
            elif old[path] != new[path]:
                lines += _changed(f"{name}: {path}", old[path], new[path])
    return lines, count


def _changed(where: str, old: object, new: object) -> list[str]:
    """Return lines that describe a changed value; for multi-line texts, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return [f"{where}: {_short(old)} -> {_short(new)}"]
    a, b = old.splitlines(), new.splitlines()
    lines = [f"{where}: - {line}" for line in a if line not in b]
    lines += [f"{where}: + {line}" for line in b if line not in a]
    return lines or [f"{where}: lines in another order"]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]} ..."


def unintended(lines: list[str], patterns: list[str]) -> list[str]:
    """Return the differences that no pattern allows, and the patterns that match no difference."""
    left = [line for line in lines if not any(re.search(p, line) for p in patterns)]
    idle = [p for p in patterns if not any(re.search(p, line) for line in lines)]
    return left + [f"intended, but it is no difference: {p}" for p in idle]


def compare(before: Path, after: Path, intended: Path | None) -> int:
    """Print the differences and return 0 if all are intended, else 1."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    lines, count = differences(old["found"], new["found"])
    listed = intended.read_text(encoding="utf-8").splitlines() if intended else []
    patterns = [line for line in listed if line and not line.startswith("#")]
    left = unintended(lines, patterns)
    print("\n".join(left))
    print(
        f"{old['kind']}: {len(old['found'])} recorded, {count} values compared, "
        f"{len(lines)} differ, {len(left)} not intended"
    )
    return 1 if left or not count else 0


def main() -> int:
    """Run the command that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("kind", choices=("quick", "full", "text"))
    recording.add_argument("--checkout", type=Path, required=True)
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--jobs", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--intended", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after, given.intended)
    record(given.kind, given.checkout, given.out, given.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
