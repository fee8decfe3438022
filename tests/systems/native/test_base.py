"""What all native systems check: their options, their packages, and the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.substrate.errors import UsageError
from moebench.systems.native.base import NativeSystem


@dataclass(kw_only=True)
class Package(NativeSystem):
    """A package of which one module is missing."""

    paper = "a paper"
    requires = {"json": "json-package", "no_such_module_x": "x", "no_such_module_y": "y"}  # noqa: RUF012

    @property
    def libraries(self) -> Sequence[str]:
        return ("json",)


def made(**options: Any) -> Package:
    """A package with every abstract member that the base may have."""
    names = dict.fromkeys(Package.__abstractmethods__)
    return type("Whole", (Package,), names)(**options)  # type: ignore[no-any-return]


def test_the_defaults() -> None:
    package = made()
    assert (package.threads, package.timeout_s, package.memory_limit) == (1, 600.0, None)
    assert package.lossless is True
    assert package.remarks() == ()
    assert package.max_batch is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": 0}, "threads is 0; allowed: 1 or more"),
        ({"threads": -1}, "threads is -1"),
        ({"timeout_s": 0}, "timeout_s is 0; allowed: more than 0 seconds"),
        ({"timeout_s": -1.5}, "timeout_s is -1.5"),
        ({"memory_limit": "much"}, "memory_limit"),
    ],
)
def test_options_out_of_range_are_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(**options)


def test_options_at_their_ends_are_allowed() -> None:
    package = made(threads=1, timeout_s=0.1, memory_limit="600MB")
    assert package.memory_limit == "600MB"
    assert made(memory_limit="local").memory_limit == "local"


def test_missing_packages_are_named_with_the_command() -> None:
    package = made()
    assert package.missing() == ["x", "y"]
    with pytest.raises(UsageError) as caught:
        package.check_installed("accelerate")
    assert str(caught.value) == (
        "--system accelerate: x and y not installed; type: pip install 'moebench[native]'"
    )
    type(package).requires = {"json": "json-package"}
    package.check_installed("accelerate")


def test_a_batch_beyond_what_a_package_takes_is_refused() -> None:
    package, shape = made(), SimpleNamespace()
    assert package.why_not(shape, 1000) is None  # type: ignore[arg-type]
    type(package).max_batch = 2
    assert package.why_not(shape, 2) is None  # type: ignore[arg-type]
    assert package.why_not(shape, 3) == (  # type: ignore[arg-type]
        "at most 2 sequence at once, 3 were asked for"
    )


def test_a_package_reads_the_checkpoint_itself(tmp_path: Path) -> None:
    checkpoint: Any = SimpleNamespace(path=tmp_path / "model")
    assert made().model_file(checkpoint, "hash", tmp_path) == tmp_path / "model"
