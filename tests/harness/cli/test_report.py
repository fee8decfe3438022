"""``moebench report`` on stores made by hand: what is shown, what is said, what is refused."""

import csv
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from moebench.harness import extras
from moebench.harness.api import compare
from moebench.harness.cli import report
from moebench.harness.run import repeat
from moebench.reports.compare import conditions, tables
from moebench.reports.formats import svg, trackers
from moebench.reports.page import page
from moebench.reports.page import runs as page_runs
from moebench.reports.page import static_figures as figures
from moebench.reports.page.page import Contents
from moebench.reports.sections import accuracy, throughput
from moebench.results import claims, searches
from moebench.results.accuracy_table import write_table
from moebench.results.store import Store
from moebench.substrate.analysis import components
from tests.harness.commands import call, refused
from tests.harness.commands import run as execute
from tests.reports.alpha import ROWS
from tests.reports.samples import run
from tests.results.documents import document


def stored(*runs: dict[str, Any]) -> Store:
    store = Store(Path(".moebench"))
    for one in runs:
        store.put(one)
    return store


@pytest.mark.usefixtures("here")
def test_four_runs_of_other_options_are_four_different_rows() -> None:
    policies = ("lru", "lfu", "score", "fifo")
    stored(*(run(name, overrides={"evict": name}) for name in policies))
    lines = [line.split("\t") for line in call("report").out.splitlines()]
    header, *rows = lines
    assert {row[header.index("set")] for row in rows} == {f"evict={name}" for name in policies}
    shown = call("report", "--markdown").out
    assert all(f"| smoe evict={name} |" in shown for name in policies)


@pytest.mark.usefixtures("here")
def test_runs_that_may_not_be_compared_stand_apart_with_the_reason() -> None:
    stored(run("a"), run("b", system="lru"), run("c", system="lfu", prompts=8))
    called = call("report", "--markdown")
    assert called.code == 0
    assert "not comparable with the table above: prompts 8, not 32" in called.out
    assert called.err == ""


@pytest.mark.usefixtures("here")
def test_runs_of_another_version_are_said_and_shown_alone() -> None:
    stored(document("0ld"), run("a"))
    called = call("report", "--markdown")
    assert called.code == 0
    assert "note: run 0ld lacks spec.machine, spec.model, metrics" in called.err
    assert "| 0ld |" in called.out
    alone = call("report", "--store", str(Path("other")), "--markdown")
    assert alone.code == 2
    Store(Path("other")).put(document("0ld"))
    called = call("report", "--store", "other", "--markdown")
    assert called.code == 0
    assert "note: no runs that can be compared" in called.err
    assert "× bound" not in called.out


@pytest.mark.usefixtures("here")
def test_failures_alone_are_shown() -> None:
    store = Store(Path(".moebench"))
    store.fail("cell", {"system": "smoe", "setting": "S3"}, "no memory", "where")
    called = call("report", "--markdown")
    assert called.code == 0
    assert "no memory" in called.out
    assert "### failed cells" in called.out


def test_the_stores_own_accuracy_table_is_shown_and_the_shipped_one_is_marked(here: Path) -> None:
    stored(run("a"))
    assert "shipped with moebench" not in call("report", "--markdown").out
    added = call("report", "--markdown", "--shipped").out
    assert "shipped with moebench: " in added
    assert re.search(r"### claims of SMoE.*, shipped with moebench", added)
    write_table(here / ".moebench" / "alpha.csv", ROWS)
    own = call("report", "--markdown").out
    assert f".moebench/alpha.csv: {len(ROWS)} cells computed by code code" in own
    assert "shipped" not in own
    write_table(here / "named.csv", ROWS[:4])
    named = call("report", "--markdown", "--accuracy", "named.csv").out
    assert "named.csv: 4 cells" in named
    assert "absent.csv cannot be read" in refused("report", "--accuracy", "absent.csv")


