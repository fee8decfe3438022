"""Products by ggml's interface, with a fake library that computes with numpy in the f16 format."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from moebench.harness.machines import ggml

#: A small expert, whose matrices differ in their number of rows.
HIDDEN, WIDTH = 16, 8
F16 = ggml.TYPES["f16"]
OVERHEAD, GRAPH = 100, 1000

Array = np.ndarray[Any, Any]


class Tensor:
    """A tensor's memory, or how to compute its rows."""

    def __init__(self, compute: Callable[[], Array], memory: Array | None = None) -> None:
        self.compute, self.memory = compute, memory


class Library:
    """The functions of ggml that are used; a tensor, a context and a graph are numbers."""

    def __init__(self) -> None:
        self.made: list[Any] = [None]
        self.sizes: list[tuple[int, int | None]] = []
        self.graph_sizes: list[int] = []
        self.freed: list[int] = []
        self.computed: list[tuple[int, int]] = []
        self.threads = 0
        self.fails = 0
        names = {
            "type_name": self.type_name, "row_size": self.row_size,
            "tensor_overhead": lambda: OVERHEAD,
            "graph_overhead_custom": lambda size, grads: GRAPH + size,
            "init": self.init, "free": self.freed.append, "new_tensor_2d": self.new_tensor,
            "get_data": self.get_data, "mul_mat": self.mul_mat, "silu": self.silu,
            "mul": self.mul, "new_graph_custom": self.new_graph, "graph_node": self.node,
            "build_forward_expand": self.expand, "quantize_chunk": self.quantize,
            "backend_graph_compute": self.graph_compute, "backend_free": self.freed.append,
        }  # fmt: skip
        functions = {f"ggml_{name}": plain(function) for name, function in names.items()}
        self.base = SimpleNamespace(**functions)
        self.cpu = SimpleNamespace(
            ggml_backend_cpu_init=plain(lambda: 77),
            ggml_backend_cpu_set_n_threads=plain(self.set_threads),
        )

    def put(self, made: Any) -> int:
        self.made.append(made)
        return len(self.made) - 1

    def type_name(self, kind: int) -> bytes | None:
        return {F16: b"F16", ggml.TYPES["q8_0"]: b"q8_0", ggml.TYPES["q4_k"]: b"other"}.get(kind)

    def row_size(self, kind: int, length: int) -> int:
        assert kind == F16
        return 2 * length

    def init(self, wanted: Any) -> int:
        self.sizes.append((wanted.mem_size, wanted.mem_buffer))
        assert not wanted.no_alloc
        return self.put({"at": wanted.mem_buffer, "left": wanted.mem_size})

    def new_tensor(self, context: int, kind: int, columns: int, rows: int) -> int:
        where = self.made[context]
        size = (2 if kind == F16 else 4) * columns * rows
        where["left"] -= size + OVERHEAD
        assert where["left"] >= 0, "the context is too small"
        if where["at"] is None:
            memory = np.zeros(size, np.uint8)
        else:
            memory = ggml._at(where["at"], size)
            where["at"] += size
        form = np.float16 if kind == F16 else np.float32
        assert kind in (F16, 0)
        return self.put(
            Tensor(lambda: memory.view(form).reshape(rows, columns).astype(np.float32), memory)
        )

    def get_data(self, tensor: int) -> int:
        found = self.made[tensor]
        if found.memory is None:
            found.memory = np.ascontiguousarray(found.compute(), np.float32).reshape(-1)
        return int(found.memory.ctypes.data)

    def mul_mat(self, context: int, matrix: int, rows: int) -> int:
        one, other = self.made[matrix], self.made[rows]
        return self.put(Tensor(lambda: other.compute() @ one.compute().T))

    def silu(self, context: int, tensor: int) -> int:
        one = self.made[tensor]
        return self.put(Tensor(lambda: silu(one.compute())))

    def mul(self, context: int, first: int, second: int) -> int:
        one, other = self.made[first], self.made[second]
        return self.put(Tensor(lambda: one.compute() * other.compute()))

    def new_graph(self, context: int, size: int, grads: bool) -> int:
        assert not grads
        self.graph_sizes.append(size)
        return self.put([])

    def expand(self, graph: int, tensor: int) -> None:
        self.made[graph].append(tensor)

    def node(self, graph: int, which: int) -> int:
        return int(self.made[graph][which])

    def quantize(
        self, kind: int, plain: int, stored: int, start: int, rows: int, length: int, weights: Any
    ) -> int:
        assert (kind, start, weights) == (F16, 0, None)
        values = ggml._at(plain, 4 * rows * length).view(np.float32)
        ggml._at(stored, 2 * rows * length)[:] = values.astype(np.float16).view(np.uint8)
        return 2 * rows * length

    def set_threads(self, backend: int, threads: int) -> None:
        assert backend == 77
        self.threads = threads

    def graph_compute(self, backend: int, graph: int) -> int:
        self.computed.append((graph, self.threads))
        return self.fails


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose attributes can be set, as those of a library's can."""
    return lambda *arguments: function(*arguments)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def weights(length: int, rows: int) -> Array:
    """The rows of random weights in f16, repeated."""
    drawn = (np.random.default_rng(0).standard_normal((8, length)) / 50).astype(np.float32)
    return np.resize(drawn.astype(np.float16).astype(np.float32), (rows, length))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(ggml, "EXPERT", (HIDDEN, WIDTH))
    return Library()


