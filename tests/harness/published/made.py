"""Rows and predictors that tests make up."""

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moebench.harness.published.prediction import Prediction
from moebench.harness.published.rows import COLUMNS, Row

#: A complete row whose source names everything.
CELLS = {
    "id": "a1", "source": "a post", "where": "someone/repo@c0ffee:post.md", "model": "Mixtral-8x7B",
    "quant": "Q4_K_M", "gpu": "RTX 3090", "cpu": "Ryzen 9 5950X", "ram_gb_s": "51.2",
    "system": "llama.cpp", "n_cpu_moe": "all", "prompt_tokens": "0", "decode_tok_s": "8",
    "prefill_tok_s": "100", "group": "g", "abs_class": "strict",
}  # fmt: skip

#: A desktop with everything named: 36 layers of 128 experts, 4 used, 24.9 M weights each.
SAID: dict[str, Any] = {
    "id": "one", "model": "gpt-oss-120b", "quant": "MXFP4", "bits_per_weight": 4.25,
    "gpu": "RTX 3090", "n_gpu": 1, "cpu": "Ryzen 9 7950X", "sockets": 1, "ram_gb": 96.0,
    "ram_type": "DDR5-5200", "ram_channels": "2", "system": "llama.cpp", "n_cpu_moe": "all",
    "threads": 16, "ubatch": 512, "other_flags": "--no-mmap", "prompt_tokens": 512,
    "new_tokens": 128, "decode_tok_s": 20.0, "prefill_tok_s": 300.0,
}  # fmt: skip


def row(name: str, decode: float | None = None, **more: Any) -> Row:
    """Return a row without prefill unless given; absolute, in group g, of system s."""
    fields = {"group": "g", "system": "s", "abs_class": "strict", "where": "someone/repo"}
    return Row(id=name, decode_tok_s=decode, **{**fields, **more})


def predicted(rows: Sequence[Row], factor: float = 1.0, width: float = 1.5) -> list[Prediction]:
    """Return predictions of all figures that are off by a factor, each with an interval."""
    found = []
    for one in rows:
        for phase in one.phases:
            measured = one.measured(phase)
            assert measured is not None
            value = measured * factor
            found.append(Prediction(one.id, phase, measured, value, value / width, value * width))
    return found


def write(file: Path, *rows: dict[str, str], columns: Sequence[str] = COLUMNS) -> Path:
    """Write a CSV file: each row is `CELLS` with changes."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(CELLS | one for one in rows)
    return file


def install(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Put a predictor with these functions in the place of the real one.

    What it predicts with machine and author left out is what it predicts, unless given.
    """
    functions.setdefault("left_out", lambda rows, in_sample: list(in_sample))
    name = "moebench.harness.published.predict"
    module = ModuleType(name)
    for key, function in functions.items():
        setattr(module, key, function)
    monkeypatch.setitem(sys.modules, name, module)
