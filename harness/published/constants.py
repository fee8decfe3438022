"""The uncertain numbers of predictions of published rows: component values, and values of a fit.

Each has a value and a range from measurements of components or from estimates, which stand in its
source.  `harness.published.fit` moves them within these ranges so that rows are predicted better;
`results/measured/constants.json` has what it found: once from all rows, and once for each machine
and author from the rows of all others.  A row whose machine is there is predicted, left out, with
numbers that never saw it.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from moebench.harness.published.prediction import Phase
from moebench.harness.published.rows import FOLDER, Row
from moebench.substrate.errors import InputError
from moebench.substrate.files import read_text

#: Values by the names of constants.
Values = Mapping[str, float]

FILE = "constants.json"


class Constant(NamedTuple):
    """An uncertain number.

    Attributes:
        value: from components.
        factor: its range is from ``value / factor`` to ``value * factor``, two standard deviations.
    """

    name: str
    value: float
    factor: float
    source: str

    @property
    def deviation(self) -> float:
        """Standard deviation of its logarithm."""
        return math.log(self.factor) / 2


CONSTANTS = (
    # Memory of the host.
    Constant("server reads", 1.0, 1.6, "over the composed share of nominal, 0.40-0.85"),
    Constant("desktop reads", 1.0, 1.3, "over the composed share of nominal, 0.63-0.88"),
    Constant("measured reads", 0.9, 1.25, "of what an author measured with a benchmark"),
    Constant("bound sockets", 1.5, 1.35, "two sockets over one, weights in each one's memory: "
             "llama.cpp issue 11744"),
    Constant("unbound sockets", 0.83, 1.5, "two EPYC 9175F read .41 of nominal without placement, "
             ".74 with it (llama.cpp issue 11744)"),
    Constant("pool reads", 1.0, 1.3, "over the composed share of a one-pool machine"),
    # Arithmetic of the host.
    Constant("core AVX2", 1.0, 1.5, "over the composed rate, 1.8-4.0 weights a cycle"),
    Constant("core AVX-512", 1.0, 2.0, "over the composed rate, 3-9 weights a cycle"),
    Constant("codebook formats", 0.5, 1.6, "IQ1 to IQ3: table look-ups for each group of weights"),
    Constant("few bits", 0.75, 1.6, "Q2_K and Q3_K: more operations a weight than 4-bit blocks"),
    Constant("fp4 formats", 0.65, 1.5, "MXFP4, NVFP4: a look-up for each weight"),
    Constant("repacked", 1.3, 1.5, "ik_llama.cpp with -rtr or _R4 over others, for one row: pairs "
             "on one machine, 1.13 to 1.8"),
    Constant("rows llama.cpp", 0.7, 3.0, "weights a core multiplies with many rows, over its rate "
             "with one: no kernel uses a weight for several rows unless it is repacked"),
    Constant("rows llama.cpp repacked", 2.0, 2.5, "the same, Q4_0, IQ4_NL and (PR 12332, 2025-04) "
             "Q4_K, of which it interleaves 8 rows"),
    Constant("rows ik_llama.cpp", 2.7, 2.5, "the same; its kernels use a weight for up to 8 rows"),
    Constant("rows ktransformers", 3.6, 2.5, "the same; llamafile kernels with AVX-512"),
    Constant("rows AMX", 12.0, 2.5, "the same; tile products, 8 times the operations a cycle"),
    Constant("sockets products", 0.75, 1.4, "each further socket's share in products of many rows"),
    Constant("host attention", 0.6, 2.0, "share of the host's bandwidth in reading the KV cache"),
    # Hand-over and launches.
    Constant("handoff us", 80.0, 2.5, "an author's profile: 16 % of a step of DeepSeek-V2-Lite, "
             "0.14 ms a layer with the scheduler; idle threads wake in 40 us"),
    Constant("virtual handoff", 2.5, 1.6, "in a virtual machine over a real one: 0.25 to 0.1 ms"),
    Constant("launch ggml", 1.0, 1.7, "over 3 us a kernel, 2-5"),
    Constant("launch python", 1.0, 1.7, "over the kinds python-graphs and hf-eager"),
    Constant("cached layer us", 90.0, 2.0, "a second graph split for each layer with hits and "
             "misses"),
    # The device.
    Constant("small reads", 1.0, 1.4, "over 0.65 of nominal, 0.5-0.85"),
    Constant("attention reads", 0.4, 2.2, "share of large reads' rate in reading the KV cache"),
    Constant("python attention reads", 0.08, 3.0, "the same of engines in PyTorch, which copy keys "
             "and values for each query head"),
    Constant("latent reads", 0.09, 2.5, "the same of latent vectors (MLA)"),
    Constant("device products", 0.35, 2.0, "share of the tensor peak, quantised experts on NVIDIA"),
    Constant("other products", 0.12, 2.5, "the same on AMD and Apple, whose peak few "
             "kernels can use"),
    Constant("unpacking rows", 32.0, 3.0, "rows whose products take as long as unpacking an "
             "expert's weights: tiles of 8 to 128 rows"),
    # The link, and routing.
    Constant("unpinned copies", 0.6, 2.0, "over pinned ones; a third to all"),
    Constant("alike", 0.385, 1.6, "correlation of an expert's logits in rows of a text: the law of "
             "drawn routing, 0.109-0.497 over eight recorded families"),
    Constant("static hits", 0.43, 1.5, "a static share s of the experts has s to this power of the "
             "hits: recorded routing"),
    Constant("cache hits", 0.18, 1.6, "the same of an LRU cache: .67 at 1/8, .81 at 1/4"),
)  # fmt: skip

BY_NAME = {constant.name: constant for constant in CONSTANTS}

#: The values from components.
COMPONENTS: Values = {constant.name: constant.value for constant in CONSTANTS}


class Fitted(NamedTuple):
    """Values of a fit.

    Attributes:
        all_rows: from all rows.
        left_out: for each machine and author, from the rows of all others.
        own_error: standard deviation of the logarithm of a rate, by phase, that makes intervals of
            80 % hold in the mean of the machines and authors left out.
    """

    all_rows: Values
    left_out: Mapping[str, Values]
    own_error: Mapping[Phase, float]


@cache
def fitted(file: Path | None = None) -> Fitted:
    """Return the values that ship, or those of a file.

    Raises InputError: the file is absent or damaged; what is allowed.
    """
    file = file or FOLDER / FILE
    try:
        said = json.loads(read_text(file))
        found = Fitted(said["all"], said["left_out"], said["own_error"])
        for values in (found.all_rows, *found.left_out.values()):
            if values.keys() != COMPONENTS.keys() or not all(v > 0 for v in values.values()):
                raise ValueError("its constants are not those of this version")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{file}: holds no values of a fit ({error}); make them again: make fit"
        ) from error
    return found


def fold(row: Row) -> str:
    """Return the machine and author with whom a row is left out: processor, else GPU, and owner.

    Rows of one box with and without its card belong together, as do those of one box at several
    numbers of cards.
    """
    return f"{row.cpu.strip() or row.gpu.strip() or 'not named'} ({row.owner or 'no source'})"


def values_for(row: Row, found: Fitted) -> Values:
    """Return the values from rows of other machines and authors, if the row's own was fitted to."""
    return found.left_out.get(fold(row), found.all_rows)
