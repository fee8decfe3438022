"""The command `moebench sweep`: cells run, stored and shown, and its interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.keep import samples_of
from moebench.harness.one_run import prepare
from moebench.harness.run import questions
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.execute import jobs_of, keep
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.worker import Finished, Job, Opened
from moebench.results.samples import TokenSample, read_samples
from moebench.results.spec import RunSpec
from moebench.results.store import FILE_NAME, Store
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import MoeBenchError
from tests.harness.commands import SMALL, Called, call, run

pytestmark = pytest.mark.usefixtures("tiny_models")

FLAGS = ("--settings", "S3", "--workloads", "arithmetic", "--prompts", "1", "--new-tokens", "3")

#: A system that fails while a file of the name "broken" is there.
FLAKY = """
from pathlib import Path
from moebench.systems.baselines import MoEOnDemand

class Flaky(MoEOnDemand):
    def observe(self, view):
        if Path("broken").exists():
            raise {error}("no\\nluck")
        super().observe(view)
"""


def sweep(*arguments: str | Path, jobs: int = 0) -> Called:
    return call("sweep", *FLAGS, "--jobs", str(jobs), *arguments)


def ids(called: Called) -> list[str]:
    return [cell["run_id"] for cell in called.json["cells"]]


def flaky(name: str, error: str = "ZeroDivisionError") -> str:
    """Write a new module for each test, since Python imports a name only once."""
    Path(f"{name}.py").write_text(FLAKY.format(error=error))
    Path("broken").touch()
    return f"{name}:Flaky"


def comparable(store: Store) -> dict[str, Any]:
    """Return every run without its creation time and duration."""
    found = {}
    for run_ in store.runs():
        made = {k: v for k, v in run_["provenance"].items() if k not in ("created", "wall_s")}
        found[run_["run_id"]] = run_ | {"provenance": made}
    return found


# ---------------------------------------------------------------------- what is run


@pytest.mark.slow
def test_a_cell_is_the_run_that_the_run_command_makes() -> None:
    called = sweep("--systems", "smoe,moe-ondemand", "--alphas", "0.1", "--json")
    assert called.code == 0, called.err
    alone = [run("smoe", "--alpha", "0.1"), run("moe-ondemand")]
    assert ids(called) == [document["run_id"] for document in alone]
    assert len(Store(Path(".moebench")).runs()) == 2  # both were there


@pytest.mark.slow
def test_finished_cells_are_not_run_again() -> None:
    assert sweep("--systems", "moe-ondemand").code == 0
    before = Store(Path(".moebench")).runs()
    called = sweep("--systems", "moe-ondemand,smoe")
    assert "2 cells: 2 done (1 were known), 0 failed" in called.err
    after = Store(Path(".moebench")).runs()
    assert [r for r in after if r["run_id"] == before[0]["run_id"]] == before
    again = sweep("--systems", "moe-ondemand", "--force")
    assert "1 done (0 were known)" in again.err
    assert len(Store(Path(".moebench")).runs()) == 2


@pytest.mark.slow
def test_processes_give_what_one_process_gives() -> None:
    axes = ("--systems", "smoe,moe-ondemand", "--alphas", "0.1,0.3", "--seeds", "0,1")
    assert sweep(*axes, "--store", "one").code == 0
    assert sweep(*axes, "--store", "two", jobs=2).code == 0
    one, two = (comparable(Store(Path(name))) for name in ("one", "two"))
    assert len(one) == 6
    assert one == two


@pytest.mark.slow
def test_cells_of_one_group_share_and_change_nothing() -> None:
    """Prefills and reference logits are remembered; a run alone computes them itself."""
    axes = ("--systems", "smoe", "--alphas", "0.1,0.3", "--prompts", "2", "--batches", "2")
    assert sweep(*axes, "--store", "shared").code == 0
    for alpha in ("0.1", "0.3"):
        run("smoe", "--alpha", alpha, "--prompts", "2", "--batch", "2", "--store", "alone")
    assert comparable(Store(Path("shared"))) == comparable(Store(Path("alone")))


@pytest.mark.parametrize(
    "change",
    [
        {}, {"system": "smoe", "alpha": 0.1}, {"machine": "h100"}, {"cache_ratio": 0.5},
        {"system": "smoe", "overrides": {"evict": "lru"}}, {"new_tokens": 4}, {"seed": 1},
        {"workload": "facts"}, {"setting": None, "model": "qwen2-57b-a14b", "machine": "a6000"},
    ],
)  # fmt: skip
def test_a_session_opened_once_has_the_identity_of_one_opened_alone(change: dict[str, Any]) -> None:
    base = {
        "system": "gpu-only", "setting": "S3", "workload": "arithmetic", "prompts": 1,
        "new_tokens": 3,
    }  # fmt: skip
    opened = Opened(None)
    opened.session(resolve(None, **base))
    for spec in (resolve(None, **base | change), resolve(None, **base)):
        assert opened.session(spec).run_id == prepare(spec, None).run_id


@pytest.mark.slow
@pytest.mark.parametrize("first", ["moe-ondemand", "pregated-moe"])
def test_systems_that_need_future_routing_are_not_possible_in_any_order(first: str) -> None:
    called = sweep("--systems", f"{first},pregated-moe,belady,moe-ondemand")
    assert called.code == 0, called.err
    runs = Store(Path(".moebench")).runs()
    assert [document["spec"]["system"] for document in runs] == ["moe-ondemand"]
    assert "3 cells: 1 done (0 were known), 0 failed, 2 not possible here" in called.err
    (reason,) = [line for line in called.err.splitlines() if line.startswith("not possible here")]
    assert reason.startswith(
        "not possible here, 2 cells: the system must know which experts come next: replay recorded "
        "routing, for example --traces DIR or --routings drawn (belady S3 "
    )
    assert "pregated-moe S3 arithmetic ×1" in reason
    store = Store(Path(".moebench"))
    assert all(cell.impossible for cell in store.cells("failed"))
    assert store.failures() == []
    shown = call("report", "--markdown").out
    assert "not possible here" in shown
    assert "failed cells" not in shown
    assert call("report", "--html", "r.html", "--csv", "tables").code == 0
    assert "Not possible here</h2>" in Path("r.html").read_text()
    assert "the system must know" in Path("tables/not-possible.csv").read_text()
    assert not Path("tables/failures.csv").exists()
    alone = sweep("--systems", "pregated-moe,belady")
    assert alone.code == 1, "nothing could run"


def test_reasons_name_fields_of_a_file_and_options_of_the_command() -> None:
    Path("s.yaml").write_text(
        "common: {setting: S3, workload: arithmetic, prompts: 1, new_tokens: 2}\n"
        "product: {system: [belady, moe-ondemand]}\n"
    )
    said = call("sweep", "s.yaml", "--jobs", "0").err
    assert "for example `trace` DIR or `routing` drawn (belady" in said
    assert "--trace" not in said
    assert "for example --traces DIR or --routings drawn" in sweep("--systems", "belady").err


@pytest.mark.slow
def test_a_measured_cell_is_measured_once() -> None:
    axes = ("--systems", "moe-ondemand", "--machines", "local", "--capacities", "0.3")
    assert sweep(*axes, "--settings", "S3").code == 0
    called = sweep(*axes, "--settings", "S3")
    assert "1 done (1 were known)" in called.err
    (document,) = Store(Path(".moebench")).runs()
    assert document["badge"] == "measured"
    assert sweep(*axes, "--force").code == 0
    assert len(Store(Path(".moebench")).runs()) == 2  # every measurement is a run of its own


def test_samples_are_the_times_of_every_token() -> None:
    first = Generation([[5, 6]], 100, [160, 200, 230], [[[8, 9], [70]], [[9], [71, 72]]])
    second = Generation([[5]], 300, [390])
    assert samples_of([first, second]) == [
        TokenSample(0, 0, 60, None), TokenSample(0, 1, 40, [2, 1]), TokenSample(0, 2, 30, [1, 2]),
        TokenSample(1, 0, 90, None),
    ]  # fmt: skip


def test_a_cell_keeps_its_samples_unless_told_not_to() -> None:
    spec = resolve(None, system="gpu-only", setting="S3", workload="arithmetic")
    document = {"run_id": "abc", "provenance": {"created": "2026"}}
    store = Store(Path(".moebench"))
    keep(store, Job("abc", spec, ""), Finished(document, [], []))
    assert read_samples(store.directory, "abc") is None
    samples = [TokenSample(0, 0, 7, None)]
    keep(store, Job("abc", spec, ""), Finished(document, samples, []))
    assert read_samples(store.directory, "abc") == samples


# ---------------------------------------------------------------------- what fails


@pytest.mark.slow
def test_a_failing_cell_does_not_stop_the_others() -> None:
    called = sweep("--systems", f"{flaky('one')},moe-ondemand")
    assert called.code == 1
    assert "failed: one:Flaky S3 arithmetic ×1: ZeroDivisionError: no luck" in called.err
    assert "Traceback" not in called.err
    store = Store(Path(".moebench"))
    assert [document["spec"]["system"] for document in store.runs()] == ["moe-ondemand"]
    (cell,) = store.cells("failed")
    assert cell.error == "ZeroDivisionError: no luck"
    assert cell.spec["system"] == "one:Flaky"
    text = (store.directory / str(cell.traceback)).read_text()
    assert 'raise ZeroDivisionError("no\\nluck")' in text


@pytest.mark.slow
def test_a_failed_cell_is_retried_when_asked() -> None:
    axes = ("--systems", flaky("two"))
    assert sweep(*axes).code == 1
    Path("broken").unlink()
    called = sweep(*axes)
    assert called.code == 1
    assert "0 done (1 were known), 1 failed" in called.err
    called = sweep(*axes, "--retry-failed")
    assert called.code == 0
    store = Store(Path(".moebench"))
    assert store.cells("failed") == []
    assert len(store.runs()) == 1


def test_a_cell_without_weights_is_not_possible_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "scale_names", lambda: ["qwen2-57b-a14b"])
    called = sweep("--systems", "moe-ondemand", "--settings", "S3,U3")
    assert called.code == 0
    assert "1 done (0 were known), 0 failed, 1 not possible here" in called.err
    assert "no scale model of mixtral-8x22b" in called.err


@pytest.mark.slow
def test_the_report_shows_failed_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep("--systems", flaky("three")).code == 1
    called = call("report")
    assert called.code == 0
    assert "ZeroDivisionError: no luck" in called.err
    assert "failures/" in called.err
    assert sweep("--systems", "moe-ondemand").code == 0
    assert call("report", "--html", "r.html", "--csv", "tables").code == 0
    page = Path("r.html").read_text()
    assert "Failed cells" in page
    assert "ZeroDivisionError: no luck" in page
    assert "three:Flaky" in Path("tables/failures.csv").read_text()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished() -> None:
    called = sweep("--systems", f"moe-ondemand,{flaky('four', 'KeyboardInterrupt')}")
    assert called.code == 130
    store = Store(Path(".moebench"))
    assert [document["spec"]["system"] for document in store.runs()] == ["moe-ondemand"]
    assert [cell.spec["system"] for cell in store.cells("queued")] == ["four:Flaky"]
    Path("broken").unlink()
    assert sweep("--systems", "moe-ondemand,four:Flaky").code == 0


# ---------------------------------------------------------------------- what is shown


def test_a_dry_run_counts_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moebench.harness.sweep.forecast.WORTH_S", 0.0)
    assert sweep("--systems", "moe-ondemand").code == 0
    files = sorted(Path(".moebench").rglob("*"))
    called = sweep("--systems", "moe-ondemand,smoe", "--alphas", "0.1,0.2", "--dry-run")
    assert called.code == 0
    header, *lines = (line.split("\t") for line in called.out.splitlines())
    assert header == ["cell", "state", "what"]
    assert [line[1] for line in lines] == ["stored", "to run", "to run"]
    assert "3 cells: 1 stored, 2 to run; 1 at a time, about" in called.err
    assert "2 cells from short runs just now" in called.err
    assert sorted(Path(".moebench").rglob("*")) == files
    assert len(Store(Path(".moebench")).runs()) == 1


def test_a_dry_run_takes_rates_from_stored_runs_of_the_same_kind() -> None:
    assert sweep("--systems", "smoe", "--alphas", "0.1").code == 0
    called = sweep("--systems", "smoe", "--alphas", "0.1,0.2", "--dry-run")
    assert "1 stored, 1 to run" in called.err
    assert "1 cell from stored runs like them" in called.err


@pytest.mark.slow
def test_a_sweep_begins_with_its_expected_time() -> None:
    called = sweep("--systems", "smoe,moe-ondemand")
    lines = called.err.splitlines()
    (said,) = [n for n, line in enumerate(lines) if "2 cells to run, 1 at a time, about " in line]
    assert said < lines.index("sweep: 2/2, 0 failed")
    (after_one,) = [line for line in lines if line.startswith("sweep: 1/2, 0 failed, ")]
    assert after_one.endswith(" left")


def test_a_dry_run_without_a_store_creates_none() -> None:
    called = sweep("--systems", "smoe", "--dry-run", "--json")
    (cell,) = called.json["cells"]
    assert (cell["state"], cell["spec"]["system"]) == ("to run", "smoe")
    assert called.json["estimate_s"] > 0
    assert not Path(".moebench").exists()


@pytest.mark.slow
def test_progress_in_a_pipe_is_plain_lines() -> None:
    called = sweep("--systems", "moe-ondemand,smoe")
    assert called.out == ""
    assert "sweep: 1/2, 0 failed" in called.err
    assert "\x1b" not in called.err


@pytest.mark.slow
def test_a_file_is_a_sweep() -> None:
    Path("s.yaml").write_text(json.dumps({
        "common": {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 3},
        "product": {"system": ["moe-ondemand", {"system": "smoe", "set": {"evict": "lru"}}]},
    }))  # fmt: skip
    assert call("sweep", "s.yaml", "--jobs", "0").code == 0
    alone = [run("moe-ondemand"), run("smoe", "--set", "evict=lru")]
    assert set(comparable(Store(Path(".moebench")))) == {document["run_id"] for document in alone}


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to sweep; give FILE.yaml or"),
        (("--systems", "smoe,"), "allowed: values separated by single commas"),
        (("--systems", "smooe", "--settings", "S3"), "unknown system 'smooe'; nearest: smoe"),
        (("--systems", "smoe", "--settings", "S3", "--batches", "x"), "batch 'x': Input should be"),
        (("--systems", "smoe", "--settings", "S3", "--set", "evict"), "--set evict: expected key="),
        (("--systems", "smoe", "--jobs", "-1"), "'--jobs': Input should be greater"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    called = call("sweep", *arguments)
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert complaint in called.err


def test_a_file_and_flags_are_too_much() -> None:
    called = call("sweep", "standard", "--systems", "smoe")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "give a file or flags, not both" in called.err


def newer(folder: Path) -> None:
    import sqlite3

    assert call("run", "--system", "moe-ondemand", *SMALL, "--store", folder).code == 0
    db = sqlite3.connect(folder / FILE_NAME)
    db.execute("PRAGMA user_version = 99")
    db.close()


def corrupt(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(b"no database" * 500)


def no_folder(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize("spoil", [newer, corrupt, no_folder])
def test_unusable_store_is_refused_and_left_unchanged(spoil: Callable[[Path], None]) -> None:
    folder = Path("spoiled")
    spoil(folder)
    before = {p: p.read_bytes() for p in (folder, *folder.rglob("*")) if p.is_file()}
    called = sweep("--systems", "moe-ondemand", "--store", folder)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "spoiled" in called.err
    assert {p: p.read_bytes() for p in (folder, *folder.rglob("*")) if p.is_file()} == before


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Store.put

    def full(self: Store, document: dict[str, Any], *rest: Any, **more: Any) -> None:
        if self.runs():
            raise MoeBenchError("no space left to write it")
        put(self, document, *rest, **more)

    monkeypatch.setattr(Store, "put", full)
    called = sweep("--systems", "moe-ondemand,smoe")
    assert called.code == 2
    assert called.err.endswith("moebench: no space left to write it\n")
    monkeypatch.undo()
    assert sweep("--systems", "moe-ondemand,smoe").code == 0


def test_no_worker_of_another_version_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    from moebench.harness.sweep import pool

    monkeypatch.setattr(pool, "code_hash", lambda: "another")
    called = sweep("--systems", "moe-ondemand")
    assert called.code == 1
    assert "moebench is not the same here and there" in called.err


def test_cells_that_read_the_same_are_one_group() -> None:
    specs: list[RunSpec] = [
        resolve(None, system=system, setting="S3", workload=workload, prompts=2, batch=batch)
        for system in ("smoe", "gpu-only")
        for workload in ("arithmetic", "facts")
        for batch in (1, 2)
    ]
    jobs = jobs_of(specs, Planned(None))
    assert len({job.group for job in jobs}) == 4
    groups = [job.group for job in jobs]
    assert groups == sorted(groups, key=groups.index)  # one after the other
    assert not Path(".moebench").exists()
