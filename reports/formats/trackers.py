"""Stored runs as runs of an experiment tracker: Weights & Biases, or MLflow.

Both trackers find a run of an earlier export by moebench's run id, so a second export changes it
instead of adding another one.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from moebench.reports.compare.conditions import conditions_of, lacks, place_of, title_of
from moebench.reports.sections.runs import fields
from moebench.results.document import Document, badge_of, dig, system_of
from moebench.results.metrics import METRICS
from moebench.substrate.errors import InputError, UsageError

#: Reports the number of exported runs and their total.
Step = Callable[[int, int], None]

#: The experiment in MLflow, unless MLFLOW_EXPERIMENT_NAME names another one; begins tags, too.
EXPERIMENT = "moebench"
#: Tags of MLflow: moebench's run id, and a hash of all that was exported.
RUN_ID, CONTENT = f"{EXPERIMENT}.run_id", f"{EXPERIMENT}.content"
#: Most parameters or tags of a request, and most characters of a key, a parameter and a tag.
BATCH, KEY, PARAMETER, TAG = 100, 250, 6000, 5000
#: Tags of Weights & Biases, which are texts without a key, and their most characters.
_WANDB_TAGS, WANDB_TAG = ("times", "badge", "system", "setting", "workload", "commit"), 64


class TrackedRun(NamedTuple):
    """A stored run in the terms of a tracker.

    Attributes:
        config: the run's options (``spec``), and the conditions of its comparisons as text.
        metrics: its figures by the names of `results.metrics`, hit ratios as such.
        tags: how it was made, as text.
        ended: seconds since the epoch; None if the document's time cannot be read.
        wall_s: elapsed time of the run itself.
    """

    run_id: str
    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    tags: dict[str, str]
    ended: float | None
    wall_s: float


def tracked(runs: Sequence[Document]) -> list[TrackedRun]:
    """Return the runs of a tracker; runs of other versions, which lack fields, are left out."""
    return [_tracked(run) for run in runs if not lacks(run)]


def _tracked(run: Document) -> TrackedRun:
    spec = {key: value for key, value in run["spec"].items() if value is not None}
    tags = {
        "run_id": run["run_id"], "times": "simulated" if run["simulated"] else "measured",
        "badge": badge_of(run), "system": system_of(spec), "setting": place_of(run).where,
        "workload": spec["workload"], "commit": dig(run, "provenance.commit"),
        "version": dig(run, "provenance.versions.moebench"),
        "created": run["provenance"]["created"],
    }  # fmt: skip
    values = {metric.key: metric.read(run) for metric in METRICS}
    return TrackedRun(
        run["run_id"], f"{title_of(run)} {tags['setting']} {tags['workload']}",
        {"spec": spec, "conditions": conditions_of(run)},
        {key: float(value) for key, value in values.items() if value is not None},
        {key: str(value) for key, value in tags.items() if value},
        _seconds(run["provenance"]["created"]),
        dig(run, "provenance.wall_s") or 0.0,
    )  # fmt: skip


def _seconds(created: str) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:  # a document that was edited
        return None


@contextmanager
def _in_one_line(option: str, value: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert a tracker's exception into an InputError that names the option and its value."""
    caught: tuple[type[Exception], ...] = (OSError, ImportError, *errors)
    try:
        yield
    except caught as error:
        (reason, *_) = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{option} {value}: {reason}") from error


# ----------------------------------------------------------------------------- Weights & Biases


