"""Products of experts: torch's are those of numpy, and measurements share the intended time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moebench.harness.machines import products
from moebench.harness.machines.products import Experts, Kernels, Torch, flops_of, measure_products
from moebench.harness.machines.rates import Rate

#: Hidden size and width of a small expert.
HIDDEN, WIDTH = 4, 3


def product(x: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Return down((silu(gate(x)) · up(x))) in double precision."""
    size = HIDDEN * WIDTH
    gate, up = (weights[n * size : (n + 1) * size].reshape(WIDTH, HIDDEN) for n in (0, 1))
    down = weights[2 * size :].reshape(HIDDEN, WIDTH)
    inner = x @ gate.T
    inner = inner / (1 + np.exp(-inner)) * (x @ up.T)
    found: NDArray[Any] = inner @ down.T
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "EXPERT", (HIDDEN, WIDTH))
    monkeypatch.setattr(products, "WEIGHTS", 3 * HIDDEN * WIDTH)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("form", "size", "close"), [("f32", 4, 1e-5), ("bf16", 2, 0.1)])
def test_torch_multiplies_experts_in_turn_as_numpy_does(
    form: str, size: int, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three experts of 36 weights fit; the bytes behind them belong to none."""
    one, plain, made = 36 * size, torch.nn.functional.linear, list[torch.Tensor]()

    def linear(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        made.append(plain(x, matrix))
        return made[-1]

    monkeypatch.setattr(products, "linear", linear)
    memory, before = np.zeros(3 * one + size, np.uint8), torch.get_num_threads()
    threads = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with Torch().experts(form, memory) as experts:
        assert torch.is_inference_mode_enabled()
        assert experts.expert_bytes == one
        stored = torch.from_numpy(memory[: 3 * one]).view(getattr(torch, {
            "f32": "float32", "bf16": "bfloat16"}[form]))  # fmt: skip
        stored.copy_(torch.randn(108, generator=torch.Generator().manual_seed(3)))
        weights = stored.double().numpy().reshape(3, 36)
        for turn, rows in enumerate((1, 2, 5, 1)):
            made.clear()
            assert experts.compute(rows, 7 + turn) == 1
            expected = product(np.ones((rows, HIDDEN)), weights[turn % 3])
            assert made[-1].double().numpy() == pytest.approx(expected, rel=close, abs=close)
            assert len(made) == 3, "three matrices"
    assert threads == [7, 8, 9, 10, before]


@pytest.mark.usefixtures("small")
def test_weights_of_torch_are_drawn_and_small() -> None:
    """One row is drawn and repeated: the rows of a matrix are equal and of one fiftieth."""
    memory = np.zeros(36 * 4, np.uint8)
    with Torch().experts("f32", memory):
        drawn = memory.view(np.float32).reshape(9, HIDDEN)
    assert (drawn == drawn[0]).all()
    assert 0 < np.abs(drawn).max() < 5 / 50
    assert len(np.unique(drawn[0])) == HIDDEN
    again = np.zeros(36 * 4, np.uint8)
    with Torch().experts("f32", again):
        assert (again == memory).all()


def test_torch_is_named_with_its_version_and_formats() -> None:
    made = Torch()
    assert (made.name, tuple(made.formats)) == (f"torch {torch.__version__}", ("f32", "bf16"))


class Idle(Experts):
    """Experts of a hundred bytes, which notes how it is called."""

    expert_bytes = 100

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def compute(self, rows: int, threads: int) -> int:
        self.calls.append((rows, threads))
        return 3


class Library(Kernels):
    """A library of some formats whose experts compute nothing."""

    def __init__(self, name: str, *formats: str) -> None:
        self.name, self.formats, self.made = name, formats, Idle()

    @contextmanager
    def experts(self, form: str, memory: NDArray[np.uint8]) -> Iterator[Experts]:
        yield self.made


@pytest.mark.parametrize(
    ("seconds", "each"),
    # Three formats, two numbers of rows and two of threads are twelve measurements.
    [(1.2, 0.1), (12.0, 0.5), (0.12, 0.08)],
)
def test_measurements_share_the_time_within_limits(
    seconds: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def rate_of(work: Callable[[], float], clock: Any, spent: float) -> Rate:
        asked.append((work(), clock, spent))
        return Rate(len(asked), 0, 0)

    monkeypatch.setattr(products, "rate_of", rate_of)
    first, second = Library("one", "q4"), Library("two", "q8", "f16")
    said: list[str] = []
    found = measure_products([first, second], np.zeros(1, np.uint8), [1, 6], said.append,
                             lambda: 0, seconds)  # fmt: skip
    assert {round(spent, 9) for _, _, spent in asked} == {each}
    assert {amount for amount, *_ in asked} == {300}, "bytes of all experts of a round"
    assert first.made.calls == [(1, 1), (1, 6), (32, 1), (32, 6)]
    assert second.made.calls == [(1, 1), (1, 6), (32, 1), (32, 6)] * 2
    assert found.kernels == {"q4": "one", "q8": "two", "f16": "two"}
    assert [line.split(",")[0] for line in said] == [
        "experts in q4", "experts in q8", "experts in f16"
    ]  # fmt: skip
    assert found.rates["q8"] == {1: {1: (5, 0, 0), 6: (6, 0, 0)}, 32: {1: (7, 0, 0), 6: (8, 0, 0)}}
    nothing = measure_products([], np.zeros(1, np.uint8), [1], said.append, lambda: 0, 1.0)
    assert nothing == ({}, {}, {})


def test_operations_of_a_byte_are_two_for_each_weight_and_row() -> None:
    assert flops_of(8, 1) == 2
    assert flops_of(4, 32) == 128
    assert products.WEIGHTS == 3 * 2048 * 1024
