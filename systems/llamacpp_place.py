r"""llama.cpp's placements by --fit and by -ot: layers, and matrices of their experts.

    llama.cpp                          moebench
    ─────────                          ────────
    --fit on, common/fit.cpp           Fit (``place=fit``), by the pure function `fit`
    --fit-target 1024                  ``place.margin``, MiB that stay free
    an unset context is shrunk         ``place.context=unset``, by `shrunk_context`
    -ot REGEX=CPU                      Override (``place=override``, ``place.host``)

--fit fills the device from the *front*: the first layers keep their experts, and the last layers'
experts are on the host.  --n-cpu-moe, the default of `systems.llamacpp`, does the opposite.  The
rule is that of common/fit.cpp at 0c1e570 for one device, in closed form.  With T = free memory less
the margin, and a model's *entries* its layers and, last, its output:

    1  everything fits in T: nothing changes
    2  an unset context is shrunk, in proportion, until everything fits: then nothing else changes
    3  n = the most last entries whose dense weights, KV cache and compute buffer, with the experts
       of the lowest of these layers, take at most T; if not all dense weights fit, that is all
    4  F = the most layers, counted from the lowest of the n, whose experts fit in T too
    5  the next layer, taking less than T: UP (attention and the matrix ``up``), and then, if it
       fits, GATE (``up`` and ``gate``); if UP does not fit, ATTN; else its dense weights

Deviations and readings:

- Neither host nor device computes a part of an expert in moebench.  Where llama.cpp keeps one of an
  expert's three matrices on the device, moebench keeps a third of the layer's experts, lowest ids
  first: as many bytes on each side, and the same share of the work if experts are used alike.
- --fit also moves the router of the layer that it splits, and matrices of its shared experts.  The
  rule counts them as moved; the device still computes with them, in the bytes of the margin.
- The search of the code tries a few n and F, by false position.  It finds the most, as here, unless
  fewer layers can take more bytes: if several dense layers lead, it may stop at fewer.
- llama.cpp gives up after step 2 if -ngl, -ts or -ot is set as well, and these flags hold alone;
  here a system has one placement.
- Several devices are not modelled.
- The free memory is what every system is offered; what CUDA and the workspace take is reserved
  before.  The compute buffer is the room for copied experts, a matrix of all experts of a layer.
- The context is that of the run, as if set by -c, unless ``place.context=unset``.  Then the bytes
  of the larger context stay free, and attention still reads what the run has cached.
- The head and the embedding are always on the device, also where --fit leaves them out.
- -ot moves any tensor.  Here it moves routed experts alone; a note names what else a pattern
  matches.
- Patterns are Python's; llama.cpp's are C++'s (ECMAScript), which differ in rare syntax.  Names are
  those of files with separate gate and up matrices (``ffn_gate_exps``, not ``ffn_gate_up_exps``).
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from moebench.substrate.engine.options import option
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.llamacpp import Split, staging
from moebench.systems.policies.place import experts_of

MIB = 2**20

#: Least context that --fit chooses, and the number that divides it (fit.cpp, step 2).
LEAST_CONTEXT, ALIGNED_CONTEXT = 4096, 256

# --------------------------------------------------------------------------- the rule of --fit


class LayerBytes(NamedTuple):
    """Bytes of a layer.

    Attributes:
        dense: all but routed experts, with the KV cache; router and shared experts are part of it.
        up, gate, down: routed experts by matrix; 0 in a dense layer, and ``gate`` without a gate.
        router: the router alone.
        shared_up, shared_gate, shared_down: shared experts alone, by matrix.
    """

    dense: int
    up: int = 0
    gate: int = 0
    down: int = 0
    router: int = 0
    shared_up: int = 0
    shared_gate: int = 0
    shared_down: int = 0

    @property
    def experts(self) -> int:
        """All routed experts."""
        return self.up + self.gate + self.down

    def split(self, boundary: "Boundary") -> int:
        """Return the bytes on the device of a layer that is split.

        The patterns that move experts also match the router and the shared experts of the layer.
        """
        if boundary == "GATE":
            return self.dense - self.shared_down + self.up + self.gate
        moved = self.router + self.shared_gate + self.shared_down
        if boundary == "UP":
            return self.dense - moved + self.up
        return self.dense - moved - self.shared_up


#: What the first layer whose experts do not fit keeps on the device in addition to attention: one
#: matrix (UP), all but the last (GATE), or no part of the feed-forward block (ATTN).
Boundary = Literal["UP", "GATE", "ATTN"]


class FitSplit(NamedTuple):
    """The split that --fit chooses.

    Attributes:
        whole: front layers that are on the host with attention and KV cache.
        full: layers after them whose experts are on the device.
        boundary: part of the next layer that is; None is its dense weights, as of the last layers.
        output: whether the output layer is on the device.
    """

    whole: int
    full: int
    boundary: Boundary | None = None
    output: bool = True

    def kept(self, layer: int, matrices: int) -> int:
        """Return how many matrices of a layer's experts are on the device."""
        at = layer - self.whole
        if at != self.full:
            return matrices if 0 <= at < self.full else 0
        return {"UP": 1, "GATE": matrices - 1}.get(self.boundary or "", 0)

    def gpu_layers(self, layers: int) -> int:
        """Return -ngl: the number of ``layers`` on the device, and one for the output if it is."""
        return layers - self.whole + self.output


