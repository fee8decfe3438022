"""What the packages' own software costs: Python for each layer, expert and hook; C++ in llama.cpp.

    python -m benchmarks.native_costs

Tiny Qwen2-MoE models (hidden 64, experts of width 16), whose mathematics costs next to nothing,
decode with each package, as its native system runs it.  A token's time is modelled as

    t(L, k) = t_0 + L · (layer + k · expert)

for L layers of k experts a token, and fitted to all combinations of `LAYERS` and `TOP_K`.  Hooks:
what a token takes with them, less what it takes without, over their number; of DeepSpeed, over the
number of tensors that it gathers.  Times are CPU times of one thread (the median of a text's
tokens), so that a busy computer matters little; they hold the time of the tiny products, too.
"""

import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers

from moebench.substrate.models.weights import Checkpoint
from moebench.systems.native.accelerate import hooks
from moebench.systems.native.base import Job, Runner
from moebench.systems.native.gguf_file import write_gguf
from moebench.systems.options import build_native

LAYERS, TOP_K = (4, 10, 16), (2, 4, 8)
#: Where hooks are counted.
HOOKED = (16, 8)
TOKENS, REPEATS = 25, 8


def checkpoint(folder: Path, layers: int, top_k: int) -> Path:
    """A random model."""
    path = folder / f"{layers}-{top_k}"
    if not path.exists():
        torch.manual_seed(0)
        config = transformers.Qwen2MoeConfig(
            num_hidden_layers=layers, num_experts_per_tok=top_k, num_experts=16, hidden_size=64,
            moe_intermediate_size=16, shared_expert_intermediate_size=16, intermediate_size=16,
            num_attention_heads=2, num_key_value_heads=2, vocab_size=256,
            max_position_embeddings=512, mlp_only_layers=[],
        )  # fmt: skip
        transformers.Qwen2MoeForCausalLM(config).save_pretrained(path)
    return path


@contextmanager
def loaded(package: str, model: Path, **options: str) -> Iterator[Runner]:
    """A package with a model, in this process."""
    system = build_native(f"native-{package}", options)
    names = {name: getattr(system, name) for name in system.__dataclass_fields__}
    module = type(system).__module__
    with tempfile.TemporaryDirectory() as scratch:
        job = Job(adapter=module, libraries=(), model=str(model), folder=scratch, options=names,
                  context=512, batch=1)  # fmt: skip
        yield import_module(module).runner(job)


def token_us(runner: Runner) -> float:
    """CPU time of a decoded token: the least of several medians, in µs."""
    found = []
    ends: list[int] = []
    for _ in range(REPEATS):
        ends.clear()
        runner.generate(
            [[3, 1, 4, 1, 5]], TOKENS, None, lambda _: ends.append(time.thread_time_ns())
        )
        found.append(median(np.diff(ends[2:])) / 1e3)
    return float(min(found))


def fitted(times: dict[tuple[int, int], float]) -> dict[str, float]:
    """``t_0``, ``layer`` and ``expert`` of the model above, in µs."""
    rows = [(1, layers, layers * k) for layers, k in times]
    found, *_ = np.linalg.lstsq(np.array(rows, float), np.array([*times.values()]), rcond=None)
    return dict(zip(("fixed_us", "layer_us", "expert_us"), np.round(found, 1).tolist(),
                    strict=True))  # fmt: skip


def transformers_costs(folder: Path, experts: str) -> dict[str, float]:
    """Transformers alone, with one of its ways to compute experts."""
    times = {}
    for layers, k in product(LAYERS, TOP_K):
        with loaded("accelerate", checkpoint(folder, layers, k), offload="none") as runner:
            runner._model.set_experts_implementation(experts)  # type: ignore[attr-defined]
            times[layers, k] = token_us(runner)
    return fitted(times)


def llamacpp_costs(folder: Path) -> dict[str, float]:
    """llama.cpp, products included."""
    times = {}
    for layers, k in product(LAYERS, TOP_K):
        model = write_gguf(Checkpoint(checkpoint(folder, layers, k)), folder / f"{layers}-{k}.gguf")
        with loaded("llamacpp", model) as runner:
            times[layers, k] = token_us(runner)
    return fitted(times)


def hook_costs(folder: Path) -> dict[str, dict[str, float]]:
    """Accelerate's hooks that move nothing, and DeepSpeed's gathers within memory."""
    model = checkpoint(folder, *HOOKED)
    with loaded("accelerate", model, offload="none") as runner:
        plain = token_us(runner)
    with loaded("accelerate", model, offload="cpu") as runner:
        count, _ = hooks(runner._model)  # type: ignore[attr-defined]
        hooked = token_us(runner)
    with loaded("deepspeed", model, offload="cpu") as runner:
        tensors = len([*runner._model.parameters()])  # type: ignore[attr-defined]
        gathered = token_us(runner)
    return {
        "accelerate": _shared(plain, hooked, count),
        "deepspeed": _shared(plain, gathered, tensors),
    }


def _shared(plain: float, hooked: float, count: int) -> dict[str, float]:
    return {
        "plain_us": round(plain, 1), "hooked_us": round(hooked, 1), "number": count,
        "each_us": round((hooked - plain) / count, 1),
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found: dict[str, Any] = {
            "machine": f"{platform.processor() or platform.machine()}, {_processor()}",
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "transformers, eager experts": transformers_costs(folder, "eager"),
            "transformers, grouped experts": transformers_costs(folder, "grouped_mm"),
            "llama.cpp": llamacpp_costs(folder),
            "hooks": hook_costs(folder),
        }
    print(json.dumps(found, indent=1))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")


if __name__ == "__main__":
    main(sys.argv[1:])
