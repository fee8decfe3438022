"""`moebench report` shows claims with their verdicts: the store's, or those of a folder."""

from pathlib import Path

import pytest

from moebench.harness.cli.app import main
from moebench.results.claims import Band, ClaimResult, Measured, PaperResult, Verdict, write
from moebench.results.store import Store
from tests.harness.commands import call, refused
from tests.results.documents import document


def claims(folder: Path, value: float) -> Path:
    one = ClaimResult(
        id="F-2", place="Fig. 7", statement="tokens/s over LRU", paper=22, unit="%",
        reproduced=Band(low=11, high=33), direction=Band(low=0), why="half",
        measured=Measured.of([value], "estimate", "simulated"), verdict=Verdict.REPRODUCED,
    )  # fmt: skip
    write(
        PaperResult(paper="flashmoe", title="FlashMoE", quick=True, provenance={}, claims=(one,)),
        folder,
    )
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    Store(tmp_path / "store").put(document("0123456789ab"))
    return tmp_path / "store"


def test_the_stores_own_claims_are_shown(store: Path) -> None:
    claims(store / "claims", 14.5)
    text = call("report", "--store", store, "--markdown").out
    assert "| F-2 | Fig. 7 | tokens/s over LRU | 22 | 14.5 |" in text
    assert "1 claim: 1 reproduced with evidence" in text
    assert "reproduced if" in text


def test_a_folder_takes_their_place(store: Path, tmp_path: Path) -> None:
    claims(store / "claims", 14.5)
    named = claims(tmp_path / "others", 15.5)
    text = call("report", "--store", store, "--markdown", "--claims", named).out
    assert "| 15.5 |" in text
    assert "14.5" not in text


def test_a_terminal_has_verdicts_without_bands(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims(store / "claims", 14.5)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", "--store", str(store)]) == 0
    text = capsys.readouterr().out
    assert "claims of FlashMoE" in text
    assert "reproduced" in text
    assert "reproduced if" not in text


def test_latex_has_a_file_a_paper(store: Path, tmp_path: Path) -> None:
    claims(store / "claims", 14.5)
    called = call("report", "--store", store, "--latex", tmp_path / "tex")
    assert called.code == 0, called.err
    assert "tokens/s over LRU" in (tmp_path / "tex" / "claims-flashmoe.tex").read_text()


def test_a_folder_without_claims_is_one_line(store: Path, tmp_path: Path) -> None:
    said = refused("report", "--store", store, "--claims", tmp_path / "none")
    assert "no claims there" in said
    assert "moebench reproduce all --out" in said


def test_damaged_claims_are_one_line(store: Path) -> None:
    file = claims(store / "claims", 14.5) / "flashmoe.json"
    file.write_text("{")
    assert f"{file}: " in refused("report", "--store", store)
