"""The commands beside `run`: report, list, doctor, help."""

from pathlib import Path

import pytest

from moebench.systems.registry import SYSTEMS
from tests.harness.commands import SCALE_MODEL, call, refused, run

pytestmark = pytest.mark.usefixtures("tiny_models")

# --------------------------------------------------------------------------- report


def test_report(here: Path) -> None:
    ids = [run(system)["run_id"] for system in ("smoe", "moe-ondemand")]
    shown = call("report")
    assert shown.code == 0
    header, *rows = (line.split("\t") for line in shown.out.splitlines())
    assert header[:2] == ["run", "system"]
    assert "badge" in header
    assert sorted(row[0] for row in rows) == sorted(ids)
    assert {len(row) for row in rows} == {len(header)}
    assert shown.err == ""

    listed = call("report", "--json")
    assert listed.err == ""
    assert sorted(document["run_id"] for document in listed.json) == sorted(ids)

    written = call("report", "--html", "pages/out.html")
    assert written.code == 0
    assert written.out == ""
    assert "2 runs in pages/out.html" in written.err
    page = (here / "pages" / "out.html").read_text()
    assert "<title>moebench report: 2 runs" in page


@pytest.mark.parametrize("options", [(), ("--json",), ("--html", "out.html")])
def test_report_on_an_empty_store(here: Path, options: tuple[str, ...]) -> None:
    called = call("report", *options)
    assert called.code == 2
    assert called.out == ""
    assert called.err == (
        "moebench: no runs in .moebench; run: moebench run --system smoe --setting S3\n"
    )
    assert list(here.iterdir()) == []


# --------------------------------------------------------------------------- list, doctor, help

FIRST_COLUMN = {
    "systems": ("system", set(SYSTEMS)),
    "settings": ("setting", {"S1", "S2", "S3", "D1", "D2", "U1", "U2", "U3", "U4", "F1", "F2"}),
    "machines": ("machine", {"a6000", "a6000@daop", "rtx3080ti", "h200", "local"}),
    "workloads": ("workload", {"gsm8k", "arithmetic", "mmlu"}),
    "policies": ("name", {"lru", "expert-cache", "balanced", "by-id", "top-score"}),
    "models": ("model", {"mixtral-8x7b", "qwen2-57b-a14b", "gpt-oss-20b"}),
}


@pytest.mark.usefixtures("shipped_models")
@pytest.mark.parametrize("what", FIRST_COLUMN)
def test_list(here: Path, what: str) -> None:
    key, names = FIRST_COLUMN[what]
    listed = call("list", what, "--json")
    assert (listed.code, listed.err) == (0, "")
    assert names <= {row[key] for row in listed.json}
    shown = call("list", what)
    assert (shown.code, shown.err) == (0, "")
    header, *rows = (line.split("\t") for line in shown.out.splitlines())
    assert key in header
    assert len(rows) == len(listed.json)
    assert {len(row) for row in rows} == {len(header)}
    assert all(cell for row in rows for cell in row[:2])
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("shipped_models")
def test_list_settings_says_what_runs_at_once() -> None:
    rows = {row["setting"]: row for row in call("list", "settings", "--json").json}
    assert rows["S3"]["runs"] == "yes"
    assert rows["S3"]["model"] == SCALE_MODEL


@pytest.mark.usefixtures("shipped_models")
def test_doctor(here: Path) -> None:
    well = call("doctor", "--json")
    assert (well.code, well.err) == (0, "")
    checks = {finding["check"]: finding for finding in well.json}
    assert set(checks) == {
        "moebench", "python", "platform", "torch", "packages", "scale models", "machines", "data",
        "store",
    }  # fmt: skip
    assert all(finding["ok"] is True and finding["detail"] for finding in well.json)
    assert SCALE_MODEL in checks["scale models"]["detail"]
    shown = call("doctor")
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 1 + len(checks)
    assert list(here.iterdir()) == [], "looking changes nothing"


@pytest.mark.parametrize(
    ("options", "broken"),
    [
        (("--data-dir", "nowhere"), "data"),
        (("--store", "file"), "store"),
        (("--store", "file/below"), "store"),
        (("--store", "damaged"), "store"),
    ],
)
def test_doctor_finds_what_is_broken(here: Path, options: tuple[str, str], broken: str) -> None:
    (here / "file").write_text("in the way")
    (here / "damaged").mkdir()
    (here / "damaged" / "runs.sqlite").write_bytes(b"no database" * 500)
    called = call("doctor", *options, "--json")
    assert called.code == 1
    assert [finding["check"] for finding in called.json if not finding["ok"]] == [broken]
    assert "BROKEN" in call("doctor", *options).out


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("run", "--help")])
def test_help(arguments: tuple[str, ...]) -> None:
    called = call(*arguments)
    assert (called.code, called.err) == (0, "")
    assert called.out.startswith("Usage: moebench")


def test_compare_puts_systems_beside_each_other_and_refuses_what_is_not_fair():
    for system, prompts in (("smoe", "1"), ("moe-ondemand", "1"), ("gpu-only", "2")):
        run(system, "--prompts", prompts, "--allow-overcommit")
    refused_line = refused("compare", "--mixed", "device-memory")
    assert "gpu-only has prompts 2, the others 1" in refused_line
    assert "--mixed device-memory,prompts" in refused_line
    shown = call("compare", "--mixed", "device-memory,prompts")
    assert shown.code == 0
    header, *lines = shown.out.splitlines()
    assert header.split("\t")[:2] == ["system", "TPOT (ms)"]
    assert {line.split("\t")[0] for line in lines} == {
        "smoe alpha=0.25",
        "moe-ondemand",
        "gpu-only ≠",
    }
    (table,) = call("compare", "--systems", "smoe,moe-ondemand", "--json").json
    assert {row["system"] for row in table["systems"]} == {"smoe alpha=0.25", "moe-ondemand"}
    assert "no such runs" in refused("compare", "--settings", "S1")
