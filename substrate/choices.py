"""Names that several packages choose among.  Imports nothing, so that ``--help`` is quick."""

from typing import Literal

#: How weights are stored; their bits are `substrate.models.shape.BITS_PER_WEIGHT`.
Precision = Literal["fp32", "bf16", "fp16", "4bit", "2bit"]

#: What routed experts are really quantised to (`substrate.models.quantised`).
ExpertDtype = Literal["int8", "int4"]

#: The kind of software whose costs the control thread is charged, unless another is chosen.
DEFAULT_SOFTWARE = "lean"
