"""Every test here starts in an empty folder, with no evaluation data beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moebench.substrate.models import catalogue

SHIPPED = {"MODELS": catalogue.MODELS, "SCALE": catalogue.SCALE}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the caller's may turn a pipe into a terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tiny_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two models whose runs take milliseconds."""
    from tests.harness.tiny import make_catalogue

    return make_catalogue(tmp_path_factory.mktemp("catalogue") / "tiny")


@pytest.fixture(scope="module")
def tiny_models(tiny_catalogue: Path) -> Iterator[None]:
    """A module's tests and their child processes find the tiny models in place of the shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "MODELS", tiny_catalogue / "models")
        patch.setattr(catalogue, "SCALE", tiny_catalogue / "scale")
        patch.setenv(catalogue.FOLDER_VARIABLE, str(tiny_catalogue))
        yield


@pytest.fixture
def shipped_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test of a module with tiny models finds the shipped ones."""
    for name, folder in SHIPPED.items():
        monkeypatch.setattr(catalogue, name, folder)
    monkeypatch.delenv(catalogue.FOLDER_VARIABLE)
