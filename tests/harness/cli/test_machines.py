"""`machines init`, `compose`, `list`, `show`, `diff` and `sensitivity`."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.cli import machines
from moebench.harness.run import execute, interval
from moebench.harness.run.interval import Effect
from moebench.substrate.machines import profile as profiles
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, load_profile
from moebench.substrate.machines.profile_ranges import Uncertain
from moebench.substrate.machines.quantity import Bandwidth
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


# ------------------------------------------------------------------------ words and numbers


def test_a_draft_says_how_many_numbers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    said = call("machines", "init", "desk").err
    own = [n for field, n in load_profile("desk.yaml").quantities() if field[:9] != "software."]
    known = len([number for number in own if number.badge != "estimate"])
    assert said.startswith(f"desk.yaml: {known} of {len(own)} numbers are known, the others")
    assert said.endswith("moebench run --system smoe --model qwen2-57b-a14b --machine desk.yaml\n")

    def full(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machines.os, "replace", full)
    line = refused("machines", "init", "other")
    assert "other.yaml: cannot be written: No space left on device" in line


def test_show_says_units_ranges_and_the_software() -> None:
    shown = call("machines", "show", "h100", "--software", "ggml")
    header, *rows = [line.split("\t") for line in shown.out.splitlines()]
    assert header == ["field", "value", "unit", "range", "badge", "moves", "source"]
    assert shown.err.endswith("; software ggml\n")
    assert call("machines", "show", "h100").err.endswith(f"; software {DEFAULT_SOFTWARE}\n")
    profile = dict(load_profile("h100", "ggml").quantities())
    for field, value, unit, span, *_ in rows:
        number = profile[field]
        assert (value, unit) == (f"{number.value:g}", number.unit)
        ends = number.range and f"{number.range[0]:g} to {number.range[1]:g}"
        assert span == (ends or "-")
    document = call("machines", "show", "h100", "--json").json
    spans = {row["field"]: row["range"] for row in document["fields"]}
    shipped = dict(load_profile("h100").quantities())
    assert spans == {f: list(n.range) if n.range else None for f, n in shipped.items()}
    assert document["description"] == load_profile("h100").description


def test_a_calibrated_profile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles.HardwareProfile, "badge", "calibrated")
    said = call("machines", "show", "h100").err
    assert said == f"h100: fitted to measurements on it; software {DEFAULT_SOFTWARE}\n"


def test_values_as_text_and_their_ratios() -> None:
    assert machines._text([1.5, 2000.0]) == "1.5 to 2000"
    assert machines._text(None) == "-"
    assert (machines._text(0.25), machines._text(True), machines._text("x")) == (
        "0.25",
        "True",
        "x",
    )
    assert machines._ratio(3.0, 2.0) == 0.6667
    assert machines._ratio(2.0, 0.0) == 0.0
    for one, other in ((0.0, 1.0), ("a", 1.0), (1.0, None), (None, None)):
        assert machines._ratio(one, other) is None


def test_diff_says_units_badges_and_ratios() -> None:
    _, *lines = call("machines", "diff", "a100", "h100").out.splitlines()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    first, second = (load_profile(name).gpu for name in ("a100", "h100"))
    assert rows["gpu.name"] == [first.name, second.name, "-"]
    bandwidth, other = first.bandwidth, second.bandwidth
    assert rows["gpu.bandwidth"][:2] == [
        f"{one.value:g} {one.unit} [{one.badge}]" for one in (bandwidth, other)
    ]
    ratio = (
        other.value * other.UNITS[other.unit] / bandwidth.value / bandwidth.UNITS[bandwidth.unit]
    )
    assert rows["gpu.bandwidth"][2] == f"{float(f'{ratio:.4g}'):g}"
    assert "pool" not in rows
    some = call("machines", "diff", "h100", "h100", "--software", "ggml")
    assert (some.out, some.err.split(" ")[0]) == ("", "0")


# ------------------------------------------------------------------------ sensitivity


def effect(field: str, badge: str, span: tuple[float, float] | None, **changes: Any) -> Effect:
    number = Bandwidth(value=10.0, unit="GB/s", source="x", badge=badge, range=span)  # type: ignore[arg-type]
    return Effect(changes, Uncertain(field, number, 8.0, 12.5))


EFFECTS = [
    effect("small", "estimate", None, tpot_ms=(0.0001, -0.0002), ttft_ms=(0.0, 0.0004)),
    effect("first", "datasheet", None, ttft_ms=(0.3, -0.2)),
    effect("tie", "estimate", (8.0, 12.5), tpot_ms=(0.04, -0.03), ttft_ms=(0.0, 0.0)),
    effect("most", "estimate", (8.0, 12.5), tpot_ms=(0.03, -0.04), ttft_ms=(0.1, -0.1)),
]


def test_effects_are_ranked_by_the_change_of_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    machines._show_effects("box", EFFECTS, as_json=False)
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["field", "value", "unit", "low", "high", "badge", "range", "TPOT at low", "TPOT at high",
         "TTFT at low", "TTFT at high"],
        ["most", "10", "GB/s", "8", "12.5", "estimate", "stated", "+3.0 %", "-4.0 %", "+10.0 %",
         "-10.0 %"],
        ["tie", "10", "GB/s", "8", "12.5", "estimate", "stated", "+4.0 %", "-3.0 %", "+0.0 %",
         "+0.0 %"],
        ["first", "10", "GB/s", "8", "12.5", "datasheet", "assumed", "+30.0 %", "-20.0 %", "-",
         "-"],
    ]  # fmt: skip
    assert err.splitlines() == [
        "all together: TPOT −5.0 % to +5.0 %",  # 3 % and 4 % add up like sides of a triangle
        "all together: TTFT −22.4 % to +31.6 %",
        "1 further numbers move neither by 0.05 %; assumed: the source names no range, taken as "
        "±20%",
    ]


def test_effects_as_json_have_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    machines._show_effects("box", EFFECTS, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["machine"], document["assumed"]) == ("box", 0.2)
    assert [row["field"] for row in document["fields"]] == ["most", "tie", "small", "first"]
    assert document["fields"][1] == {
        "field": "tie", "value": 10.0, "low": 8.0, "high": 12.5, "unit": "GB/s",
        "badge": "estimate", "stated": True, "tpot_ms": [0.04, -0.03], "ttft_ms": [0.0, 0.0],
    }  # fmt: skip
    assert document["together"]["tpot_ms"] == pytest.approx([0.05, 0.05], rel=1e-4)


def test_the_numbers_of_a_machine_are_moved_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(execute, "prepare", lambda spec, folder: (spec.system, folder))
    monkeypatch.setattr(interval, "effects_on", lambda *what: given.append(what) or EFFECTS)
    options = ("machines", "sensitivity", "--system", "smoe", "--setting", "S3", "--json")
    called = call(*options, "--store", "runs", "--tokens", "5")
    assert called.code == 0, called.err
    assert called.json["machine"] == "a6000"
    assert call(*options).code == 0
    assert given == [(("smoe", None), Path("runs"), 5), (("smoe", None), Path(".moebench"), 17)]
    assert "--machine local: this computer is measured and has no profile" in refused(
        *options, "--machine", "local"
    )
    Path("file").write_text("")
    assert "file is not a folder" in refused(*options, "--store", "file")
    assert "--data-dir none: no such folder" in refused(*options, "--data-dir", "none")
    assert len(given) == 2


def test_components_are_a_table_with_the_number_that_agree_below() -> None:
    called = call("machines", "components")
    found = json.loads(call("machines", "components", "--json").out)
    agree = sum(one["agrees"] for one in found)
    assert 0 < agree <= len(found)
    lines = called.out.splitlines()
    assert called.code == 0
    assert lines[0].split("\t")[0] == "component"
    assert len(lines) == 1 + len(found)
    assert called.err.startswith(f"{agree} of {len(found)} within 15 % of the published time")
