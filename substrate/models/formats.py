"""What a record holds: an expert's numbers as a checkpoint has them, or quantised and packed.

Whatever counts, moves or keeps records asks the format for their bytes; whatever computes with one
asks it for the expert's matrices.
"""

import torch
from torch import Tensor

from moebench.substrate.models.quantised import PACKINGS, PackedMatrix, order
from moebench.substrate.models.shape import ExpertDtype, ModelShape, check_quantises

#: What experts are stored as.
StoredAs = torch.dtype | ExpertDtype


def unpack(shape: ModelShape, record: Tensor) -> tuple[Tensor, ...]:
    """Records ``[..., 3·I·H]`` as two matrices each, without copying.

    Returns:
        gate above up ``[..., 2·I, H]``, and down ``[..., H, I]``; where experts have biases, then
        these: ``[..., 2·I]`` and ``[..., H]``.
    """
    width, hidden = shape.expert_width, shape.hidden_size
    lead, half = record.shape[:-1], 2 * width * hidden
    gate_up = record[..., :half].view(*lead, 2 * width, hidden)
    if not shape.expert_bias:
        return gate_up, record[..., half:].view(*lead, hidden, width)
    sizes = [width * hidden, 2 * width, hidden]
    down, gate_up_bias, down_bias = torch.split(record[..., half:], sizes, dim=-1)
    return gate_up, down.reshape(*lead, hidden, width), gate_up_bias, down_bias


class FullPrecision:
    """A record is the expert's flat numbers ``[3·I·H]``, biases after them.

    Attributes:
        dtype: of a record's elements.
        state_dtype: what experts read and write, and what records are made from.
        values: elements of a record.
        name: tells files with records apart.
        notes: what a reader of a run's figures must know.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self.dtype = self.state_dtype = dtype
        self.values, self.record_bytes = shape.expert_params, shape.expert_params * dtype.itemsize
        self.name = str(dtype).removeprefix("torch.")
        self.notes: list[str] = []

    def encode(self, record: Tensor) -> Tensor:
        """As it is."""
        return record

    def rounded(self, record: Tensor) -> Tensor:
        """As it is."""
        return record

    def matrices(self, record: Tensor) -> tuple[Tensor, ...]:
        """The expert's matrices, as `unpack` finds them."""
        return unpack(self._shape, record)


class Quantised:
    """A record is the bytes of two packed matrices, gate above up and down.

    Attributes:
        As of `FullPrecision`.

    Raises:
        UsageError: such experts cannot be quantised.
    """

    dtype, state_dtype = torch.uint8, torch.float32

    def __init__(self, shape: ModelShape, stored_as: ExpertDtype) -> None:
        check_quantises(shape, stored_as)
        self._shape = shape
        self._packings = [PACKINGS[stored_as](*dims) for dims in shape.expert_dims]
        self.values = self.record_bytes = sum(packing.size_bytes for packing in self._packings)
        self._first_bytes = self._packings[0].size_bytes
        together = any(packing.together for packing in self._packings)
        self.name = f"int4-{order()}" if stored_as == "int4" and together else stored_as
        how = "in bf16 by torch's products of packed numbers"
        if not together:
            how = "after unpacking, as torch has no product of packed numbers for their sizes"
        self.notes = [f"experts are kept and moved as packed {stored_as} and multiplied {how}"]

    def encode(self, record: Tensor) -> Tensor:
        """A flat record ``[3·I·H]``, quantised and packed: uint8."""
        matrices = unpack(self._shape, record)
        return torch.cat([p.pack(m) for p, m in zip(self._packings, matrices, strict=True)])

    def rounded(self, record: Tensor) -> Tensor:
        """What the quantised numbers stand for, as a flat record."""
        matrices = unpack(self._shape, record)
        both = zip(self._packings, matrices, strict=True)
        return torch.cat([p.rounded(m).to(record.dtype).flatten() for p, m in both])

    def matrices(self, record: Tensor) -> tuple[PackedMatrix, ...]:
        """The expert's matrices where they lie."""
        gate_up, down = self._packings
        first = self._first_bytes
        return PackedMatrix(gate_up, record[:first]), PackedMatrix(down, record[first:])


RecordFormat = FullPrecision | Quantised


def format_of(shape: ModelShape, stored_as: StoredAs) -> RecordFormat:
    """The format of a model's records.

    Raises:
        UsageError: its experts cannot be quantised.
    """
    if isinstance(stored_as, torch.dtype):
        return FullPrecision(shape, stored_as)
    return Quantised(shape, stored_as)
