"""Whether an evaluator is installed, and what is said where it is not."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.evaluate import packages
from moebench.harness.evaluate.packages import (
    find_opencompass,
    require_lm_eval,
    require_opencompass,
)
from moebench.substrate.errors import UsageError


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the variable nor a checkout names an environment."""
    monkeypatch.delenv("MOEBENCH_OPENCOMPASS", raising=False)
    monkeypatch.setattr(packages, "checkout", lambda: None)


def python(folder: Path) -> Path:
    """Make an environment's interpreter."""
    file = folder / "bin" / "python"
    file.parent.mkdir(parents=True)
    file.write_text("")
    return file


def test_the_variable_names_an_environment_before_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = python(tmp_path / "checkout" / ".venv-opencompass")
    assert find_opencompass() is None
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path / "checkout")
    assert find_opencompass() == require_opencompass() == own
    monkeypatch.setenv("MOEBENCH_OPENCOMPASS", str(tmp_path / "other"))
    assert find_opencompass() is None, "the named one alone counts"
    named = python(tmp_path / "other")
    assert find_opencompass() == require_opencompass() == named


def test_without_an_environment_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path)
    with pytest.raises(UsageError) as caught:
        require_opencompass()
    assert str(caught.value) == (
        "OpenCompass has no environment of its own; a checkout's make opencompass makes it "
        "(.venv-opencompass), or set MOEBENCH_OPENCOMPASS to one that has it"
    )


def test_lm_eval_has_the_version_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(packages, "require", lambda name: asked.append(name))
    monkeypatch.setattr(packages, "version", lambda name: f"version of {name}")
    assert require_lm_eval() == "version of lm-eval"
    assert asked == ["lm_eval"]
