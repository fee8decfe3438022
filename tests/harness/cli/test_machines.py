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


# ------------------------------------------------------------------------ machines of parts

DESK = "rtx-3090+ryzen-5950x"


def test_compose_prints_a_profile_that_can_be_loaded(here: Path) -> None:
    printed = call("machines", "compose", DESK)
    assert (printed.code, printed.err) == (0, "")
    (here / "box.yaml").write_text(printed.out)
    profile = load_profile("box.yaml")
    assert profile.content_hash() == load_profile(DESK).content_hash()
    assert printed.out.count("source: ") == sum(
        not field.startswith("software.") for field, _ in profile.quantities()
    )


@pytest.mark.parametrize("parts", [DESK, "strix-halo", "cpu-only,epyc-9654*2", "8480+,h200-sxm*8"])
def test_compose_writes_a_file_once(here: Path, parts: str) -> None:
    done = call("machines", "compose", parts, "--out", "box.yaml")
    assert (done.code, done.out) == (0, "")
    assert "moebench machines show box.yaml" in done.err
    assert load_profile("box.yaml").content_hash() == load_profile(parts).content_hash()
    (here / "box.yaml").write_text("mine")
    assert "--force" in refused("machines", "compose", parts, "--out", "box.yaml")
    assert (here / "box.yaml").read_text() == "mine"
    assert call("machines", "compose", parts, "--out", "box.yaml", "--force").code == 0
    assert load_profile("box.yaml").name == load_profile(parts).name
    assert [path.name for path in here.iterdir()] == ["box.yaml"]


def test_what_compose_refuses_writes_nothing(here: Path) -> None:
    said = refused("machines", "compose", "rtx-3091+5950x", "--out", "box.yaml")
    assert "unknown part 'rtx-3091'; nearest: rtx-3090" in said
    assert "moebench machines list --parts" in said
    assert ".yaml or .yml" in refused("machines", "compose", DESK, "--out", "box.txt")
    assert "cannot be written" in refused("machines", "compose", DESK, "--out", "/dev/null/x.yaml")
    assert list(here.iterdir()) == []


def test_parts_are_listed_by_kind(here: Path) -> None:
    listed = call("machines", "list", "--parts", "--json")
    assert (listed.code, listed.err) == (0, "")
    kinds = {row["kind"] for row in listed.json}
    assert kinds == {"gpus", "pools", "processors", "links", "disks"}
    assert all(row["source"] and row["what"] for row in listed.json)
    for kind in kinds:
        rows = call("machines", "list", "--parts", "--kind", kind, "--json").json
        assert rows == [row for row in listed.json if row["kind"] == kind]
    text = call("machines", "list", "--parts", "--kind", "links").out.splitlines()
    assert text[0].split("\t") == ["part", "kind", "name", "what", "badge"]
    assert len(text) == 10
    assert "--parts" in refused("machines", "list", "--kind", "gpus")
    assert call("machines", "list", "--parts", "--kind", "fans").code == 2


def test_machines_list_is_list_machines(here: Path) -> None:
    assert call("machines", "list", "--json").json == call("list", "machines", "--json").json
    assert call("machines", "list").out == call("list", "machines").out


def test_parts_are_shown_and_compared(here: Path) -> None:
    shown = call("machines", "show", "RTX3090,5950X", "--json")
    assert shown.json["machine"] == "rtx-3090+ryzen-9-5950x"
    assert shown.json["hash"] == load_profile(DESK).content_hash()
    assert all(row["moves"] for row in shown.json["fields"])
    rows = call("machines", "diff", DESK, f"{DESK}+ram=32", "--json").json
    assert [row["field"] for row in rows] == ["host.memory"]
    rows = call("machines", "diff", DESK, "strix-halo", "--json").json
    assert "pool" in [row["field"] for row in rows]


def test_a_run_on_parts_has_one_id_for_every_spelling(here: Path) -> None:
    options = (
        "--system", "moe-ondemand", "--model", "olmoe-1b-7b", "--workload", "arithmetic",
        "--prompts", "1", "--new-tokens", "3", "--no-interval", "--json",
    )  # fmt: skip
    first, second = (
        call("run", *options, "--machine", typed) for typed in (DESK, "5950X, RTX 3090")
    )
    assert first.code == second.code == 0, first.err
    assert first.json["run_id"] == second.json["run_id"]
    assert first.json["spec"]["machine"] == "rtx-3090+ryzen-9-5950x"
    whole = call("run", *options, "--machine", "strix-halo").json
    assert "nothing is offloaded" in " ".join(whole["notes"])
    said = refused("run", *options, "--machine", "rtx-3090+rtx-4090")
    assert "rtx-4090 and rtx-3090 are both gpus" in said
