"""The llama.cpp package, through llama-cpp-python: a GGUF file is mapped into memory.

Measured with llama-cpp-python 0.3.36 (a CPU build).  The GGUF file is written from the checkpoint
in fp32 (`gguf_file`).  The simulated `llamacpp` models a GPU build with some experts on the host.

    option           call
    ──────           ────
    mmap=true        Llama(use_mmap=True): the file is mapped, a used page is read, and stays while
                       memory lasts: the only cache that llama.cpp has for experts
    mmap=false       all of the file is read before the first token
    kv=f32           Llama(type_k=0, type_v=0); ``f16`` is llama.cpp's default

Deviations and readings:

- ``kv=f32`` is the default here, for the same precision as every other system of a local run.
- One sequence at once: llama-cpp-python's ``generate`` has no batch.
- Only families whose arithmetic llama.cpp shares.  XVERSE-MoE has no converter.  Phi-3.5-MoE is
  computed with a softmax gate and RMS norms (``src/models/phi3.cpp`` at 358a4a0), where the model
  has sparsemixer and layer norms: its answers would differ.
- llama.cpp repacks some weights for the processor; repacked ones are in memory, not mapped.
- Reads go through the page cache.  Without ``memory_limit`` the file stays in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from moebench.systems.native.base import Job, NativeSystem, Put, Runner

if TYPE_CHECKING:
    from moebench.substrate.models.checkpoint import Checkpoint
    from moebench.substrate.models.shape import ModelShape


@dataclass(kw_only=True)
class NativeLlamaCpp(NativeSystem):
    """llama.cpp as a native system, with its options.

    Attributes:
        mmap: map the file, instead of reading all of it.
        kv: precision of the KV cache.
    """

    paper = "ggml-org/llama.cpp; llama-cpp-python 0.3"
    requires: ClassVar[Mapping[str, str]] = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
    max_batch = 1

    mmap: bool = True
    kv: Literal["f32", "f16"] = "f32"

    @property
    def lossless(self) -> bool:
        """Whether outputs are the resident model's: only with keys and values in full precision."""
        return self.kv == "f32"

    @property
    def libraries(self) -> Sequence[str]:
        """Modules that the process imports first: no PyTorch."""
        return ("llama_cpp",)

    def why_not(self, shape: "ModelShape", batch: int) -> str | None:
        """Return why llama.cpp or its file format does not support this model; None if they do."""
        from moebench.systems.native.gguf_file import why_not

        return why_not(shape) or super().why_not(shape, batch)

    def model_file(self, checkpoint: "Checkpoint", content: str, folder: Path) -> Path:
        """Return the GGUF file, written from the checkpoint once."""
        from moebench.systems.native.gguf_file import write_gguf

        return write_gguf(checkpoint, folder / f"{content}-f32.gguf")

    def remarks(self) -> Sequence[str]:
        """Return a note on how the GGUF file is read, for the run's document."""
        return ["llama.cpp maps its file" if self.mmap else "llama.cpp reads all of its file first"]


def runner(job: Job) -> Runner:
    """Open the GGUF file of the job."""
    return _LlamaRunner(job)


class _LlamaRunner:
    """A llama.cpp model that generates one sequence at a time."""

    def __init__(self, job: Job) -> None:
        llama_cpp: Any = import_module("llama_cpp")
        kind = {"f32": 0, "f16": 1}[job.options["kv"]]  # GGML's type numbers
        threads = job.options["threads"]
        self._model = llama_cpp.Llama(
            job.model, n_ctx=job.context, n_gpu_layers=0, use_mmap=job.options["mmap"],
            n_threads=threads, n_threads_batch=threads, type_k=kind, type_v=kind,
        )  # fmt: skip
        self.facts: Sequence[str] = ()

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, end: int | None, put: Put
    ) -> None:
        """Decode one sequence greedily, after a reset of the KV cache."""
        (prompt,) = prompts
        self._model.reset()
        for token in islice(self._model.generate(list(prompt), temp=0.0), new_tokens):
            put([token])
            if token == end:
                return
