"""What came of claims: what is written is what is read, and nothing damaged is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.results.claims import (
    EQUAL_MEMORY,
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
    read_exhibit,
    write,
    write_exhibit,
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


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its claims have no tag, range, headline or band of no effect."""
    text = json.loads(write(result(), tmp_path).read_text(encoding="utf-8"))
    for claim in text["claims"]:
        for field in ("no_effect", "headline", "cause", "tag", "tag_reason", "ranges"):
            del claim[field]
        for counter in claim["counters"]:
            del counter["unchanged"], counter["reading"]
    (tmp_path / "smoe.json").write_text(json.dumps(text), encoding="utf-8")
    assert read(tmp_path) == [result()]


EQUAL_ROW = {"setting": "S3", "model": "m", "machine": "a6000", "memory_gb": 24.0,
             "system": "smoe", "tpot_ms": 60.0, "lossless": True}  # fmt: skip


def equal(*rows: dict[str, Any]) -> Exhibit:
    return EXHIBIT.model_copy(update={"id": EQUAL_MEMORY, "form": "table", "rows": rows})


def test_a_table_of_no_single_paper_is_read_and_is_not_a_paper(tmp_path: Path) -> None:
    assert read_exhibit(EQUAL_MEMORY, tmp_path) is None
    assert write_exhibit(equal(EQUAL_ROW), tmp_path).name == "equal-memory.json"
    assert read_exhibit(EQUAL_MEMORY, tmp_path) == equal(EQUAL_ROW)
    assert read(tmp_path) == []


def test_a_row_at_equal_memory_that_lacks_a_field_is_one_line(tmp_path: Path) -> None:
    short = {k: v for k, v in EQUAL_ROW.items() if k not in ("tpot_ms", "lossless")}
    write_exhibit(equal(EQUAL_ROW, short), tmp_path)
    with pytest.raises(InputError, match=r"equal-memory.json: rows.1: without lossless, tpot_ms"):
        read_exhibit(EQUAL_MEMORY, tmp_path)
    (tmp_path / "equal-memory.json").write_text("{")
    with pytest.raises(InputError, match="write it again"):
        read_exhibit(EQUAL_MEMORY, tmp_path)


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
