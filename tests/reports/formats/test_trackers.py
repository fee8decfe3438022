"""Exports to experiment trackers: the document's numbers, each run once, refusals in one line.

The trackers' own offline modes are read back: Weights & Biases' file of records, MLflow's database.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moebench.harness import extras
from moebench.reports.formats import trackers
from moebench.reports.formats.trackers import (
    TrackedRun,
    _key,
    _seconds,
    tracked,
    write_mlflow,
    write_wandb,
)
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


# ----------------------------------------------------------------------------- without the packages


def made(run_id: str = "abc", **of: Any) -> TrackedRun:
    given: dict[str, Any] = {
        "name": "smoe S3", "config": {"spec": {"system": "smoe", "prompts": 4, "none": None}},
        "metrics": {"tpot_ms": 1.5, "a/b": 2.0}, "tags": {"badge": "estimate", "commit": "c0ffee"},
        "ended": 1000.25, "wall_s": 10.0,
    }  # fmt: skip
    return TrackedRun(run_id=run_id, **(given | of))


class FakeClient:
    """A client of MLflow whose experiments and runs are lists; it notes what it is told."""

    experiments: dict[str, str]
    runs: list[Any]
    told: list[Any]

    def __init__(self, tracking_uri: str) -> None:
        self.told.append(("uri", tracking_uri))

    def get_experiment_by_name(self, name: str) -> Any:
        number = self.experiments.get(name)
        return None if number is None else SimpleNamespace(experiment_id=number)

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = "7"
        return "7"

    def search_runs(self, experiments: list[str], query: str, max_results: int) -> list[Any]:
        self.told.append(("search", experiments, query, max_results))
        return [one for one in self.runs if f"= '{one.data.tags[trackers.RUN_ID]}'" in query]

    def create_run(self, experiment: str, start: int, tags: dict[str, str], name: str) -> Any:
        self.told.append(("create", experiment, start, dict(tags), name))
        one = SimpleNamespace(
            info=SimpleNamespace(run_id=f"m{len(self.runs)}"),
            data=SimpleNamespace(tags=dict(tags), params={}),
        )
        self.runs.append(one)
        return one

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any = ()) -> None:
        self.told.append(("batch", run_id, list(metrics), list(params), list(tags)))
        (one,) = (one for one in self.runs if one.info.run_id == run_id)
        one.data.params.update(dict(params))

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        (one,) = (one for one in self.runs if one.info.run_id == run_id)
        one.data.tags[key] = value
        self.told.append(("tag", run_id, key))

    def set_terminated(self, run_id: str, status: str, at: int) -> None:
        self.told.append(("end", run_id, status, at))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    """Put a module in MLflow's place whose entities are tuples."""

    class Client(FakeClient):
        pass

    class MlflowException(Exception):
        pass

    Client.experiments, Client.runs, Client.told = {}, [], []

    def entity(*values: Any) -> tuple[Any, ...]:
        return values

    modules = {
        "mlflow": {"MlflowClient": Client},
        "mlflow.exceptions": {"MlflowException": MlflowException},
        "mlflow.entities": {"Metric": entity, "Param": entity, "RunTag": entity},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "sqlalchemy.exc", None)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(trackers, "time", SimpleNamespace(time=lambda: 5000.5))
    return Client


def told(client: type[FakeClient], what: str) -> list[Any]:
    return [one[1:] for one in client.told if one[0] == what]


