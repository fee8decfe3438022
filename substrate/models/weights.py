"""Reads safetensors checkpoints into non-expert weights and one record for each routed expert.

A *record* is one routed expert's weights as a flat array: gate ``[I, H]``, up ``[I, H]`` and down
``[H, I]``, in this order, then their biases if there are any.  A record is the unit that moves
between tiers, fills a slot, and is read from disk.  Pickle files are never read.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import brief, read_mapping, require_file
from moebench.substrate.models.config import read_config, shape_of
from moebench.substrate.models.expert_store import ExpertStore, Weights
from moebench.substrate.models.formats import StoredAs, format_of, unpack
from moebench.substrate.models.naming import TensorSpec, common_tensors, expert_tensors, layout_of
from moebench.substrate.models.packed import unpacked
from moebench.substrate.models.shape import ModelShape

#: Index file, with the name of the file that holds each tensor.
INDEX = "model.safetensors.index.json"

#: Allowed dtypes of a checkpoint's weights: safetensors' names, and moebench's.
STORED_AS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Checkpoint:
    """A checkpoint directory in the Hugging Face format: ``config.json`` and ``*.safetensors``.

    The constructor reads headers only, and checks that all tensors of the family exist with their
    dimensions; weights are read by later calls.

    Raises CheckpointError: a missing, truncated or mis-shaped file or tensor.
    """

    #: Existing store of its expert records, if it was imported.
    store: ExpertStore | None = None

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such directory; expected a Hugging Face checkpoint")
        self.path = path
        require_file(path / "config.json", CheckpointError)
        config = read_config(path / "config.json")
        self.shape = shape_of(config, str(path / "config.json"))
        _check_quantisation(path, config, self.shape)
        self._open: dict[Path, Any] = {}
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

    def _file(self, file: Path) -> Any:
        """Return a shard's open safetensors file."""
        if file not in self._open:
            if file.exists() and not file.is_file():
                raise CheckpointError(f"{file}: not a regular file; give a safetensors file")
            try:
                self._open[file] = cast(Any, safe_open(file, framework="pt")).__enter__()
            except FileNotFoundError as error:
                raise CheckpointError(f"{file}: named by {INDEX} but missing") from error
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file}: truncated or not safetensors ({error})") from error
        return self._open[file]

    def _stored(self, name: str) -> Any:
        """Return a slice object of a stored tensor, or None if there is no such tensor."""
        file = self._holder.get(name)
        return None if file is None else self._file(file).get_slice(name)

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

    def _read(self, spec: TensorSpec, dtype: torch.dtype) -> Tensor:
        """Read a tensor, or only the part of a stored tensor that its spec names."""
        if spec.whole is None:
            tensor: Tensor = self._file(self._holder[spec.stored]).get_tensor(spec.stored)
            return self._sound(spec.stored, tensor).to(dtype)
        stored, rows = self._stored(spec.stored), slice(*spec.rows)
        if spec.scales is not None:
            blocks, scales = stored[spec.expert], self._stored(spec.scales)[spec.expert]
            return unpacked(blocks[rows], scales[rows]).to(dtype)
        if spec.transposed or rows.step:
            tensor = stored[spec.expert]
            tensor = (tensor.T if spec.transposed else tensor)[rows]
        else:
            tensor = stored[spec.expert, rows]
        return self._sound(spec.stored, tensor).to(dtype)

    def _sound(self, name: str, tensor: Tensor) -> Tensor:
        """Check that weights are finite and no matrix is all zero.

        NaN would spread to all later tokens; a matrix of zeros is what an interrupted download or a
        failed conversion leaves.  Vectors may be zero: a bias, or a norm's offset from 1.
        """
        if not torch.isfinite(tensor).all():
            wrong = tensor[~torch.isfinite(tensor)]
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

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all non-expert weights by moebench's tensor names."""
        return {ours: self._read(spec, dtype) for ours, spec in self._common.items()}

    def common_part(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return some non-expert weights by moebench's names, in their stored dtypes."""
        dtypes = {name: STORED_AS[self._stored(self._common[name].stored).get_dtype()]
                  for name in names}  # fmt: skip
        return {name: self._read(self._common[name], DTYPES[as_]) for name, as_ in dtypes.items()}

    @property
    def common_names(self) -> list[str]:
        """Names of all non-expert tensors in moebench's naming."""
        return list(self._common)

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """Return a routed expert's weights as a flat record ``[3·I·H]``, then its biases."""
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


#: Least number of experts, and most bytes of each, for which one grouped product of their copies
#: takes less time than a product for each: calls cost more than copied bytes.
STACK_EXPERTS, STACK_BYTES = 3, 256 << 10

#: A grouped product needs matrix rows that begin at multiples of this many bytes.
STACK_STRIDE = 16


def stacks(shape: ModelShape, like: Tensor, count: int) -> bool:
    """Return whether ``count`` experts, stored like a tensor, are computed in one product."""
    size = like.element_size()
    return (
        count >= STACK_EXPERTS
        and like.dtype in DTYPES.values()  # Grouped products support no other dtype.
        and not shape.expert_bias  # Grouped products add no biases.
        and shape.expert_params * size <= STACK_BYTES
        and not shape.hidden_size * size % STACK_STRIDE
        and not shape.expert_width * size % STACK_STRIDE
        and like.device.type == "cpu"
    )


#: Experts of up to this size are cheaper to gather into one product than to compute one by one.
GATHER_BYTES = 1 << 20


class ResidentExperts:
    """All experts of a model in memory, without offloading.

    Args:
        stored_as: round the weights to this type; None leaves them unrounded.
    """

    def __init__(
        self, weights: Weights, dtype: torch.dtype, stored_as: StoredAs | None = None
    ) -> None:
        shape = self._shape = weights.shape
        made = format_of(shape, stored_as or dtype)
        # A gathered product adds no biases.
        small = shape.expert_params * dtype.itemsize <= GATHER_BYTES
        self._gathers = small and not shape.expert_bias
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in shape.moe_layers:
            records = [
                unpack(shape, made.rounded(weights.expert_record(layer, expert, dtype)))
                for expert in range(shape.num_experts)
            ]
            # Batched products of one row are fastest with [E, H, 2·I] and [E, I, H].
            gate_up, down, *biases = zip(*records, strict=True)
            self._layers[layer] = (
                torch.stack(gate_up).transpose(1, 2).contiguous(),
                torch.stack(down).transpose(1, 2).contiguous(),
            )
            if biases:
                self._biases[layer] = (torch.stack(biases[0]), torch.stack(biases[1]))

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, ...]:
        """Return gate over up ``[2·I, H]``, down ``[H, I]`` and their biases, if any, as views."""
        gate_up, down = self._layers[layer]
        if not self._biases:
            return gate_up[expert].T, down[expert].T
        gate_up_bias, down_bias = self._biases[layer]
        return gate_up[expert].T, down[expert].T, gate_up_bias[expert], down_bias[expert]

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return n small experts' matrices, ``[n, 2·I, H]`` and ``[n, H, I]``, or None."""
        gate_up, down = self._layers[layer]
        if not stacks(self._shape, gate_up, len(experts)):
            return None
        if len(experts) == len(gate_up):  # Ids are ascending, so these are all in order.
            return gate_up.mT, down.mT
        chosen = torch.tensor(experts)
        return gate_up.index_select(0, chosen).mT, down.index_select(0, chosen).mT

    def gathered(self, layer: int, experts: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return n experts' matrices, transposed: ``[n, H, 2·I]`` and ``[n, I, H]``, or None.

        None if the experts are too large to copy, or have biases.
        """
        if not self._gathers:
            return None
        gate_up, down = self._layers[layer]
        return gate_up.index_select(0, experts), down.index_select(0, experts)