def memory_of(experts: int) -> Array:
    """Memory that holds this number of experts: three matrices with what ggml needs of each."""
    size = experts * (3 * 2 * HIDDEN * WIDTH + 3 * (OVERHEAD + 64)) + (1 << 16)
    return np.zeros(size, np.uint8)


def test_formats_are_those_that_the_library_has_by_name(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ggml, "version", lambda name: f"1.2 of {name}")
    found = ggml.Ggml(library.base, library.cpu)
    assert list(found.formats) == ["f16", "q8_0"]
    assert found.name == "ggml of llama-cpp-python 1.2 of llama-cpp-python"
    assert library.base.ggml_row_size.restype is ctypes.c_size_t
    assert library.base.ggml_row_size.argtypes == (ctypes.c_int, ctypes.c_int64)
    assert library.cpu.ggml_backend_cpu_init.restype is ctypes.c_void_p
    assert library.cpu.ggml_backend_cpu_set_n_threads.argtypes == (ctypes.c_void_p, ctypes.c_int)

    def missing(name: str) -> str:
        raise ggml.PackageNotFoundError(name)

    monkeypatch.setattr(ggml, "version", missing)
    assert ggml.Ggml(library.base, library.cpu).name == "ggml of llama-cpp-python"
    del library.base.ggml_silu
    with pytest.raises(AttributeError, match="ggml_silu"):
        ggml.Ggml(library.base, library.cpu)


@pytest.mark.parametrize(
    ("platform", "names"),
    [
        ("linux", ["libggml-base.so", "libggml-cpu.so"]),
        ("darwin", ["libggml-base.dylib", "libggml-cpu.dylib"]),
        ("win32", ["ggml-base.dll", "ggml-cpu.dll"]),
    ],
)
def test_libraries_are_found_by_the_platforms_names(
    platform: str, names: list[str], library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []

    def open_(path: str, mode: int) -> Any:
        opened.append((path, mode))
        return library.base if "base" in path else library.cpu

    monkeypatch.setattr(ggml.sys, "platform", platform)
    monkeypatch.setattr(ggml, "find_spec", lambda name: SimpleNamespace(
        submodule_search_locations=[f"/site/{name}", "/elsewhere"]))  # fmt: skip
    monkeypatch.setattr(ggml.ctypes, "CDLL", open_)
    found = ggml.ggml()
    assert found is not None
    assert (found.base, found.cpu) == (library.base, library.cpu)
    folder = Path("/site/llama_cpp/lib")
    assert opened == [(str(folder / name), ctypes.RTLD_GLOBAL) for name in names]
    monkeypatch.setattr(
        ggml, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=None)
    )
    assert ggml.ggml() is None


