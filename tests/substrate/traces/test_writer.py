"""The writer of traces: arrays that numpy reads, the header of them, and no half trace."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.traces.file import HEADER, Header
from moebench.substrate.traces.writer import writing


def header(experts: int = 5) -> Header:
    return Header(model="m", workload="w", num_moe_layers=2, num_experts=experts, top_k=2)


def ids(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + 4 * count).reshape(count, 2, 2) % 5


def test_appended_rows_are_one_array_in_the_formats_own_types(tmp_path: Path) -> None:
    out = tmp_path / "new" / "trace"
    with writing(out, header()) as writer:
        writer.append(ids=ids(3), sequence=np.zeros(3), scores=np.ones((3, 2, 5), np.float16))
        writer.append(ids=ids(2, 12), sequence=np.ones(2), scores=np.zeros((2, 2, 5), np.float16))
    found = {name: np.load(out / f"{name}.npy") for name in ("ids", "sequence", "scores")}
    assert np.array_equal(found["ids"], np.concatenate([ids(3), ids(2, 12)]))
    assert found["sequence"].tolist() == [0, 0, 0, 1, 1]
    assert {name: array.dtype.str for name, array in found.items()} == {
        "ids": "|u1", "sequence": "<i4", "scores": "<f2"
    }  # fmt: skip
    assert found["scores"][:3].min() == 1
    assert found["scores"][3:].max() == 0
    assert sorted(file.name for file in out.iterdir()) == sorted(
        [HEADER, "ids.npy", "sequence.npy", "scores.npy"]
    )
    assert [file.name for file in out.parent.iterdir()] == ["trace"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_the_header_has_shapes_and_hashes_and_what_was_described(tmp_path: Path) -> None:
    out = tmp_path / "trace"
    with writing(out, header()) as writer:
        writer.append(ids=ids(3))
        writer.describe(notes=["a note"], lossless=False)
    said = json.loads((out / HEADER).read_text(encoding="utf-8"))
    assert said["arrays"] == {
        "ids": {
            "dtype": "|u1", "shape": [3, 2, 2],
            "sha256": hashlib.sha256((out / "ids.npy").read_bytes()).hexdigest(),
        }
    }  # fmt: skip
    assert (said["notes"], said["lossless"], said["model"]) == (["a note"], False, "m")


@pytest.mark.parametrize(("experts", "dtype"), [(256, "|u1"), (257, "<u2")])
def test_ids_have_the_smallest_type_that_holds_them(
    tmp_path: Path, experts: int, dtype: str
) -> None:
    out = tmp_path / "trace"
    with writing(out, header(experts)) as writer:
        writer.append(ids=np.full((1, 2, 2), experts - 1), candidates=np.zeros((1, 2, 2)))
    for name in ("ids", "candidates"):
        assert np.load(out / f"{name}.npy").dtype.str == dtype
    assert np.load(out / "ids.npy").max() == experts - 1


def write(out: Path, *rows: np.ndarray, then: BaseException | None = None) -> None:
    with writing(out, header()) as writer:
        for one in rows:
            writer.append(ids=one)
        if then is not None:
            raise then


def test_rows_of_another_shape_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ids: rows of \(2, 3\) after rows of \(2, 2\)"):
        write(tmp_path / "trace", ids(3), np.zeros((1, 2, 3)))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_or_an_interruption_leaves_nothing(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    with pytest.raises(failure):
        write(tmp_path / "trace", ids(1), then=failure())
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    with pytest.raises(UsageError, match="trace: exists; give another --out, or remove it first"):
        write(tmp_path / "trace", ids(1))
    assert [*(tmp_path / "trace").iterdir()] == []
