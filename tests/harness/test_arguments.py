"""Sizes and rates on the command line: their units, and one line for what is none."""

import pytest

from moebench.harness.arguments import parse_gib, parse_rate
from moebench.substrate.errors import UsageError


@pytest.mark.parametrize(
    ("text", "gib"),
    [("8", 8), ("11.5GiB", 11.5), (" 12 GB ", 12e9 / 2**30), ("1e-1GiB", 0.1), (None, None)],
)
def test_sizes(text: str | None, gib: float | None) -> None:
    assert parse_gib("--budget", text) == (gib if gib is None else pytest.approx(gib))


@pytest.mark.parametrize("text", ["", "GB", "0", "-3", "1.2.3GB", "1e999GB", "12TB", "12 G B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget .*expected a size, for example 12GB"):
        parse_gib("--budget", text)


@pytest.mark.parametrize(("text", "rate"), [("4GB/s", 4), ("800 MB/s", 0.8), (None, None)])
def test_rates(text: str | None, rate: float | None) -> None:
    assert parse_rate("--link", text) == (rate if rate is None else pytest.approx(rate))


@pytest.mark.parametrize("text", ["", "4", "0GB/s", "4GB", "1.2.3GB/s", "1e999GB/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match=r"--link .*expected a rate, for example 4GB/s"):
        parse_rate("--link", text)
