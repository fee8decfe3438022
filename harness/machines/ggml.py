"""Products by llama.cpp's own kernels: ggml, which llama-cpp-python bundles, through ctypes.

Weights have ggml's plain layout; llama.cpp may interleave rows of some formats, which is faster
with many rows and is not measured.
"""

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moebench.harness.machines.products import Experts, Kernels, tiled
from moebench.harness.machines.products_file import EXPERT

#: Numbers of ggml's formats in its C interface, by their names in lower case.
TYPES: Mapping[str, int] = MappingProxyType({
    "f16": 1, "q8_0": 8, "q6_k": 14, "q5_k": 13, "q4_k": 12, "q4_0": 2, "mxfp4": 39, "iq4_xs": 23,
    "q3_k": 11, "iq3_xxs": 18, "q2_k": 10,
})  # fmt: skip

#: Rows that are quantised; all weights of an expert are copies of them.
_ROWS = 8

#: Bytes of weights that one call multiplies with one row, and experts with more rows, in how many
#: calls before the first experts are multiplied again.
_CALL_BYTES, _MANY_EXPERTS, _MANY_CALLS = 32 << 20, 2, 8


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    )  # fmt: skip


def ggml() -> "Ggml | None":
    """Return ggml's kernels; None if llama-cpp-python is not installed or has no such library."""
    found = find_spec("llama_cpp")
    if found is None or not found.submodule_search_locations:
        return None
    ending = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    prefix = "" if sys.platform == "win32" else "lib"
    folder = Path(next(iter(found.submodule_search_locations))) / "lib"
    try:
        base, cpu = (
            ctypes.CDLL(str(folder / f"{prefix}ggml-{part}.{ending}"), mode=ctypes.RTLD_GLOBAL)
            for part in ("base", "cpu")
        )
        return Ggml(base, cpu)
    except (OSError, AttributeError):  # no library, or one without these functions
        return None


class Ggml(Kernels):
    """Kernels of ggml's CPU backend.

    Raises AttributeError: a library lacks one of the functions.
    """

    def __init__(self, base: Any, cpu: Any) -> None:
        pointer, size, whole = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        wanted: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "ggml_type_name": (ctypes.c_char_p, (ctypes.c_int,)),
            "ggml_row_size": (size, (ctypes.c_int, whole)),
            "ggml_tensor_overhead": (size, ()),
            "ggml_graph_overhead_custom": (size, (size, ctypes.c_bool)),
            "ggml_init": (pointer, (_InitParams,)),
            "ggml_free": (None, (pointer,)),
            "ggml_new_tensor_2d": (pointer, (pointer, ctypes.c_int, whole, whole)),
            "ggml_get_data": (pointer, (pointer,)),
            "ggml_mul_mat": (pointer, (pointer, pointer, pointer)),
            "ggml_silu": (pointer, (pointer, pointer)),
            "ggml_mul": (pointer, (pointer, pointer, pointer)),
            "ggml_new_graph_custom": (pointer, (pointer, size, ctypes.c_bool)),
            "ggml_graph_node": (pointer, (pointer, ctypes.c_int)),
            "ggml_build_forward_expand": (None, (pointer, pointer)),
            "ggml_quantize_chunk": (
                size, (ctypes.c_int, pointer, pointer, whole, whole, whole, pointer),
            ),
            "ggml_backend_graph_compute": (ctypes.c_int, (pointer, pointer)),
            "ggml_backend_free": (None, (pointer,)),
        }  # fmt: skip
        for name, (result, arguments) in wanted.items():
            function = getattr(base, name)
            function.restype, function.argtypes = result, arguments
        cpu.ggml_backend_cpu_init.restype = pointer
        cpu.ggml_backend_cpu_set_n_threads.restype = None
        cpu.ggml_backend_cpu_set_n_threads.argtypes = (pointer, ctypes.c_int)
        self.base, self.cpu = base, cpu
        try:
            self.name = f"ggml of llama-cpp-python {version('llama-cpp-python')}"
        except PackageNotFoundError:
            self.name = "ggml of llama-cpp-python"
        self.formats = tuple(
            name
            for name, number in TYPES.items()
            if (base.ggml_type_name(number) or b"").lower() == name.encode()
        )

    @contextmanager
    def experts(self, form: str, memory: NDArray[np.uint8]) -> Iterator["GgmlExperts"]:
        """Fill memory with experts in a format, and yield their products."""
        made = GgmlExperts(self.base, self.cpu, TYPES[form], memory)
        try:
            yield made
        finally:
            made.close()


