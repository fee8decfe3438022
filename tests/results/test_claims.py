"""What came of claims: what is written is what is read, and nothing damaged is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.results.claims import (
    PAPERS,
    Axis,
    Band,
    ClaimResult,
    Counter,
    Exhibit,
    Measured,
    PaperResult,
    Verdict,
    read,
    write,
)
from moebench.substrate.errors import InputError

CLAIM = ClaimResult(
    id="S-1 b1", place="Fig. 11", statement="TPOT", paper=-24, unit="%",
    reproduced=Band(low=-34, high=-14), direction=Band(high=0), why="ten points around",
    measured=Measured.of([-10, -12.5, -9], "estimate", "S1-S3"), verdict=Verdict.DIRECTION_ONLY,
    explanation="software", runs=("3fa9c04be712",),
    counters=(Counter(name="lean", measured=Measured.of([-20], "estimate"),
                      verdict=Verdict.REPRODUCED),),
)  # fmt: skip
EXHIBIT = Exhibit(
    id="smoe-fig-11", place="Fig. 11", title="TPOT", form="bars", x=Axis(field="system", title=""),
    y=Axis(field="tpot_ms", title="TPOT", unit="ms", log=True), series="system", facet="setting",
    rows=({"system": "smoe", "setting": "S1", "tpot_ms": 59.5},),
    paper_rows=({"system": "smoe", "setting": "S1", "tpot_ms": 60},), badge="estimate",
)  # fmt: skip


def result(paper: str = "smoe", **changes: Any) -> PaperResult:
    given = {
        "paper": paper, "title": "SMoE", "quick": True, "provenance": {"created": "2026-01-01"},
        "claims": (CLAIM,), "exhibits": (EXHIBIT,),
    }  # fmt: skip
    return PaperResult(**(given | changes))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = write(result(), tmp_path / "claims")
    assert file == tmp_path / "claims" / "smoe.json"
    assert read(tmp_path / "claims") == [result()]


def test_papers_come_in_their_order_and_those_without_a_file_are_left_out(tmp_path: Path) -> None:
    for paper in ("flashmoe", "smoe", "duoserve"):
        write(result(paper), tmp_path)
    assert [found.paper for found in read(tmp_path)] == ["smoe", "duoserve", "flashmoe"]
    assert read(tmp_path / "none") == []


def test_a_paper_is_replaced_whole(tmp_path: Path) -> None:
    write(result(), tmp_path)
    write(result(claims=()), tmp_path)
    assert read(tmp_path) == [result(claims=())]


def test_what_ships_can_be_read() -> None:
    assert {found.paper for found in read()} <= set(PAPERS)


# ----------------------------------------------------------------------------- damage


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / "smoe.json") in message
    return message


def damaged(folder: Path, **changes: Any) -> Path:
    text = json.loads(write(result(), folder).read_text(encoding="utf-8"))
    (folder / "smoe.json").write_text(json.dumps(text | changes), encoding="utf-8")
    return folder


@pytest.mark.parametrize("keep", [0, 1, 400])
def test_a_file_that_was_cut_is_one_line(tmp_path: Path, keep: int) -> None:
    file = write(result(), tmp_path)
    file.write_bytes(file.read_bytes()[:keep])
    said = refused(tmp_path)
    assert "write it again: moebench reproduce smoe" in said
    assert ": :" not in said


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    assert "smoe.json: quick: " in refused(damaged(tmp_path, quick="perhaps"))
    claims = [CLAIM.model_dump(mode="json") | {"verdict": "maybe"}]
    assert "smoe.json: claims.0.verdict: " in refused(damaged(tmp_path, claims=claims))
    assert "smoe.json: more: " in refused(damaged(tmp_path, more=1))


def test_no_number_that_is_none() -> None:
    with pytest.raises(ValueError, match="finite"):
        Measured.of([float("nan")], "estimate")


def test_what_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "smoe.json").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused(tmp_path)


def test_a_folder_in_its_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "smoe.json").mkdir()
    assert "cannot be read" in refused(tmp_path)
