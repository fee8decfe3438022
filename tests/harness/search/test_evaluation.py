"""Runs of a search: each computed once, taken from the store, and refused with the reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.search import evaluation
from moebench.harness.search.evaluation import Evaluator, Measured, Refused, paired
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results.intervals import ratio_interval
from moebench.results.samples import TokenSample
from moebench.substrate.errors import UsageError

SAMPLES = [TokenSample(0, 0, 99, None), TokenSample(0, 1, 5, None), TokenSample(0, 2, 7, None)]


def spec(prompts: int) -> Any:
    return resolve(None, system="gpu-only", setting="S3", workload="arithmetic", prompts=prompts,
                   allow_overcommit=True)  # fmt: skip


def document(**more: Any) -> dict[str, Any]:
    return {"run_id": "r", "metrics": {"tpot_ms": {"mean": 2.5}}, **more}


class Planned:
    """Names cells by their number of prompts."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir

    def cell_id(self, one: Any) -> str:
        if one.prompts == 13:
            raise UsageError("no such run")
        return f"c{one.prompts}"

    def problem(self, one: Any) -> str:
        return f"problem of {one.prompts}"


class Store:
    """Has the run of one cell, and its samples."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def finished(self, cells: list[str]) -> dict[str, str]:
        return {cell: f"run {cell}" for cell in cells if cell in ("c7", "c8", "c9")}

    def reusable(self, run_id: str) -> dict[str, Any] | None:
        return None if run_id == "run c8" else document(run_id=run_id)


class Workers:
    """Workers that finish all cells but that of three prompts and of four, which fail."""

    size = 1

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.released = 0
        self.closed = False

    def send(self, worker: int, job: Job) -> None:
        self.sent.append(job.cell_id)

    def wait(self) -> list[tuple[int, Any]]:
        failed = {"c3": Failed("not here", None), "c4": Failed("broke", "a traceback")}
        return [(0, failed.get(self.sent[-1], Finished(document(), SAMPLES, [])))]

    def release(self, worker: int) -> None:
        self.released += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An evaluator, its workers, and the cells that were kept."""
    kept: list[Any] = []
    monkeypatch.setattr(evaluation, "Planned", Planned)
    monkeypatch.setattr(evaluation, "Store", Store)
    monkeypatch.setattr(evaluation, "group_of", lambda one: "g")
    monkeypatch.setattr(
        evaluation, "read_samples",
        lambda directory, run_id: None if run_id == "run c9" else SAMPLES,
    )  # fmt: skip
    monkeypatch.setattr(evaluation, "keep", lambda store, job, outcome: kept.append(job.cell_id))
    workers = Workers()
    evaluator = Evaluator(Path("data"), tmp_path, workers)
    return SimpleNamespace(evaluator=evaluator, workers=workers, kept=kept)


def test_each_run_is_computed_once_and_what_is_refused_stays_so(made: Any) -> None:
    steps: list[tuple[int, int]] = []
    refused = Refused("before")
    found = made.evaluator.run(
        [spec(1), spec(3), refused, spec(1), spec(4), spec(13), spec(2)],
        lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert made.workers.sent == ["c1", "c3", "c4", "c2"]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found[0] is found[3]
    assert found[0].token_ns.tolist() == [5.0, 7.0], "the first token is no decoded one"
    assert found[1] == Refused("not here", broken=False)
    assert found[2] is refused
    assert found[4] == Refused("broke", broken=True)
    assert found[5] == Refused("no such run")
    assert made.kept == ["c1", "c2"]
    assert made.evaluator.run([spec(3), spec(1)]) == [found[1], found[0]]
    assert len(made.workers.sent) == 4
    assert made.workers.released == 0, "they are kept for the next trials"
    assert made.evaluator.problem(spec(5)) == "problem of 5"
    made.evaluator._workers.close()
    assert made.workers.closed


def test_a_stored_run_needs_the_time_of_each_token(made: Any) -> None:
    seven, eight, nine = made.evaluator.run([spec(7), spec(8), spec(9)])
    assert made.workers.sent == ["c8", "c9"], "one without a run that counts, one without times"
    assert seven.document["run_id"] == "run c7"
    assert seven.token_ns.tolist() == [5.0, 7.0]
    assert eight.run_id == nine.run_id == "r"


def test_figures_of_a_run() -> None:
    bare = Measured(document(), np.array([1.0]))
    assert (bare.tpot_ms, bare.kl, bare.kl_interval) == (2.5, None, None)
    items = {"kl": [0.2, 0.6], "decoded": [2, 4]}
    lossy = Measured(document(accuracy={"kl": 0.5, "items": items}), np.array([1.0]))
    assert (lossy.kl, lossy.kl_interval) == (0.5, ratio_interval([0.2, 0.6], [2, 4]))
    for accuracy in ({"kl": None, "items": None}, {"items": {"kl": [0.1, None]}}):
        found = Measured(document(accuracy=accuracy), np.array([1.0]))
        assert (found.kl, found.kl_interval) == (None, None)


def test_differences_are_of_blocks_of_eight_tokens() -> None:
    """Blocks of eight, eight and one token differ by 1, 3 and 8 ms: 4 in the mean."""
    gaps = np.repeat([1e6, 3e6, 8e6], (8, 8, 1))
    one = [Measured(document(), 10e6 + gaps)]
    other = [Measured(document(), np.full(17, 10e6))]
    found = paired(one, other)
    assert found.mean_ms == pytest.approx(4.0)
    assert found.error_ms == pytest.approx(np.sqrt((9 + 1 + 16) / 2 / 3))
    assert not found.clear
    assert paired(other, one).mean_ms == pytest.approx(-4.0)
    short = paired([Measured(document(), np.array([2e6]))], [Measured(document(), np.array([1e6]))])
    assert (short.mean_ms, short.error_ms, short.clear) == (1.0, float("inf"), False)
    assert evaluation.Difference(2.0, 0.9).clear
    assert evaluation.Difference(-2.0, 0.9).clear
    assert not evaluation.Difference(2.0, 1.0).clear
    with pytest.raises(ValueError, match="different lengths"):
        paired(one, [Measured(document(), np.ones(16))])