def test_memory_is_filled_with_experts_and_products_are_those_of_numpy(library: Library) -> None:
    memory = memory_of(3)
    with ggml.Ggml(library.base, library.cpu).experts("f16", memory) as experts:
        assert experts.expert_bytes == 3 * 2 * HIDDEN * WIDTH
        assert library.sizes == [(memory.nbytes, memory.ctypes.data)]
        gate = weights(HIDDEN, WIDTH).astype(np.float16)
        down = weights(WIDTH, HIDDEN).astype(np.float16)
        expert = b"".join(matrix.tobytes() for matrix in (gate, gate, down))
        assert memory[: 3 * len(expert)].tobytes() == 3 * expert
        assert not memory[3 * len(expert) :].any()
        assert experts.compute(2, 5) == 2
        drawn = np.random.default_rng(1).standard_normal((2, HIDDEN)).astype(np.float32)
        half = drawn @ weights(HIDDEN, WIDTH).T
        expected = (silu(half) * half) @ weights(WIDTH, HIDDEN).T
        assert experts.output(2).shape == (2, HIDDEN)
        np.testing.assert_allclose(experts.output(2), expected, rtol=1e-4, atol=1e-7)
    contexts = [index for index, made in enumerate(library.made) if isinstance(made, dict)]
    assert len(contexts) == 2
    assert library.freed == [77, *contexts]
    assert not experts._contexts


def test_experts_are_multiplied_in_turn(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one row by groups of some bytes; with more rows in pairs, and only the first ones."""
    expert = 3 * 2 * HIDDEN * WIDTH
    monkeypatch.setattr(ggml, "_CALL_BYTES", 3 * expert + 1)
    experts = ggml.GgmlExperts(library.base, library.cpu, F16, memory_of(20))
    assert [experts.compute(1, 4) for _ in range(8)] == [3, 3, 3, 3, 3, 3, 2, 3]
    graphs = [graph for graph, _ in library.computed]
    assert graphs[7] == graphs[0]
    assert len({*graphs}) == 7
    assert {threads for _, threads in library.computed} == {4}
    assert library.graph_sizes == [16 * 3 + 16] * 7
    library.computed.clear()
    assert [experts.compute(32, 1) for _ in range(9)] == [2] * 9
    graphs = [graph for graph, _ in library.computed]
    assert graphs[8] == graphs[0]
    assert len({*graphs}) == 8, "sixteen of the twenty experts"
    assert library.graph_sizes[7:] == [16 * 2 + 16] * 8
    # By hand: 164 bytes beside each of five tensors of an expert, whose results are f32; a graph
    # of 1,000 bytes and its size, with one more such overhead; and the rows.
    few = 20 * (5 * 164 + 4 * (4 * 8 + 16)) + 7 * (1000 + 64 + 164) + 4 * 16 + 65536
    many = 16 * (5 * 164 + 128 * (4 * 8 + 16)) + 8 * (1000 + 48 + 164) + 128 * 16 + 65536
    assert [size for size, _ in library.sizes[1:]] == [few, many]
    experts.close()
    assert library.freed[0] == 77
    assert len(library.freed) == 4


def test_one_expert_is_multiplied_however_large_it_is(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ggml, "_CALL_BYTES", 1)
    experts = ggml.GgmlExperts(library.base, library.cpu, F16, memory_of(2))
    assert [experts.compute(1, 1) for _ in range(3)] == [1, 1, 1]
    assert library.computed[2] == library.computed[0] != library.computed[1]
    library.fails = -1
    with pytest.raises(AssertionError, match="ggml_backend_graph_compute returned -1"):
        experts.compute(1, 1)


def test_a_library_without_memory_is_an_error(library: Library) -> None:
    library.base.ggml_init = lambda wanted: None
    with pytest.raises(AssertionError, match="ggml_init failed"):
        ggml.GgmlExperts(library.base, library.cpu, F16, memory_of(1))


def test_formats_have_the_numbers_of_the_gguf_package():
    known = gguf.GGMLQuantizationType
    assert {name: known[name.upper()].value for name in ggml.TYPES} == dict(ggml.TYPES)