class GgmlExperts(Experts):
    """Experts in one format in one block of memory, and the graphs of their products."""

    def __init__(self, base: Any, cpu: Any, kind: int, memory: NDArray[np.uint8]) -> None:
        self._base, self._cpu, self._kind = base, cpu, kind
        hidden, width = EXPERT
        self.expert_bytes = 3 * width * base.ggml_row_size(kind, hidden)
        self._contexts: list[int] = []
        self._graphs: dict[int, list[tuple[int, int]]] = {}
        self._next: dict[int, int] = {}
        each = self.expert_bytes + 3 * (base.ggml_tensor_overhead() + 64)
        self._count = max(1, (memory.nbytes - (1 << 16)) // each)
        context = self._context(memory.nbytes, memory.ctypes.data)
        blocks = {n: self._rows(n) for n in (hidden, width)}
        self._experts: list[tuple[int, ...]] = []
        for _ in range(self._count):
            matrices = ((hidden, width), (hidden, width), (width, hidden))
            tensors = tuple(base.ggml_new_tensor_2d(context, kind, *shape) for shape in matrices)
            for tensor, (length, rows) in zip(tensors, matrices, strict=True):
                tiled(_at(base.ggml_get_data(tensor), rows * blocks[length].nbytes // _ROWS),
                      blocks[length])  # fmt: skip
            self._experts.append(tensors)
        self._backend = cpu.ggml_backend_cpu_init()

    def _context(self, size: int, address: int | None = None) -> int:
        made = self._base.ggml_init(_InitParams(size, address, False))
        assert made, "ggml_init failed"
        self._contexts.append(made)
        return int(made)

    def _rows(self, length: int) -> NDArray[np.uint8]:
        """Return some rows of random weights in the format, as bytes."""
        draw = np.random.default_rng(0)
        plain = (draw.standard_normal((_ROWS, length)) / 50).astype(np.float32)
        stored = np.empty(_ROWS * self._base.ggml_row_size(self._kind, length), np.uint8)
        self._base.ggml_quantize_chunk(
            self._kind, plain.ctypes.data, stored.ctypes.data, 0, _ROWS, length, None
        )
        return stored

    def compute(self, rows: int, threads: int) -> int:
        """Multiply the next experts with rows, and return how many experts there were."""
        if rows not in self._graphs:
            self._graphs[rows] = self._built(rows)
        graphs = self._graphs[rows]
        at = self._next.get(rows, 0)
        self._next[rows] = (at + 1) % len(graphs)
        graph, count = graphs[at]
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, threads)
        failed = self._base.ggml_backend_graph_compute(self._backend, graph)
        assert not failed, f"ggml_backend_graph_compute returned {failed}"
        return count

    def output(self, rows: int) -> NDArray[np.float32]:
        """Return the last expert's output ``[rows, hidden]`` of the first products with rows."""
        graph, _ = self._graphs[rows][0]
        data = self._base.ggml_get_data(self._base.ggml_graph_node(graph, -1))
        return _at(data, 4 * rows * EXPERT[0]).view(np.float32).reshape(rows, -1).copy()

    def _built(self, rows: int) -> list[tuple[int, int]]:
        """Return graphs of the experts' products and the number of experts in each."""
        base, (hidden, width) = self._base, EXPERT
        each, used = max(1, _CALL_BYTES // self.expert_bytes), self._count
        if rows > 1:
            each, used = _MANY_EXPERTS, min(used, _MANY_EXPERTS * _MANY_CALLS)
        groups = [self._experts[n : min(n + each, used)] for n in range(0, used, each)]
        overhead = base.ggml_tensor_overhead() + 64
        results = used * (5 * overhead + 4 * rows * (4 * width + hidden))
        graph_bytes = base.ggml_graph_overhead_custom(16 * each + 16, False) + overhead
        size = results + len(groups) * graph_bytes + 4 * rows * hidden + (1 << 16)
        context = self._context(size)
        x = base.ggml_new_tensor_2d(context, 0, hidden, rows)
        draw = np.random.default_rng(1).standard_normal((rows, hidden)).astype(np.float32)
        ctypes.memmove(base.ggml_get_data(x), draw.ctypes.data, draw.nbytes)
        graphs = []
        for group in groups:
            graph = base.ggml_new_graph_custom(context, 16 * each + 16, False)
            for gate, up, down in group:
                gated = base.ggml_silu(context, base.ggml_mul_mat(context, gate, x))
                inner = base.ggml_mul(context, gated, base.ggml_mul_mat(context, up, x))
                base.ggml_build_forward_expand(graph, base.ggml_mul_mat(context, down, inner))
            graphs.append((int(graph), len(group)))
        return graphs

    def close(self) -> None:
        """Free what ggml allocated; the experts' memory stays."""
        self._base.ggml_backend_free(self._backend)
        for context in self._contexts:
            self._base.ggml_free(context)
        self._contexts.clear()


def _at(address: int, size: int) -> NDArray[np.uint8]:
    """Return memory at an address as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
