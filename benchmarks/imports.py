"""Benchmark of loading 2 GB of weights: time and memory with moebench and with Transformers.

    python -m benchmarks.imports FOLDER [REPEATS]

Writes `benchmarks.wide`'s checkpoint (bf16, shards of 500 MB) into FOLDER, and the imports next to
it.  Every measurement is a process of its own, on one thread; before each, the files that it reads
are dropped from the page cache.  Memory is the highest resident set of the process above its value
after importing libraries; of mapped files only touched pages count.  Figures are medians.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MB = 1e6
SHARD = "500MB"


def resident_bytes(field: str) -> int:
    """Return this process's memory: ``VmRSS`` is the current value, ``VmHWM`` the maximum.

    `getrusage` would include the maximum of the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _libraries() -> None:
    """Import the modules that a first use would import."""
    import moebench.substrate.models.decoder
    import moebench.substrate.models.imported  # noqa: F401


def import_as(precision: str) -> Callable[[Path, Path], None]:
    """Return a step that imports a checkpoint as ``moebench models import`` does."""
    from moebench.substrate.models.imported import import_checkpoint

    return lambda source, out: import_checkpoint(source, out / precision, precision) and None


def open_imported(out: Path) -> Any:
    """Open weights as a run does before its first token."""
    import torch

    from moebench.substrate.models.decoder import Decoder
    from moebench.substrate.models.imported import every_expert
    from moebench.substrate.models.opening import open_checkpoint

    found = open_checkpoint(out)
    found.content_hash()
    common = found.common(torch.float32)
    return Decoder(found.shape, common, every_expert(found, torch.float32))


def first_tokens(decoder: Any) -> None:
    """Compute a prompt of 16 tokens and 8 more tokens."""
    decoder.begin([list(range(1, 17))], 8)
    for step in range(8):
        decoder.embed("decode" if step else "prefill")
        for layer in range(decoder.shape.num_layers):
            decoder.attend(layer)
            gate = decoder.gate(layer)
            decoder.compute(layer, list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK)))
            decoder.combine(layer)
        decoder.head()


def by_transformers(dtype: str) -> Callable[[Path, Path], Any]:
    """Return a step that calls ``from_pretrained`` with its class already imported."""
    import torch
    from transformers import OlmoeForCausalLM

    return lambda source, _: OlmoeForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))


#: Measured steps by name; each returns a function of the source and the folder of imports.
STEPS: dict[str, Callable[[], Callable[[Path, Path], Any]]] = {
    "models import, fp32 records": lambda: import_as("fp32"),
    "models import, bf16 records": lambda: import_as("bf16"),
    "start on the import": lambda: lambda source, out: open_imported(out / "fp32"),
    "start on the import, and 8 tokens": (
        lambda: lambda source, out: first_tokens(open_imported(out / "fp32"))
    ),
    "start on the checkpoint itself": lambda: lambda source, out: open_imported(source),
    "transformers from_pretrained, bf16": lambda: by_transformers("bfloat16"),
    "transformers from_pretrained, fp32": lambda: by_transformers("float32"),
}


def measure(name: str, source: Path, out: Path) -> dict[str, float]:
    """Run one step in this process; return its seconds, and its bytes beyond the libraries'."""
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        _libraries()
        step = STEPS[name]()
        before, began = resident_bytes("VmRSS"), time.perf_counter()
        step(source, out)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": resident_bytes("VmHWM") - before}


def forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main(folder: Path, repeats: int) -> None:
    """Measure all steps and print a table."""
    from benchmarks.wide import make_wide
    from moebench.substrate.models.checkpoint import Checkpoint

    source, out = make_wide(folder / "wide", shard=SHARD), folder / "imports"
    checkpoint = Checkpoint(source)
    stored = sum(file.stat().st_size for file in checkpoint.files)
    shard = max(file.stat().st_size for file in checkpoint.files)
    expert = checkpoint.shape.expert_params * 2
    print(
        f"{stored / 1e9:.2f} GB in {len(checkpoint.files)} shards of up to {shard / MB:.0f} MB; "
        f"an expert has {expert / MB:.1f} MB in bf16, {2 * expert / MB:.1f} MB in fp32"
    )
    print("| what | seconds | MB above its libraries |\n|---|---|---|")
    for name in STEPS:
        found = []
        for _ in range(repeats):
            if name.startswith("models import"):
                shutil.rmtree(out / name.split()[2], ignore_errors=True)
            forget(folder)
            command = [sys.executable, "-m", "benchmarks.imports", name, str(source), str(out)]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(ended.stdout.splitlines()[-1]))
        seconds, used = (statistics.median(f[key] for f in found) for key in ("seconds", "bytes"))
        note = ""
        if name.startswith("models import"):
            limit = shard + 2 * expert * (2 if "fp32" in name else 1)
            note = f" (two experts and a shard: {limit / MB:.0f})"
            assert used < limit, f"{name}: {used / MB:.0f} MB"
        print(f"| {name} | {seconds:.2f} | {used / MB:.0f}{note} |", flush=True)


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    if first in STEPS:
        print(json.dumps(measure(first, Path(rest[0]), Path(rest[1]))))
    else:
        main(Path(first), int(rest[0]) if rest else 3)
