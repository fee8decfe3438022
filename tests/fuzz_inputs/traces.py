"""Fuzzing of traces: published ones for import, and folders that are opened and replayed."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz_inputs.door import Case, Door, finite, weighted
from tests.harness.commands import Called
from tests.harness.tiny import EXPERTS, LAYERS, TOP_K

MODEL = "qwen2-57b-a14b"
TOKENS = 9  #: two sequences, of five and of four
SEQ = (0,) * 5 + (1,) * 4
PHASE = (0, 0, 1, 1, 1, 0, 1, 1, 1)

Arrays = dict[str, np.ndarray]


def ids(number: int) -> np.ndarray:
    """Return random chosen experts of all tokens."""
    random = np.random.default_rng(number)
    return np.argsort(random.random((TOKENS, LAYERS, EXPERTS)), 2)[..., :TOP_K]


def published(number: int, extra: tuple[str, ...] = ()) -> Arrays:
    """Return a published trace: ids, and optionally scores and candidates."""
    chosen = ids(number)
    found: Arrays = {"ids": chosen, "seq": np.array(SEQ), "phase": np.array(PHASE)}
    if "scores" in extra:
        found["scores"] = np.tile(np.float32([0.5, 0.25]), (TOKENS, LAYERS, 1))
    if "candidates" in extra:
        rest = np.argsort(np.random.default_rng(number).random((TOKENS, LAYERS, EXPERTS)), 2)
        found["candidates"] = rest[..., : TOP_K + 2]
    return found


def publish(folder: Path, arrays: Arrays, meta: object, packed: bool, raw: bytes | None) -> None:
    folder.mkdir()
    if packed:
        np.savez(folder / "trace.npz", **arrays)  # type: ignore[arg-type]
    else:
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
    text = json.dumps(meta).encode() if raw is None else raw
    (folder / "meta.json").write_bytes(text)


META = {"num_experts": EXPERTS, "workload": "prose", "ids_order": "by score"}
EXTRA = st.sampled_from([(), ("scores",), ("candidates",), ("scores", "candidates")])
NUMBER = st.integers(0, 1000)
TOKEN = st.integers(0, TOKENS - 1)
LAYER = st.integers(0, LAYERS - 1)


def importing(
    arrays: Arrays, meta: object = META, names: tuple[str, ...] = (), good: bool | None = False,
    options: tuple[str, ...] = (), packed: bool = True, raw: bytes | None = None, about: str = "",
    spoil: Callable[[Path], None] = lambda folder: None, name: str = f"{MODEL}__prose",
) -> Case:  # fmt: skip
    def prepare(folder: Path) -> None:
        publish(folder / name, arrays, meta, packed, raw)
        spoil(folder / name)

    arguments = ("trace", "import", name, "--out", "out", *options)
    return Case(arguments, prepare, names, good, lambda called: opens("out"), about)


def opens(folder: str) -> bool:
    """Return whether a written trace can be opened and has numeric statistics."""
    from tests.harness.commands import call

    shown = call("trace", "info", folder, "--json")
    return shown.code == 0 and finite(shown.json)


# ----------------------------------------------------------------------------- imports


@st.composite
def imported_values(draw: st.DrawFn) -> Case:
    """Generate published traces with one invalid value in one array."""
    arrays = published(draw(NUMBER), draw(EXTRA))
    name = draw(st.sampled_from(sorted(arrays)))
    values = arrays[name].copy()
    at = tuple(draw(st.integers(0, n - 1)) for n in values.shape)
    if name in ("ids", "candidates"):
        bad: Any = draw(st.sampled_from([-1, -7, EXPERTS, 255, 65535, 2**40, -(2**40)]))
    elif name == "seq":
        bad = draw(st.sampled_from([-1, -(2**40), 2**40, 2**62, 2**31]))
    elif name == "phase":
        bad = draw(st.sampled_from([7, -1, 2, 255, 2**40]))
    else:
        bad = draw(st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.5]))
    values[at] = bad
    packed = draw(st.booleans())
    said = (name, str(bad)) if name != "scores" else (name, str(np.float32(bad)))
    return importing(arrays | {name: values}, names=said, packed=packed, about=f"value of {name}")


@st.composite
def imported_rows(draw: st.DrawFn) -> Case:
    """Generate published traces whose rows contradict each other."""
    arrays = published(draw(NUMBER), draw(EXTRA))
    kind = draw(st.sampled_from(["twice", "decreasing", "back", "lacking"]))
    t, layer = draw(TOKEN), draw(LAYER)
    names: tuple[str, ...]
    if kind == "twice":
        arrays["ids"][t, layer] = arrays["ids"][t, layer, 0]
        names = ("ids", str(arrays["ids"][t, layer, 0]))
    elif kind == "decreasing":
        arrays["seq"] = arrays["seq"][::-1].copy()
        names = ("seq",)
    elif kind == "back":
        arrays["phase"] = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1])
        names = ("phase",)
    else:
        candidates = np.repeat(arrays["ids"], 2, axis=2)
        arrays["candidates"] = (arrays["ids"] + 1) % EXPERTS
        del candidates
        names = ("candidates",)
    return importing(arrays, names=names, about=kind)


@st.composite
def imported_shapes(draw: st.DrawFn) -> Case:
    """Generate published traces with arrays of another shape or type, or without them."""
    arrays = published(draw(NUMBER), ("scores", "candidates"))
    name = draw(st.sampled_from(sorted(arrays)))
    kind = draw(
        st.sampled_from(["none", "short", "flat", "empty", "float", "text", "objects", "complex",
                         "no layer", "deep"])
    )  # fmt: skip
    values = arrays.pop(name)
    changed = {
        "short": values[:-1], "flat": values.reshape(-1)[: TOKENS + 1], "empty": values[:0],
        "float": values.astype(np.float64) + 0.5, "text": values.astype(str),
        "objects": values.astype(object), "complex": values.astype(complex),
        "no layer": values[:, :0] if values.ndim > 1 else values[:0], "deep": values[..., None],
    }  # fmt: skip
    good: bool | None = False
    if kind == "none":
        good = name in ("scores", "candidates")
    else:
        arrays[name] = changed[kind]
    if kind == "float" and name == "scores":
        good = True
    if kind == "flat" and name in ("seq", "phase"):  # they are
        good = True
    names = () if kind in ("objects", "empty", "no layer") else (name,)
    packed = draw(st.booleans())
    return importing(arrays, names=names, good=good, packed=packed, about=f"{name}, {kind}")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 0), st.just(2**70), st.floats(), st.text(max_size=5),
    st.just([]), st.just({}), st.just([1]),
)  # fmt: skip


@st.composite
def imported_meta(draw: st.DrawFn) -> Case:
    """Generate published traces whose description has a wrong field or is not JSON."""
    arrays = published(draw(NUMBER))
    kind = draw(st.sampled_from(["num_experts", "missing_value", "loops", "raw", "other"]))
    if kind == "raw":
        raw = draw(
            st.one_of(
                st.sampled_from([b"", b"{", b"[]", b"3", b"\xff\xfe{}", b"[" * 5000, b"null",
                                 b'{"num_experts": 8, "num_experts": 8}', b'{"num_experts":' +
                                 b"9" * 5000 + b"}"]),
                st.binary(max_size=20),
            )
        )  # fmt: skip
        return importing(arrays, raw=raw, names=("meta.json",), about="raw meta")
    if kind == "other":
        field = draw(st.sampled_from(["workload", "ids_order", "notes", "licence", "source"]))
        return importing(arrays, META | {field: draw(JUNK)}, good=True, about=field)
    value = draw(JUNK)
    good: bool | None = False
    if kind == "missing_value":
        good = value is None
    if kind == "loops":
        good = (
            value in (None, [], {}, "", 0, False) and not isinstance(value, float)
        ) or value == 0
    return importing(
        arrays, META | {kind: value}, names=("meta.json", kind), good=good, about=f"meta {kind}"
    )


@st.composite
def imported_topology(draw: st.DrawFn) -> Case:
    """Generate traces with another model's layers and experts, or a smaller top-k."""
    layers, experts = draw(st.integers(1, 6)), draw(st.integers(2, 12))
    k = draw(st.integers(1, min(experts, TOP_K)))
    random = np.random.default_rng(draw(NUMBER))
    chosen = np.argsort(random.random((TOKENS, layers, experts)), 2)[..., :k]
    arrays = published(0) | {"ids": chosen}
    good = (layers, experts) == (LAYERS, EXPERTS)
    known = draw(st.booleans())
    name = f"{MODEL}__prose" if known else "nobodys-model__prose"
    return importing(
        arrays, META | {"num_experts": experts}, names=(MODEL, str(experts)),
        good=good or not known, name=name, about="topology",
    )  # fmt: skip


