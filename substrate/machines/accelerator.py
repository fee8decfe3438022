"""What a machine asks of a card: streams, events, memory.  torch's CUDA answers; tests do, too."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.models.device import Device, Index

#: What a run leaves of a card's memory for what its operations need while they compute, and for
#: torch's own; an estimate, as profiles have one for each card.
WORKSPACE_BYTES = 10**9


class Event(Protocol):
    """A point of a stream."""

    def query(self) -> bool:
        """Whether all before it has ended."""

    def synchronize(self) -> None:
        """Block this thread, without the interpreter's lock, until all before it has ended."""


class Accelerator(Device, Protocol):
    """A card.

    What is launched goes to the calling thread's stream: `compute`, unless it is inside `on`.
    The order of two streams is what `record` and `follow` make it, and nothing else.

    Attributes:
        name: as the card calls itself.
        compute: the stream of all threads that have chosen no other.
    """

    name: str
    compute: Any

    @property
    def uuid(self) -> str:
        """The card's, as its driver knows it."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and that there are."""

    def limit(self, count_bytes: int) -> None:
        """Refuse to allocate more than so many bytes from now on."""

    def allocate(self, count: int, stride_bytes: int) -> Tensor:
        """Memory of the card ``[count, stride_bytes]`` as bytes.

        Raises:
            BudgetError: the card has less.
        """

    def pin(self, memory: Tensor) -> None:
        """Lock memory of the host in place, so that copies from it are asynchronous.

        Raises:
            BudgetError: the system allows less.
        """

    def unpin(self, memory: Tensor) -> None:
        """Let go of it."""

    def stream(self) -> Any:
        """A new stream that waits for no other by itself."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What this thread launches goes to the stream."""

    def record(self, stream: Any) -> Event:
        """An event behind all that the stream was given."""

    def follow(self, stream: Any, event: Event) -> None:
        """What the stream is given from now on waits for the event; the thread does not."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy memory between host and card, on this thread's stream."""

    def elapsed_ns(self, since: Event, until: Event) -> int:
        """Time between two events that have passed."""


#: torch leaves half of it without types.
_cuda: Any = torch.cuda


class Cuda:
    """The first CUDA device, through torch; see `Accelerator`.

    Raises:
        UsageError: there is none.
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
        """As NVIDIA's own tools write it."""
        return f"GPU-{_cuda.get_device_properties().uuid}"

    # ------------------------------------------------------------------ the decoder's numbers

    def put(self, values: Tensor) -> Tensor:
        """Values from host memory on the card, by way of pinned memory that torch keeps."""
        return values.pin_memory().to("cuda", non_blocking=True)

    def index(self, places: list[int]) -> Index:
        """Places as a tensor of the card."""
        return self.put(torch.tensor(places))

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values of the card in host memory: copies of all of them, then one wait."""
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
        """Bytes that are free, and that there are."""
        free, total = _cuda.mem_get_info()
        return free, total

    def limit(self, count_bytes: int) -> None:
        """Torch's allocator refuses more."""
        _cuda.set_per_process_memory_fraction(min(1.0, count_bytes / self.memory()[1]))

    def allocate(self, count: int, stride_bytes: int) -> Tensor:
        """Memory of the card ``[count, stride_bytes]`` as bytes, zero."""
        try:
            memory = torch.zeros(count, stride_bytes, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            raise BudgetError(
                f"{count} slots take {count * stride_bytes / 1e9:.3g} GB, {self.name} has "
                f"{self.memory()[0] / 1e9:.3g} GB free; give a smaller --cache-ratio or --slots"
            ) from error
        _cuda.synchronize()  # other streams write there next
        return memory

    def pin(self, memory: Tensor) -> None:
        """Pages that are there are locked: torch's own pinned memory has sizes of powers of two."""
        failed = int(_cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if failed:
            raise BudgetError(
                f"{memory.nbytes / 1e9:.3g} GB of host memory for experts cannot be pinned (CUDA "
                f"error {failed}); give a smaller model, raise `ulimit -l`, or copy from pageable "
                "memory: --set pinned_copies=false"
            )

    def unpin(self, memory: Tensor) -> None:
        """The pages may move again."""
        _cuda.cudart().cudaHostUnregister(memory.data_ptr())

    # ------------------------------------------------------------------ streams

    def stream(self) -> Any:
        """One that does not wait for the default stream either."""
        return _cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What this thread launches goes to the stream."""
        inside: AbstractContextManager[Any] = _cuda.stream(stream)
        return inside

    def record(self, stream: Any) -> Event:
        """An event with a time, for which a thread sleeps and does not spin."""
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        passed: Event = event
        return passed

    def follow(self, stream: Any, event: Event) -> None:
        """What the stream is given from now on waits for the event."""
        stream.wait_event(event)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Asynchronous where the host's memory is pinned."""
        target.copy_(source, non_blocking=True)

    def elapsed_ns(self, since: Any, until: Any) -> int:
        """Time between two events that have passed."""
        took_ms: float = since.elapsed_time(until)
        return round(took_ms * 1e6)
