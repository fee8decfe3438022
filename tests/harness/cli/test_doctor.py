"""``moebench doctor``: what is shown, and with which exit code."""

import contextlib
import json
import os
from concurrent import futures
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.conformance import cases
from moebench.harness import extras
from moebench.harness.cli import doctor
from moebench.harness.conformance import cases as every_case
from moebench.harness.conformance import suite
from moebench.harness.conformance.suite import Finding
from moebench.harness.run import document
from moebench.harness.sweep.pool import end_with_parent
from moebench.results.schema import SCHEMA_VERSION
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
from moebench.substrate.machines import profile as profiles
from moebench.substrate.models import catalogue
from moebench.substrate.models.checkpoint import Checkpoint
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.reports.samples import run

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


def test_what_is_missing_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["present>=1", "absent<2; python_version>'3'", "extra[x]; extra == 'some'",
             "moebench[all]; extra == 'x'"]  # fmt: skip
    versions = {"present": "1.2"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    monkeypatch.setattr(metadata, "version", version)
    assert doctor._packages() == ("packages", False, "missing: absent; reinstall moebench")
    versions["absent"] = "0.1"
    assert doctor._packages() == ("packages", True, "absent 0.1, extra -, present 1.2")
    lines[:] = ["present", "no-limits", "neither"]  # of any version
    assert doctor._packages() == (
        "packages", False, "missing: no-limits, neither; reinstall moebench"
    )  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lambda name: None)
    assert doctor._packages() == ("packages", True, "")


def test_broken_models_and_profiles_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*name: str) -> None:
        raise UsageError("this is broken")

    with monkeypatch.context() as patch:
        patch.setattr(profiles, "load_profile", broken)
        assert doctor._profiles() == ("machines", False, "this is broken")
    count = len(profiles.profile_names())
    assert doctor._profiles() == ("machines", True, f"{count} profiles")
    with monkeypatch.context() as patch:
        patch.setattr(extras, "require_weights", broken)
        patch.setattr(catalogue, "scale_names", lambda: ["a model without its files"])
        assert doctor._scale_models() == ("scale models", False, "this is broken")
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "scale_names", list)
        patch.setattr(extras, "require_weights", lambda: None)
        assert doctor._scale_models() == (
            "scale models", False, "none installed; reinstall moebench"
        )  # fmt: skip
    name, ok, detail = doctor._scale_models()
    total = Checkpoint(catalogue.scale_path("mixtral-8x7b")).shape.total_params
    assert (name, ok) == ("scale models", True)
    assert f"mixtral-8x7b ({total / 1e6:.1f} M parameters)" in detail.split(", ")


def test_this_computer_and_its_store_are_described(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * 2**30 // 4096}
    monkeypatch.setattr(doctor.os, "sysconf", pages.get)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 6)
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.0")
    assert doctor._python() == ("python", True, "3.0, 6 cores, 4 GiB memory")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert doctor._torch() == ("torch", True, f"{torch.__version__}, 3 threads, a card")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor._torch()[2].endswith(", no CUDA device")
    monkeypatch.setattr(document, "versions", lambda: {"moebench": "9.9"})
    for commit, said in (("abc", "commit abc"), (None, "installed")):
        monkeypatch.setattr(document, "commit", lambda commit=commit: commit)
        assert doctor._moebench() == ("moebench", True, f"9.9, {said}")
    monkeypatch.setattr(document, "processor", lambda: "a processor")
    monkeypatch.setattr(doctor.platform, "platform", lambda: "Linux")
    assert doctor._platform() == ("platform", True, "Linux, a processor")
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=5e9 if path == here else 0)
    )
    assert doctor._store(Path("new/store")) == (
        "store", True, "new/store: 0 runs, 5 GB free; none yet"
    )  # fmt: skip
    Store(Path("kept")).put(run("a"))
    _, ok, detail = doctor._store(Path("kept"))
    assert ok
    assert detail.startswith("kept: 1 runs, 0 GB free; schema ")
    assert detail.endswith(f", this version's is {SCHEMA_VERSION}")


# ------------------------------------------------------------------------------ findings


def finding(system: str, check: str, state: Any, where: Any = None, why: str = "") -> Finding:
    return Finding(system, "published", check, where, state, why)


def test_findings_are_counted_and_failures_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        finding("a", "runs", "ok"), finding("a", "runs", "n/a", FEW[0], "not here"),
        finding("b", "runs", "failed", FEW[0], "it broke"), finding("b", "runs", "ok", FEW[0]),
        finding("b", "lossless", "failed", None, "it lost"),
        finding("b", "repeats", "n/a", None, "no"), finding("b", "repeats", "n/a", None, "no"),
    ]  # fmt: skip
    doctor._show(found)
    header, one, other, details, *rows = lines(capsys.readouterr().out)
    assert header == ["system", "options", "runs", "invariants", "lossless", "repeats"]
    titles = [found[0].title, found[2].title]
    assert one == [titles[0], "n/a", "ok, 1 n/a", "n/a", "n/a", "n/a"]
    assert other == [titles[1], "n/a", "FAILED 1 of 2", "n/a", "FAILED 1 of 1", "n/a"]
    assert details == ["system", "check", "state", "where", "why"]
    assert rows == [
        [titles[1], "runs", "failed", str(FEW[0]), "it broke"],
        [titles[1], "lossless", "failed", "-", "it lost"],
        [titles[0], "runs", "n/a", str(FEW[0]), "not here"],
        [titles[1], "repeats", "n/a", "every case", "no"],
    ]
    doctor._show([finding("a", "runs", "ok")])
    assert len(lines(capsys.readouterr().out)) == 2


