"""Drawn traces, and those that ship: on the shipped catalogue, whose figures they hold."""

import json
from pathlib import Path

import pytest

from moebench.harness.run.runner import prepare, run
from moebench.harness.sweep.plan import cells_from_file
from moebench.harness.sweep.worker import group_of
from moebench.results.store import Store
from moebench.substrate.traces.catalogue import SHIPPED, trace_names
from moebench.substrate.traces.file import open_trace
from tests.harness.commands import Called, call

SMOE = ("--system", "smoe", "--alpha", "0")


def draw(*arguments: str) -> Called:
    small = ("--sequences", "2", "--prompt-tokens", "4", "--new-tokens", "12", "--out", "drawn")
    return call("trace", "synthesize", "--model", "mixtral-8x7b", *small, "--json", *arguments)


def test_a_drawn_trace_is_compared_and_replays() -> None:
    statistics = draw("--like", "mixtral-8x7b").json["statistics"]
    assert statistics["first_layer"]["asked"] == 0.26
    assert statistics["recall"]["drawn"] == pytest.approx(0.84, abs=0.05)
    document = call("run", "--trace", "drawn", "--setting", "D1", *SMOE, "--json").json
    assert document["spec"]["new_tokens"] == 12, "the setting's 512 are more than there are"
    assert any("drawn, not recorded" in note for note in document["notes"])


def test_a_sweep_opens_a_trace_once_and_runs_it_as_a_run_does() -> None:
    draw("--like", "mixtral-8x7b")
    plan = {
        "common": {"trace": "drawn", "setting": "D1"},
        "product": {"system": ["moe-ondemand", "gpu-only"], "allow_overcommit": True},
        "zip": {"batch": [1, 2], "prompts": [1, 2], "new_tokens": [12, 5]},
    }
    Path("s.yaml").write_text(json.dumps(plan))
    specs = cells_from_file(Path("s.yaml"), None)
    assert len({group_of(spec) for spec in specs}) == 1
    cells = call("sweep", "s.yaml", "--jobs", "0", "--json").json["cells"]
    alone = [run(prepare(spec, None), Path("alone")).document for spec in specs]
    assert sorted(c["run_id"] for c in cells) == sorted(d["run_id"] for d in alone)
    stored = {run_["run_id"]: run_ for run_ in Store(Path(".moebench")).runs()}
    for document in alone:
        assert stored[document["run_id"]]["metrics"] == document["metrics"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give --like NAME, or --static"),
        (("--like", "olmo"), "olmoe-1b-7b"),
        (("--static", "0.9", "--ar1", "0.3"), "sum may be 1"),
        (("--static", "0.4", "--noise", "0.3"), "the variances must sum to 1"),
        (("--static", "0.4", "--depth", "1,2"), "expected three numbers"),
    ],
)
def test_an_impossible_draw_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    called = draw(*arguments)
    assert called.code == 2
    assert says in called.err
    assert not Path("drawn").exists()


# ----------------------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", trace_names())
def test_shipped_traces_are_small_and_replay_by_name(name: str) -> None:
    assert sum(f.stat().st_size for f in (SHIPPED / name).iterdir()) < 2e6
    model = open_trace(SHIPPED / name).header.model
    called = call(
        "run", "--trace", name, "--model", model, "--machine", "a6000", *SMOE, "--json",
        "--new-tokens", "3",
    )  # fmt: skip
    assert called.code == 0, called.err


def test_one_ships() -> None:
    assert trace_names()
