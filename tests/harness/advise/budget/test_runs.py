"""Figures of measured runs, the search of α among them, and warnings about scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.advise.budget import runs
from moebench.harness.advise.budget.choose import Candidate, Demand
from moebench.harness.advise.budget.runs import ALPHAS, _floor
from moebench.harness.guard.accuracy_table import scoring_of
from moebench.results import intervals
from moebench.results.samples import TokenSample
from moebench.substrate.errors import UsageError
from moebench.systems.registry import SYSTEMS
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, workload, workload_names


@pytest.mark.parametrize(
    ("score", "stderr", "chance", "warned"),
    [
        (44.3, 8.0, 25.0, True),  # guessing has a standard error of 9.68
        (44.4, 8.0, 25.0, False),
        (0.0, 0.0, None, True),
        (20.0, 9.0, None, False),
        (None, None, None, False),
    ],
)
def test_a_score_within_two_standard_errors_of_chance_is_a_floor(
    score: float | None, stderr: float | None, chance: float | None, warned: bool
) -> None:
    found = {"score": score, "stderr": stderr, "chance": chance, "n": 20, "metric": "choice"}
    notes = _floor({"spec": {"workload": "mmlu"}, "accuracy": found})
    assert len(notes) == warned
    if warned:
        assert (
            f"scores {score:.1f} % on mmlu, by chance it would be {chance or 0:.1f} %" in notes[0]
        )


# ----------------------------------------------------------------------------- figures of runs


def document(system: str = "smoe", alpha: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "run_id": "0" * 16, "lossless": alpha is None, "simulated": True, "badge": "estimate",
        "spec": {"system": system, "alpha": alpha, "prompts": 3},
        "metrics": {"tpot_ms": {"mean": 20.0}}, **more,
    }  # fmt: skip


def test_times_are_of_the_systems_alphas() -> None:
    found = [document("smoe", 0.0), document("smoe", 0.3), document("daop"), document("x", 0.3)]
    found[1]["metrics"] = {"tpot_ms": {"mean": 15.0}}
    assert runs._times(found, "smoe") == {0.0: 20.0, 0.3: 15.0}
    assert runs._times(found, "daop") == {}
    assert runs._lossy(found) == ["smoe", "x"]
    assert runs._reference(found) == found[2]
    assert runs._reference(found[:2]) is None


def test_alphas_that_are_measured_first_are_those_of_smoes_table() -> None:
    """From exact routing to 0.6, where Table IV ends, a tenth apart."""
    assert pytest.approx([tenth / 10 for tenth in range(7)]) == runs.ALPHAS
    assert runs.ALPHAS[0] == 0.0, "losses are against exact routing"


def test_the_smallest_alpha_in_budget_is_chosen() -> None:
    measured = {0.6: 10.0, 0.2: 20.0, 0.0: 30.0}
    assert runs._in_budget(measured, 20.0) == 0.2
    assert runs._in_budget(measured, 19.9) == 0.6
    assert runs._in_budget(measured, 9.9) is None


def test_a_mean_time_has_an_interval_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two and of one decoded token; the first token of a batch is not decoded."""
    samples = [TokenSample(0, 0, 99_000_000, None), TokenSample(0, 1, 10_000_000, None),
               TokenSample(0, 2, 20_000_000, None), TokenSample(1, 0, 99_000_000, None),
               TokenSample(1, 1, 60_000_000, None)]  # fmt: skip
    monkeypatch.setattr(runs, "read_samples", lambda directory, run_id: samples)
    found = runs.tpot_of(Path("s"), document())
    assert (found.value, found.n) == (pytest.approx(30.0), 2)
    assert found == intervals.ratio([(30.0, 2.0), (60.0, 1.0)])
    monkeypatch.setattr(runs, "read_samples", lambda directory, run_id: None)
    assert runs.tpot_of(Path("s"), document()) == (20.0, None, None, 3)


def accuracy(value: list[float], kl: list[Any], agreed: list[int]) -> dict[str, Any]:
    return document(
        accuracy={"items": {"value": value, "kl": kl, "decoded": [2, 4], "agreed": agreed}}
    )


def test_losses_are_of_scores_of_kl_or_of_tokens_that_differ() -> None:
    exact = accuracy([1.0, 1.0], [0.0, 0.0], [2, 4])
    lossy = accuracy([1.0, 0.0], [0.3, 0.9], [1, 4])
    score = runs._loss(lossy, exact, "score")
    assert score is not None
    assert score.value == pytest.approx(50.0)
    assert runs._loss(lossy, None, "score") is None
    kl = runs._loss(lossy, None, "kl")
    assert kl is not None
    assert kl.value == pytest.approx(1.2 / 6)
    unlike = runs._loss(lossy, exact, "agreement")
    assert unlike is not None
    assert unlike.value == pytest.approx(100 / 6)
    assert runs._loss(accuracy([1.0, 1.0], [0.3, None], [1, 4]), None, "kl") is None


def test_systems_that_need_the_future_or_run_by_themselves_are_not_asked() -> None:
    found = runs.systems_for([])
    assert found == sorted(found)
    assert {"smoe", "moe-ondemand"} <= {*found} < {*SYSTEMS}
    assert "belady" not in found
    assert runs.systems_for(["belady", "smoe"]) == ["belady", "smoe"]
    with pytest.raises(UsageError, match="--systems native-llamacpp: a package that runs by"):
        runs.systems_for(["smoe", "native-llamacpp"])


