"""Numbers of a profile with their unit, their source and a badge of how far to trust them.

In YAML each is a mapping ``{value: 768, unit: GB/s, source: vendor datasheet, badge: datasheet}``.
Where the source names a range, it is there too: ``range: [24, 28.5]``, in the same unit.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Where a number comes from: ``measured`` on this very part (the source names the author),
#: ``calibrated`` (fitted on this machine), ``datasheet`` (vendor or paper), or ``estimate``
#: (everything else, measurements of a similar part included).
Badge = Literal["measured", "calibrated", "datasheet", "estimate"]


class Inert(BaseModel):
    """Base of profile models: frozen, without unknown fields, without NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True
    )


_Number = Annotated[float, Field(strict=True)]


class Quantity(Inert):
    """A number, its unit and its origin.  Subclasses fix the dimension and convert to its base.

    Attributes:
        range: lowest and highest value that the source names, in the same unit; None where it
            names no range.
    """

    UNITS: ClassVar[Mapping[str, float]] = {}
    ZERO_ALLOWED: ClassVar[bool] = False
    WHOLE: ClassVar[bool] = False
    #: Smallest and largest allowed value in the base unit, beyond any real hardware.
    LEAST: ClassVar[float] = 0.0
    MOST: ClassVar[float] = 1e12

    value: _Number
    range: tuple[_Number, _Number] | None = None
    unit: str
    source: str = Field(min_length=1)
    badge: Badge

    @classmethod
    def allowed(cls) -> str:
        """Return the allowed mapping of such a number as one line, for error messages."""
        units = " or ".join(f'"{unit}"' for unit in cls.UNITS)
        badges = " or ".join(get_args(Badge))
        return (
            f"{{value: {cls.limits(next(iter(cls.UNITS)))}, unit: {units}, source: text, "
            f"badge: {badges}}}, and range: [lowest, highest] where one is known"
        )

    @classmethod
    def limits(cls, unit: str) -> str:
        """Return the allowed values in a unit as text, for error messages."""
        number, size = "whole number" if cls.WHOLE else "number", cls.UNITS[unit]
        limits = f"{number} {'>=' if cls.ZERO_ALLOWED else '>'} 0 and <= {cls.MOST / size:g}"
        if cls.LEAST:
            limits += f", at least {cls.LEAST / size:g}"
        return f"{limits} {unit}" if size != 1 else limits

    @model_validator(mode="after")
    def _possible(self) -> "Quantity":
        if self.unit not in self.UNITS:
            raise ValueError(f"{self.unit!r} is not a unit of {type(self).__name__.lower()}")
        for number in (self.value, *(self.range or ())):
            base = number * self.UNITS[self.unit]
            lowest_ok = number == 0 if base <= 0 else base >= self.LEAST
            lowest_ok = lowest_ok and (number > 0 or self.ZERO_ALLOWED)
            if not lowest_ok or base > self.MOST:
                raise ValueError(f"value {number:g} is out of range")
            if self.WHOLE and not number.is_integer():
                raise ValueError(f"value {number:g} is not whole")
        low, high = self.range or (self.value, self.value)
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value:g} is outside its range {low:g} to {high:g}")
        return self

    @property
    def low(self) -> Self:
        """The number with the low end of its range as value; itself without a range."""
        return self._at(0)

    @property
    def high(self) -> Self:
        """The number with the high end of its range as value; itself without a range."""
        return self._at(1)

    def _at(self, end: int) -> Self:
        return self if self.range is None else self.model_copy(update={"value": self.range[end]})

    @property
    def _base(self) -> float:
        return self.value * self.UNITS[self.unit]


class Bandwidth(Quantity):
    """Bytes moved per second."""

    UNITS = {"GB/s": 1e9, "MB/s": 1e6}
    LEAST = 1e3
    MOST = 1e15

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth in bytes per second."""
        return self._base


class Compute(Quantity):
    """Floating-point operations per second, dense; a multiply-add counts as two."""

    UNITS = {"TFLOPS": 1e12, "GFLOPS": 1e9}
    LEAST = 1e6
    MOST = 1e19

    @property
    def flops_per_s(self) -> float:
        """The throughput in floating-point operations per second."""
        return self._base


class WeightRate(Quantity):
    """Weights that are multiplied with one row per second, whatever bytes they take."""

    UNITS = {"Gweights/s": 1e9}
    LEAST = 1e6
    MOST = 1e15

    @property
    def per_s(self) -> float:
        """The rate in weights per second."""
        return self._base


class Memory(Quantity):
    """A capacity in whole bytes; GB is 1e9, GiB is 2**30."""

    UNITS = {"GB": 1e9, "GiB": 2.0**30}
    LEAST = 1e6
    MOST = 1e16

    @property
    def bytes(self) -> int:
        """The capacity in whole bytes."""
        return round(self._base)


class Time(Quantity):
    """A fixed cost in whole nanoseconds; may be zero."""

    UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
    MOST = 1e12
    ZERO_ALLOWED = True

    @property
    def ns(self) -> int:
        """The time in whole nanoseconds."""
        return round(self._base)


class Power(Quantity):
    """Electrical power; may be zero."""

    UNITS = {"W": 1.0}
    MOST = 1e6
    ZERO_ALLOWED = True

    @property
    def watts(self) -> float:
        """The power in watts."""
        return self._base


class Ratio(Quantity):
    """A number without dimension."""

    UNITS = {"1": 1.0}

    @property
    def ratio(self) -> float:
        """The number without its unit and source."""
        return self._base


class Efficiency(Ratio):
    """The fraction of a peak that is reached; never above 1."""

    LEAST = 1e-6
    MOST = 1.0


class PowerShare(Efficiency):
    """A share of a part's power above idle."""


class Count(Quantity):
    """A count, such as cores or kernel launches."""

    UNITS = {"1": 1.0}
    MOST = 1e6
    WHOLE = True

    @property
    def count(self) -> int:
        """The number as an int, without its unit and source."""
        return int(self.value)