def fit(
    layers: Sequence[LayerBytes], output: int, compute: int, target: int, copies: int = 0
) -> FitSplit:
    """Return which layers' weights llama.cpp's --fit puts on one device, in bytes.

    Args:
        output: the head and all that is no layer's.
        compute: the compute buffer.
        target: the most that may be used: free memory less the margin.
        copies: what the compute buffer has more if any expert is on the host.
    """
    count = len(layers)
    if output + compute + sum(one.dense + one.experts for one in layers) <= target:
        return FitSplit(0, count)
    # Dense-only layers, back to front; the lowest of them keeps its experts.
    fixed = output + compute + copies
    dense = [*accumulate((one.dense for one in reversed(layers)), initial=fixed)][::-1]
    whole = next((i for i in range(count) if dense[i] + layers[i].experts <= target), count)
    if dense[0] >= target:  # not all dense weights fit: nothing more is tried
        return FitSplit(whole, min(1, count - whole), output=fixed <= target)
    # Full layers, front to back.
    used = [*accumulate((one.experts for one in layers[whole:]), initial=dense[whole])]
    full = sum(size <= target for size in used[1:])
    if whole + full == count:
        return FitSplit(whole, full)
    # One more layer, in part.
    at = layers[whole + full]
    rest = used[full] - at.dense

    def fits(boundary: Boundary) -> bool:
        return rest + at.split(boundary) < target

    if fits("UP"):
        return FitSplit(whole, full, "GATE" if fits("GATE") else "UP")
    return FitSplit(whole, full, "ATTN" if fits("ATTN") else None)


def shrunk_context(most: int, used_least: int, used_most: int, target: int) -> int:
    """Return the context that --fit chooses if none was set, in tokens.

    Args:
        most: the longest context that the model was trained for.
        used_least: bytes of everything on the device with `LEAST_CONTEXT` tokens.
        used_most: the same with ``most`` tokens.
        target: the most bytes that may be used.
    """
    if used_most <= target or most <= LEAST_CONTEXT:
        return most
    if target <= used_least or used_most <= used_least:
        return LEAST_CONTEXT
    more = (most - LEAST_CONTEXT) * (target - used_least) // (used_most - used_least)
    context = LEAST_CONTEXT + more
    return max(context - context % ALIGNED_CONTEXT, LEAST_CONTEXT)


# --------------------------------------------------------------------------- placements


class ByMatrix(Split):
    """Base of placements with a number of experts for each layer."""

    shares_slots = True

    #: Experts on the device by MoE layer, set by `homes`; None before.
    counts: Mapping[int, int] | None = None

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of placed experts and of copies; None if all experts are placed."""
        if self.counts is None:
            return None
        placed = sum(self.counts.values())
        whole = placed == len(shape.moe_layers) * shape.num_experts
        return None if whole else placed + staging(shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return each layer's experts of the lowest ids, front layers first, as far as they fit."""
        every = experts_of(shape.moe_layers, shape, scope)
        counts = self.counts or {}
        placed = [pair for pair in every if pair[1] < counts.get(pair[0], shape.num_experts)]
        room = slots if len(placed) == len(every) else slots - staging(shape)
        return placed[: max(0, room)]


