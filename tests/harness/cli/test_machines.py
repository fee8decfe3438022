"""`machines init`, `show` and `diff`."""

from pathlib import Path

import pytest

from moebench.substrate.machines.profile import load_profile
from tests.harness.commands import call, refused


def test_a_profile_of_this_computer_is_written_once_and_can_be_used(here: Path) -> None:
    done = call("machines", "init", "desk")
    assert (done.code, done.out) == (0, "")
    assert "numbers are known, the others are estimates" in done.err
    text = (here / "desk.yaml").read_text()
    assert load_profile("desk.yaml").badge == "estimate"
    (here / "desk.yaml").write_text("mine")
    assert "--force" in refused("machines", "init", "desk")
    assert (here / "desk.yaml").read_text() == "mine"
    assert call("machines", "init", "desk", "--force").code == 0
    assert (here / "desk.yaml").read_text() == text
    assert [path.name for path in here.iterdir()] == ["desk.yaml"]


@pytest.mark.parametrize("name", ["a6000", "../x", "x.yaml"])
def test_a_bad_name_is_one_line_and_writes_nothing(here: Path, name: str) -> None:
    assert "machines init" in refused("machines", "init", name)
    assert list(here.iterdir()) == []


def test_show_has_every_number(here: Path) -> None:
    profile = load_profile("h100")
    shown = call("machines", "show", "h100", "--json")
    assert (shown.code, shown.err) == (0, "")
    assert shown.json["badge"] == profile.badge
    assert {row["field"]: row["value"] for row in shown.json["fields"]} == {
        field: number.value for field, number in profile.quantities()
    }
    assert all(row["moves"] for row in shown.json["fields"])
    text = call("machines", "show", "h100")
    assert len(text.out.splitlines()) == 1 + profile.numbers
    assert f"{profile.estimates} of {profile.numbers} numbers are estimates" in text.err


def test_diff_has_what_differs_and_nothing_else(here: Path) -> None:
    assert call("machines", "diff", "h100", "h100", "--json").json == []
    rows = {row["field"]: row for row in call("machines", "diff", "a100", "h100", "--json").json}
    one, other = (dict(load_profile(name).quantities()) for name in ("a100", "h100"))
    differ = {field for field in one if one[field].value != other[field].value}
    assert {field for field in rows if not field.endswith("name")} == differ
    bandwidth = other["gpu.bandwidth"].value / one["gpu.bandwidth"].value
    assert rows["gpu.bandwidth"]["ratio"] == pytest.approx(bandwidth, rel=1e-3)


def test_diff_knows_units(here: Path) -> None:
    call("machines", "init", "one")
    text = (here / "one.yaml").read_text()
    (here / "two.yaml").write_text(
        text.replace('value: 50, unit: "us", range: [25, 100]',
                     'value: 0.05, unit: "ms", range: [0.025, 0.1]')
    )  # fmt: skip
    assert (here / "two.yaml").read_text() != text
    assert call("machines", "diff", "one.yaml", "two.yaml", "--json").json == []


def test_an_unknown_machine_is_one_line(here: Path) -> None:
    assert "unknown machine" in refused("machines", "show", "nope")
    assert "unknown machine" in refused("machines", "diff", "a6000", "nope")


def test_diff_as_text_has_a_column_for_each_profile(here: Path) -> None:
    said = call("machines", "diff", "a100", "h100")
    header, *rows = said.out.splitlines()
    assert header.split("\t") == ["field", "a100", "h100", "ratio"]
    assert said.err.startswith(f"{len(rows)} of ")