@st.composite
def prompt_tokens(draw: st.DrawFn) -> Case:
    """Generate numbers of tokens to use as the prompt."""
    asked = draw(st.one_of(st.integers(-2, 8), st.sampled_from([99999, 2**40, 2**70])))
    names = ("--prompt-tokens", str(asked))
    options = (f"--prompt-tokens={asked}",)
    good = 1 <= asked <= 4
    return importing(published(0), names=names, good=good, options=options, about="prompt tokens")


@st.composite
def cut_archives(draw: st.DrawFn) -> Case:
    """Generate archives or arrays with changed or truncated bytes."""
    packed, place = draw(st.booleans()), draw(st.floats(0, 1, exclude_max=True))
    cut, byte = draw(st.booleans()), draw(st.integers(0, 255))
    file = "trace.npz" if packed else draw(st.sampled_from(["ids.npy", "seq.npy", "phase.npy"]))

    def spoil(folder: Path) -> None:
        whole = (folder / file).read_bytes()
        at = int(len(whole) * place)
        changed = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
        (folder / file).write_bytes(changed)

    return importing(published(1), good=None, packed=packed, spoil=spoil, about=f"cut {file}")


@st.composite
def right_imports(draw: st.DrawFn) -> Case:
    """Generate valid published traces."""
    arrays = published(draw(NUMBER), draw(EXTRA))
    dtype = draw(st.sampled_from(["uint8", "int32", "int64", ">i4", "uint64"]))
    arrays["ids"] = arrays["ids"].astype(dtype)
    return importing(arrays, good=True, packed=draw(st.booleans()), about="right")


