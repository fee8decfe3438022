"""Reads safetensors checkpoints into non-expert weights and one record for each routed expert.

A *record* is one routed expert's weights as a flat array: gate ``[I, H]``, up ``[I, H]`` and down
``[H, I]``, in this order, then their biases if there are any.  A record is the unit that moves
between tiers, fills a slot, and is read from disk.  Pickle files are never read.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from safetensors import SafetensorError, safe_open

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import brief, read_mapping, require_file
from moebench.substrate.models.config import read_config, shape_of
from moebench.substrate.models.naming import TensorSpec, common_tensors, expert_tensors, layout_of
from moebench.substrate.models.shape import ModelShape

if TYPE_CHECKING:  # headers are read without torch, which takes a second to import
    import torch
    from torch import Tensor

    from moebench.substrate.models.expert_store import ExpertStore

#: Index file, with the name of the file that holds each tensor.
INDEX = "model.safetensors.index.json"

#: Files that only an imported checkpoint has: its manifest, and the journal of an import that has
#: not finished (`moebench.substrate.models.imported`).
MANIFEST, JOURNAL = "import.json", "import.partial"

#: What a file is opened for: ``np`` reads headers without torch, ``pt`` returns tensors.
Framework = Literal["np", "pt"]

#: Allowed dtypes of a checkpoint's weights: safetensors' names, and moebench's.
STORED_AS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


class Checkpoint:
    """A checkpoint directory in the Hugging Face format: ``config.json`` and ``*.safetensors``.

    The constructor reads headers only, and checks that all tensors of the family exist with their
    dimensions; weights are read by later calls.

    Raises CheckpointError: a missing, truncated or mis-shaped file or tensor.
    """

    #: Existing store of its expert records, if it was imported.
    store: "ExpertStore | None" = None

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such directory; expected a Hugging Face checkpoint")
        self.path = path
        require_file(path / "config.json", CheckpointError)
        config = read_config(path / "config.json")
        self.shape = shape_of(config, str(path / "config.json"))
        _check_quantisation(path, config, self.shape)
        #: Open files: for their headers, and for their tensors.
        self._open: dict[tuple[Path, Framework], Any] = {}
        self._holder = self._holders()
        self._layout = layout_of(self.shape, self._holder)
        self._common = common_tensors(self.shape, self._layout)
        self._check(self._common.values())
        for layer in self.shape.moe_layers:
            for expert in range(self.shape.num_experts):
                self._check(self._expert(layer, expert).values())
                if self._layout.fused:  # One tensor holds all experts of a layer.
                    break

    def _holders(self) -> dict[str, Path]:
        """Return the file of each tensor: as the index says if there is one.

        Raises CheckpointError: two files hold a tensor, or the index names one that does not.
        """
        files = sorted(self.path.glob("*.safetensors"))
        index = self._index()
        if not files and not index:
            raise CheckpointError(f"{self.path}: holds no .safetensors file")
        named = {self.path / name for name in index.values()}
        found: dict[str, Path] = {}
        for file in sorted(named.union(files)):
            for name in self._names(file):
                other = found.setdefault(name, file)
                if other != file and (not index or name in index):
                    raise CheckpointError(
                        f"{self.path}: {other.name} and {file.name} both hold the tensor {name}; "
                        "remove the file that does not belong here"
                    )
        for name, holder in index.items():
            if found.get(name) != self.path / holder:
                raise CheckpointError(
                    f"{self.path / holder}: holds no tensor {name}, although {INDEX} says so"
                )
        return {name: file for name, file in found.items() if not index or name in index}

    def _index(self) -> dict[str, str]:
        """Return the name of the file that holds each tensor; empty if there is no index."""
        index = self.path / INDEX
        if not index.exists():
            return {}
        require_file(index, CheckpointError)
        try:
            held = read_mapping(index, CheckpointError).get("weight_map")
        except CheckpointError as error:
            raise CheckpointError(f"{error}: not a safetensors index") from error
        texts = isinstance(held, dict) and all(isinstance(name, str) for name in held.values())
        if not held or not texts or any(Path(name).name != name for name in held.values()):
            raise CheckpointError(
                f"{index}: not a safetensors index: weight_map is {brief(held)}; allowed: the file "
                "beside it that holds each tensor"
            )
        return dict(held)

    def _names(self, file: Path) -> list[str]:
        """Return the names of the tensors that a file holds."""
        return list(self._file(file).keys())

    def _file(self, file: Path, framework: Framework = "np") -> Any:
        """Return a shard's open safetensors file."""
        if (file, framework) not in self._open:
            if file.exists() and not file.is_file():
                raise CheckpointError(f"{file}: not a regular file; give a safetensors file")
            try:
                opened = cast(Any, safe_open(file, framework=framework)).__enter__()
            except FileNotFoundError as error:
                raise CheckpointError(f"{file}: named by {INDEX} but missing") from error
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file}: truncated or not safetensors ({error})") from error
            self._open[file, framework] = opened
        return self._open[file, framework]

    def _stored(self, name: str, framework: Framework = "np") -> Any:
        """Return a slice object of a stored tensor, or None if there is no such tensor."""
        file = self._holder.get(name)
        return None if file is None else self._file(file, framework).get_slice(name)

    def _check(self, specs: Iterable[TensorSpec]) -> None:
        for spec in specs:
            whole = spec.whole or spec.dims
            if spec.scales is None:
                self._check_one(spec.stored, whole, STORED_AS)
            else:
                self._check_one(spec.stored, whole, {"U8": "uint8"})
                self._check_one(spec.scales, whole[:-1], {"U8": "uint8"})

    def _check_one(self, name: str, demanded: tuple[int, ...], types: Mapping[str, str]) -> None:
        found = self._stored(name)
        if found is None:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        dims = tuple(found.get_shape())
        if dims != demanded:
            raise CheckpointError(
                f"{self.path}: tensor {name} has shape {list(dims)}, "
                f"its config.json demands {list(demanded)}"
            )
        if found.get_dtype() not in types:
            raise CheckpointError(
                f"{self.path}: tensor {name} is stored as {found.get_dtype()}; "
                f"allowed: {', '.join(types.values())}"
            )

    def _expert(self, layer: int, expert: int) -> dict[str, TensorSpec]:
        return expert_tensors(self.shape, layer, expert, self._layout)

    def _read(self, spec: TensorSpec, dtype: "torch.dtype") -> "Tensor":
        """Read a tensor, or only the part of a stored tensor that its spec names."""
        if spec.whole is None:
            file = self._file(self._holder[spec.stored], "pt")
            tensor: Tensor = file.get_tensor(spec.stored)
            return self._sound(spec.stored, tensor).to(dtype)
        stored, rows = self._stored(spec.stored, "pt"), slice(*spec.rows)
        if spec.scales is not None:
            from moebench.substrate.models.packed import unpacked

            blocks, scales = stored[spec.expert], self._stored(spec.scales, "pt")[spec.expert]
            return unpacked(blocks[rows], scales[rows]).to(dtype)
        if spec.transposed or rows.step:
            tensor = stored[spec.expert]
            tensor = (tensor.T if spec.transposed else tensor)[rows]
        else:
            tensor = stored[spec.expert, rows]
        return self._sound(spec.stored, tensor).to(dtype)

    def _sound(self, name: str, tensor: "Tensor") -> "Tensor":
        """Check that weights are finite and no matrix is all zero.

        NaN would spread to all later tokens; a matrix of zeros is what an interrupted download or a
        failed conversion leaves.  Vectors may be zero: a bias, or a norm's offset from 1.
        """
        if not tensor.isfinite().all():
            wrong = tensor[~tensor.isfinite()]
            raise CheckpointError(
                f"{self.path}: tensor {name} holds {wrong[0].item()}, {len(wrong)} of "
                f"{tensor.numel()} values are no finite numbers; allowed: finite ones"
            )
        if tensor.ndim > 1 and not tensor.any():
            raise CheckpointError(
                f"{self.path}: tensor {name} holds zeros only; load the checkpoint again"
            )
        return tensor

    @property
    def files(self) -> list[Path]:
        """Paths of all files with weights."""
        return sorted({*self._holder.values()})

    def common(self, dtype: "torch.dtype") -> "dict[str, Tensor]":
        """Return all non-expert weights by moebench's tensor names."""
        return {ours: self._read(spec, dtype) for ours, spec in self._common.items()}

    def common_part(self, names: Iterable[str]) -> "dict[str, Tensor]":
        """Return some non-expert weights by moebench's names, in their stored dtypes."""
        from moebench.substrate.models.formats import DTYPES

        dtypes = {name: STORED_AS[self._stored(self._common[name].stored).get_dtype()]
                  for name in names}  # fmt: skip
        return {name: self._read(self._common[name], DTYPES[as_]) for name, as_ in dtypes.items()}

    @property
    def common_names(self) -> list[str]:
        """Names of all non-expert tensors in moebench's naming."""
        return list(self._common)

    def expert_record(self, layer: int, expert: int, dtype: "torch.dtype") -> "Tensor":
        """Return a routed expert's weights as a flat record ``[3·I·H]``, then its biases."""
        import torch

        specs = self._expert(layer, expert).values()
        return torch.cat([self._read(spec, dtype).flatten() for spec in specs])

    @property
    def distinct(self) -> int:
        """Number of experts: each one has a record of its own."""
        return len(self.shape.moe_layers) * self.shape.num_experts

    def content_hash(self) -> str:
        """Return a hash of the configuration and of all weight files, for provenance."""
        digest = hashlib.sha256()
        for file in [self.path / "config.json", *self.files]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Close the files and unmap their memory; later reads open them again."""
        while self._open:
            _, file = self._open.popitem()
            file.__exit__(None, None, None)


def _check_quantisation(path: Path, config: Mapping[str, Any], shape: ModelShape) -> None:
    """Check that the checkpoint is not quantised, or in a supported format."""
    for key in ("quantization_config", "compression_config"):
        said = config.get(key)
        if not said:
            continue
        method = said.get("quant_method") if isinstance(said, dict) else None
        if (method, shape.family) != ("mxfp4", "gpt_oss"):
            raise CheckpointError(
                f"{path}: its weights are quantised ({method or brief(said)}) as {key} says; "
                f"allowed: {', '.join(STORED_AS.values())}, and mxfp4 of gpt_oss; load the "
                "checkpoint that it was made from, with --expert-dtype int4"
            )