def test_a_new_run_of_mlflow_ends_when_it_did_and_began_before(client: type[FakeClient]) -> None:
    steps: list[tuple[int, int]] = []
    one = made(config={"spec": {"system": "x" * 7000}, **{f"k{n}": n for n in range(205)}})
    assert write_mlflow([one], "uri", lambda *step: steps.append(step)) == 1
    assert steps == [(0, 1), (1, 1)]
    assert client.experiments == {"moebench": "7"}
    assert told(client, "uri") == [("uri",)]
    assert told(client, "search") == [(["7"], "tags.`moebench.run_id` = 'abc'", 1)]
    assert told(client, "create") == [("7", 990250, {"moebench.run_id": "abc"}, "smoe S3")]
    assert told(client, "end") == [("m0", "FINISHED", 1000250)]
    assert told(client, "tag") == [("m0", "moebench.content")]
    assert [one[0] for one in client.told[-2:]] == ["tag", "end"]
    first, *rest = told(client, "batch")
    assert first == (
        "m0", [("tpot_ms", 1.5, 1000250, 0), ("a_b", 2.0, 1000250, 0)], [],
        [("moebench.badge", "estimate"), ("moebench.commit", "c0ffee"),
         ("mlflow.source.git.commit", "c0ffee")],
    )  # fmt: skip
    assert [len(params) for _, _, params, _ in rest] == [100, 100, 6]
    assert all(metrics == tags == [] for _, metrics, _, tags in rest)
    params = dict(param for _, _, params, _ in rest for param in params)
    assert params["k0"] == "0"
    assert len(params["spec.system"]) == 6000
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["MLFLOW_LOGGING_LEVEL"] == "WARNING"


def test_a_changed_run_of_mlflow_gets_new_values_and_no_second_run(
    client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    client.experiments["mine"] = "9"
    both = [made("abc"), made("def", ended=None, tags={"badge": "y" * 9000})]
    assert write_mlflow(both, "uri", unseen) == 2
    assert client.experiments == {"mine": "9"}, "no experiment is added"
    assert told(client, "create")[1] == ("9", 4990500, {"moebench.run_id": "def"}, "smoe S3")
    assert told(client, "end")[1] == ("m1", "FINISHED", 5000500)
    assert told(client, "batch")[2][3] == [("moebench.badge", "y" * 5000)]
    assert write_mlflow(both, "uri", unseen) == 0, "both are there with equal content"

    client.told.clear()
    changed = made(metrics={"tpot_ms": 9.0}, config={"spec": {"system": "other", "alpha": 1}})
    assert write_mlflow([changed, both[1]], "uri", unseen) == 1
    assert told(client, "create") == []
    batches = told(client, "batch")
    assert batches[0][:3] == ("m0", [("tpot_ms", 9.0, 5000500, 0)], [])
    assert batches[1:] == [("m0", [], [("spec.alpha", "1")], [])], "a parameter cannot change"
    assert told(client, "end") == [("m0", "FINISHED", 1000250)]


def test_the_order_of_a_runs_fields_is_no_change(client: type[FakeClient]) -> None:
    one = made()
    assert write_mlflow([one], "uri", unseen) == 1
    turned = made(
        config={"spec": dict(reversed(one.config["spec"].items()))},
        metrics=dict(reversed(one.metrics.items())), tags=dict(reversed(one.tags.items())),
    )  # fmt: skip
    assert write_mlflow([turned], "uri", unseen) == 0
    for change in ({"metrics": {"tpot_ms": 1.25}}, {"tags": {"badge": "measured"}},
                   {"config": {"spec": {"system": "lru"}}}):  # fmt: skip
        assert write_mlflow([made(**change)], "uri", unseen) == 1
    assert len(client.runs) == 1


@pytest.mark.parametrize(
    ("raised", "reason"), [(OSError("no disk\nat all"), "no disk"), (OSError(" "), "OSError")]
)
def test_a_server_that_fails_is_named_in_one_line(
    client: type[FakeClient], monkeypatch: pytest.MonkeyPatch, raised: Exception, reason: str
) -> None:
    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(client, "get_experiment_by_name", fails)
    with pytest.raises(InputError) as found:
        write_mlflow([made()], "http://x", unseen)
    assert str(found.value) == f"--mlflow http://x: {reason}"
    raised = sys.modules["mlflow.exceptions"].MlflowException("refused\nlater")
    monkeypatch.setattr(client, "get_experiment_by_name", fails)
    with pytest.raises(InputError, match=r"--mlflow http://x: refused$"):
        write_mlflow([made()], "http://x", unseen)


class FakeWandb(ModuleType):
    """A module in the place of wandb that notes what it is told."""

    def __init__(self, folder: Path, offline: bool) -> None:
        super().__init__("wandb")
        self.told: list[Any] = []
        self.given: list[dict[str, Any]] = []
        self.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))
        self.Settings = lambda **settings: settings
        self.folder, self.offline = folder, offline

    @contextmanager
    def init(self, **given: Any) -> Iterator[Any]:
        self.given.append(given)
        yield SimpleNamespace(
            log=lambda metrics, step: self.told.append(("log", metrics, step)),
            summary=SimpleNamespace(update=lambda values: self.told.append(("summary", values))),
            dir=str(self.folder / "wandb" / "offline-run-1" / "files"), offline=self.offline,
        )  # fmt: skip
        self.told.append("end")

    def teardown(self) -> None:
        self.told.append("teardown")


