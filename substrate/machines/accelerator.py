"""The GPU interface of a machine, streams, events and memory, and its implementation by CUDA."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.models.device import Device, Index

#: GPU memory that a run leaves free for temporary tensors and torch itself; an estimate, as
#: profiles have one for each GPU.
WORKSPACE_BYTES = 10**9


class Event(Protocol):
    """An event in a stream, as of CUDA."""

    def query(self) -> bool:
        """Return whether all operations before the event have ended."""

    def synchronize(self) -> None:
        """Block this thread until all operations before the event have ended; release the GIL."""


class Accelerator(Device, Protocol):
    """The operations of a GPU that a machine uses.

    Operations go to the calling thread's stream: `compute`, unless the thread is inside `on`.
    Only `record` and `follow` order operations of two streams.

    Attributes:
        name: the GPU's product name.
        compute: the default stream of all threads.
    """

    name: str
    compute: Any

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as its driver states it."""

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes of GPU memory."""

    def limit(self, count_bytes: int) -> None:
        """Limit further allocations of this process to ``count_bytes``."""

    def allocate(self, count: int, stride_bytes: int) -> Tensor:
        """Allocate GPU memory ``[count, stride_bytes]`` of uint8.

        Raises BudgetError: the GPU has less memory.
        """

    def pin(self, memory: Tensor) -> None:
        """Page-lock host memory, so that copies from it are asynchronous.

        Raises BudgetError: the operating system allows less.
        """

    def unpin(self, memory: Tensor) -> None:
        """End the page-locking of host memory."""

    def stream(self) -> Any:
        """Return a new stream that does not wait for other streams implicitly."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which this thread launches operations on the stream."""

    def record(self, stream: Any) -> Event:
        """Record an event behind all operations that were launched on the stream."""

    def follow(self, stream: Any, event: Event) -> None:
        """Let later operations of the stream wait for the event, without blocking the thread."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy memory between host and card, on this thread's stream."""

    def elapsed_ns(self, since: Event, until: Event) -> int:
        """Return the time between two events that have ended, in ns."""


#: torch.cuda as Any, because half of its functions have no types.
_cuda: Any = torch.cuda


class Cuda:
    """The first CUDA device, through torch; see `Accelerator`.

    Raises UsageError: torch finds no CUDA device.
    """

    def __init__(self) -> None:
        if not _cuda.is_available():
            built = torch.version.cuda
            why = "this torch is built without CUDA" if built is None else "torch finds no card"
            raise UsageError(f"--device cuda: {why}; give --device cpu, or install what is missing")
        self.name = _cuda.get_device_name()
        self.compute = _cuda.default_stream()

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as nvidia-smi prints it."""
        return f"GPU-{_cuda.get_device_properties().uuid}"

    # ------------------------------------------------------------------ the decoder's numbers

    def put(self, values: Tensor) -> Tensor:
        """Return a copy of host values on the GPU, copied from page-locked memory of torch."""
        return values.pin_memory().to("cuda", non_blocking=True)

    def index(self, places: list[int]) -> Index:
        """Return indices as a tensor on the GPU."""
        return self.put(torch.tensor(places))

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return copies of GPU values in host memory, after one wait for all of them."""
        copies = tuple(
            torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(
                value, non_blocking=True
            )
            for value in values
        )
        _cuda.current_stream().synchronize()
        return copies

    # ------------------------------------------------------------------ memory

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes of GPU memory."""
        free, total = _cuda.mem_get_info()
        return free, total

    def limit(self, count_bytes: int) -> None:
        """Limit the memory of torch's allocator to ``count_bytes``."""
        _cuda.set_per_process_memory_fraction(min(1.0, count_bytes / self.memory()[1]))

    def allocate(self, count: int, stride_bytes: int) -> Tensor:
        """Allocate zeroed GPU memory ``[count, stride_bytes]`` of uint8."""
        try:
            memory = torch.zeros(count, stride_bytes, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            raise BudgetError(
                f"{count} slots take {count * stride_bytes / 1e9:.3g} GB, {self.name} has "
                f"{self.memory()[0] / 1e9:.3g} GB free; give a smaller --capacity or --slots"
            ) from error
        _cuda.synchronize()  # the zeros are written before other streams copy records there
        return memory

    def pin(self, memory: Tensor) -> None:
        """Page-lock existing memory, as torch's own page-locked memory has power-of-two sizes."""
        failed = int(_cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if failed:
            raise BudgetError(
                f"{memory.nbytes / 1e9:.3g} GB of host memory for experts cannot be pinned (CUDA "
                f"error {failed}); give a smaller model, raise `ulimit -l`, or copy from pageable "
                "memory: --set pinned_copies=false"
            )

    def unpin(self, memory: Tensor) -> None:
        """End the page-locking of host memory."""
        _cuda.cudart().cudaHostUnregister(memory.data_ptr())

    # ------------------------------------------------------------------ streams

    def stream(self) -> Any:
        """Return a new stream that does not wait for the default stream."""
        return _cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which this thread launches operations on the stream."""
        inside: AbstractContextManager[Any] = _cuda.stream(stream)
        return inside

    def record(self, stream: Any) -> Event:
        """Record an event with a time, for which a waiting thread sleeps instead of spinning."""
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        passed: Event = event
        return passed

    def follow(self, stream: Any, event: Event) -> None:
        """Let later operations of the stream wait for the event."""
        stream.wait_event(event)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy memory, asynchronously if the host's memory is page-locked."""
        target.copy_(source, non_blocking=True)

    def elapsed_ns(self, since: Any, until: Any) -> int:
        """Return the time between two events that have ended, in ns."""
        took_ms: float = since.elapsed_time(until)
        return round(took_ms * 1e6)
