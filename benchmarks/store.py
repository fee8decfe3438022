"""Benchmark of a large store: time and memory of the commands that read it, and of planning.

    python -m benchmarks.store [--runs 50000] [--cells 1000000]

The runs are invented, but as large and as different as those of a sweep: real systems in every
setting, batch and workload, with seeds, each with its document, samples and timeline of a token.
Each command is a process of its own; memory is the most that it held at once.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

from benchmarks.page import SETTINGS, WORKLOADS, invented, picture, usable_s
from moebench.harness.run.rules import resolve
from moebench.results.samples import TokenSample, samples_path, write_samples
from moebench.results.store import _INSERT, _INSERT_CELL, Store, _dump, _row
from moebench.substrate.errors import MoeBenchError

SYSTEMS = (
    "smoe", "daop", "duoserve", "flashmoe", "hybrimoe", "fiddler", "moe-infinity", "moe-ondemand",
    "llamacpp", "ktransformers", "gpu-only", "promoe", "adapmoe", "accelerate",
    "mixtral-offloading",
)  # fmt: skip
#: How many different timelines the runs share: making one takes longer than storing it.
PICTURES = 20


def documents(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield invented documents of runs that the systems can do, without end."""
    draw, specs = random.Random(seed), {}
    base = json.loads((Path(__file__).parent / "page.json").read_text(encoding="utf-8"))
    for place in product(SETTINGS, (1, 3), SYSTEMS, WORKLOADS):
        setting, batch, system, workload = place
        try:
            specs[place] = resolve(
                None, system=system, setting=setting, batch=batch, workload=workload
            ).model_dump()
        except MoeBenchError:
            continue  # a system that cannot run there
    for number in count():
        for (setting, batch, system, workload), spec in specs.items():
            run = invented(base, draw, number, setting, batch, system, workload)
            run["spec"] |= spec | {"seed": number}
            yield run


def fill(folder: Path, runs: int) -> list[str]:
    """Write a store of so many runs, and return their ids."""
    store, draw = Store(folder), random.Random(1)
    pictures = [zlib.compress(_dump(picture(draw), "timeline").encode()) for _ in range(PICTURES)]
    samples = [TokenSample(0, step, 10**7 + draw.randrange(10**7), [3] * 28) for step in range(32)]
    found, model = list[str](), None
    with store._transaction() as db:  # one transaction a run would take minutes
        for document, _ in zip(documents(), range(runs), strict=False):
            run_id = document["run_id"]
            row = list(_row(document, None))
            row[-2] = draw.choice(pictures)
            db.execute(_INSERT, row)
            spec = _dump(document["spec"], "spec")
            db.execute(_INSERT_CELL, (run_id, "done", spec, run_id, None, None, row[1]))
            found.append(run_id)
            path = samples_path(folder, run_id)
            if model is None:
                model = write_samples(folder, run_id, samples)
            elif not path.exists():
                shutil.copyfile(model, path)
    return found


#: Runs a command as `moebench` does, and prints its CPU seconds and its most memory (kB).
MEASURED = """
import resource, sys
from moebench.harness.cli.app import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(used.ru_utime + used.ru_stime, peak, file=sys.stderr)
sys.exit(code)
"""


def timed(*arguments: str) -> tuple[float, float, float]:
    """Run a command, and return its wall and CPU time in seconds and its most memory in MB."""
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    took_s = time.perf_counter() - began
    if ended.returncode:
        raise SystemExit(f"moebench {' '.join(arguments)}: {ended.stderr[-500:]}")
    cpu_s, kilobytes = map(float, ended.stderr.splitlines()[-1].split())
    return took_s, cpu_s, kilobytes / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--store", type=Path, help="fill this store, or use it if it exists")
    parser.add_argument("--only", default="", help="only the commands that begin so")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.store or Path(temporary) / "store"
        ids = Store(folder).ids() or fill(folder, asked.runs)
        page = Path(temporary) / "page.html"
        cell = ("--systems", "smoe", "--settings", "S3", "--workloads", "arithmetic")
        seeds = ",".join(map(str, range(asked.cells // 100)))
        plan = ("--systems", "smoe,daop", "--settings", "S3,D1", "--workloads", ",".join(WORKLOADS),
                "--batches", "1,2,3,4,5", "--seeds", seeds)  # fmt: skip
        commands = (
            ("list", "systems"),
            ("show", ids[len(ids) // 2]),
            ("sweep", "--dry-run", *cell),
            ("compare", "smoe", "daop", "--settings", "S3"),
            ("report",),
            ("report", "--html", str(page)),
            ("sweep", "--dry-run", "--json", *plan),
        )
        print(f"{len(ids)} runs, {asked.cells} cells\n")
        print("| command | s | CPU s | MB |\n|---|---|---|---|")
        for command in commands:
            if not " ".join(command).startswith(asked.only):
                continue
            store = () if command[0] == "list" else ("--store", str(folder))
            wall_s, cpu_s, megabytes = timed(*command, *store)
            shown = " ".join(command).replace(str(page), "page.html").replace(seeds or "-", "...")
            print(f"| {shown} | {wall_s:.2f} | {cpu_s:.2f} | {megabytes:.0f} |", flush=True)
            if str(page) in command:
                took_s, complaints = usable_s(page)
                print(f"| page of {page.stat().st_size / 1e6:.1f} MB usable | {took_s:.2f} | | |")
                print("\n".join(complaints), flush=True)


if __name__ == "__main__":
    main()