def write_wandb(runs: Sequence[TrackedRun], project: str, step: Step) -> Path | None:
    """Export runs to a project of Weights & Biases, each under its own id.

    Args:
        project: ``PROJECT`` or ``ENTITY/PROJECT``.

    Returns:
        The folder that holds the runs until ``wandb sync``; None if they were sent.

    Raises:
        UsageError: the project has another form.
        InputError: the project cannot be written.
    """
    if re.fullmatch("([^/]+/)?[^/]+", project) is None:
        raise UsageError(f"--wandb {project}: expected PROJECT or ENTITY/PROJECT")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    entity, _, name = project.rpartition("/")
    # Only what is stored is sent: this process, its computer and its folder made none of the runs.
    settings = wandb.Settings(
        console="off", silent=True, host="moebench", save_code=False, disable_git=True,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip
    folder = None
    with _in_one_line("--wandb", project, wandb.errors.Error):
        for done, one in enumerate(runs):
            step(done, len(runs))
            shown = [one.tags.get(key, "") for key in _WANDB_TAGS]
            with wandb.init(
                project=name, entity=entity or None, id=one.run_id, resume="allow", name=one.name,
                config=one.config | {"moebench": one.tags}, settings=settings,
                tags=list(dict.fromkeys(tag[:WANDB_TAG] for tag in shown if tag)),
            ) as open_run:  # fmt: skip
                open_run.log(one.metrics, step=0)
                # A step that an earlier export logged is not changed by a second one.
                open_run.summary.update(one.metrics)
                folder = Path(open_run.dir).parents[1] if open_run.offline else None
        wandb.teardown()  # Its process may still be writing files of finished runs.
    step(len(runs), len(runs))
    return folder


# ----------------------------------------------------------------------------- MLflow


def write_mlflow(runs: Sequence[TrackedRun], uri: str, step: Step) -> int:
    """Export runs to an MLflow server or store; a run that is there with equal content stays.

    Args:
        uri: of the server (http), or of a database, as ``mlflow`` takes it.

    Returns:
        How many runs were added or changed.

    Raises InputError: the server or store cannot be written.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    import mlflow
    from mlflow.exceptions import MlflowException

    errors: list[type[Exception]] = [MlflowException]
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        pass  # only a database needs it, whose own import then fails with the package's name
    else:
        errors.append(SQLAlchemyError)
    changed = 0
    with _in_one_line("--mlflow", uri, *errors):
        client = mlflow.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        for done, one in enumerate(runs):
            step(done, len(runs))
            changed += _to_mlflow(client, experiment, one)
    step(len(runs), len(runs))
    return changed


def _to_mlflow(client: Any, experiment: str, one: TrackedRun) -> bool:
    """Write one run, and return whether it was not there with equal content."""
    from mlflow.entities import Metric, Param, RunTag

    text = json.dumps([one.config, one.metrics, one.tags], sort_keys=True)
    content = hashlib.sha256(text.encode()).hexdigest()[:16]
    found = client.search_runs([experiment], f"tags.`{RUN_ID}` = '{one.run_id}'", max_results=1)
    if found and found[0].data.tags.get(CONTENT) == content:
        return False
    now = time.time()
    ended = now if one.ended is None else one.ended
    run = (
        found[0]
        if found
        else client.create_run(
            experiment, int(1000 * (ended - one.wall_s)), {RUN_ID: one.run_id}, one.name
        )
    )
    # The newest value of a metric is the one that is shown.
    at = int(1000 * (now if found else ended))
    metrics = [Metric(_key(key), value, at, 0) for key, value in one.metrics.items()]
    # A parameter cannot be changed.
    params = {_key(key): text[:PARAMETER] for key, text in fields(one.config).items() if text}
    new = [Param(key, text) for key, text in params.items() if key not in run.data.params]
    tags = {f"{EXPERIMENT}.{key}": text for key, text in one.tags.items()}
    if "commit" in one.tags:
        tags["mlflow.source.git.commit"] = one.tags["commit"]
    run_id = run.info.run_id
    client.log_batch(run_id, metrics, (), [RunTag(key, text[:TAG]) for key, text in tags.items()])
    for first in range(0, len(new), BATCH):
        client.log_batch(run_id, (), new[first : first + BATCH])
    # Written last: a run whose export was interrupted is exported again.
    client.set_tag(run_id, CONTENT, content)
    client.set_terminated(run_id, "FINISHED", int(1000 * ended))
    return True


def _key(name: str) -> str:
    """Return a key of the characters that MLflow admits."""
    return re.sub(r"[^\w.: -]", "_", name, flags=re.ASCII)[:KEY]
