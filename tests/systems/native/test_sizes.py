"""Sizes of memory as text."""

import pytest

from moebench.substrate.errors import UsageError
from moebench.systems.native.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600MB", 600_000_000), ("1.5GB", 1_500_000_000), ("2KB", 2000), ("7B", 7),
        ("1KiB", 1024), ("1MiB", 1024**2), ("2 gib", 2 * 1024**3), (" 3mb ", 3_000_000),
        ("0.5KiB", 512), ("1.6B", 2),
    ],
)  # fmt: skip
def test_a_size_has_a_unit(text: str, size: int) -> None:
    assert parse_size("memory_limit", text) == size


@pytest.mark.parametrize(
    "text", ["", "600", "MB", "-1MB", "1TB", "0MB", "0.1B", "1.MB", "1,5GB", "6 0MB", "x600MB"]
)
def test_no_size_is_one_line_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size("memory_limit", text, "local")
    assert str(caught.value) == (
        f"memory_limit is {text}; allowed: a size such as 600MB or 1.5GB, local, null"
    )
