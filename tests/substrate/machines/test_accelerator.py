"""The first CUDA device through a module that stands for torch's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.accelerator import Cuda

Calls = list[tuple[Any, ...]]


class FakeCuda:
    """torch.cuda of a card of 100 MB, of which 30 are free; it notes what it is told."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self.calls.append((name, *given, more))

    def is_available(self) -> bool:
        return True

    def get_device_name(self) -> str:
        return "a card"

    def default_stream(self) -> str:
        return "default"

    def get_device_properties(self) -> Any:
        return SimpleNamespace(uuid="1234")

    def mem_get_info(self) -> tuple[int, int]:
        return 30_000_000, 100_000_000

    def cudart(self) -> Any:
        def register(*given: Any) -> int:
            self.calls.append(("register", *given))
            return self.failed

        return SimpleNamespace(
            cudaHostRegister=register,
            cudaHostUnregister=lambda *given: self.calls.append(("unregister", *given)),
        )

    def Event(self, **options: Any) -> Any:
        return SimpleNamespace(
            options=options, record=lambda stream: self.calls.append(("record", stream))
        )

    def current_stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: self.calls.append(("synchronize stream",)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setattr(accelerator, "_cuda", found)
    return found


def test_the_cards_name_memory_and_stream(fake: FakeCuda) -> None:
    card = Cuda()
    assert (card.name, card.compute, card.uuid) == ("a card", "default", "GPU-1234")
    assert card.memory() == (30_000_000, 100_000_000)
    card.limit(25_000_000)
    card.limit(200_000_000)
    assert [given for name, given, _ in fake.calls] == [0.25, 1.0]
    assert {name for name, *_ in fake.calls} == {"set_per_process_memory_fraction"}


@pytest.mark.parametrize(
    ("built", "why"), [(None, "this torch is built without CUDA"), ("12.8", "torch finds no card")]
)
def test_a_missing_card_is_refused(
    built: str | None, why: str, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "is_available", lambda: False)
    monkeypatch.setattr(accelerator.torch.version, "cuda", built)
    with pytest.raises(UsageError) as refused:
        Cuda()
    assert str(refused.value) == (
        f"--device cuda: {why}; give --device cpu, or install what is missing"
    )


def test_page_locked_memory(fake: FakeCuda) -> None:
    card, memory = Cuda(), torch.zeros(3, 1000, dtype=torch.uint8)
    card.pin(memory)
    card.unpin(memory)
    assert fake.calls == [
        ("register", memory.data_ptr(), 3000, 0), ("unregister", memory.data_ptr()),
    ]  # fmt: skip
    fake.failed = 712
    with pytest.raises(BudgetError) as refused:
        card.pin(memory)
    assert str(refused.value).startswith(
        "3e-06 GB of host memory for experts cannot be pinned (CUDA error 712); give a smaller"
    )


def test_slots_are_zeroed_before_anything_is_copied_there(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, true = Cuda(), torch.zeros
    asked: list[Any] = []

    def zeros(*dims: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        asked.append((dims, dtype, device))
        return true(*dims, dtype=dtype)

    monkeypatch.setattr(accelerator.torch, "zeros", zeros)
    assert card.allocate(4, 25).tolist() == [[0] * 25] * 4
    assert asked == [((4, 25), torch.uint8, "cuda")]
    assert fake.calls == [("synchronize", {})]

    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(accelerator.torch, "zeros", full)
    with pytest.raises(BudgetError) as refused:
        card.allocate(40, 1_000_000)
    assert str(refused.value) == (
        "40 slots take 0.04 GB, a card has 0.03 GB free; give a smaller --capacity or --slots"
    )


def test_streams_events_and_copies(fake: FakeCuda) -> None:
    card = Cuda()
    event: Any = card.record("stream")
    assert event.options == {"enable_timing": True, "blocking": True}
    assert fake.calls == [("record", "stream")]
    waited: list[Any] = []
    card.follow(SimpleNamespace(wait_event=waited.append), event)
    assert waited == [event]
    later = SimpleNamespace()
    since = SimpleNamespace(elapsed_time=lambda until: 1.2345678 if until is later else 0.0)
    assert card.elapsed_ns(since, later) == 1_234_568
    copied: list[Any] = []
    target: Any = SimpleNamespace(copy_=lambda source, **how: copied.append((source, how)))
    card.copy(target, torch.ones(2))
    ((source, how),) = copied
    assert (source.tolist(), how) == ([1, 1], {"non_blocking": True})
    fake.calls.clear()
    card.stream()
    card.on("stream")
    assert fake.calls == [("Stream", {}), ("stream", "stream", {})]


def test_values_go_to_the_card_from_page_locked_memory_and_back(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, calls = Cuda(), fake.calls

    class Values:
        def pin_memory(self) -> "Values":
            calls.append(("pin",))
            return self

        def to(self, device: str, non_blocking: bool) -> str:
            calls.append(("to", device, non_blocking))
            return "on the card"

    given: Any = Values()
    assert str(card.put(given)) == "on the card"
    assert calls == [("pin",), ("to", "cuda", True)]
    monkeypatch.setattr(card, "put", lambda values: values.tolist())
    assert card.index([4, 2]) == [4, 2]
    calls.clear()

    def empty(shape: Any, dtype: Any, pin_memory: bool) -> Any:
        def copy_(value: Any, non_blocking: bool) -> Any:
            calls.append(("copy", tuple(shape), dtype, pin_memory, non_blocking))
            return value

        return SimpleNamespace(copy_=copy_)

    monkeypatch.setattr(accelerator.torch, "empty", empty)
    one, two = torch.ones(2), torch.zeros(1, 3, dtype=torch.int64)
    assert card.read(one, two) == (one, two)
    assert calls == [
        ("copy", (2,), torch.float32, True, True), ("copy", (1, 3), torch.int64, True, True),
        ("synchronize stream",),
    ]  # fmt: skip
