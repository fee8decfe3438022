"""Benchmark of a sweep's own time: growth with the number of cells, and overhead per cell.

One trace is recorded (or given), then replayed by sweeps of 1×, 2× and 4× as many cells in this
process.  The simulation is the time in `Engine.generate`; a cell's overhead is the remaining time
of the sweep: planning, hashing, opening, wiring, measures, the store.

    python -m benchmarks.sweep [--cells 24] [--trace DIR]
"""

import argparse
import contextlib
import io
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.cli.app import main as moebench
from moebench.results.store import Store
from moebench.substrate.engine.loop import Engine, Generation

SETTING, WORKLOAD = "S3", "arithmetic"
PROMPTS, NEW_TOKENS = 2, 8


class Figures(NamedTuple):
    """Number of cells and times of one sweep, in seconds."""

    cells: int
    wall_s: float
    simulated_s: float

    @property
    def overhead_ms(self) -> float:
        """Time of a cell without its simulation, in ms."""
        return (self.wall_s - self.simulated_s) / self.cells * 1e3


class Simulation:
    """Sum of the time spent in `Engine.generate`, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        generate = Engine.generate

        def timed(engine: Engine, *arguments: Any, **options: Any) -> Generation:
            started = time.perf_counter()
            try:
                return generate(engine, *arguments, **options)
            finally:
                self.seconds += time.perf_counter() - started

        Engine.generate = timed  # type: ignore[method-assign]


def quietly(*arguments: str) -> None:
    """Run a command that must succeed; print its output only if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = moebench(list(arguments))
    if code:
        raise SystemExit(said.getvalue())


def record(folder: Path) -> str:
    out = str(folder / "trace")
    lengths = ("--prompts", str(PROMPTS), "--new-tokens", str(NEW_TOKENS))
    quietly("trace", "record", "--setting", SETTING, "--workload", WORKLOAD, *lengths, "--out", out)
    return out


def measure(cells: int, trace: str, folder: Path, simulation: Simulation) -> Figures:
    """Run and time a sweep of distinct cells: one system with ``cells`` thresholds."""
    store = folder / f"store-{cells}"
    alphas = ",".join(f"{0.5 * step / cells:.6f}" for step in range(cells))
    lengths = ("--prompts", str(PROMPTS), "--new-tokens", str(NEW_TOKENS))
    started, before = time.perf_counter(), simulation.seconds
    quietly("sweep", "--systems", "smoe", "--settings", SETTING, "--alphas", alphas,
            "--traces", trace, *lengths, "--jobs", "0", "--store", str(store))  # fmt: skip
    wall_s = time.perf_counter() - started
    assert len(Store(store).runs()) == cells
    return Figures(cells, wall_s, simulation.seconds - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--trace")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = options.trace or record(folder)
        simulation = Simulation()
        measure(2, trace, folder, simulation)  # warm-up: imports and opens files once
        rows = [measure(options.cells * factor, trace, folder, simulation) for factor in (1, 2, 4)]
    print("cells\twall s\tagainst the first\toverhead ms a cell\tsimulation ms a cell")
    for row in rows:
        ratio = row.wall_s / rows[0].wall_s
        own_ms = row.simulated_s / row.cells * 1e3
        print(f"{row.cells}\t{row.wall_s:.2f}\t{ratio:.2f}\t{row.overhead_ms:.1f}\t{own_ms:.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"peak memory of this process: {peak:.0f} MB")


if __name__ == "__main__":
    main()
