"""Samples: what is written is what is read; a file is whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from moebench.results.samples import (
    TokenSample,
    read_samples,
    samples_of_run,
    samples_path,
    write_samples,
)
from moebench.results.store import Store
from moebench.substrate.errors import InputError
from tests.results.documents import document

SAMPLES = [
    TokenSample(0, 0, 3_000_000_000, None),
    TokenSample(0, 1, 5, [8, 8]),
    TokenSample(1, 0, 7, None),
]


@pytest.mark.parametrize("samples", [SAMPLES, []])
def test_samples_come_back(tmp_path: Path, samples: list[TokenSample]) -> None:
    write_samples(tmp_path, "abc", samples)
    assert read_samples(tmp_path, "abc") == samples
    assert read_samples(tmp_path, "def") is None
    assert os.listdir(tmp_path / "samples") == ["abc.parquet"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    write_samples(tmp_path, "abc", SAMPLES)

    def full(table: object, file: Path, **options: object) -> None:
        file.write_bytes(b"PAR1 half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parquet, "write_table", full)
    for run_id in ("abc", "def"):
        with pytest.raises(InputError, match="No space left on device; give another") as caught:
            write_samples(tmp_path, run_id, SAMPLES[:1])
        assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert read_samples(tmp_path, "abc") == SAMPLES
    assert os.listdir(tmp_path / "samples") == ["abc.parquet"]


@pytest.mark.parametrize("stored", [True, False])
def test_ctrl_c_leaves_a_run_with_its_samples_or_neither(tmp_path: Path, stored: bool) -> None:
    store = Store(tmp_path)
    run = document("abcdef012345")

    def interrupted() -> None:
        with samples_of_run(store, run["run_id"], SAMPLES):
            if stored:
                store.put(run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (store.get(run["run_id"]) is not None) == stored
    assert read_samples(tmp_path, run["run_id"]) == (SAMPLES if stored else None)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "samples").touch()
    with pytest.raises(InputError, match="cannot be written"):
        write_samples(tmp_path, "abc", SAMPLES)


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_damaged_file(tmp_path: Path, keep: int) -> None:
    write_samples(tmp_path, "abc", SAMPLES)
    file = samples_path(tmp_path, "abc")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match="is damaged") as caught:
        read_samples(tmp_path, "abc")
    assert "\n" not in str(caught.value)
