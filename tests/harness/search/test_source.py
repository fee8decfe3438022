"""A composition as a file: `--system found:Name` builds the same system."""

import sys
from pathlib import Path

import pytest

from moebench.harness.search.composition import BASE, RUNTIME
from moebench.harness.search.source import check_name, source
from moebench.substrate.errors import UsageError
from moebench.systems.options import build, describe

COMPOSITIONS = [
    {},
    {"evict": "lfru", "assign": "balanced", "assign.tie": "host", "assign.history": "3"},
    {"place": "popular", "place.equal_layers": "true", "scope": "layer", "pinned_copies": "true",
     "host_together": "true", "in_flight": "host", "prefetch": "next-gate",
     "prefetch.experts": "2"},
    {"route": "expert-cache", "alpha": "0.3", "admit": "after-misses", "admit.full": "4"},
]  # fmt: skip


@pytest.mark.parametrize("sets", COMPOSITIONS)
def test_the_class_is_the_composition(
    sets: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = source("Mine", sets, "Found in 3 trials for S1.\n\nS1: 5 ms.\nNo better than lru.")
    (tmp_path / "found_here.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "found_here", raising=False)
    assert describe(build("found_here:Mine")) == describe(build(BASE, sets))
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 50, "it fits on a screen"


def test_every_option_of_the_system_can_be_written() -> None:
    sets = {name: values[-1] for name, values in RUNTIME.items()}
    text = source("Found", sets, "Found.")
    assert all(f"\n    {name}: " in text for name in RUNTIME)


def test_its_docstring_says_where_it_is_from() -> None:
    text = source("Found", {"evict": "lfu"}, "Found in 3 trials for S1.\n\nS1: 5 ms.\nBetter.")
    assert '    """Found in 3 trials for S1.\n\n    S1: 5 ms.\n    Better.\n    """\n' in text


@pytest.mark.parametrize("name", ["Found", "_x", "F1"])
def test_names_of_classes_are_allowed(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "1st", "a-b", "class", "x;import os", "é", "a\nb"])
def test_others_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="allowed: a name of a Python class"):
        check_name(name)