# ----------------------------------------------------------------------------- traces


def write_trace(folder: Path, arrays: Arrays, header: dict[str, Any]) -> None:
    """Write a trace with correct hashes, whatever its content."""
    folder.mkdir()
    listed = {}
    for name, values in arrays.items():
        file = folder / f"{name}.npy"
        np.save(file, values)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        listed[name] = {"dtype": values.dtype.str, "shape": values.shape, "sha256": digest}
    (folder / "trace.json").write_text(json.dumps({"arrays": listed} | header))


HEADER: dict[str, Any] = {
    "format": "moebench-trace", "version": 2, "model": MODEL, "workload": "prose",
    "num_moe_layers": LAYERS, "num_experts": EXPERTS, "top_k": TOP_K,
}  # fmt: skip


def recorded(number: int, extra: tuple[str, ...]) -> Arrays:
    found = {
        "ids": ids(number).astype(np.uint8), "sequence": np.array(SEQ, np.int32),
        "position": np.array([*range(5), *range(4)], np.int32),
        "phase": np.array(PHASE, np.uint8), "chosen": np.full(TOKENS, -1, np.int32),
    }  # fmt: skip
    if "scores" in extra:
        found["top_scores"] = np.tile(np.float32([0.5, 0.25]), (TOKENS, LAYERS, 1))
    if "candidates" in extra:
        found["candidates"] = published(number, extra)["candidates"].astype(np.uint8)
        found["candidates"][..., :TOP_K] = found["ids"]
        spare = [
            [[e for e in range(EXPERTS) if e not in row][:2] for row in rows]
            for rows in found["ids"].tolist()
        ]
        found["candidates"][..., TOP_K:] = spare
    return found


