"""The documents about claims: size, shared texts, and whether the committed ones are new."""

import json
import re
from pathlib import Path

import pytest

from moebench.reports import reproduction
from moebench.reports.reproduction import (
    FRONT_PAGE,
    README,
    documents,
    front_page,
    full_tables,
    one_document,
    readme,
    write,
)
from moebench.results.claims import (
    EQUAL_MEMORY,
    FOLDER,
    PAPERS,
    Verdict,
    read,
    read_exhibit,
    write_exhibit,
)
from moebench.results.claims import write as write_claims
from tests.reports.sections.claims_fixture import DAOP, EQUAL, SMOE, claim

ROOT = Path(__file__).parents[2]

#: Most bytes of the front page, about 1700 words in tables: five minutes.  The field's eight claims
#: are on their own page; the front page has a row and a link for them.
MOST = 13_400


def stale(claims: Path) -> list[str]:
    """Return the committed documents that differ from what a folder of claims makes."""
    made = documents(read(claims), read_exhibit(EQUAL_MEMORY, claims))
    return [name for name, text in made.items() if (ROOT / name).read_text("utf-8") != text]


def test_the_committed_documents_are_made_from_the_committed_claims() -> None:
    assert stale(FOLDER) == [], "make reproduction"
    made = {one.paper for one in read()}
    assert {file.stem for file in (ROOT / "docs" / "reproduction").iterdir()} == made
    assert made >= set(PAPERS) - {"field"}


@pytest.mark.parametrize("paper", [one.paper for one in read()])
def test_claims_that_changed_make_other_documents(paper: str, tmp_path: Path) -> None:
    for name in (one.paper for one in read()):
        text = (FOLDER / f"{name}.json").read_text("utf-8")
        (tmp_path / f"{name}.json").write_text(text, "utf-8")
    file = tmp_path / f"{paper}.json"
    found = json.loads(file.read_text("utf-8"))
    changed = next(one for one in found["claims"] if one["measured"])
    changed["measured"]["value"] += 1000
    file.write_text(json.dumps(found), "utf-8")
    assert f"docs/reproduction/{paper}.md" in stale(tmp_path)


def test_the_front_page_can_be_read_in_five_minutes() -> None:
    assert len((ROOT / FRONT_PAGE).read_bytes()) <= MOST


def test_all_files_are_written(tmp_path: Path) -> None:
    write_claims(SMOE, tmp_path / "claims")
    write_exhibit(EQUAL, tmp_path / "claims")
    files = write(tmp_path, tmp_path / "claims")
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        FRONT_PAGE, "docs/reproduction/smoe.md", README,
    ]  # fmt: skip
    assert "# The fastest systems at equal memory" in files[0].read_text("utf-8")


def tables(text: str) -> list[list[str]]:
    """Return the rows of each table of a document, bars inside cells removed."""
    parts = re.findall(r"(?:^\|.*\n)+", text.replace("\\|", ""), re.MULTILINE)
    return [part.splitlines() for part in parts]


def test_every_row_has_the_cells_of_its_head() -> None:
    for text in documents([SMOE, DAOP], EQUAL).values():
        assert tables(text)
        for rows in tables(text):
            assert len({row.count("|") for row in rows}) == 1
            assert len(rows) > 2


def test_the_front_page_answers_first() -> None:
    text = front_page([SMOE, DAOP], EQUAL)
    assert "**7 claims: 2 reproduced with evidence, 1 reproduced with little evidence" in text
    assert "no effect; *depends on host.gemv\\_bandwidth: reproduced below 31 GB/s*" in text
    assert "**daop ≈** | **smoe = hybrimoe**" in text
    assert "[SMoE: all 6 claims](reproduction/smoe.md)" in text
    assert "no verdict" not in text, "no claim has this verdict"
    assert text.index("How to read") < text.index("## SMoE") < text.index("## The fastest")
    assert "The fastest systems" not in front_page([SMOE])


def test_full_tables_say_once_what_several_claims_share() -> None:
    text = full_tables(SMOE)
    assert text.count("Baselines are as published.") == 1
    assert "| S-1 b1, S-1 b3 | Baselines are as published. |" in text
    assert text.count("another reason") == 1
    assert "### Fig. 11" in text
    assert "### Fig. 12" in text


def test_full_tables_have_crossings_implied_values_tags_and_counters() -> None:
    text = full_tables(SMOE)
    assert "| by construction | S-4 size | the size is the paper's own |" in text
    assert "| S-1 b1 | host.gemv\\_bandwidth | 13 GB/s | 90 GB/s | reproduced below 31" in text
    assert "| host.gemv\\_bandwidth | S-1 b1 | 78 GB/s | 12.5 / 14 GB/s" in text
    assert (
        "| S-1 b1 | baselines as shipped (a reading of the paper) | -0.2 % | -18.7 % | reproduced |"
        in text
    )
    assert "| S-6 | random substitution loses nothing either |" in text
    assert "(exact)" in text
    assert "interval –" not in text


def test_sections_without_rows_are_left_out() -> None:
    text = full_tables(DAOP)
    for title in ("Counter-experiments", "little evidence", "change within", "imply"):
        assert f"## {title}" not in text
        assert title not in re.sub(r"^[^#].*$", "", text, flags=re.MULTILINE)


def test_one_document_links_to_no_file() -> None:
    text = one_document([SMOE, DAOP])
    assert ".md)" not in text
    assert "# DAOP: all claims" in text


FIELD_CLAIM = claim(
    "R-1 pairs", Verdict.REPRODUCED, headline="more hits can be slower", paper=None,
    sources=("one engine: faster", "another: slower"), turns="Slower above a ratio of 0.50.",
)  # fmt: skip
REPORTS = SMOE.model_copy(
    update={"paper": "field", "title": "Field reports", "claims": (FIELD_CLAIM,)}
)


def test_field_reports_have_sources_and_conditions_on_their_own_page() -> None:
    text = full_tables(REPORTS)
    assert "## Verdicts, and the condition on which each turns" in text
    assert "| more hits can be slower (R-1 pairs) | – | " in text
    assert "Slower above a ratio of 0.50. |" in text
    assert "| R-1 pairs | one engine: faster; another: slower |" in text
    for title in ("condition on which", "Who reports it"):
        assert title not in full_tables(SMOE)


def test_the_front_page_links_to_field_reports() -> None:
    text = front_page([SMOE, REPORTS])
    assert "## Field reports" in text
    assert "(reproduction/field.md)" in text
    assert "more hits can be slower" not in text
    assert "| Field reports | 1 |" in text


def test_the_command_writes_the_repositorys_documents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Path, Path]] = []

    def written(root: Path, claims: Path) -> list[Path]:
        asked.append((root, claims))
        return [root / "a.md", root / "b.md"]

    monkeypatch.setattr(reproduction, "write", written)
    reproduction.main()
    assert asked == [(Path(), Path("results/claims"))]
    assert capsys.readouterr().out == "a.md\nb.md\n"
    quick = readme([SMOE, DAOP.model_copy(update={"quick": True})])
    assert "`moebench reproduce all`" in quick
    assert "`moebench reproduce all --quick`" in quick
    assert "--quick" not in readme([SMOE, DAOP])
