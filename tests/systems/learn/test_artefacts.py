"""Trained artefacts are stored once, also with concurrent and failing training."""

import fcntl

import numpy as np
import pytest

from moebench.systems.learn import artefacts
from moebench.systems.learn.artefacts import Artefact, kept

LEARNT = Artefact({"weight": np.arange(3.0)}, {"epochs": "5"})


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_artefact_is_trained_once_and_reused(tmp_path):
    file, made = tmp_path / "kept" / "some-1.safetensors", []
    for _ in range(2):
        arrays, note = kept(file, lambda: made.append(1) or LEARNT)
        assert arrays["weight"].tolist() == [0, 1, 2]
        assert note == {"epochs": "5"}
    assert made == [1]
    assert files(file.parent) == [file.name]


def test_artefact_is_locked_during_training(tmp_path):
    file = tmp_path / "some-1.safetensors"

    def make():
        with file.with_suffix(".lock").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LEARNT

    kept(file, make)
    assert files(tmp_path) == [file.name]


def test_waiting_process_uses_the_other_processes_artefact(tmp_path, monkeypatch):
    file = tmp_path / "some-1.safetensors"
    monkeypatch.setattr(artefacts.fcntl, "flock", lambda *_: artefacts._write(file, LEARNT))
    arrays, _ = kept(file, lambda: pytest.fail("made again"))
    assert arrays["weight"].tolist() == [0, 1, 2]


def test_learning_that_failed_leaves_nothing(tmp_path):
    def make():
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        kept(tmp_path / "some-1.safetensors", make)
    assert files(tmp_path) == []
