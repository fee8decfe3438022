"""docs/store.md: its pandas reads a store, and does not average what may not be averaged."""

import re
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import Store
from tests.reports.samples import run

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


def shown(runs: list[dict[str, Any]]) -> Any:
    """The table that the page's first block of Python makes of these runs."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    for document in runs:
        Store(Path(".moebench")).put(document)
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    found: dict[str, Any] = {}
    exec(block[1], found)
    return found["table"]


def test_the_documented_table_holds_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = shown([run("a"), run("b", system="lru"), run("c", batch=3)])
    assert table.notna().sum().sum() == 3
    assert table.loc[("smoe", "gsm8k"), ("S3", 1)] == 61.23456


def test_the_documented_table_averages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [run("a"), run("b", overrides={"evict": "lfu"})]
    with pytest.raises(ValueError, match="duplicate entries"):
        shown(runs)
