"""``moebench doctor``: what is shown, and with which exit code."""

from pathlib import Path

import pytest

from moebench.conformance import cases
from moebench.harness.cli import doctor
from moebench.harness.conformance import cases as every_case
from tests.harness.commands import SCALE_MODEL, call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

#: In place of the models that ship.
FEW = [case for case in cases("qwen2-57b-a14b") if case.batch == 3 and case.budget == "tight"]

BROKEN = "tests.harness.conformance.broken"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_case, "CASES", FEW)


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_a_system_that_conforms():
    called = call("doctor", "--system", "moe-ondemand")
    assert called.code == 0
    header, row = lines(called.out)
    assert header == ["system", "options", "runs", "invariants", "lossless", "repeats"]
    assert row == ["moe-ondemand", "ok", "ok", "ok", "ok", "ok"]


def test_one_that_does_not_and_why():
    called = call("doctor", "--system", f"{BROKEN}:WritesOther")
    assert called.code == 1
    _, row, _, *details = lines(called.out)
    assert row[1:4] == ["ok", "ok", "ok"]
    assert row[4] == "FAILED 1 of 2"  # a replay writes no text
    (one,) = details
    assert one[1:4] == ["lossless", "failed", "qwen2-57b-a14b, batch 3, tight"]
    assert one[4].startswith("it wrote [[")


def test_what_is_not_applicable_has_its_reason():
    called = call("doctor", "--system", "daop", "--variant", "published")
    assert called.code == 0
    _, row, _, detail = lines(called.out)
    assert row[4] == "n/a"
    assert detail[1:] == ["lossless", "n/a", "every case", "it does not claim to be lossless"]


def test_one_that_exists_nowhere_has_not_passed():
    called = call("doctor", "--system", f"{BROKEN}:Nowhere")
    assert called.code == 1
    assert "it exists in no case, so nothing was checked" in called.out


@pytest.mark.slow
def test_all_variants_on_processes_of_their_own_as_json():
    called = call("doctor", "--system", "smoe", "--jobs", "2", "--json")
    assert called.code == 0, called.err
    found = called.json["findings"]
    assert called.json["ok"]
    assert {(one["system"], one["variant"]) for one in found} == {
        ("smoe", "published"), ("smoe", "shipped"),
    }  # fmt: skip
    assert {one["state"] for one in found} == {"ok", "n/a"}
    assert found[1]["case"] == {
        "model": "qwen2-57b-a14b", "batch": 3, "budget": "tight", "replayed": False,
    }  # fmt: skip
    assert found[0] == {
        "system": "smoe", "variant": "published", "check": "options", "case": None, "state": "ok",
        "detail": "",
    }  # fmt: skip


def test_all_are_those_that_ship():
    subjects = doctor._subjects("all", None)
    assert ("smoe", "shipped") in subjects
    assert ("flashmoe", "published") in subjects
    assert len(subjects) == len(set(subjects))
    assert doctor._subjects("all", "shipped") == [
        subject for subject in subjects if subject[1] == "shipped"
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--system", "nosuch"], "unknown system 'nosuch'"),
        (["--system", "flashmoe", "--variant", "shipped"], "flashmoe has none"),
        (
            ["--system", "smoe", "--variant", "other"],
            "--variant other: allowed: published, shipped",
        ),
        (["--system", "all", "--variant", "other"], "--variant other: allowed: published, shipped"),
        (["--system", "nosuch_module:X"], "cannot import nosuch_module"),
        (["--variant", "shipped"], "give --system NAME"),
    ],
)
def test_bad_input_is_one_line(given: list[str], said: str):
    assert said in refused("doctor", *given)


def test_nothing_is_left_behind(here: Path):
    call("doctor", "--system", "moe-ondemand")
    assert list(here.iterdir()) == []


def test_without_a_system_the_installation_is_checked():
    called = call("doctor")
    assert called.code == 0
    assert lines(called.out)[0] == ["check", "state", "detail"]


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


def test_the_sets_of_a_data_folder_are_counted(here: Path) -> None:
    for name in ("arc", "mmlu", "traces"):
        (here / "data" / name).mkdir(parents=True)
    for name in ("arc", "mmlu"):
        (here / "data" / name / "test.jsonl").write_text("")
    assert doctor._data(here / "data") == ("data", True, f"{here / 'data'}: 2 sets")