def test_every_output_of_one_store(here: Path) -> None:
    stored(run("a"), run("b", system="lru"))
    called = call("report", "--csv", "csv", "--latex", "tex", "--intervals", "--json")
    assert called.code == 0
    assert [one["run_id"] for one in called.json] == ["a", "b"]
    assert {path.name for path in (here / "csv").iterdir()} == {
        "runs.csv", "comparisons.csv",
    }  # fmt: skip
    assert {"comparison-S3-batch-1.tex", "runs.tex", "report.tex"} <= {
        path.name for path in (here / "tex").iterdir()
    }


@pytest.mark.slow
def test_files_have_only_the_store_s_results_unless_asked(here: Path) -> None:
    stored(run("a"), run("b", system="lru"))

    def names(*options: str) -> dict[str, set[str]]:
        folders = {
            kind: str(here / f"{kind}{len(options)}") for kind in ("csv", "latex", "figures")
        }
        asked = [text for kind, folder in folders.items() for text in (f"--{kind}", folder)]
        assert call("report", *asked, *options).code == 0
        return {
            kind: {path.name for path in Path(folder).iterdir()} for kind, folder in folders.items()
        }

    own, added = names(), names("--shipped")
    assert not any("accuracy" in name or "claims" in name for name in own["csv"] | own["latex"])
    assert not any("against" in name for name in own["figures"])
    assert "accuracy.csv" in added["csv"]
    assert {"accuracy-S1-smoe.tex", "claims-smoe.tex"} <= added["latex"]
    assert any("against" in name for name in added["figures"])
    assert all(own[kind] < added[kind] for kind in own)


@pytest.mark.slow
def test_on_a_terminal_comparisons_come_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stored(run("a"), run("b", system="lru"))
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout", screen)
    from moebench.harness.cli.app import main

    assert main(["report", "--shipped"]) == 0
    text = screen.getvalue()
    assert 0 < text.index("S3, batch 1") < text.index("shipped with") < text.index("2 runs")
    assert "software lean" in text


@pytest.mark.usefixtures("here")
def test_a_pipe_is_one_table_for_other_programs() -> None:
    stored(run("a"), run("b", system="lru"))
    called = call("report")
    rows = list(csv.DictReader(io.StringIO(called.out), delimiter="\t"))
    assert [row["run"] for row in rows] == ["a", "b"]
    assert {row["badge"] for row in rows} == {"estimate"}
    assert called.err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_models")
def test_report(here: Path) -> None:
    ids = [execute(system)["run_id"] for system in ("smoe", "moe-ondemand")]
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


# ------------------------------------------------------------------------------ outputs


