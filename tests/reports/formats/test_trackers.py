"""Exports to experiment trackers: the document's numbers, each run once, refusals in one line.

The trackers' own offline modes are read back: Weights & Biases' file of records, MLflow's database.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.harness import extras
from moebench.reports.formats import trackers
from moebench.reports.formats.trackers import TrackedRun, tracked, write_mlflow, write_wandb
from moebench.results.store import Store
from moebench.substrate.errors import InputError, UsageError
from tests.harness.commands import call, refused
from tests.reports.samples import HOSTILE, RUNS, measured_run, run, traced_run
from tests.results.documents import document


def unseen(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start in an empty folder, without a tracker's account or settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("WANDB_MODE", "offline"), ("WANDB_CONFIG_DIR", "wandb-config"),
        ("WANDB_ERROR_REPORTING", "false"), ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path


def store(*runs: dict[str, Any]) -> None:
    for one in runs:
        Store(Path(".moebench")).put(one)


# ----------------------------------------------------------------------------- what is exported


def test_a_tracked_run_has_the_documents_numbers_under_the_fields_names() -> None:
    (one,) = tracked([run(overrides={"evict": "lru"}, routing="model")])
    assert (one.run_id, one.name) == ("3fa9c04be712", "smoe evict=lru S3 gsm8k")
    assert one.metrics["tpot_ms"] == 61.23456
    assert one.metrics["ttft_ms"] == 912.75
    assert one.metrics["tokens_per_s"] == 13.42
    assert (one.metrics["hit_ratio"], one.metrics["hit_ratio_begun"]) == (0.4712, 0.6108)
    assert (one.metrics["kl"], one.metrics["score"]) == (0.0213, 40.62)
    assert "cache_ratio" not in one.metrics, "this is an option of the run"
    assert one.config["spec"]["cache_ratio"] == 0.25
    assert one.config["conditions"]["prompts"] == "32"
    assert one.tags == {
        "run_id": "3fa9c04be712", "times": "simulated", "badge": "estimate", "system": "smoe",
        "setting": "S3", "workload": "gsm8k", "commit": "0123456789abcdef", "version": "0.1.0",
        "created": "2026-01-01T12:00:00+00:00",
    }  # fmt: skip
    assert (one.ended, one.wall_s) == (1767268800.0, 41.7)


def test_a_figure_that_a_run_lacks_is_no_metric() -> None:
    replayed, measured = tracked([traced_run(), measured_run()])
    assert {"tpot_ms", "kl", "hit_ratio"}.isdisjoint(replayed.metrics)
    assert replayed.metrics["ttft_ms"] == 912.75
    assert (measured.tags["times"], measured.tags["badge"]) == ("measured", "measured")
    assert tracked([document("0ld")]) == []


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("option", "value", "module", "said"),
    [
        ("--wandb", "mine", "wandb", "wandb is not installed; type: pip install 'moebench[wandb]'"),
        (
            "--mlflow", "sqlite:///m.db", "mlflow",
            "mlflow-skinny is not installed; type: pip install 'moebench[mlflow]'",
        ),
    ],
)  # fmt: skip
def test_a_missing_package_is_one_line_before_anything_is_read(
    option: str, value: str, module: str, said: str, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    true = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else true(name))
    assert refused("report", option, value) == f"moebench: {option}: {said}"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("project", ["a/b/c", "a/", "/b"])
def test_a_project_of_another_form_is_refused(project: str) -> None:
    with pytest.raises(UsageError, match="expected PROJECT or ENTITY/PROJECT"):
        write_wandb([], project, unseen)


# ----------------------------------------------------------------------------- W & B


def records(file: Path) -> Iterator[Any]:
    """Yield the records of an offline run: LevelDB's log format behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    block = 32768
    while at + 7 <= len(content):
        if block - at % block < 7:  # too short for the head of a record
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def offline(folder: Path) -> list[dict[str, Any]]:
    """Return what each offline run of a folder would send."""
    found = []
    for file in sorted(folder.glob("offline-run-*/run-*.wandb")):
        kept: dict[str, Any] = {"config": {}, "summary": {}, "kinds": set()}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            kept["kinds"].add(kind)
            if kind == "run":
                kept |= {
                    "id": record.run.run_id, "project": record.run.project,
                    "entity": record.run.entity, "tags": list(record.run.tags),
                    "name": record.run.display_name, "host": record.run.host,
                }  # fmt: skip
                kept["config"] |= {one.key or one.nested_key[0]: json.loads(one.value_json)
                                   for one in record.run.config.update}  # fmt: skip
            elif kind == "summary":
                kept["summary"] |= {one.key or one.nested_key[0]: json.loads(one.value_json)
                                    for one in record.summary.update}  # fmt: skip
        found.append(kept)
    return found


