"""The cells in which the engine and the reference simulator are compared."""

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.cli.app import main
from tests.reference.inputs import Shape, Trace, numbers
from tests.reference.prices import Prices
from tests.reference.simulator import Simulator, System

CATALOGUE = Path(__file__).parents[2] / "substrate" / "catalogue"

_STATIC = "route=exact evict=static assign=host prefetch=none"

#: By name: options of `moebench run`, the options after ``--set``, and the same system's rules.
SYSTEMS: dict[str, tuple[str, str, System]] = {
    "everything resident": (
        "--system gpu-only --allow-overcommit", "", System(resident=True)
    ),
    "on demand": ("--system moe-ondemand", "", System()),
    "placed, misses on the host": (
        "--system smoe", _STATIC, System(evict="static", assign="host")
    ),
    "SMoE at α = 0, LRU": (
        "--system smoe --alpha 0", "prefetch=none evict=lru", System(assign="balanced")
    ),
    "SMoE at α = 0": (
        "--system smoe --alpha 0", "prefetch=none", System(evict="score", assign="balanced")
    ),
    "SMoE at α = 0, prefetching": (
        "--system smoe --alpha 0", "",
        System(evict="score", assign="balanced", prefetch=True),
    ),
    "FlashMoE's slots, LRU": (
        "--system flashmoe", "evict=lru",
        System(by_layer=True, parallel_reads=False, place=False),
    ),
}  # fmt: skip


class Setting(NamedTuple):
    """A setting, its machine and model, bytes of a weight, and host memory before the disk."""

    model: str
    machine: str
    weight_bytes: float = 2.0
    host_bytes: float | None = None


#: DuoServe's 4-bit weights: 4.15625 bits each.
SETTINGS = {
    "S3": Setting("qwen2-57b-a14b", "a6000"),
    "D1": Setting("mixtral-8x7b", "a6000@daop"),
    "U1": Setting("mixtral-8x7b", "a5000@duoserve", 4.15625 / 8),
    "F1": Setting("olmoe-1b-7b", "rtx5070ti", host_bytes=1e9),
    "F2": Setting("qwen3-30b-a3b", "rtx5070ti", host_bytes=1e9),
}


class Cell(NamedTuple):
    """One comparison."""

    setting: str
    software: str
    batch: int
    system: str

    def __str__(self) -> str:
        return f"{self.setting} {self.software} batch {self.batch} {self.system}"


def cells(settings: Sequence[str] = tuple(SETTINGS)) -> Iterator[Cell]:
    """Yield every comparison; predictions of batches are not recorded together."""
    for setting in settings:
        for software in ("hf-eager", "lean"):
            for batch in (1, 3 if setting == "S3" else 2):
                for system, (_, _, rules) in SYSTEMS.items():
                    if batch == 1 or not rules.prefetch:
                        yield Cell(setting, software, batch, system)


def moebench(*arguments: str) -> dict[str, Any]:
    """Return the document of `moebench run --json`; its ``error`` if it ends with a line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["run", "--json", "--no-interval", *arguments])
    if code:
        return {"error": err.getvalue().strip().splitlines()[-1]}
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def engine(cell: Cell, trace: Path, prompts: int, new_tokens: int, store: Path) -> dict[str, Any]:
    """Run a cell with moebench."""
    options, changes, _ = SYSTEMS[cell.system]
    more = [word for change in changes.split() for word in ("--set", change)]
    return moebench(
        "--trace", str(trace), "--setting", cell.setting, "--software", cell.software,
        "--prompts", str(prompts), "--new-tokens", str(new_tokens), "--batch", str(cell.batch),
        "--store", str(store), *options.split(), *more,
    )  # fmt: skip


def reference(
    cell: Cell, trace: Trace, prompts: int, new_tokens: int, slots: int
) -> dict[str, Any]:
    """Run a cell with the reference simulator."""
    setting = SETTINGS[cell.setting]
    of = numbers(
        CATALOGUE / "machines" / f"{setting.machine}.yaml",
        CATALOGUE / "software" / f"{cell.software}.yaml",
    )
    shape = Shape.of(CATALOGUE / "models" / f"{setting.model}.json")
    prices = Prices(shape, of, setting.weight_bytes)
    rules = SYSTEMS[cell.system][2]
    simulator = Simulator(prices, trace, rules, slots, setting.host_bytes)
    return simulator.run(range(prompts), new_tokens, cell.batch)


#: Largest relative difference of latencies; counts and bytes must be equal.
TIMES = 1e-5

#: Largest one of busy times and stalls: each operation is rounded to a nanosecond.
ROUNDED = 5e-4


def wrong(found: dict[str, float]) -> list[str]:
    """Return the figures that differ by more than their tolerance, with their difference."""
    said = []
    for name, difference in found.items():
        exact = name.startswith(("prefill", "decode", "bytes"))
        allowed = 0.0 if exact else TIMES if name in ("TPOT", "TTFT", "end to end") else ROUNDED
        if abs(difference) > allowed:
            said.append(f"{name} {difference:+.1e}")
    return said


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Return the relative difference of each figure: the reference's over the document's, less 1.

    Args:
        ours: figures of `reference`.
        theirs: the document's ``metrics``.
    """
    counts = {
        f"{phase} {name}": (ours["experts"][phase].get(name, 0), theirs["experts"][phase][name])
        for phase in ("prefill", "decode")
        for name in ("hits", "loads", "host")
    }
    lanes = {lane: (busy, theirs["lanes"][lane]) for lane, busy in ours["lanes"].items()}
    pairs = {
        "TPOT": (ours["tpot_ms"], theirs["tpot_ms"]["mean"]),
        "TTFT": (ours["ttft_ms"], theirs["ttft_ms"]["mean"]),
        "end to end": (ours["e2e_ms"], theirs["e2e_ms"]),
        "stalls": (ours["stall_ms"], sum(theirs["stall_ms"].values())),
        **{f"bytes {lane}": (ours[f"bytes_{lane}"], theirs[f"bytes_{lane}"])
           for lane in ("h2d", "disk")},
        **counts, **lanes,
    }  # fmt: skip
    return {
        name: (found / expected - 1 if expected else float(bool(found)))
        for name, (found, expected) in pairs.items()
    }
