"""Kept answers: found again by their content only, and lost without harm."""

from pathlib import Path

import pytest

from moebench.harness.advise import kept


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_an_answer_is_found_by_its_question_alone() -> None:
    key, other = kept.key_of("one"), kept.key_of("two")
    assert kept.read(key) is None
    kept.write(key, {"answers": [1]})
    assert kept.read(key) == {"answers": [1]}
    assert kept.read(other) is None
    assert kept.key_of("one") == key


def test_other_code_or_constants_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key = kept.key_of("one")
    monkeypatch.setattr(kept, "_code", lambda: "changed")
    assert kept.key_of("one") != key


def test_the_code_includes_rules_constants_and_parts() -> None:
    names = {file for pattern in kept._SOURCES for file in kept._PACKAGE.glob(pattern)}
    for wanted in ("harness/advise/rules.py", "harness/published/simulate.py",
                   "results/measured/constants.json", "substrate/catalogue/parts/gpus.yaml",
                   "substrate/machines/costs.py"):  # fmt: skip
        assert kept._PACKAGE / wanted in names


def test_damaged_files_and_folders_that_cannot_be_written_keep_nothing(tmp_path: Path) -> None:
    key = kept.key_of("one")
    kept.write(key, {"answers": []})
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text("{")
    assert kept.read(key) is None
    file.write_text("[1]")
    assert kept.read(key) is None
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("a file where the folder would be")
    kept.write(key, {"answers": []})
    assert kept.read(key) is None
