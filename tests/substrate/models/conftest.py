"""Fixtures: one checkpoint of each family, and its decoder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moebench.substrate.models.decoder import Decoder
from tests.substrate.models.checkpoints import FAMILIES, make_checkpoint
from tests.substrate.models.driver import load


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: more are no faster for tiny matrices, and slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write one checkpoint per family; every second one is sharded."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {f: make_checkpoint(root / f, f, sharded=i % 2 > 0) for i, f in enumerate(FAMILIES)}


@pytest.fixture(scope="session")
def decoders(directories: dict[str, Path]) -> dict[str, Decoder]:
    return {family: load(path) for family, path in directories.items()}
