"""Names of precisions and dtypes, in a module without imports, so that ``--help`` is fast."""

from typing import Literal

#: Storage precisions of weights; their bits are `substrate.models.shape.BITS_PER_WEIGHT`.
Precision = Literal["fp32", "bf16", "fp16", "4bit", "2bit", "4bit-g64"]

#: How a system's software multiplies quantised experts on the host: by kernels that read the stored
#: bytes, as llama.cpp's do, or by unpacking them to bf16 before each product, as PyTorch code does.
HostKernels = Literal["fused", "unpacking"]

#: Types to which routed experts are quantised for computation (`substrate.models.quantised`).
ExpertDtype = Literal["int8", "int4"]

#: Types in which a record of an expert can be held: those, and linear codes of 4 or 2 bits with one
#: scale for each row of a matrix, for which no machine has a product.
RecordDtype = Literal["int8", "int4", "row-int4", "row-int2"]

#: Default kind of software, which determines the control thread's costs.
DEFAULT_SOFTWARE = "lean"