@dataclass(kw_only=True)
class Fit(ByMatrix):
    """--fit on: experts of the first layers on the device, of the last ones on the host.

    Attributes:
        margin: MiB of device memory that stay free (--fit-target).
        context: ``run`` keeps the context of the run's longest text, as -c does; ``unset`` is the
            model's own, shrunk until all weights fit, but not below 4,096 tokens.
    """

    margin: int = option(1024, low=0, searched=(128, 8192), scale="log")
    context: Literal["run", "unset"] = "run"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._split, self._tokens = FitSplit(0, 0), 0

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``host`` for whole front layers that do not fit, ``device`` for the others."""
        target = budget.device_bytes - self.margin * MIB
        if self.context == "unset":
            budget = self._with_context(shape, budget, target)
        layers = layer_bytes(shape, budget)
        copies = staging(shape) * budget.expert_bytes
        self._split = fit(layers, budget.other_bytes, 0, target, copies)
        matrices = shape.ffn_matrices
        self.counts = {
            layer: shape.num_experts * self._split.kept(layer, matrices) // matrices
            for layer in shape.moe_layers
        }
        whole = self._split.whole
        return ["host" if layer < whole else "device" for layer in range(shape.num_layers)]

    def _with_context(self, shape: ModelShape, budget: Budget, target: int) -> Budget:
        """Return the budget with the KV cache of the context that --fit chooses."""
        weights = budget.other_bytes + sum(budget.layer_bytes)
        weights += len(shape.moe_layers) * shape.num_experts * budget.expert_bytes
        token = shape.kv_bytes_per_token()
        most = shape.max_positions
        ends = weights + LEAST_CONTEXT * token, weights + most * token
        self._tokens = shrunk_context(most, *ends, target)
        cache = max(budget.kv_layer_bytes, self._tokens * token // shape.num_layers)
        return budget._replace(kv_layer_bytes=cache)

    def flags(self, shape: ModelShape) -> str:
        """Return --fit and the flags that it amounts to."""
        whole, full, boundary, _ = self._split
        context = f" -c {self._tokens}" if self._tokens else ""
        here = f"of layers {whole} to {whole + full - 1} on the device" if full else "on the host"
        said = f"--fit on{context}: -ngl {shape.num_layers + 1 - whole}, experts {here}"
        return said if boundary is None else f"{said}, layer {whole + full} in part ({boundary})"


def layer_bytes(shape: ModelShape, budget: Budget) -> list[LayerBytes]:
    """Return the bytes of each layer's parts, with KV cache, from the budget's bytes of layers."""
    found = []
    for layer, size in enumerate(budget.layer_bytes):
        dense = size + budget.kv_layer_bytes
        if layer not in shape.moe_rows:
            found.append(LayerBytes(dense, 0))
            continue
        each = size / shape.layer_common_params(layer)
        experts = thirds(shape.num_experts * budget.expert_bytes, shape.ffn_matrices)
        shared = thirds(round(each * shape.shared_params), shape.ffn_matrices)
        found.append(LayerBytes(dense, *experts, round(each * shape.gate_params), *shared))
    return found


def thirds(size: int, matrices: int) -> tuple[int, int, int]:
    """Return the bytes of the matrices up, gate and down, of which there may be no gate."""
    each = size // matrices
    return each, each * (matrices - 2), size - each * (matrices - 1)


#: llama.cpp's names of some other tensors, for the note on a pattern.
OTHERS = ("attn_q", "attn_output", "ffn_gate_inp", "ffn_up_shexp", "ffn_down")


@dataclass(kw_only=True)
class Override(ByMatrix):
    r"""-ot REGEX=CPU: experts of layers whose tensors' names match are on the host.

    Attributes:
        host: a regular expression that is searched in names such as ``blk.7.ffn_up_exps.weight``;
            ``=CPU`` at its end is accepted.  The default is that of --cpu-moe: all experts.
    """

    host: str = r"\.ffn_(up|down|gate_up|gate)_(ch|)exps"

    def __post_init__(self) -> None:
        super().__post_init__()
        said, allowed = f"place.host={self.host}", r"such as blk\.(1[0-9])\.ffn_.*_exps"
        text = self.host.removesuffix("=CPU")
        if not text:
            raise UsageError(f"{said}: is empty; allowed: a regular expression {allowed}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of syntax that Python will read otherwise one day
                self._pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(
                f"{said}: is no regular expression ({error}); allowed: one {allowed}"
            ) from error

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for every layer.

        Raises:
            UsageError: the pattern matches no matrix of experts.
            BudgetError: the other layers' experts do not fit on the device.
        """
        matrices = shape.ffn_matrices
        on_host = {layer: self._matches(layer, matrices) for layer in shape.moe_layers}
        if not any(on_host.values()):
            raise UsageError(
                f"place.host={self.host}: matches no experts of {shape.num_layers} layers; "
                "allowed: an expression for names such as blk.0.ffn_down_exps.weight"
            )
        self.counts = {
            layer: shape.num_experts * (matrices - moved) // matrices
            for layer, moved in on_host.items()
        }
        homes: list[Home] = ["device"] * shape.num_layers
        room, placed = budget.slots(homes) - staging(shape), sum(self.counts.values())
        if placed and placed > room:
            raise BudgetError(
                f"place.host={self.host}: leaves {placed} experts to the device, which has room "
                f"for {max(0, room)}; allowed: an expression that matches more layers"
            )
        return homes

    def _matches(self, layer: int, matrices: int) -> int:
        """Return how many matrices of a layer's experts are on the host."""
        names = ("up", "down", "gate")[:matrices]
        found = (self._pattern.search(f"blk.{layer}.ffn_{name}_exps.weight") for name in names)
        return sum(one is not None for one in found)

    def flags(self, shape: ModelShape) -> str:
        """Return -ot, the number of layers with experts on the host, and what else it matches."""
        counts = self.counts or {}
        here = sum(count < shape.num_experts for count in counts.values())
        parts = sum(0 < count < shape.num_experts for count in counts.values())
        said = f"-ot '{self._pattern.pattern}=CPU': experts of {here} of {len(counts)} layers"
        said += " on the host"
        if parts:
            said += f", of {parts} of them some matrices"
        layers = range(shape.num_layers)
        others = [
            name for name in OTHERS
            if any(self._pattern.search(f"blk.{layer}.{name}.weight") for layer in layers)
        ]  # fmt: skip
        if others:
            said += f"; it also matches {', '.join(others)}, which stay on the device here"
        return said
