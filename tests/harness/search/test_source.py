"""A composition as a file: `--system found:Name` builds the same system."""

import sys
from pathlib import Path

import pytest

from moebench.harness.search import source as module
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
    *({"assign": "host", "host_kernels": name} for name in RUNTIME["host_kernels"]),
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


def test_a_file_has_its_imports_and_fields_in_order() -> None:
    text = source("Mine", {"evict": "lfru", "scope": "layer"}, "Found.")
    lines = text.splitlines()
    assert lines[:3] == [
        '"""A composition that `moebench search` found."""', "",
        "from dataclasses import dataclass, field",
    ]  # fmt: skip
    ours = lines[4 : lines.index("@dataclass(kw_only=True)") - 2]
    assert ours == sorted(ours)
    assert "from moebench.substrate.memory.cache import Scope" in ours
    assert "from moebench.substrate.engine.policies import Eviction" in ours
    at = lines.index("@dataclass(kw_only=True)")
    assert lines[at - 2 : at] == ["", ""]
    assert lines[at + 1].startswith("class Mine(")
    assert lines[at + 2 : at + 4] == ['    """Found."""', ""]
    assert lines[at + 4].startswith("    evict: Eviction = field(default_factory=")
    assert lines[at + 5] == "    scope: Scope = 'layer'"
    assert len(lines) == at + 6
    assert text.endswith("\n")


def test_long_lines_are_wrapped() -> None:
    assert module._import("m", ["b", "a"]) == "from m import a, b"
    exact = module._import("mo", ["x" * 42, "y" * 41])
    assert (len(exact), "\n" in exact) == (100, False)
    wrapped = module._import("mo", ["y" * 42, "x" * 42])
    assert wrapped == f"from mo import (\n    {'x' * 42},\n    {'y' * 42},\n)"


def test_options_of_a_policy_are_those_that_differ() -> None:
    policy = build(BASE, {"assign": "balanced", "assign.history": "3"}).policies["assign"]
    assert dict(module._changed(policy)) == {"history": 3}
    name = type(policy).__qualname__
    assert module._factory(policy) == f"lambda: {name}(history=3)"
    plain = build(BASE, {"assign": "balanced"}).policies["assign"]
    assert (module._changed(plain), module._factory(plain)) == ({}, name)
