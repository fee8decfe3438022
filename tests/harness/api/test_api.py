"""The Python interface against the commands, on tiny models."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import moebench as mb
from moebench.harness.api.compare import Compared, Pairs
from moebench.harness.api.options import Options
from moebench.results.metrics import METRICS
from moebench.results.spec import OPTIONS
from moebench.substrate.errors import MoeBenchError, UnknownNameError, UsageError
from moebench.systems.smoe import SMoE
from tests.harness.commands import call, run

pytestmark = pytest.mark.usefixtures("tiny_models")

SMALL: dict[str, Any] = {
    "setting": "S3", "workload": "arithmetic", "prompts": 2, "new_tokens": 4,
}  # fmt: skip


def test_options_are_those_of_a_run() -> None:
    names = {o.typed if o.former or o.plain is dict else o.name for o in OPTIONS.values()}
    assert set(get_type_hints(Options)) == names - {"system"}


def test_a_run_is_the_commands_run() -> None:
    found = mb.run("smoe", **SMALL, alpha=0.3)
    (document,) = found
    assert document == run("smoe", "--alpha", "0.3", "--prompts", "2", "--new-tokens", "4")
    (row,) = found.frame().to_dict("records")
    assert row["run_id"] == document["run_id"]
    assert (row["system"], row["setting"]) == ("smoe", "S3")
    assert row["tpot_ms"] == document["metrics"]["tpot_ms"]["mean"]
    assert row["hit_ratio"] == document["metrics"]["cache_ratio"]
    assert row["cache_ratio"] == document["spec"]["cache_ratio"]
    assert row["commit"] == document["provenance"]["commit"]
    assert row["tpot_low_ms"] == document["interval"]["tpot_ms"]["low"]
    # A figure has no name of a spec's field, so that no column replaces another.
    assert not {metric.key for metric in METRICS} & set(mb.RunSpec.model_fields)


def test_samples_are_every_tokens_times() -> None:
    found = mb.run("moe-ondemand", **SMALL)
    frame = found.samples()
    assert len(frame) == 2 * 4
    mean = frame[frame.step > 0].ms.mean()
    assert mean == pytest.approx(found[0]["metrics"]["tpot_ms"]["mean"], abs=1e-5)


def test_seeds_are_runs_of_their_own() -> None:
    found = mb.run("moe-ondemand", **SMALL, seed=3, seeds=2)
    assert [run["spec"]["seed"] for run in found] == [3, 4]
    assert all(run.get("interval") is None for run in found)
    assert len(found[:1]) == 1


def test_a_stored_run_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = mb.run("moe-ondemand", **SMALL)
    from moebench.harness import one_run

    def never(*given: object) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr(one_run, "run", never)
    assert mb.run("moe-ondemand", **SMALL).documents == first.documents
    with pytest.raises(AssertionError, match="again"):
        mb.run("moe-ondemand", **SMALL, force=True)


@pytest.mark.slow
def test_a_sweep_returns_its_runs_and_what_is_not_possible() -> None:
    found = mb.sweep(system=["moe-ondemand", SMoE, "belady"], **SMALL, batch=[1, 2], jobs=0)
    ran = [(run["spec"]["system"], run["spec"]["batch"]) for run in found]
    assert sorted(ran) == [("moe-ondemand", 1), ("moe-ondemand", 2), ("smoe", 1), ("smoe", 2)]
    assert {one.spec["system"] for one in found.failures} == {"belady"}
    assert all(one.impossible and "--routing drawn" in one.error for one in found.failures)
    tables = found.compare()
    frame = tables.frame()
    assert len(frame) == 4
    assert set(frame["tpot_ms"]) == {run["metrics"]["tpot_ms"]["mean"] for run in found}
    assert tables.documents() == call("compare", "--json").json


def test_a_sweep_takes_files_and_their_content(tmp_path: Path) -> None:
    plan = {"common": SMALL, "product": {"system": ["moe-ondemand"], "capacity": [0.1, 0.2]}}
    found = mb.sweep(plan, jobs=0)
    assert not found.failures
    assert [run["spec"]["cache_ratio"] for run in found] == [3 / 32, 6 / 32]
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps(plan))
    assert mb.sweep(file, jobs=0).documents == found.documents


def test_two_systems_are_compared_as_a_pair() -> None:
    mb.sweep(system=["moe-ondemand", "smoe"], **SMALL, jobs=0)
    every = mb.compare(setting="S3", batch=1)
    assert isinstance(every, Compared)
    pair = mb.compare("moe-ondemand", "smoe")
    assert isinstance(pair, Pairs)
    assert pair.documents() == call("compare", "moe-ondemand", "smoe", "--json").json
    frame = pair.frame()
    assert next(iter(frame.figure)) == "TPOT (ms)"
    assert ((frame.low <= frame.value) & (frame.value <= frame.high)).all()


@pytest.mark.slow
def test_a_trace_is_recorded_and_replayed(tmp_path: Path) -> None:
    live = mb.run("moe-ondemand", **SMALL)
    trace = mb.trace(tmp_path / "t", **SMALL, scores="float32")
    assert len(trace.sequences) == 2
    (replayed,) = mb.run("moe-ondemand", setting="S3", trace=tmp_path / "t")
    assert replayed["metrics"]["tpot_ms"] == live[0]["metrics"]["tpot_ms"]
    with pytest.raises(UsageError, match="exists"):
        mb.trace(tmp_path / "t", **SMALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_of_api.py").write_text(
        "from moebench.systems.smoe import SMoE\n\n\nclass Mine(SMoE):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_of_api  # type: ignore[import-not-found]

    yield own_of_api.Mine
    sys.modules.pop("own_of_api")


def test_a_class_of_a_module_is_a_system(mine: Any) -> None:
    (document,) = mb.run(mine, **SMALL)
    assert document["spec"]["system"] == "own_of_api:Mine"


class Local(SMoE):
    """As in a notebook."""


Local.__module__ = "__main__"


@pytest.mark.parametrize(
    ("system", "options", "said"),
    [
        (Local, {}, "Local: a class of a notebook"),
        (int, {}, "allowed: a name, or a class derived from System"),
        ("nothing", {}, "nothing"),
        ("smoe", {"batch": 0}, "batch"),
        ("smoe", {"batch": "many"}, "batch"),
        ("smoe", {"colour": "red"}, "colour"),
        ("smoe", {"capacity": 0.5, "cache_ratio": 0.5}, "capacity and cache_ratio are one field"),
        ("smoe", {"set": {"evict": object()}}, "allowed: a value, or a list"),
        ("smoe", {"trace": "nowhere"}, "a trace has its own"),
        ("smoe", {"seeds": 2, "routing": "nowhere"}, "nowhere"),
        ("smoe", {"data_dir": "nowhere"}, "no such folder"),
    ],
)
def test_wrong_input_is_said_in_one_line(system: Any, options: Any, said: str) -> None:
    with pytest.raises(MoeBenchError) as error:
        mb.run(system, **{**SMALL, **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path(".moebench").exists()


def test_sweeps_and_comparisons_refuse_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="nothing is given"):
        mb.sweep()
    with pytest.raises(UsageError, match="a plan and system"):
        mb.sweep({"product": {}}, system="smoe")
    with pytest.raises(UnknownNameError, match="colour"):
        mb.sweep(system="smoe", colour=["red"])
    with pytest.raises(UsageError, match="two runs or two systems"):
        mb.compare("smoe")
    with pytest.raises(UsageError, match="no such runs"):
        mb.compare()


def test_without_pandas_a_frame_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mb.run("moe-ondemand", **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install"):
        found.frame()


@pytest.mark.slow
def test_worker_processes_run_a_sweep_of_a_script(tmp_path: Path) -> None:
    """Processes of a script that is guarded as Python asks for."""
    script = tmp_path / "script.py"
    script.write_text(
        "import moebench as mb\n\n"
        "if __name__ == '__main__':\n"
        "    found = mb.sweep(system=['moe-ondemand', 'gpu-only'], setting='S3', routing='drawn',\n"
        "                     prompts=1, new_tokens=2, jobs=2)\n"
        "    print(len(found), len(found.failures))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran, failed = map(int, done.stdout.split())
    assert ran + failed == 2
    assert ran >= 1