def test_wandb_gets_each_run_once_under_its_own_id() -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: make test-trackers")
    store(*RUNS, document("0ld"))
    called = call("report", "--wandb", "me/moe")
    assert (called.code, called.out) == (0, "")
    assert (
        "3 runs in me/moe of Weights & Biases; send them: wandb sync wandb/offline-run-*\n"
        in called.err
    )
    assert "note: 1 of 4 runs lack fields and were not exported" in called.err
    first = {one["id"]: one for one in offline(Path("wandb"))}
    assert first.keys() == {one["run_id"] for one in RUNS}
    one = first["3fa9c04be712"]
    assert (one["entity"], one["project"], one["name"]) == ("me", "moe", "smoe S3 gsm8k")
    assert set(one["tags"]) == {"simulated", "estimate", "smoe", "S3", "gsm8k", "0123456789abcdef"}
    assert one["host"] == "moebench", "not this computer's name"
    assert one["config"]["spec"]["system"] == "smoe"
    assert one["config"]["moebench"]["run_id"] == "3fa9c04be712"
    (expected,) = tracked([run()])
    assert {key: one["summary"][key] for key in expected.metrics} == expected.metrics
    assert one["kinds"].isdisjoint({"environment", "stats", "output", "output_raw"})

    assert call("report", "--wandb", "me/moe").code == 0
    again = offline(Path("wandb"))
    assert len(again) == 6, "offline, each export is a folder"
    assert {one["id"] for one in again} == first.keys(), "which the server joins by id"


# ----------------------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow database with its tables, which take a second to create."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: make test-trackers")
    pytest.importorskip("alembic", reason="alembic is not installed: make test-trackers")
    file = tmp_path_factory.mktemp("mlflow") / "m.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{file}").create_experiment("other")
    return file


@pytest.fixture
def uri(database: Path, here: Path) -> str:
    copied = here / "m.db"
    copied.write_bytes(database.read_bytes())
    return f"sqlite:///{copied}"