def test_only_scores_need_a_scoring() -> None:
    assert runs.scoring_for("kl", "gsm8k") is None
    assert runs.scoring_for("agreement", None) is None
    assert runs.scoring_for("score", "gsm8k") == scoring_of(workload("gsm8k"))
    assert runs.scoring_for("score", None) == scoring_of(workload(DEFAULT_WORKLOAD))
    unscored = next(name for name in workload_names() if not workload(name).scored)
    with pytest.raises(UsageError, match=f"--by score: {unscored} has no reference answers"):
        runs.scoring_for("score", unscored)


# ----------------------------------------------------------------------------- the search


class Measured:
    """Runs whose times are a function of α, without running anything."""

    def __init__(self, times: Callable[[float], float], fails: bool = False) -> None:
        self.documents: dict[str, Any] = {}
        self.asked: dict[str, str] = {}
        self.calls: list[tuple[list[str], list[float]]] = []
        self.left_out: dict[str, str] = {}
        self.missing = ["smoe at α 0.5"]
        self.directory = Path("s")
        self._times, self._fails = times, fails

    def of(self, systems: list[str], alphas: list[float], finished: Any) -> None:
        self.calls.append((systems, list(alphas)))
        if self._fails and len(self.calls) > 1:
            return
        for alpha in alphas:
            one = document("smoe", alpha, accuracy={"items": {}})
            one["metrics"] = {"tpot_ms": {"mean": self._times(alpha)}}
            self.documents[f"{alpha}"] = one
            self.asked[f"{alpha}"] = f"smoe at α {alpha}"
            finished(one)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates whose loss is their α."""

    def candidate(directory: Path, one: Any, reference: Any, by: Any) -> Candidate:
        alpha = one["spec"]["alpha"]
        tpot = one["metrics"]["tpot_ms"]["mean"]
        loss = intervals.Estimate(alpha, None, None, 1)
        return Candidate(
            "smoe", alpha, intervals.Estimate(tpot, None, None, 1), loss, False, "r", "b"
        )

    monkeypatch.setattr(runs, "_candidate", candidate)


@pytest.mark.usefixtures("plain")
def test_the_alpha_that_is_predicted_in_budget_is_measured_and_ranked() -> None:
    made: Any = Measured(lambda alpha: 100 - 100 * alpha)
    told: list[float | None] = []
    found = runs.advise(
        made, ["smoe"], (0.0, 0.3, 0.6), Demand(65.5, None), "kl",
        lambda one, ranking: told.append(one.alpha),
    )  # fmt: skip
    assert made.calls == [(["smoe"], [0.0, 0.3, 0.6]), (["smoe"], [0.35])]
    assert told == [0.0, 0.3, 0.6, 0.35]
    assert [one.alpha for one in found.ranking.meeting] == [0.35]
    assert found.measured == {"smoe": pytest.approx({0.0: 100, 0.3: 70, 0.6: 40, 0.35: 65})}
    fitted = found.fits["smoe"]
    assert fitted is not None
    assert fitted.points == 4
    assert (found.interrupted, found.missing, found.notes) == (False, [], [])


@pytest.mark.usefixtures("plain")
def test_a_search_ends_after_five_tries_or_one_that_fails() -> None:
    # Each measurement of an α that was predicted in budget is over it.
    measured = {0.0: 100.0, 0.3: 70.0, 0.6: 40.0}
    made: Any = Measured(lambda alpha: measured.get(alpha, 66.0))
    runs.advise(made, ["smoe"], list(measured), Demand(65.5, None), "kl")
    assert len(made.calls) == 1 + runs.CONFIRMATIONS
    failing: Any = Measured(lambda alpha: measured.get(alpha, 66.0), fails=True)
    runs.advise(failing, ["smoe"], list(measured), Demand(65.5, None), "kl")
    assert len(failing.calls) == 2
    no_budget: Any = Measured(lambda alpha: 100 - 100 * alpha)
    runs.advise(no_budget, ["smoe"], list(measured), Demand(None, 0.4), "kl")
    assert len(no_budget.calls) == 1


@pytest.mark.usefixtures("plain")
def test_an_interruption_ranks_what_was_finished() -> None:
    made: Any = Measured(lambda alpha: 100 - 100 * alpha)

    def interrupt(one: Candidate, ranking: Any) -> None:
        if one.alpha == 0.3:
            raise KeyboardInterrupt

    found = runs.advise(made, ["smoe"], (0.0, 0.3, 0.6), Demand(75, None), "score", interrupt)
    assert found.interrupted
    assert found.missing == ["smoe at α 0.5"]
    assert [one.alpha for one in found.ranking.meeting] == [0.3]
    nothing: Any = Measured(lambda alpha: 1.0)
    nothing.of = lambda *given: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        runs.advise(nothing, ["smoe"], (0.0,), Demand(75, None), "kl")
    whole: Any = Measured(lambda alpha: 1.0)
    with pytest.raises(UsageError, match="--by score: no lossless system was run to compare"):
        runs.advise(whole, ["smoe"], (0.3,), Demand(75, None), "score")


def test_cells_that_neither_finished_nor_failed_are_missing() -> None:
    made = runs.Runs({}, None, None, Path("s"), 0, asked={"a": "A", "b": "B", "c": "C"})
    made.documents["a"] = {}
    made.failed.add("b")
    assert made.missing == ["C"]


def test_few_texts_are_for_systems_that_are_trained() -> None:
    made = runs.Runs({}, 16, None, Path("s"), 0)
    assert made._shown("daop") == {"system": "daop", "calibrate_texts": 16}
    assert made._shown("moe-ondemand") == "moe-ondemand"
    assert runs.Runs({}, None, None, Path("s"), 0)._shown("daop") == "daop"


def test_the_first_values_of_alpha_are_those_of_smoes_table_that_help_names():
    assert [round(10 * alpha, 6) for alpha in ALPHAS] == [*range(7)]
