"""Benchmark of the report's HTML page: its size, and the time until a browser can use it.

    python -m benchmarks.page [--runs 2000]

The runs are invented, but as large and as different as those of a sweep: every system in every
setting, batch and workload, each with its document, curve and timeline of one decoded token.
"""

import argparse
import copy
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from moebench.reports.page.page import Contents, render
from moebench.reports.sections.throughput import Point

SETTINGS = ("S1", "S2", "S3", "D1", "D2", "U1", "U2", "U3", "U4", "F1", "F2")
WORKLOADS = ("arithmetic", "equations", "facts", "inflection", "passages")
SYSTEMS = tuple(f"system-{letter}" for letter in "abcdefghijklmnopqrst")

#: Spans of a token, as S3 has at three sequences.
SPANS = 500


def contents(count: int, seed: int = 0) -> Contents:
    """Return the contents of a page with ``count`` invented runs."""
    draw = random.Random(seed)
    chosen = [run for run, _ in zip(_runs(draw), range(count), strict=False)]
    pictures = {run["run_id"]: picture(draw) for run in chosen}
    curves = {run["run_id"]: _curve(draw) for run in chosen}
    commands = {run["run_id"]: _command(run["spec"]) for run in chosen}
    return Contents(chosen, commands, pictures, curves=curves)


def _runs(draw: random.Random) -> Iterator[dict[str, Any]]:
    document = json.loads((Path(__file__).parent / "page.json").read_text(encoding="utf-8"))
    for seed in range(1000):
        for place in product(SETTINGS, (1, 3), SYSTEMS, WORKLOADS):
            yield invented(document, draw, seed, *place)


def invented(
    document: dict[str, Any], draw: random.Random, seed: int, setting: str, batch: int,
    system: str, workload: str,
) -> dict[str, Any]:  # fmt: skip
    """Return a document with every figure changed at random."""
    run = copy.deepcopy(document)
    run["run_id"] = f"{draw.getrandbits(48):012x}"
    chosen = {"system": system, "setting": setting, "batch": batch, "workload": workload}
    run["spec"] |= chosen | {"seed": seed, "model": f"model of {setting}", "overrides": {}}
    run["provenance"] |= {name: f"{draw.getrandbits(64):016x}" for name in ("system_hash",)}
    run["provenance"]["data_hash"] = f"{workload} {seed}"
    slow = 1 + sum(system.encode()) % 20  # each system has a speed of its own
    _vary(run["metrics"], draw, slow)
    run["bound"] = {"tpot_ms": 20 * draw.random(), "ratio": slow * (1 + draw.random())}
    run["accuracy"] |= {"agreement": draw.random(), "kl": draw.random() / 100}
    return run


def _vary(values: dict[str, Any], draw: random.Random, factor: float) -> None:
    """Change every number: documents with equal numbers would compress too well."""
    for key, value in values.items():
        if isinstance(value, dict):
            _vary(value, draw, factor)
        elif isinstance(value, float):
            values[key] = round(value * factor * (0.5 + draw.random()), 6)
        elif isinstance(value, int) and not isinstance(value, bool):
            values[key] = int(value * factor * (0.5 + draw.random()))


def picture(draw: random.Random) -> list[dict[str, Any]]:
    """Return random spans of a token, with few different durations as on the simulated machine."""
    took = [round(draw.uniform(5, 900), 3) for _ in range(12)]
    spans, now = [], {"device": 0.0, "h2d": 0.0, "host": 0.0}
    for index in range(SPANS):
        lane = draw.choice(("device", "device", "h2d", "host"))
        computed = draw.choice(("attend", "gate", "expert"))
        kind = {"device": computed, "h2d": "load"}.get(lane, "expert")
        start = now[lane] + (draw.choice(took) if draw.random() < 0.2 else 0.0)
        now[lane] = start + draw.choice(took)
        experts = [draw.randrange(64)] if kind in ("expert", "load") else []
        spans.append({
            "lane": lane, "kind": kind, "layer": index * 28 // SPANS, "experts": experts,
            "start_us": round(start, 3), "end_us": round(now[lane], 3),
        })  # fmt: skip
    return spans


def _curve(draw: random.Random) -> list[Point]:
    speeds = sorted(draw.uniform(5, 50) for _ in range(101))
    return [Point(speed, step / 100) for step, speed in enumerate(speeds)]


def _command(spec: dict[str, Any]) -> str:
    names = ("system", "setting", "workload", "batch", "seed")
    return "moebench run " + " ".join(f"--{name} {spec[name]}" for name in names)


def usable_s(file: Path) -> tuple[float, list[str]]:
    """Return the seconds until a browser can use the page, and its JavaScript errors."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-state=ready]", timeout=60_000)
        took = time.perf_counter() - began
        browser.close()
    return took, complaints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    count = parser.parse_args().runs
    found = contents(count)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        began = time.perf_counter()
        render(found, file)
        made_s = time.perf_counter() - began
        took_s, complaints = usable_s(file)
        size = file.stat().st_size
    print(f"{count} runs: {size / 1e6:.2f} MB, made in {made_s:.1f} s, usable after {took_s:.2f} s")
    for complaint in complaints:
        print(complaint)


if __name__ == "__main__":
    main()
