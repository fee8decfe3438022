"""The errors that ship, by kind of machine and system: of which runs they are, and refusals."""

import pytest

from moebench.results import published_errors
from moebench.substrate.errors import InputError
from moebench.substrate.machines import compose
from moebench.substrate.machines.profile import HardwareProfile


def profile(parts: str, software: str = "ggml") -> HardwareProfile:
    return HardwareProfile.from_mapping(compose.composed(parts), parts, software)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ("rtx-3090+ryzen-5950x", "desktop"), ("rtx-3090+epyc-9354", "server"),
        ("cpu-only+ryzen-5950x", "no card"), ("ryzen-ai-max-395", "one pool"),
    ],
)  # fmt: skip
def test_kinds_of_machines(parts: str, kind: str) -> None:
    assert published_errors.machine_kind(profile(parts)) == kind


def test_a_run_is_checked_by_rows_of_its_kind_alone() -> None:
    kinds = published_errors.shipped_errors()["kinds"]
    known = published_errors.checked("llamacpp", profile("rtx-3090+ryzen-5950x"))
    assert known == kinds["llamacpp, ggml, desktop"]
    assert known["decode"]["within_80"] > 1
    assert published_errors.checked("smoe", profile("rtx-3090+ryzen-5950x")) is None
    assert published_errors.checked("llamacpp", profile("rtx-3090+ryzen-5950x", "hf-eager")) is None


def test_damaged_errors_are_refused(tmp_path) -> None:
    for text in ("", "{}", "[1]", '{"kinds": 1}'):
        file = tmp_path / f"{len(text)}.json"
        file.write_text(text)
        with pytest.raises(InputError, match="make fit"):
            published_errors.shipped_errors(file)


def test_a_system_that_nobody_measured_has_the_largest_error_of_such_machines() -> None:
    kinds = published_errors.shipped_errors()["kinds"]
    own = published_errors.rate_error("llamacpp", profile("rtx-3090+ryzen-5950x"))
    assert own.checked
    assert own.factor == kinds["llamacpp, ggml, desktop"]["decode"]["within_80"]
    other = published_errors.rate_error("smoe", profile("rtx-3090+ryzen-5950x", "hf-eager"))
    assert (other.checked, other.of) == (False, "desktop")
    of_desktops = [one["decode"]["within_80"] for name, one in kinds.items() if "desktop" in name]
    assert other.factor == max(of_desktops)
    assert published_errors.ratio_error() > 1


def test_a_kind_of_machine_without_any_error_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(published_errors, "shipped_errors", lambda: {"kinds": {}})
    with pytest.raises(InputError, match="no errors of machines of the kind desktop"):
        published_errors.rate_error("llamacpp", profile("rtx-3090+ryzen-5950x"))
