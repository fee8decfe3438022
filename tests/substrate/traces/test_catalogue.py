"""Shipped traces by name, and traces by path."""

from pathlib import Path

import pytest

from moebench.substrate.errors import InputError
from moebench.substrate.traces import catalogue
from moebench.substrate.traces.catalogue import SHIPPED, find_trace, trace_names


def test_shipped_traces_are_found_by_name_and_others_by_path(tmp_path: Path) -> None:
    names = trace_names()
    assert names == sorted(names)
    assert names
    for name in names:
        assert find_trace(name) == SHIPPED / name
        assert (find_trace(name) / "trace.json").is_file()
    assert find_trace(str(tmp_path)) == tmp_path


def test_an_unknown_trace_lists_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(InputError) as caught:
        find_trace(missing)
    assert str(caught.value) == (
        f"no trace {missing}: no such folder, and none of that name ships (shipped: "
        f"{', '.join(trace_names())}); record one: moebench trace record"
    )
    monkeypatch.setattr(catalogue, "SHIPPED", tmp_path)
    with pytest.raises(InputError, match=r"\(shipped: none\); record one"):
        find_trace(missing)
