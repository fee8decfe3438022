"""A small grid by hand: two cards, two models, three contexts, and a hostile text."""

from typing import Any

from moebench.harness.advise.grid import (
    CONTEXT_MARK,
    Grid,
    GridMachine,
    GridRow,
    InterpolationError,
    Point,
    Ties,
)
from tests.reports.samples import HOSTILE

CONTEXTS = (2048, 8192, 32768)

MACHINES = (
    GridMachine("RTX 3090", "64 GB DDR4-3200", "RTX 3090, Ryzen 7 5800X, 64 GB of DDR4-3200"),
    GridMachine("RTX 3090", "128 GB DDR5-5600", "RTX 3090, Ryzen 9 9950X, 128 GB of DDR5-5600"),
    GridMachine("no card", "64 GB DDR4-3200", "Ryzen 7 5800X, 64 GB of DDR4-3200"),
)


def row(engine: str = "llama.cpp", **changed: Any) -> GridRow:
    """An answer of 20 tokens/s; other fields as given."""
    rate = changed.get("decode", 20.0)
    values: dict[str, Any] = {
        "engine": engine, "config": "28 of 36 layers' experts on the host, 2048 rows",
        "decode": rate, "decode_low": 0.8 * rate, "decode_high": 1.25 * rate,
        "prefill": 400.0, "prefill_low": 300.0, "prefill_high": 520.0,
        "device_gib": 21.5, "host_gib": 48.2, "disk_gib": 0, "quality": "lossless",
        "binds": "memory of the host", "verdict": "fits", "remarks": "threads not said: 8",
        "lossless": True, "checked": True,
        "command": f"{engine}-server -m model.gguf \\\n  -c {CONTEXT_MARK} --n-cpu-moe 28",
        "notes": "for version b7000",
    }  # fmt: skip
    return GridRow(**values | changed)


def rows(scale: float) -> tuple[GridRow, ...]:
    """Three engines; the second has a loss, the third is slow."""
    return (
        row("llama.cpp", decode=30 / scale, config=f"{round(20 * scale)} layers on the host"),
        row("ik_llama.cpp", decode=28 / scale, lossless=False, quality="4-bit KV cache"),
        row("vllm", decode=2 / scale, prefill=760 / scale, checked=False, binds=HOSTILE,
            command="", notes="", remarks=""),
    )  # fmt: skip


def point(machine: int, model: str, quant: str, context: int, **changed: Any) -> Point:
    scale = (1 + machine / 2) * (1 + context / 32768) * (2 if quant == "q8_0" else 1)
    scale *= 0.7 if model == "qwen3-30b-a3b" else 1
    values: dict[str, Any] = {
        "machine": machine, "model": model, "quant": quant, "context": context, "fits": True,
        "verdict": f"Fits: {20 * scale:.3g} of 24 GB.", "largest_context": 50_000, "left_out": "",
        "rows": rows(scale),
    }  # fmt: skip
    return Point(**values | changed)


def grid(**changed: Any) -> Grid:
    points = [
        point(machine, model, quant, context)
        for machine in range(len(MACHINES))
        for model, quants in (("gpt-oss-120b", ("mxfp4",)), ("qwen3-30b-a3b", ("q4_k_m", "q8_0")))
        for quant in quants for context in CONTEXTS
    ]  # fmt: skip
    # Of the largest model without a card: nothing at the largest context, one engine at the next.
    at = [i for i, one in enumerate(points) if one.machine == 2 and one.model == "gpt-oss-120b"]
    none = "Does not fit: 71 GB of 64 GB."
    points[at[2]] = points[at[2]]._replace(
        fits=False,
        verdict=none,
        largest_context=None,
        rows=(),
        left_out="vllm: does not run with no card\nllama.cpp: needs 71 GiB",
    )
    points[at[1]] = points[at[1]]._replace(rows=points[at[1]].rows[:1], largest_context=9000)
    values: dict[str, Any] = {
        "version": "1.2.3", "lengths": f"Rates are of {HOSTILE} texts.", "machines": MACHINES,
        "ties": Ties(1.2, 1.5, 1.1, 2.0),
        "points": tuple(points), "between": (4096, 16384, 65536),
        "errors": (InterpolationError("decode", 240, 0.0042, 0.02, 0.061),),
    }  # fmt: skip
    return Grid(**values | changed)
