"""Every test of the harness starts in an empty folder without evaluation data."""

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
    """Remove environment variables that could make a pipe look like a terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tiny_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalogue folder of two tiny models, whose runs take milliseconds."""
    from tests.harness.tiny import make_catalogue

    return make_catalogue(tmp_path_factory.mktemp("catalogue") / "tiny")


@pytest.fixture(scope="module")
def tiny_models(tiny_catalogue: Path) -> Iterator[None]:
    """Replace the shipped models by the tiny ones, in a module's tests and child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "MODELS", tiny_catalogue / "models")
        patch.setattr(catalogue, "SCALE", tiny_catalogue / "scale")
        patch.setenv(catalogue.FOLDER_VARIABLE, str(tiny_catalogue))
        yield


@pytest.fixture
def shipped_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the shipped models for one test of a module that uses the tiny ones."""
    for name, folder in SHIPPED.items():
        monkeypatch.setattr(catalogue, name, folder)
    monkeypatch.delenv(catalogue.FOLDER_VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def models_that_were_asked_for(request: pytest.FixtureRequest) -> None:
    """Restore the shipped models for a test that does not ask for the tiny ones of its module.

    Otherwise its result would depend on the order of the module's tests.
    """
    if "tiny_models" not in request.fixturenames:
        request.getfixturevalue("shipped_models")
