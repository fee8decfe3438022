"""The page of all policies and their options."""

from pathlib import Path

from moebench.substrate.engine.system import System
from moebench.systems.options import options_of
from moebench.systems.registry import POLICIES, VARIANTS, system_class
from moebench.systems.space import Dimension
from moebench.systems.space_page import COMMAND, _cells, document

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), f"type: {COMMAND}"


def test_every_policy_and_every_system_that_differs_is_there() -> None:
    lines = document().splitlines()
    of_systems = lines.index("## Options of systems")
    for decision, names in POLICIES.items():
        section = lines[lines.index(f"## {decision}") :]
        assert all(any(line.startswith(f"| {name} ") for line in section) for name in names)
    common = options_of(System)
    for variant, systems in VARIANTS.items():
        for name in systems:
            own = options_of(system_class(name, variant)).keys() - common.keys() - {"popularity"}
            shown = name if variant == "published" else f"{name} ({variant})"
            rows = [line for line in lines[of_systems:] if line.startswith(f"| {shown} ")]
            assert all(any(f"`{option}`" in row for row in rows) for option in own), (name, own)


def test_cells_say_what_is_allowed_and_what_is_searched() -> None:
    window = Dimension(
        decision="evict", policy="score", option="window", kind="integer", default=8, low=1,
        high=4096, scale="log", searched=True, search_low=2, search_high=64, needs=("texts",),
    )  # fmt: skip
    assert _cells(window) == [
        "`evict.window`", "8", "whole numbers: 1 to 4096", "2 to 64, by ratios; needs texts",
    ]  # fmt: skip
    share = Dimension(
        decision="", policy="", option="share", kind="number", default=None, low=0, above=True,
        choices=(None,), searched=True, search_low=0.5, search_high=2,
    )  # fmt: skip
    assert _cells(share) == ["`share`", "None", "None, or above 0", "0.5 to 2, by differences"]
    tie = Dimension(
        decision="assign", policy="x", option="tie", kind="choice", default="load",
        choices=("load", "host"), searched=True,
    )  # fmt: skip
    assert _cells(tie) == ["`assign.tie`", "load", "load, host", "all"]
