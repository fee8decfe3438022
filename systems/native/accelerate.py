"""The Hugging Face Accelerate package: a module's weights are loaded for each use.

`device_map` and big model inference for models that exceed memory (measured with 1.15 and
Transformers 5.23).  The simulated `accelerate` models the same method on a GPU.

    option                        calls
    ──────                        ─────
    offload=disk, read=copy       disk_offload: a ``.dat`` file a tensor; each use copies it whole
                                    out of the file, all experts of a layer
    offload=disk, read=mmap       from_pretrained(device_map=...): a safetensors file a tensor; a
                                    use maps it, and the pages that are touched are read
    offload=cpu                   cpu_offload
    offload=none                  nothing: Transformers alone, all weights in memory
    max_memory=60MB               infer_auto_device_map: so many bytes of whole layers stay, in
                                    order; the others are on the disk

Deviations and readings:

- ``read=copy`` is the default: it is a real read of all that a module has.  ``mmap`` reads what is
  touched, so its bytes depend on page faults, and it is what from_pretrained does.
- ``offload=cpu`` on a CPU moves nothing: what a hook "brings" is the tensor that is there already.
  Its time is that of the hooks alone, which is what it is measured for.
- All reads go through the page cache.  Without ``memory_limit`` files that were just written stay
  in it, and no read reaches the disk.
- A batch is padded on the left, as a user of ``generate`` does; padding is computed too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

from moebench.substrate.errors import UsageError
from moebench.systems.native.base import Job, Runner
from moebench.systems.native.hugging_face import HuggingFaceSystem, Streaming
from moebench.systems.native.sizes import parse_size


@dataclass(kw_only=True)
class NativeAccelerate(HuggingFaceSystem):
    """Hugging Face Accelerate as a native system, with its options.

    Attributes:
        offload: where weights are stored between uses.
        read: how they are read from the disk.
        max_memory: bytes of whole layers that stay in memory; null keeps none.
    """

    paper = "Hugging Face Accelerate 1.15"
    requires: ClassVar[Mapping[str, str]] = {"accelerate": "accelerate"}

    offload: Literal["disk", "cpu", "none"] = "disk"
    read: Literal["copy", "mmap"] = "copy"
    max_memory: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_memory is not None:
            parse_size("max_memory", self.max_memory)
            if self.offload != "disk":
                raise UsageError(
                    f"max_memory and offload={self.offload}: all weights stay in memory; "
                    "allowed: offload=disk"
                )

    @property
    def libraries(self) -> Sequence[str]:
        """Modules that the process imports first: PyTorch, Transformers, Accelerate."""
        return ("torch", "transformers", "accelerate")

    def remarks(self) -> Sequence[str]:
        """Return notes on the way of offloading for the run's document."""
        if self.offload == "none":
            return ["Transformers alone: all weights are in memory, and no hook is attached"]
        if self.offload == "cpu":
            return [
                "Accelerate's cpu_offload moves nothing where the CPU computes: each hook hands "
                "out the tensor that is there; what is measured is the hooks' own time"
            ]
        if self.read == "copy":
            return ["Accelerate's disk_offload copies all experts of a layer for each use"]
        return ["Accelerate maps each tensor's file: the pages that are touched are read"]


def runner(job: Job) -> Runner:
    """Load the model with Transformers and attach Accelerate's offloading hooks."""
    accelerate: Any = import_module("accelerate")
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    options, cpu = job.options, torch.device("cpu")
    limit = options["max_memory"]
    most = None if limit is None else {"cpu": parse_size("max_memory", limit), "disk": 1 << 62}
    load = transformers.AutoModelForCausalLM.from_pretrained
    if options["offload"] == "disk" and options["read"] == "mmap":
        where: Any = {"": "disk"} if most is None else "auto"
        kept: Any = {"device_map": where, "max_memory": most, "offload_folder": job.folder}
        model = load(job.model, dtype=torch.float32, **kept)
    else:
        model = load(job.model, dtype=torch.float32).eval()
        if options["offload"] == "cpu":
            accelerate.cpu_offload(model, execution_device=cpu)
        elif options["offload"] == "none":
            return Streaming(model, [])
        elif most is None:
            accelerate.disk_offload(model, job.folder, execution_device=cpu)
        else:
            found = accelerate.infer_auto_device_map(
                model, max_memory=most, no_split_module_classes=model._no_split_modules
            )
            accelerate.dispatch_model(
                model, device_map=found, main_device="cpu", offload_dir=job.folder,
                force_hooks=True,
            )  # fmt: skip
    count, size = hooks(model)
    said = f"{count} hooks bring {size / 1e6:.4g} MB of weights for each pass"
    return Streaming(model.eval(), [said])


def hooks(model: Any) -> tuple[int, int]:
    """Return the number of hooks that load weights, and the bytes of these weights."""
    count = size = 0
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        if any(getattr(one, "offload", False) for one in getattr(hook, "hooks", (hook,))):
            own = [*module.parameters(recurse=False)]
            count += bool(own)
            size += sum(p.numel() * p.element_size() for p in own)
    return count, size
