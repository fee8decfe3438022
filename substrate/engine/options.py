"""Options of policies and systems that declare which values they allow, and what a search may vary.

    window: int = option(8, low=1, high=4096, scale="log", searched=(2, 64))
    tie: Literal["load", "host"] = option("load", searched=True)

`check_options` refuses other values when a policy is made, `options` lists what is declared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from moebench.substrate.errors import UsageError

#: The key of an option's `Allowed` in its field's metadata.
_ALLOWED = "allowed"

#: What an option can need beyond what its policy needs: a host that computes experts, predictions
#: of later layers, texts to learn from, or a disk.
Need = Literal["host", "predictions", "texts", "disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The allowed values of an option, and those among which a search chooses.

    Attributes:
        low, high: the least and the largest value; None is no limit.  The largest value of an
            option that decides how much memory a policy takes, or how long it trains, is a thousand
            times what papers use, or a network that still fits in memory.
        above, below: whether ``low`` and whether ``high`` itself is not allowed.
        scale: whether values are compared by differences or by ratios.
        searched: whether a search varies the option: over all of its values, or over the numbers
            from one to another.
        needs: what a value other than the default needs.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False
    scale: Literal["linear", "log"] = "linear"
    searched: bool | tuple[float, float] = False
    needs: tuple[Need, ...] = ()

    def __str__(self) -> str:
        if self.high is None:
            if self.low is None:
                return "any value"
            return f"above {self.low}" if self.above else f"{self.low} or more"
        if self.low is None:
            return f"less than {self.high}" if self.below else f"{self.high} or less"
        least, most = "above " * self.above, "less than " * self.below
        return f"{least}{self.low} to {most}{self.high}"

    def holds(self, value: float) -> bool:
        """Return whether a number is allowed; a value that is not a number never is."""
        if self.low is not None and not (value > self.low if self.above else value >= self.low):
            return False
        return self.high is None or (value < self.high if self.below else value <= self.high)


def option(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: bool = False,
    below: bool = False,
    scale: Literal["linear", "log"] = "linear",
    searched: bool | tuple[float, float] = False,
    needs: tuple[Need, ...] = (),
) -> Any:
    """Return a dataclass field with a default and its `Allowed` values."""
    allowed = Allowed(
        low=low, high=high, above=above, below=below, scale=scale, searched=searched, needs=needs
    )  # fmt: skip
    return field(default=default, metadata={_ALLOWED: allowed})


def allowed_values(owner: type) -> Mapping[str, Allowed]:
    """Return the declared options of a dataclass by name."""
    found = ((one.name, one.metadata.get(_ALLOWED)) for one in fields(owner))
    return {name: allowed for name, allowed in found if allowed is not None}


def check_options(owner: Any, prefix: str = "") -> None:
    """Refuse a number that an option does not allow; None is one of an option's own values.

    Args:
        prefix: of the option's name in the message, as ``--set`` spells it: ``"evict."``.

    Raises UsageError: names the first such option, its value and the allowed ones.
    """
    for name, allowed in allowed_values(type(owner)).items():
        value = getattr(owner, name)
        if isinstance(value, int | float) and not allowed.holds(value):
            raise UsageError(f"{prefix}{name} is {value}; allowed: {allowed}")