def in_mlflow(uri: str, experiment: str = "moebench") -> dict[str, Any]:
    """Return MLflow's runs of an experiment by moebench's run id, each once."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    runs = {one.data.tags["moebench.run_id"]: one for one in client.search_runs([number])}
    assert len(runs) == len(client.search_runs([number]))
    return runs


def test_mlflow_gets_each_run_once_however_often_it_is_exported(uri: str) -> None:
    store(*RUNS)
    called = call("report", "--mlflow", uri)
    assert (called.code, called.out) == (0, "")
    assert f"3 runs in {uri}, 3 of them new or changed" in called.err
    found = in_mlflow(uri)
    assert found.keys() == {one["run_id"] for one in RUNS}
    one = found["3fa9c04be712"]
    (expected,) = tracked([run()])
    assert one.data.metrics == expected.metrics
    assert one.data.params["spec.system"] == "smoe"
    assert one.data.params["spec.options.evict"] == "lru"
    assert one.data.params["conditions.prompts"] == "32"
    assert one.data.tags["moebench.times"] == "simulated"
    assert one.data.tags["mlflow.source.git.commit"] == "0123456789abcdef"
    assert (one.info.status, one.info.run_name) == ("FINISHED", "smoe S3 gsm8k")
    assert (one.info.start_time, one.info.end_time) == (1767268758300, 1767268800000)

    again = call("report", "--mlflow", uri)
    assert "3 runs in" in again.err
    assert ", 0 of them new or changed" in again.err
    assert {key: one.info.run_id for key, one in in_mlflow(uri).items()} == {
        key: one.info.run_id for key, one in found.items()
    }


def test_a_run_that_changed_changes_its_run_in_mlflow(uri: str) -> None:
    slow, fast = run(), run()
    fast["metrics"]["tpot_ms"]["mean"] = 1.5
    fast["spec"]["options"]["more"] = "x"
    assert write_mlflow(tracked([slow]), uri, unseen) == 1
    assert write_mlflow(tracked([fast]), uri, unseen) == 1
    (one,) = in_mlflow(uri).values()
    assert one.data.metrics["tpot_ms"] == 1.5, "the newest, though the smaller one"
    assert one.data.params["spec.options.more"] == "x"


def test_an_interrupted_export_is_finished_by_the_next(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            write_mlflow(tracked([run()]), uri, unseen)
    assert [one.data.metrics for one in in_mlflow(uri).values()] == [{}]
    assert write_mlflow(tracked([run()]), uri, unseen) == 1
    (one,) = in_mlflow(uri).values()
    assert one.data.metrics["tpot_ms"] == 61.23456


def test_the_experiment_is_the_one_that_mlflows_variable_names(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    write_mlflow(tracked([run()]), uri, unseen)
    assert len(in_mlflow(uri, "other")) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sqlite:///text.md", "file is not a database"),
        ("sqlite:////proc/x/m.db", "No such file or directory"),
        ("ftp://x", "unsupported URI 'ftp://x'"),
        ("http://127.0.0.1:9", "failed with exception"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_line(uri: str, given: str, said: str) -> None:
    store(run())
    Path("text.md").write_text("no database at all, but a text of more than a hundred bytes\n" * 3)
    line = refused_after_progress("report", "--mlflow", given)
    assert line.startswith(f"moebench: --mlflow {given}: ")
    assert said in line


def refused_after_progress(*arguments: str) -> str:
    called = call(*arguments)
    assert (called.code, called.out) == (2, "")
    assert "Traceback" not in called.err
    return called.err.splitlines()[-1]


# ----------------------------------------------------------------------------- texts from anybody


@pytest.fixture
def hostile() -> list[TrackedRun]:
    """Return runs whose texts are hostile, as a store reads them, or extreme."""
    texts = [HOSTILE, "", "x" * 9000, "a/../b", "π日本🧮", r"\x1b[2J", "' OR 1=1 --"]
    runs = []
    for n, text in enumerate(texts):
        one = run(f"{n:012x}", system=text, setting=text, overrides={text: text})
        one["spec"]["options"] = {f"{text}{n}": text for n in range(120)}
        one["badge"] = one["provenance"]["commit"] = one["provenance"]["created"] = text
        runs.append(one)
    return tracked(runs)


def test_hostile_texts_reach_mlflow_as_text(uri: str, hostile: list[TrackedRun]) -> None:
    steps: list[tuple[int, int]] = []
    assert write_mlflow(hostile, uri, lambda *step: steps.append(step)) == len(hostile)
    assert steps == [(done, len(hostile)) for done in range(len(hostile) + 1)]
    assert len(in_mlflow(uri)) == len(hostile)
    assert write_mlflow(hostile, uri, unseen) == 0


def test_hostile_texts_reach_wandb_as_text(hostile: list[TrackedRun]) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: make test-trackers")
    steps: list[tuple[int, int]] = []
    write_wandb(hostile, "p", lambda *step: steps.append(step))
    assert steps == [(done, len(hostile)) for done in range(len(hostile) + 1)]
    found = offline(Path("wandb"))
    assert [one["id"] for one in found] == [one.run_id for one in hostile]
    assert all(0 < len(tag) <= trackers.WANDB_TAG for one in found for tag in one["tags"])


def test_a_project_that_wandb_refuses_is_one_line() -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: make test-trackers")
    with pytest.raises(InputError, match="--wandb a#b: Invalid project name"):
        write_wandb(tracked([run()]), "a#b", unseen)
