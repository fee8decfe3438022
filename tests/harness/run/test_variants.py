"""Variants: a system as its paper has it, and as its authors' code does it."""

import json
import sys
from pathlib import Path

import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.sweep.plan import expand
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems import registry
from moebench.systems.options import build
from moebench.systems.registry import SHIPPED, SYSTEMS, system_class
from tests.harness.commands import call, refused, run
from tests.harness.run import shipped as shipped_classes


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """`smoe` and `daop` have a shipped variant, as far as this test goes."""
    # The registry names modules of `moebench.systems`.
    monkeypatch.setitem(sys.modules, "moebench.systems.of_test", shipped_classes)
    for name in ("smoe", "daop"):
        monkeypatch.setitem(SHIPPED, name, ("of_test", name.upper(), f"{name}!"))


def test_a_variant_is_a_class_of_its_own() -> None:
    from tests.harness.run.shipped import DAOP, SMOE

    assert system_class("smoe", "shipped") is SMOE
    assert type(build("daop", {}, "shipped")) is DAOP
    assert system_class("smoe") is system_class("smoe", "published") is not SMOE


def test_the_spec_holds_the_variant_and_builds_it() -> None:
    paper = resolve(None, system="smoe", setting="S1")
    shipped = resolve(None, system="smoe", setting="S1", variant="shipped")
    assert (paper.variant, shipped.variant) == ("published", "shipped")
    assert paper.title == "smoe"
    assert shipped.title == "smoe (shipped)"
    assert type(shipped.make_system()) is system_class("smoe", "shipped")
    assert RunSpec(**shipped.model_dump()) == shipped
    assert paper.model_dump_json() != shipped.model_dump_json()  # what the id is made of


def test_a_settings_alpha_is_its_papers() -> None:
    assert resolve(None, system="smoe", setting="S1").overrides == {"alpha": "0.35"}
    shipped = resolve(None, system="smoe", setting="S1", variant="shipped")
    assert shipped.overrides == {}
    assert shipped.make_system().alpha == 0.25
    asked = resolve(None, system="smoe", setting="S1", variant="shipped", alpha=0.4)
    assert asked.overrides == {"alpha": "0.4"}


def test_who_has_none_says_who_has_one() -> None:
    has = ", ".join(SHIPPED)
    for name in sorted({*SYSTEMS} - {*SHIPPED}):
        with pytest.raises(UsageError, match=rf"^--variant shipped: {name} has none; .*: {has}$"):
            resolve(None, system=name, setting="S1", variant="shipped")


def test_a_system_of_ones_own_has_none() -> None:
    with pytest.raises(UsageError, match=r"^--variant shipped: mine:MySystem has none; "):
        resolve(None, system="mine:MySystem", setting="S1", variant="shipped")


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match=r"^--variant mine: allowed: published, shipped, earlier$"):
        resolve(None, system="smoe", setting="S1", variant="mine")
    with pytest.raises(UnknownNameError, match="unknown system 'smoo'"):
        resolve(None, system="smoo", setting="S1", variant="shipped")


def test_on_the_command_line_a_refusal_is_one_line() -> None:
    called = call("run", "--system", "gpu-only", "--variant", "shipped", "--setting", "S3")
    assert (called.code, called.out) == (2, "")
    assert called.err.count("\n") == 1
    assert "gpu-only has none" in called.err


def test_a_sweep_varies_it() -> None:
    axes = {"product": {"system": ["smoe", "daop"], "variant": ["published", "shipped"]}}
    cells = expand({"common": {"setting": "S3"}, **axes}, None)
    assert [spec.title for spec in cells] == ["smoe", "smoe (shipped)", "daop", "daop (shipped)"]
    kept = expand({"common": {"setting": "S3"}, **axes, "exclude": [{"variant": "shipped"}]}, None)
    assert [spec.title for spec in kept] == ["smoe", "daop"]


def test_the_listing_says_who_has_one() -> None:
    called = call("list", "systems", "--json")
    shown = {row["system"]: row["shipped"] for row in json.loads(called.out)}
    assert shown["smoe"] == "smoe!"
    assert shown["gpu-only"] is None
    assert [name for name, line in shown.items() if line] == sorted(registry.SHIPPED)


@pytest.mark.slow
def test_what_computes_on_unfinished_copies_says_so_and_runs_nowhere_for_real(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()  # the real variant
    shipped = ("--variant", "shipped", "--store", tmp_path)
    document = run("smoe", *shipped)
    (note,) = [text for text in document["notes"] if "would be wrong" in text]
    assert note.startswith("smoe (shipped) computes experts whose copy is still under way")
    assert document["spec"]["variant"] == "shipped"
    assert not any("would be wrong" in text for text in run("smoe", "--store", tmp_path)["notes"])
    line = refused("run", "--system", "smoe", *shipped, "--setting", "S3", "--machine", "local")
    assert "--machine local: computes with finished copies only" in line
    assert "but smoe (shipped) has reads_unfinished=true" in line
