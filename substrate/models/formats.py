"""Formats of expert records (an expert's weights as bytes): full precision or quantised.

Code that counts, moves or stores records uses the format's sizes; code that computes with a record
uses the format's ``matrices``.
"""

import torch
from torch import Tensor

from moebench.substrate.models.quantised import PACKINGS, PackedMatrix, order
from moebench.substrate.models.shape import ModelShape, RecordDtype, check_quantises

#: Data types of weights that are not quantised, by moebench's names.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

#: Storage type of experts.
StoredAs = torch.dtype | RecordDtype


def unpack(shape: ModelShape, record: Tensor) -> tuple[Tensor, ...]:
    """Return the matrices in full-precision records ``[..., 3·I·H]``, without copying.

    Returns:
        gate over up ``[..., 2·I, H]`` and down ``[..., H, I]``; if experts have biases, also these:
        ``[..., 2·I]`` and ``[..., H]``.
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
    """Record format with the expert's weights in one dtype, flat ``[3·I·H]``, then its biases.

    Attributes:
        dtype: of a record's elements.
        state_dtype: dtype of experts' inputs and outputs, and of the weights that are encoded.
        values: number of elements of a record.
        name: identifies the format in the names of files with records.
        notes: remarks that are printed with a run's figures.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self.dtype = self.state_dtype = dtype
        self.values, self.record_bytes = shape.expert_params, shape.expert_params * dtype.itemsize
        self.name = str(dtype).removeprefix("torch.")
        self.notes: list[str] = []

    def encode(self, record: Tensor) -> Tensor:
        """Return the flat record unchanged: this format stores it directly."""
        return record

    def rounded(self, record: Tensor) -> Tensor:
        """Return the flat record unchanged: this format rounds no weight."""
        return record

    def matrices(self, record: Tensor) -> tuple[Tensor, ...]:
        """Return the expert's matrices and biases as views of its record (`unpack`)."""
        return unpack(self._shape, record)


class Quantised:
    """Record format with the bytes of two quantised, packed matrices: gate over up, and down.

    Attributes are as in `FullPrecision`.

    Raises UsageError: the model's experts cannot be quantised.
    """

    dtype, state_dtype = torch.uint8, torch.float32

    def __init__(self, shape: ModelShape, stored_as: RecordDtype) -> None:
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
        """Quantise and pack a flat record ``[3·I·H]``, and return its bytes (uint8)."""
        matrices = unpack(self._shape, record)
        return torch.cat([p.pack(m) for p, m in zip(self._packings, matrices, strict=True)])

    def rounded(self, record: Tensor) -> Tensor:
        """Quantise a flat record, and return the dequantised weights as a flat record."""
        matrices = unpack(self._shape, record)
        both = zip(self._packings, matrices, strict=True)
        return torch.cat([p.rounded(m).to(record.dtype).flatten() for p, m in both])

    def matrices(self, record: Tensor) -> tuple[PackedMatrix, ...]:
        """Return the expert's packed matrices as views of its record."""
        gate_up, down = self._packings
        first = self._first_bytes
        return PackedMatrix(gate_up, record[:first]), PackedMatrix(down, record[first:])


RecordFormat = FullPrecision | Quantised


def format_of(shape: ModelShape, stored_as: StoredAs) -> RecordFormat:
    """Return the record format of a model's experts.

    Raises UsageError: the model's experts cannot be quantised.
    """
    if isinstance(stored_as, torch.dtype):
        return FullPrecision(shape, stored_as)
    return Quantised(shape, stored_as)