SHOW = ("trace", "info", "t", "--json")
REPLAY = (
    "run", "--trace", "t", "--system", "moe-ondemand", "--setting", "S3", "--no-interval", "--json",
)  # fmt: skip
RECONSTRUCT = (
    "run", "--trace", "t", "--system", "smoe", "--set", "prefetch=none", "--setting", "S3",
    "--no-interval", "--reconstruct-scores", "--json",
)  # fmt: skip


def opening(
    arrays: Arrays, header: dict[str, Any], arguments: tuple[str, ...], names: tuple[str, ...],
    good: bool | None, about: str,
) -> Case:  # fmt: skip
    def right(called: Called) -> bool:
        return finite(called.json)

    def prepare(folder: Path) -> None:
        write_trace(folder / "t", arrays, header)

    return Case(arguments, prepare, names, good, right, about)


@st.composite
def trace_values(draw: st.DrawFn) -> Case:
    """Generate traces whose arrays hold one invalid value; a replay reads no array in vain."""
    arrays = recorded(draw(NUMBER), draw(EXTRA))
    name = draw(st.sampled_from(sorted(arrays)))
    values = arrays[name].copy()
    at = tuple(draw(st.integers(0, n - 1)) for n in values.shape)
    bad: Any = {
        "ids": 200, "candidates": 200, "sequence": -3, "position": -4, "phase": 7, "chosen": -9,
        "top_scores": draw(st.sampled_from([float("nan"), float("inf")])),
    }[name]  # fmt: skip
    values[at] = bad
    arguments = draw(st.sampled_from([SHOW, SHOW, REPLAY, RECONSTRUCT]))
    names = ("t: ", name, str(bad))
    unread = arguments is REPLAY and name in ("top_scores", "candidates")
    return opening(arrays | {name: values}, HEADER, arguments, names, unread, f"trace {name}")


@st.composite
def trace_headers(draw: st.DrawFn) -> Case:
    """Generate traces whose header has one wrong field."""
    arrays = recorded(0, ())
    field = draw(st.sampled_from([*HEADER, "ids_order", "predictions", "arrays", "scores"]))
    value = draw(JUNK)
    good = (field in ("model", "workload") and isinstance(value, str)) or (
        field == "scores" and (value is None or isinstance(value, str))
    ) or (field == "predictions" and value == {})  # fmt: skip
    header = HEADER | {field: value}
    return opening(arrays, header, SHOW, ("t",), None if good else False, f"header {field}")


@st.composite
def right_traces(draw: st.DrawFn) -> Case:
    """Generate valid traces; scores of chosen experts and candidates may both be present."""
    arrays = recorded(draw(NUMBER), draw(EXTRA))
    arguments = draw(st.sampled_from([SHOW, REPLAY, RECONSTRUCT]))
    return opening(arrays, HEADER, arguments, (), True, "right trace")


@st.composite
def replay_lengths(draw: st.DrawFn) -> Case:
    """Generate replays that are longer than the trace."""
    option = draw(st.sampled_from(["--prompts", "--new-tokens", "--batch"]))
    most = {"--prompts": 2, "--new-tokens": 4, "--batch": 2}[option]
    asked = draw(st.one_of(st.integers(-2, most + 2), st.sampled_from([10**9, 2**70])))
    good = 1 <= asked <= most
    arguments = (*REPLAY, f"{option}={asked}")
    return opening(recorded(0, ()), HEADER, arguments, (option, str(asked)), good, option)


DOOR = Door(
    "traces",
    weighted(
        (5, imported_values()), (2, imported_rows()), (3, imported_shapes()), (3, imported_meta()),
        (2, imported_topology()), (1, prompt_tokens()), (3, cut_archives()), (1, right_imports()),
        (5, trace_values()), (3, trace_headers()), (1, right_traces()), (1, replay_lengths()),
    ),
)  # fmt: skip
