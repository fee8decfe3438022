"""Software costs of third-party packages: time per layer, expert and hook, without large products.

    python -m benchmarks.native_costs

Tiny Qwen2-MoE models (hidden 64, experts of width 16), whose computation costs almost nothing,
decode with each package, as its native system runs it.  A token's time is modelled as

    t(L, k) = t_0 + L · (layer + k · expert)

for L layers of k experts a token, and fitted to all combinations of `LAYERS` and `TOP_K`.  Time per
hook: a token's time with hooks less that without, over the number of hooks (DeepSpeed: of gathered
tensors).  Times are CPU times of one thread: the median of a text's tokens, the least of all texts
and rounds, because other processes on the same core make CPU time longer as well.  They include the
time of the tiny products.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.systems.native.accelerate import hooks
from moebench.systems.native.base import Job, Runner
from moebench.systems.native.gguf_file import write_gguf
from moebench.systems.options import build_native

LAYERS, TOP_K = (4, 10, 16), (2, 4, 8)
#: Layers and top-k of the model with which hooks are measured.
HOOKED = (16, 8)
TOKENS, REPEATS, ROUNDS = 25, 4, 4


def checkpoint(folder: Path, layers: int, top_k: int) -> Path:
    """Write a random Qwen2-MoE checkpoint and return its folder."""
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
    """Load a model with a package in this process and yield its runner."""
    system = build_native(f"native-{package}", options)
    names = {name: getattr(system, name) for name in system.__dataclass_fields__}
    module = type(system).__module__
    with tempfile.TemporaryDirectory() as scratch:
        job = Job(adapter=module, libraries=(), model=str(model), folder=scratch, options=names,
                  context=512, batch=1)  # fmt: skip
        yield import_module(module).runner(job)


def token_us(runner: Runner) -> float:
    """Return the CPU time of a decoded token in µs: the least of several medians."""
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
    """Return ``t_0``, ``layer`` and ``expert`` of the module's model, in µs."""
    rows = [(1, layers, layers * k) for layers, k in times]
    found, *_ = np.linalg.lstsq(np.array(rows, float), np.array([*times.values()]), rcond=None)
    return dict(zip(("fixed_us", "layer_us", "expert_us"), np.round(found, 1).tolist(),
                    strict=True))  # fmt: skip


#: Fitted runs: (label, package, options, Transformers' implementation of experts).
FITTED = (
    ("transformers, eager experts", "accelerate", {"offload": "none"}, "eager"),
    ("transformers, grouped experts", "accelerate", {"offload": "none"}, "grouped_mm"),
    ("llama.cpp, products included", "llamacpp", {}, None),
)
WITH_HOOKS = (
    ("accelerate", "accelerate", {"offload": "cpu"}),
    ("deepspeed", "deepspeed", {"offload": "cpu"}),
)

Times = dict[tuple[str, int, int], float]


class Counted(NamedTuple):
    """Hooks that load weights (DeepSpeed: one per tensor), and the tensors that they load."""

    hooks: int
    tensors: int


def once(folder: Path) -> tuple[Times, dict[str, Counted]]:
    """Measure all token times once, by label, layers and experts; return them and hook counts."""
    times: Times = {}
    for (label, package, options, experts), layers, k in product(FITTED, LAYERS, TOP_K):
        model = checkpoint(folder, layers, k)
        if package == "llamacpp":
            model = write_gguf(Checkpoint(model), folder / f"{layers}-{k}.gguf")
        with loaded(package, model, **options) as runner:
            if experts is not None:
                runner._model.set_experts_implementation(experts)  # type: ignore[attr-defined]
            times[label, layers, k] = token_us(runner)
    numbers = {}
    for label, package, options in WITH_HOOKS:
        with loaded(package, checkpoint(folder, *HOOKED), **options) as runner:
            model = runner._model  # type: ignore[attr-defined]
            found = hooks(model)[0] if label == "accelerate" else len([*model.parameters()])
            numbers[label] = Counted(found, len([*model.parameters()]))
            times[label, *HOOKED] = token_us(runner)
    return times, numbers


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    least: Times = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(ROUNDS):
            times, numbers = once(Path(scratch))
            least = {key: min(us, least.get(key, us)) for key, us in times.items()}
    plain = least["transformers, grouped experts", *HOOKED]
    found: dict[str, Any] = {
        "machine": _processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    for label, *_ in FITTED:
        found[label] = fitted({key[1:]: us for key, us in least.items() if key[0] == label})
    for label, *_ in WITH_HOOKS:
        hooked = least[label, *HOOKED]
        found[f"{label}'s hooks"] = {
            "plain_us": round(plain, 1),
            "hooked_us": round(hooked, 1),
            **numbers[label]._asdict(),
            "us_a_hook": round((hooked - plain) / numbers[label].hooks, 1),
            "us_a_tensor": round((hooked - plain) / numbers[label].tensors, 1),
        }
    print(json.dumps(found, indent=1))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")


if __name__ == "__main__":
    main(sys.argv[1:])