@pytest.fixture
def trackers_there(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What trackers were given, without their packages."""
    given: list[Any] = []

    def wandb(runs: Any, project: str, step: Any) -> Path | None:
        step(1, 1)
        given.append((len(runs), project))
        return Path("out/wandb") if project == "offline" else None

    monkeypatch.setattr(extras, "require", lambda *what: None)
    monkeypatch.setattr(trackers, "write_wandb", wandb)
    monkeypatch.setattr(
        trackers, "write_mlflow", lambda runs, uri, step: given.append((len(runs), uri)) or 1
    )
    return given


@pytest.mark.usefixtures("here")
def test_runs_are_exported_to_trackers(trackers_there: list[Any]) -> None:
    stored(run("a"), run("b", system="lru"), document("0ld"))
    called = call("report", "--wandb", "offline", "--mlflow", "store")
    assert (called.code, called.out) == (0, "")
    assert trackers_there == [(2, "offline"), (2, "store")]
    assert [line for line in called.err.splitlines() if not line.startswith("wandb: ")] == [
        "2 runs in offline of Weights & Biases; send them: wandb sync out/wandb/offline-run-*",
        "2 runs in store, 1 of them new or changed",
        "note: 1 of 3 runs lack fields and were not exported",
    ]
    alone = call("report", "--wandb", "sent")
    assert "2 runs in sent of Weights & Biases\n" in alone.err
    assert len(trackers_there) == 3
    both = call("report", "--mlflow", "store", "--json")
    assert [one["run_id"] for one in both.json] == ["0ld", "a", "b"]


@pytest.mark.usefixtures("here")
def test_all_runs_exported_need_no_note(trackers_there: list[Any]) -> None:
    stored(run("a"))
    assert "note" not in call("report", "--mlflow", "store").err


@pytest.mark.parametrize(
    ("options", "package"),
    [
        (("--html", "x.html"), ("vl_convert", "--html")),
        (("--figures", "x"), ("vl_convert", "--figures")),
        (("--wandb", "x"), ("wandb", "--wandb")),
        (("--mlflow", "x"), ("mlflow", "--mlflow")),
    ],
)
def test_an_output_needs_its_package(
    options: tuple[str, ...], package: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(extras, "require", lambda *what: given.append(what))
    assert "no runs" in refused("report", *options)
    assert given == [package]


def test_outputs_that_cannot_be_written_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "require", lambda *what: None)
    (here / "file").write_text("")
    assert "--html .: this is a folder" in refused("report", "--html", ".")
    for option in ("--csv", "--latex", "--figures"):
        assert f"{option} file: file is not a folder" in refused("report", option, "file")


def test_claims_of_a_folder_without_any_are_refused(here: Path) -> None:
    stored(run("a"))
    (here / "empty").mkdir()
    line = refused("report", "--claims", "empty")
    assert "--claims empty: no claims there (" in line
    assert "smoe.json" in line
    assert line.endswith("write them: moebench reproduce all --out empty")


def test_what_was_written_is_said(here: Path) -> None:
    stored(run("a"))
    said = call("report", "--csv", "csv").err.splitlines()
    (line,) = [text for text in said if text.startswith("written: ")]
    files = {Path(name) for name in line.removeprefix("written: ").split(", ")}
    assert {path.name for path in files} == {path.name for path in (here / "csv").iterdir()}
    said = call("report", "--latex", "tex").err.splitlines()
    (line,) = [text for text in said if text.startswith("written: ")]
    assert line.count(".tex") == len(list((here / "tex").glob("*.tex")))
    assert ".csv" not in line


def test_a_long_list_of_runs_is_left_out_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(report.console, "text_table", lambda table: shown.append(table))
    printed = io.StringIO()
    terminal = Console(file=printed, width=100)
    monkeypatch.setattr(report.console, "stdout", lambda: terminal)
    tables = {"systems": "the systems", "runs": "the runs"}
    found: Any = SimpleNamespace(tables=tables, left_out=[], compared=SimpleNamespace(tables=[1]))
    report._print(found, report.LISTED)
    assert (shown, printed.getvalue()) == (["the systems", "the runs"], "")
    shown.clear()
    report._print(found, report.LISTED + 1)
    assert shown == ["the systems"]
    assert printed.getvalue() == "51 runs; --csv DIR or --html FILE lists them\n"


@pytest.mark.usefixtures("here")
def test_failed_cells_are_said_in_a_pipe() -> None:
    store = stored(run("a"))
    store.fail("cell", {"system": "smoe", "setting": "S3"}, "no memory", "where")
    called = call("report")
    assert called.out.startswith("run\t")
    (line,) = called.err.splitlines()
    assert line == "failed: cell, smoe S3 ×1, no memory, failures/cell.txt"
    alone = Store(Path("other"))
    alone.fail("cell", {"system": "smoe", "setting": "S3"}, "no memory", "where")
    assert call("report", "--store", "other").out == ""


@pytest.mark.slow
def test_a_search_that_cannot_be_read_is_left_out_of_the_page(here: Path) -> None:
    stored(run("a"))
    folder = here / ".moebench" / "search"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    called = call("report", "--html", "page.html")
    assert called.code == 0
    assert "left out: .moebench/search/broken.json: not a stored search" in called.err
    assert (here / "page.html").exists()


def test_static_figures_have_curves_of_the_runs_with_details(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all runs that lack nothing, curves and timelines are read of those alone."""
    whole = [{"run_id": name} for name in ("a", "b", "c")]
    read: dict[str, Any] = {}
    monkeypatch.setattr(conditions, "lacks", lambda one: one["run_id"] == "old")
    monkeypatch.setattr(page_runs, "detailed", lambda runs: ["c", "a"])
    monkeypatch.setattr(tables, "comparisons", lambda runs, said: SimpleNamespace(tables=runs))
    monkeypatch.setattr(tables, "matrix", lambda runs: f"matrix of {len(runs)}")
    monkeypatch.setattr(
        throughput, "load", lambda folder, runs: read.setdefault("curves", (folder, runs))
    )
    monkeypatch.setattr(
        figures, "static_figures", lambda *given: read.setdefault("drawn", given) and ["drawn"]
    )
    monkeypatch.setattr(figures, "history_figures", lambda history: [history])
    monkeypatch.setattr(
        svg, "write_figures", lambda drawn, to: read.setdefault("written", (drawn, to))
    )
    store = SimpleNamespace(directory=Path("st"), timelines=lambda ids: {"timelines": sorted(ids)})
    report._write_figures(
        Path("out"),
        store,
        [*whole, {"run_id": "old"}],
        ["view"],
        "history",  # type: ignore[arg-type, list-item]
    )
    assert read["curves"] == (Path("st"), [{"run_id": "a"}, {"run_id": "c"}])
    runs, beside, views, curves, timelines, _ = read["drawn"]
    assert (runs, beside, views) == (whole, "matrix of 3", ["view"])
    assert (curves, timelines) == (read["curves"], {"timelines": ["a", "c"]})
    assert read["written"] == (["drawn", "history"], Path("out"))


def test_a_page_holds_what_was_stored_of_its_runs_and_what_ships_where_nothing_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the runs shown in full, one is no longer stored: the page shows its summary alone."""
    runs = [{"run_id": name} for name in ("a", "b", "c")]
    documents = {"a": {"run_id": "a", "whole": True}, "c": {"run_id": "c", "whole": True}}
    folder, read = Path("st"), dict[str, Contents]()
    store = SimpleNamespace(
        directory=folder, get=documents.get, timelines=lambda ids: {"timelines": ids}
    )
    monkeypatch.setattr(page_runs, "detailed", lambda given: [one["run_id"] for one in given])
    monkeypatch.setattr(
        repeat, "repeats", lambda of, whole: {"repeats": [one["run_id"] for one in whole]}
    )
    monkeypatch.setattr(
        throughput, "load", lambda of, whole: {"curves": [one["run_id"] for one in whole]}
    )
    monkeypatch.setattr(accuracy, "load", lambda: ["shipped view"])
    monkeypatch.setattr(claims, "read", lambda: ["shipped claims"])
    monkeypatch.setattr(components, "documents", lambda: ["components"])
    monkeypatch.setattr(compare, "stated", lambda: "settings")
    monkeypatch.setattr(searches, "read_searches", lambda of: ([f"search in {of}"], ["x: bad"]))

    def render(contents: Contents, out: Path, source: str) -> None:
        out.write_bytes(b"x" * 1_250_000)
        read[out.name] = contents
        assert source == "st"

    monkeypatch.setattr(page, "render", render)
    write: Any = report._write_page
    write(tmp_path / "own", store, runs, ["view"], ["cell"], ["claims"], "history", "table")
    write(tmp_path / "none", store, runs[:1], [], [], [], None, None)
    same: Any = {
        "components": ["components"], "settings": "settings", "searches": ["search in st"],
    }  # fmt: skip
    own: Any = {
        "commands": {"repeats": ["a", "c"]}, "timelines": {"timelines": ["a", "b", "c"]},
        "accuracy": ["view"], "failed": ["cell"], "claims": ["claims"], "history": "history",
        "equal_memory": "table", "shipped": [], "curves": {"curves": ["a", "c"]},
        "documents": documents,
    }  # fmt: skip
    shipped: Any = {
        "commands": {"repeats": ["a"]}, "timelines": {"timelines": ["a"]},
        "accuracy": ["shipped view"], "failed": [], "claims": ["shipped claims"],
        "shipped": ["accuracy", "claims"], "curves": {"curves": ["a"]},
        "documents": {"a": documents["a"]},
    }  # fmt: skip
    assert read == {"own": Contents(runs, **same, **own),
                    "none": Contents(runs[:1], **same, **shipped)}  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "left out: x: bad", f"3 runs in {tmp_path / 'own'} (1.2 MB)",
        "left out: x: bad", f"1 run in {tmp_path / 'none'} (1.2 MB)",
    ]  # fmt: skip
