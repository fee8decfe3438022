"""`moebench timeline`: where a stored timeline is written, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.cli import timeline as command
from moebench.reports.formats import trace_events
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError
from tests.harness.commands import call, refused
from tests.results.documents import document


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Records by run id; runs are in the default store and in another one."""
    records: dict[str, list[dict[str, Any]]] = {}
    for folder in (".moebench", "elsewhere"):
        for run_id in ("abc123", "abd456"):
            Store(Path(folder)).put(document(run_id))
    monkeypatch.setattr(Store, "timeline", lambda self, run_id: records.get(run_id, []))
    monkeypatch.setattr(trace_events, "trace_events", lambda records, about: [records, about])
    return records


def token(number: int) -> dict[str, Any]:
    return {"kind": "token", "experts": [number]}


def test_a_timeline_is_written_with_what_it_is_of(stored: dict[str, list[dict[str, Any]]]) -> None:
    stored["abc123"] = [{"kind": "expert", "experts": [5]}, token(7)]
    called = call("timeline", "abc")
    assert (called.code, called.out) == (0, "")
    records, about = json.loads(Path("abc123.trace.json").read_text())
    assert records == stored["abc123"]
    spec = document("abc123")["spec"]
    assert (about["run"], about["model"], about["machine"]) == (
        "abc123", spec.get("model"), spec.get("machine"),
    )  # fmt: skip
    assert about["workload"] == spec.get("workload")
    times = "simulated" if document("abc123").get("simulated") else "measured"
    assert about["times"] == times
    assert called.err == (
        f"timeline in abc123.trace.json ({times}, token 7 of a batch): open it at ui.perfetto.dev\n"
    )


def test_a_timeline_of_several_tokens_goes_into_a_named_file(
    stored: dict[str, list[dict[str, Any]]],
) -> None:
    stored["abd456"] = [token(0), token(1), token(2)]
    called = call("timeline", "abd456", "--out", "here.json", "--store", "elsewhere")
    assert called.code == 0, called.err
    assert json.loads(Path("here.json").read_text())[1]["run"] == "abd456"
    assert called.err.startswith("timeline in here.json (")
    assert ", 3 tokens): open it" in called.err


def test_a_run_without_a_timeline_says_how_to_get_one(
    stored: dict[str, list[dict[str, Any]]],
) -> None:
    system = document("abc123")["spec"].get("system")
    assert refused("timeline", "abc123").endswith(
        f"run abc123 kept no timeline; run it again: moebench run --system {system} ... "
        "--timeline out.json"
    )
    assert not Path("abc123.trace.json").exists()


def test_a_file_in_no_folder_is_refused_before_a_run() -> None:
    with pytest.raises(MoeBenchError, match=r"^--timeline none/x\.json: no such folder none"):
        command.require_place("--timeline", Path("none/x.json"))
    command.require_place("--timeline", Path("x.json"))
