"""Fuzzing of imported checkpoints: changed bytes of each file, damaged manifests and indexes."""

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from moebench.substrate.models import catalogue
from moebench.substrate.models.checkpoint import INDEX, MANIFEST
from moebench.substrate.models.imported import RECORDS, import_checkpoint
from tests.fuzz_inputs import traces
from tests.fuzz_inputs.door import Case, Door, weighted
from tests.fuzz_inputs.models import WEIGHTS
from tests.fuzz_inputs.stores import JUNK, paths
from tests.harness.commands import Called, call


@cache
def _import() -> Path:
    """Return an import of the tiny model, made once."""
    out = Path(tempfile.mkdtemp(prefix="doors-")) / "w"
    return import_checkpoint(catalogue.scale_path(traces.MODEL), out, "fp32").path


@cache
def _expected() -> Any:
    """Return the accuracy of a run on the unchanged import."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(_import(), Path(folder) / "w")
        os.chdir(folder)
        try:
            return call(*WEIGHTS).json["accuracy"]
        finally:
            os.chdir(before)


def _as_before(called: Called) -> bool:
    return bool(called.json["accuracy"] == _expected())


@st.composite
def bytes_changed(draw: st.DrawFn) -> Case:
    """Generate imports with a changed, removed or added byte; expert records may not be read."""
    share, bit = draw(st.floats(0, 0.9999)), draw(st.integers(0, 7))
    number, kind = draw(st.integers(0, 99)), draw(st.sampled_from(["flip", "cut", "add"]))

    def name() -> str:
        others = {file.name for file in _import().iterdir()} - {MANIFEST, RECORDS}
        names = sorted(others)
        return RECORDS if number % 2 else names[number // 2 % len(names)]

    def prepare(folder: Path) -> None:
        shutil.copytree(_import(), folder / "w")
        file = folder / "w" / name()
        whole = file.read_bytes()
        at = int(len(whole) * share)
        if kind == "cut":
            file.write_bytes(whole[:at])
        elif kind == "add":
            file.write_bytes(whole + b"\0")
        else:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])

    good = None if number % 2 and kind == "flip" else False
    return Case(WEIGHTS, prepare, ("w",), good, _as_before, f"{kind} a byte")


@st.composite
def manifests(draw: st.DrawFn) -> Case:
    """Generate manifests with a field of another type or value, or without it."""
    number, value, without = draw(st.integers(0, 999)), draw(JUNK), draw(st.booleans())

    def prepare(folder: Path) -> None:
        shutil.copytree(_import(), folder / "w")
        manifest = json.loads((folder / "w" / MANIFEST).read_text())
        path = paths(manifest)[number % len(paths(manifest))]
        place = manifest
        for key in path[:-1]:
            place = place[key]
        if without:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        (folder / "w" / MANIFEST).write_text(json.dumps(manifest))

    # A source is any text, and without its checksums an import is one of an earlier version.
    return Case(WEIGHTS, prepare, (), None, _as_before, "manifest")


@st.composite
def indexes(draw: st.DrawFn) -> Case:
    """Generate sharded checkpoints with a stray shard, a tensor held twice, or a wrong index."""
    kind = draw(st.sampled_from(["right", "stray", "twice", "elsewhere", "unknown", "other names"]))
    number = draw(st.integers(0, 999))

    def prepare(folder: Path) -> None:
        place, target = catalogue.scale_path(traces.MODEL), folder / "w"
        target.mkdir()
        for file in ("config.json", "tokenizer.json"):
            (target / file).write_bytes((place / file).read_bytes())
        tensors = load_file(place / "model.safetensors")
        names = sorted(tensors)
        name = names[number % len(names)]
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        index = {one: file for file, held in shards.items() for one in held}
        for file, held in shards.items():
            save_file({one: tensors[one] for one in held}, target / file)
        if kind == "stray":
            save_file({one: tensors[one] + 1 for one in names}, target / "z_old.safetensors")
        elif kind == "other names":
            save_file({f"old.{one}": tensors[one] for one in names}, target / "c.safetensors")
        elif kind == "twice":
            other = "a.safetensors" if index[name] == "b.safetensors" else "b.safetensors"
            save_file({one: tensors[one] for one in (*shards[other], name)}, target / other)
        elif kind == "elsewhere":
            index[name] = "a.safetensors" if index[name] == "b.safetensors" else "b.safetensors"
        elif kind == "unknown":
            index[f"{name}.more"] = "a.safetensors"
        (target / INDEX).write_text(json.dumps({"weight_map": index}))

    good = kind in ("right", "other names")
    return Case(WEIGHTS, prepare, () if good else ("w", "tensor "), good, about=f"index {kind}")


DOOR = Door("imports", weighted((5, bytes_changed()), (3, manifests()), (2, indexes())), _expected)
