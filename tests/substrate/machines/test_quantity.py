"""Numbers of a profile: their units in base units, their limits, and their ranges."""

import pytest
from pydantic import ValidationError

from moebench.substrate.machines.quantity import (
    Bandwidth,
    Compute,
    Count,
    Efficiency,
    Memory,
    Power,
    PowerShare,
    Quantity,
    Ratio,
    Time,
    WeightRate,
)


def of(kind: type[Quantity], value: float, unit: str, **more: object) -> Quantity:
    return kind.model_validate(
        {"value": value, "unit": unit, "source": "hand", "badge": "estimate", **more}
    )


@pytest.mark.parametrize(
    ("kind", "value", "unit", "attribute", "base"),
    [
        (Bandwidth, 2.5, "GB/s", "bytes_per_s", 2.5e9), (Bandwidth, 2, "MB/s", "bytes_per_s", 2e6),
        (Compute, 3, "TFLOPS", "flops_per_s", 3e12), (Compute, 3, "GFLOPS", "flops_per_s", 3e9),
        (WeightRate, 4, "Gweights/s", "per_s", 4e9), (Memory, 2, "GB", "bytes", 2 * 10**9),
        (Memory, 2, "GiB", "bytes", 2**31), (Memory, 0.0015, "GB", "bytes", 1_500_000),
        (Time, 2.6, "ns", "ns", 3), (Time, 2, "us", "ns", 2000), (Time, 1.5, "ms", "ns", 1_500_000),
        (Power, 7, "W", "watts", 7), (Ratio, 4.9, "1", "ratio", 4.9),
        (Efficiency, 0.5, "1", "ratio", 0.5), (PowerShare, 0.2, "1", "ratio", 0.2),
        (Count, 6, "1", "count", 6),
    ],
)  # fmt: skip
def test_numbers_in_base_units(
    kind: type[Quantity], value: float, unit: str, attribute: str, base: float
) -> None:
    found = getattr(of(kind, value, unit), attribute)
    assert found == pytest.approx(base)
    assert isinstance(found, int) == (attribute in ("bytes", "ns", "count"))


#: Least and largest value, each in a unit, and whether 0 is allowed.
LIMITS: list[tuple[type[Quantity], str, float, float, bool]] = [
    (Bandwidth, "MB/s", 1e-3, 1e9, False), (Compute, "GFLOPS", 1e-3, 1e10, False),
    (WeightRate, "Gweights/s", 1e-3, 1e6, False), (Memory, "GB", 1e-3, 1e7, False),
    (Time, "ns", 1e-9, 1e12, True), (Power, "W", 1e-9, 1e6, True), (Ratio, "1", 1e-9, 1e12, False),
    (Efficiency, "1", 1e-6, 1, False), (PowerShare, "1", 1e-6, 1, False),
    (Count, "1", 1, 1e6, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "unit", "least", "most", "zero"), LIMITS)
def test_limits_of_each_kind(
    kind: type[Quantity], unit: str, least: float, most: float, zero: bool
) -> None:
    for value in (least, most):
        assert of(kind, value, unit).value == value
    wrong = [-least, most + 1 if kind is Count else most * 1.001]
    wrong += [] if zero else [0]
    wrong += [least * 0.9] if least > 1e-9 and kind is not Count else []
    for value in wrong:
        with pytest.raises(ValidationError, match="is out of range"):
            of(kind, value, unit)
    if zero:
        assert of(kind, 0, unit).value == 0
    with pytest.raises(ValidationError, match=f"'kg' is not a unit of {kind.__name__.lower()}"):
        of(kind, least, "kg")


def test_counts_are_whole_and_efficiencies_are_shares() -> None:
    with pytest.raises(ValidationError, match=r"value 1\.5 is not whole"):
        of(Count, 1.5, "1")
    with pytest.raises(ValidationError, match=r"value 2\.5 is not whole"):
        of(Count, 2, "1", range=[2, 2.5])
    for value in (True, "3", float("nan")):
        with pytest.raises(ValidationError):
            of(Ratio, value, "1")  # type: ignore[arg-type]


def test_a_value_lies_in_its_range() -> None:
    found = of(Bandwidth, 3, "GB/s", range=[2, 5])
    assert [one.bytes_per_s for one in (found.low, found, found.high)] == [2e9, 3e9, 5e9]  # type: ignore[attr-defined]
    assert found.low.range == (2, 5)
    plain = of(Bandwidth, 3, "GB/s")
    assert plain.low is plain is plain.high
    for value, ends in ((1.9, "2 to 5"), (5.1, "2 to 5")):
        with pytest.raises(ValidationError, match=f"value {value} is outside its range {ends}"):
            of(Bandwidth, value, "GB/s", range=[2, 5])
    assert of(Bandwidth, 2, "GB/s", range=[2, 5]).value == 2
    assert of(Bandwidth, 5, "GB/s", range=[2, 5]).value == 5
    with pytest.raises(ValidationError, match="value 0 is out of range"):
        of(Bandwidth, 2, "GB/s", range=[0, 5])


@pytest.mark.parametrize(
    ("kind", "unit", "text"),
    [
        (Bandwidth, "GB/s", "number > 0 and <= 1e+06, at least 1e-06 GB/s"),
        (Bandwidth, "MB/s", "number > 0 and <= 1e+09, at least 0.001 MB/s"),
        (Time, "us", "number >= 0 and <= 1e+09 us"), (Time, "ns", "number >= 0 and <= 1e+12"),
        (Count, "1", "whole number > 0 and <= 1e+06"), (Efficiency, "1",
         "number > 0 and <= 1, at least 1e-06"),
    ],
)  # fmt: skip
def test_limits_as_messages_have_them(kind: type[Quantity], unit: str, text: str) -> None:
    assert kind.limits(unit) == text
    first = next(iter(kind.UNITS))
    assert kind.allowed() == (
        f"{{value: {kind.limits(first)}, unit: "
        + " or ".join(f'"{one}"' for one in kind.UNITS)
        + ", source: text, badge: measured or calibrated or datasheet or estimate}, and range: "
        "[lowest, highest] where one is known"
    )
