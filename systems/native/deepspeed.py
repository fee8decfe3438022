"""The DeepSpeed package: a module's weights are gathered before it runs, then released.

ZeRO-Inference (stage 3 with ``offload_param``, measured with 0.19.8 and Transformers 5.23) in one
process with the CPU accelerator.  The simulated `deepspeed` models the same method on a GPU.

    option             configuration
    ──────             ─────────────
    offload=cpu        offload_param: {device: cpu}
    offload=nvme       offload_param: {device: nvme, buffer_count, buffer_size}: read with libaio
                         past the page cache

Its operators are compiled once, never within a run, into ``TORCH_EXTENSIONS_DIR`` or
``torch_extensions`` next to the interpreter: ``python -m moebench.systems.native.operators``.

Deviations and readings:

- Only tensors of 1 MiB and more go to NVMe, smaller ones stay in memory, silently: the notes state
  the share that is on the disk.  Of our scale models none is as large: theirs is 0.
- Transformers fuses a layer's experts into two tensors, and each is gathered whole.
- Everything else is DeepSpeed's own default.
- A batch is padded on the left, as a user of ``generate`` does; padding is computed too.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from moebench.substrate.errors import UsageError
from moebench.systems.native.base import Job, Runner
from moebench.systems.native.hugging_face import HuggingFaceSystem, Streaming
from moebench.systems.native.operators import ALWAYS, FROM_NVME, check, use


@dataclass(kw_only=True)
class NativeDeepSpeed(HuggingFaceSystem):
    """DeepSpeed ZeRO-Inference as a native system, with its options.

    Attributes:
        offload: where weights are stored between uses.
        buffers: host buffers (``buffer_count``) for NVMe, each as large as the largest tensor.
    """

    paper = "SC 2022, arXiv 2207.00032; DeepSpeed 0.19"
    requires: ClassVar[Mapping[str, str]] = {"deepspeed": "deepspeed"}

    offload: Literal["nvme", "cpu"] = "nvme"
    buffers: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffers < 1:
            raise UsageError(f"buffers is {self.buffers}; allowed: 1 or more")

    @property
    def libraries(self) -> Sequence[str]:
        """Modules that the process imports first: PyTorch, Transformers, DeepSpeed."""
        return ("torch", "transformers", "deepspeed")

    def remarks(self) -> Sequence[str]:
        """Return a note on how weights are read, for the run's document."""
        if self.offload == "nvme":
            return ["DeepSpeed reads with libaio, past the page cache"]
        return ["DeepSpeed gathers each tensor by a copy within memory"]


def runner(job: Job) -> Runner:
    """Load the model under ZeRO stage 3 with parameter offloading."""
    use()
    nvme = job.options["offload"] == "nvme"
    check(ALWAYS + FROM_NVME if nvme else ALWAYS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    deepspeed: Any = import_module("deepspeed")
    transformers: Any = import_module("transformers")
    torch: Any = import_module("torch")
    deepspeed.init_distributed(dist_backend="gloo")
    offload: dict[str, Any] = {"device": job.options["offload"], "pin_memory": False}
    if nvme:
        offload |= {"nvme_path": job.folder, "buffer_count": job.options["buffers"]}
        offload["buffer_size"] = _largest_tensor(Path(job.model))
    config = {
        "train_micro_batch_size_per_gpu": job.batch,
        "zero_optimization": {"stage": 3, "offload_param": offload},
    }
    # Transformers loads under zero.Init as long as this object exists.
    kept = transformers.integrations.HfDeepSpeedConfig(config)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(job.model, dtype=torch.float32).eval()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    facts = [swapped(engine.module)] if nvme else []
    streaming = Streaming(engine.module, facts, synced_gpus=False)
    streaming.kept = kept  # type: ignore[attr-defined]
    return streaming


def _largest_tensor(model: Path) -> int:
    """Return the elements of the largest tensor as Transformers stores it, with fused experts."""
    from moebench.substrate.models.config import read_shape

    shape = read_shape(model / "config.json")
    experts = shape.num_experts * 2 * shape.expert_width * shape.hidden_size
    widest = max(shape.dense_width, shape.shared_width, shape.vocab_size)
    return max(experts, widest * shape.hidden_size)


def swapped(module: Any) -> str:
    """Return a sentence with the share of the weights that is on the disk."""
    total = on_disk = 0
    for parameter in module.parameters():
        size = parameter.ds_numel * parameter.element_size()
        total += size
        where = getattr(parameter.ds_tensor, "final_location", None)
        if str(getattr(where, "value", where)) == "nvme":
            on_disk += size
    return (
        f"{on_disk / 1e6:.4g} of {total / 1e6:.4g} MB of weights are on the disk "
        f"({on_disk / total:.1%}); tensors below 1 MiB stay in memory"
    )
