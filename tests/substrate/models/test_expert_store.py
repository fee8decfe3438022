"""A file of records: where each is, its checksum, and one that was changed."""

import hashlib
from pathlib import Path

import pytest
import torch
import xxhash

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models import expert_store
from moebench.substrate.models.dummy import DummyWeights
from moebench.substrate.models.expert_store import (
    ExpertStore,
    checksum,
    own_records,
    require_room,
    stored_record,
)
from tests.substrate.engine.fakes import small_shape

SHAPE = small_shape(layers=3, experts=4, dense_layers=(1,))


def test_records_begin_at_multiples_of_a_page(tmp_path: Path) -> None:
    store = ExpertStore(tmp_path / "x", SHAPE, torch.float32)
    assert store.record_bytes == 4 * SHAPE.expert_params
    assert store.stride_bytes % 4096 == 0
    assert 0 <= store.stride_bytes - store.record_bytes < 4096
    places = [store.offset(layer, expert) for layer in (0, 2) for expert in range(4)]
    assert places == [n * store.stride_bytes for n in range(8)]
    assert store.total_bytes == 8 * store.stride_bytes
    some = ExpertStore(tmp_path / "x", SHAPE, torch.float32, distinct=3)
    turns = [some.offset(layer, expert) // some.stride_bytes for layer in (0, 2) for expert in
             range(4)]  # fmt: skip
    assert turns == [0, 1, 2, 0, 1, 2, 0, 1]
    assert some.total_bytes == 3 * some.stride_bytes
    other = ExpertStore(tmp_path / "x", SHAPE, torch.float32, checksums=("a",))
    other.checked.add(3)
    assert store == other  # what is known of the records does not count
    assert store != some


def test_checksums_are_xxh3_or_sha_256() -> None:
    record = torch.arange(6.0).view(2, 3).T  # its bytes are those of the rows that it shows
    content = record.contiguous().numpy().tobytes()
    assert checksum(record) == xxhash.xxh3_64_hexdigest(content)
    assert len(checksum(record)) == 16
    assert checksum(record, 64) == hashlib.sha256(content).hexdigest()


def test_all_records_are_written_once_in_order(tmp_path: Path) -> None:
    weights = DummyWeights(SHAPE)
    store = ExpertStore.build(weights, tmp_path / "deep" / "x.bin", torch.float32)
    content = store.path.read_bytes()
    assert len(content) == store.total_bytes
    assert [*own_records(weights)] == [(layer, e) for layer in (0, 2) for e in range(4)]
    for layer, expert in own_records(weights):
        start = store.offset(layer, expert)
        record = stored_record(weights, layer, expert, store.format)
        assert content[start : start + store.record_bytes] == record.numpy().tobytes()
    assert [path.name for path in store.path.parent.iterdir()] == ["x.bin"]
    before = store.path.stat().st_mtime_ns
    assert ExpertStore.build(weights, store.path, torch.float32) == store
    assert store.path.stat().st_mtime_ns == before  # a finished file is used again
    store.path.write_bytes(content[:-1])
    ExpertStore.build(weights, store.path, torch.float32)
    assert store.path.read_bytes() == content


def test_a_record_is_checked_once(tmp_path: Path) -> None:
    records = [torch.full((4,), float(n)) for n in range(8)]
    store = ExpertStore(
        tmp_path / "x", SHAPE, torch.float32, checksums=[checksum(one) for one in records]
    )
    store.check(2, 1, records[5])
    with pytest.raises(CheckpointError, match="layer 2 expert 2 was changed after it was written"):
        store.check(2, 2, records[5])
    assert store.checked == {5}
    store.check(2, 1, records[0])  # not again
    ExpertStore(tmp_path / "x", SHAPE, torch.float32).check(0, 0, records[3])  # none are known
    long = ExpertStore(tmp_path / "x", SHAPE, torch.float32, checksums=[checksum(records[0], 64)])
    long.check(0, 0, records[0])


def test_a_full_disk_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 2_000_000_000

    monkeypatch.setattr(expert_store.shutil, "disk_usage", lambda path: Usage)
    require_room(tmp_path / "x", 2_000_000_000, "--store")
    with pytest.raises(CheckpointError) as caught:
        require_room(tmp_path / "x", 2_500_000_000, "--store")
    assert str(caught.value) == (
        f"{tmp_path / 'x'}: the expert records need 2.5 GB, 2 GB are free there; free some or give "
        "another --store"
    )


def test_a_run_that_waited_for_another_one_uses_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run finishes between the first look and the lock."""
    path = tmp_path / "x.bin"
    looks = iter([False, True])

    def finished(store: ExpertStore) -> bool:
        if found := next(looks):
            path.with_suffix(".partial").replace(path)  # as the other run does
        return found

    monkeypatch.setattr(ExpertStore, "_finished", finished)
    monkeypatch.setattr(ExpertStore, "_write", lambda *_: pytest.fail("it is written again"))
    store = ExpertStore.build(DummyWeights(SHAPE), path, torch.float32)
    assert store.path == path
    assert [*looks] == []
    assert not path.with_suffix(".partial").exists()


def test_a_disk_that_fills_up_while_records_are_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        path.with_suffix(".partial").unlink()  # by whoever made room meanwhile
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ExpertStore, "_write", full)
    path = tmp_path / "x.bin"
    total = ExpertStore(path, SHAPE, torch.float32).total_bytes
    with pytest.raises(CheckpointError) as caught:
        ExpertStore.build(DummyWeights(SHAPE), path, torch.float32)
    assert str(caught.value) == (
        f"{path}: the expert records could not be written (No space left on device); free "
        f"{total * 1e-9:.3g} GB there, or give another --store"
    )
    assert [*tmp_path.iterdir()] == []
