"""Which MoE layers' experts are in host memory, by an engine's flags of placement."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: Tensors of a layer's routed experts in a GGUF file.
MATRICES = ("up", "gate", "down")


class Rule(NamedTuple):
    """A rule that sends tensors to a device or to the host; the first one that matches applies.

    Attributes:
        pattern: of tensor names; None with ``below``.
        host: whether its tensors are in host memory.
        below: the layers before this one; None with ``pattern``.
    """

    pattern: re.Pattern[str] | None
    host: bool = True
    below: int | None = None

    def matches(self, layer: int, matrix: str) -> bool:
        """Return whether the rule applies to a matrix of a layer's experts."""
        if self.pattern is None:
            return self.below is None or layer < self.below
        return bool(self.pattern.search(f"blk.{layer}.ffn_{matrix}_exps.weight"))


class Placed(NamedTuple):
    """Number of MoE layers whose experts are in host memory, and remarks on how it was counted."""

    host_layers: int
    remarks: tuple[str, ...]


@dataclass(slots=True)
class Placement:
    """Flags of placement, in the order in which they were typed.

    Attributes:
        below: layers that are on the host as a whole, the first ones.
    """

    rules: list[Rule] = field(default_factory=list)
    below: int = 0

    def place(self, moe_layers: Sequence[int]) -> Placed:
        """Return how many MoE layers have their experts in host memory."""
        shares = {layer: self._share(layer) for layer in moe_layers}
        total = round(sum(shares.values()))
        remarks = []
        parts = [layer for layer, share in shares.items() if 0 < share < 1]
        if parts:
            remarks.append(
                f"experts of layers {_ranges(parts)} are divided between host and device; "
                f"counted as {total} whole layers on the host"
            )
        held = [layer for layer, share in shares.items() if share]
        if held != list(moe_layers[: len(held)]):
            remarks.append(
                f"experts of layers {_ranges(held)} are on the host; counted as the first {total}"
            )
        return Placed(total, tuple(remarks))

    def _share(self, layer: int) -> float:
        """Return the share of a layer's experts that is in host memory."""
        if layer < self.below:
            return 1.0
        on_host = 0
        for matrix in MATRICES:
            rule = next((one for one in self.rules if one.matches(layer, matrix)), None)
            on_host += rule is not None and rule.host
        return on_host / len(MATRICES)


def _ranges(layers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as ``3-5, 9``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