@pytest.mark.parametrize("offline", [False, True])
def test_a_run_of_wandb_holds_what_is_stored_alone(
    offline: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb(tmp_path, offline)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    steps: list[tuple[int, int]] = []
    tags = {"times": "simulated", "badge": "simulated", "commit": "c" * 70, "created": "now"}
    runs = [made("abc", tags=tags), made("def")]
    found = write_wandb(runs, "me/moe", lambda *step: steps.append(step))
    assert found == (tmp_path / "wandb" if offline else None)
    assert steps == [(0, 2), (1, 2), (2, 2)]
    one, other = fake.given
    settings = one.pop("settings")
    assert one == {
        "project": "moe", "entity": "me", "id": "abc", "resume": "allow", "name": "smoe S3",
        "config": {**runs[0].config, "moebench": tags}, "tags": ["simulated", "c" * 64],
    }  # fmt: skip
    assert (other["id"], other["tags"]) == ("def", ["estimate", "c0ffee"])
    on = {"silent", "disable_git", "x_disable_stats", "x_disable_meta", "x_disable_machine_info"}
    assert {key for key, value in settings.items() if value is True} == on
    assert {key for key, value in settings.items() if value is False} == {
        "save_code", "x_save_requirements",
    }  # fmt: skip
    assert (settings["console"], settings["host"]) == ("off", "moebench")
    values = runs[0].metrics
    assert fake.told[:3] == [("log", values, 0), ("summary", values), "end"]
    assert fake.told[-1] == "teardown"
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_a_project_without_entity_is_the_accounts_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb(tmp_path, offline=True)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    write_wandb([made()], "moe", unseen)
    assert (fake.given[0]["project"], fake.given[0]["entity"]) == ("moe", None)

    def refuses(**_: object) -> None:
        raise fake.errors.Error("Invalid project name\nand more")

    monkeypatch.setattr(fake, "init", refuses)
    with pytest.raises(InputError) as found:
        write_wandb([made()], "moe", unseen)
    assert str(found.value) == "--wandb moe: Invalid project name"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("spec.alpha", "spec.alpha"), ("a b-c_d: 1", "a b-c_d: 1"), ("α=½", "___"),
        ("é/ü@(1)", "_____1_"), ("x" * 251, "x" * 250), ("", ""),
    ],
)  # fmt: skip
def test_keys_of_mlflow_are_ascii_and_at_most_250_characters(name: str, key: str) -> None:
    assert _key(name) == key


@pytest.mark.parametrize(
    ("created", "seconds"),
    [("1970-01-01T00:01:40+00:00", 100.0), ("1970-01-01T01:00:00+01:00", 0.0), ("soon", None)],
)
def test_times_of_creation_are_seconds_since_1970(created: str, seconds: float | None) -> None:
    assert _seconds(created) == seconds