def test_equal_failures_are_one_line_with_their_cases() -> None:
    three = [finding("a", "runs", "failed", FEW[0], "x"), finding("a", "runs", "failed", None, "x"),
             finding("a", "runs", "failed", FEW[0], "y")]  # fmt: skip
    assert list(doctor._lines("title", "runs", three)) == [
        ["title", "runs", "failed", f"{FEW[0]}; -", "x"],
        ["title", "runs", "failed", str(FEW[0]), "y"],
    ]
    assert next(iter(doctor._lines("t", "runs", three[:2])))[3] == "every case"
    assert next(iter(doctor._lines("t", "runs", three[:1])))[3] == str(FEW[0])


# ------------------------------------------------------------------------------ who is checked


def test_a_system_without_any_case_is_a_failure_of_its_own() -> None:
    none = Finding("mine", "shipped", "options", None, "ok")
    assert doctor._nowhere(suite.Report([none, finding("other", "runs", "n/a")])) == Finding(
        "mine", "shipped", "runs", None, "failed",
        "it exists in no case, so nothing was checked",
    )  # fmt: skip


class Pool:
    """An executor that runs at once, in this process."""

    made: list[Any]

    def __init__(self, processes: int, context: Any, initializer: Any) -> None:
        self.made.append((processes, context.get_start_method(), initializer))

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.made.append("closed")

    def submit(self, work: Any, *given: Any) -> Any:
        future: Any = futures.Future()
        future.set_result(work(*given))
        return future


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was checked, and the progress that was told; every check passes."""
    seen: list[Any] = []

    def check_system(
        name: str, variant: str, cases: Any, progress: Any = None, scratch: Any = None
    ) -> Any:
        seen.append((name, variant, cases is FEW, scratch))
        if progress is not None:
            progress(1, 2)
        return f"report of {name}, {variant}"

    @contextlib.contextmanager
    def progress(what: str) -> Any:
        yield lambda done, total: seen.append((what, done, total))

    monkeypatch.setattr(suite, "check_system", check_system)
    monkeypatch.setattr(doctor.console, "progress", progress)
    monkeypatch.setattr(futures, "ProcessPoolExecutor", Pool)
    Pool.made = []
    return seen


TWO: list[Any] = [("smoe", "published"), ("smoe", "shipped")]


@pytest.mark.parametrize(("subjects", "jobs"), [(TWO, 1), (TWO[:1], 4)])
def test_one_process_checks_one_system_after_another(
    subjects: list[Any], jobs: int, checks: list[Any]
) -> None:
    found = list(doctor._reports(subjects, jobs, Path("s")))
    assert found == [f"report of smoe, {variant}" for _, variant in subjects]
    assert checks == [
        step for name, variant in subjects
        for step in ((name, variant, True, Path("s")), (f"{name}, {variant}", 1, 2))
    ]  # fmt: skip
    assert Pool.made == []


def test_several_processes_check_systems_at_the_same_time(checks: list[Any]) -> None:
    found = list(doctor._reports(TWO, 3, Path("s")))
    assert found == ["report of smoe, published", "report of smoe, shipped"]
    assert checks == [("smoe", "published", True, Path("s")), ("smoe", "shipped", True, Path("s")),
                      ("doctor", 1, 2), ("doctor", 2, 2)]  # fmt: skip
    assert Pool.made == [(3, "spawn", end_with_parent), "closed"]


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("n/a", 0), ("failed", 1)])
def test_the_exit_code_tells_whether_a_check_failed(
    state: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    reports = [suite.Report([finding("smoe", "runs", "ok"), finding("smoe", "repeats", state)]),
               suite.Report([finding("daop", "runs", "ok")])]  # fmt: skip

    def made(subjects: Any, jobs: int, scratch: Path) -> Any:
        asked.append((subjects, jobs, scratch.name.startswith("moebench-"), scratch.is_dir()))
        asked.append(scratch)
        return iter(reports)

    monkeypatch.setattr(doctor, "_reports", made)
    monkeypatch.setattr(doctor.console, "say_refused", asked.append)
    assert doctor._check_systems("smoe", "shipped", 4, json=True) == code
    assert asked[:2] == [["smoe"], ([("smoe", "shipped")], 4, True, True)]
    assert not asked[2].exists()
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is (code == 0)
    assert [one["state"] for one in shown["findings"]] == ["ok", state, "ok"]
    asked.clear()
    assert doctor._check_systems("all", "shipped", 2, json=False) == code
    assert [name for name, _ in asked[0][0]] == sorted(name for name, _ in asked[0][0])
    assert asked[0][1] == 2
    lines_ = lines(capsys.readouterr().out)
    assert [line[0] for line in lines_[1:3]] == ["smoe", "daop"]
    reports[:] = [suite.Report([finding("x", "options", "ok"), finding("x", "runs", "n/a")])]
    assert doctor._check_systems("all", None, 2, json=True) == 1
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["state"], last["detail"]) == (
        "failed", "it exists in no case, so nothing was checked"
    )  # fmt: skip


def test_options_of_the_command_reach_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(doctor, "_check_systems", lambda *given: asked.append(given) or 1)
    monkeypatch.setattr(doctor, "_check_installation", lambda *given: asked.append(given) or 0)
    assert call("doctor", "--system", "smoe", "--variant", "shipped", "--json").code == 1
    assert call("doctor", "--system", "all", "--jobs", "2").code == 1
    assert call("doctor", "--store", "kept", "--data-dir", "data", "--json").code == 0
    assert call("doctor").code == 0
    assert asked == [
        ("smoe", "shipped", os.cpu_count() or 1, True), ("all", None, 2, False),
        (Path("data"), Path("kept"), True), (None, Path(".moebench"), False),
    ]  # fmt: skip
