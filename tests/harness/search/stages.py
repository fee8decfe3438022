"""Made-up trials and runs for tests of a search's stages."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from moebench.harness.search.evaluation import Measured, Refused
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place, Search
from moebench.harness.search.study import SETS, STOPPED, SYSTEM, Asked, Told
from moebench.results.spec import RunSpec

S1 = Place(question=Question(name="S1", given={"setting": "S1"}), seeds=Seeds((0, 1), 2))
S3 = Place(question=Question(name="S3", given={"setting": "S3"}), seeds=Seeds((0, 1), 2))

#: Ms a token and KL of a run, or why it cannot be.
Says = Callable[[RunSpec], tuple[float, float] | str]


class Runs:
    """An evaluator whose runs take what ``says`` says, with noise of their prompts."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.ran: list[RunSpec] = []

    def run(self, specs: Sequence[RunSpec | Refused], progress: Any = None) -> list[Any]:
        return [spec if isinstance(spec, Refused) else self._one(spec) for spec in specs]

    def problem(self, spec: RunSpec) -> str | None:
        return None

    def _one(self, spec: RunSpec) -> Measured | Refused:
        self.ran.append(spec)
        said = self.says(spec)
        if isinstance(said, str):
            return Refused(said)
        ms, kl = said
        noise = np.random.default_rng(spec.seed).lognormal(0, 0.3, 64)
        return Measured(
            {
                "run_id": f"{spec.setting}-{spec.seed}-{ms:g}",
                "spec": {"alpha": float(spec.overrides.get("alpha", 0))},
                "accuracy": {"kl": kl, "agreement": 1.0},
                "bound": {"of": ms}, "metrics": {"tpot_ms": {"mean": ms}, "peak_device_bytes": 3e9},
            },
            ms * 1e6 * noise / noise.mean(),
        )  # fmt: skip


class Fixed:
    """Trials that ask for given compositions in turn."""

    def __init__(self, *asked: dict[str, str], size: int = 99) -> None:
        self._waiting = [Asked(n, sets) for n, sets in enumerate(asked)]
        self.sizes: list[int] = []
        self.told: dict[int, Told] = {}
        self.known: Mapping[str, Any] = {}
        self._sets = {one.number: one.sets for one in self._waiting}

    def evaluated(self) -> int:
        return len(self.told)

    def round(self, size: int, refusal: Any) -> list[Asked]:
        self.sizes.append(size)
        now, self._waiting = self._waiting[:size], self._waiting[size:]
        return now

    def tell(self, number: int, told: Told) -> None:
        self.told[number] = told

    def add_systems(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def done(self) -> list[Any]:
        return [
            trial(number, told.values, self._sets[number], stopped=told.stopped)
            for number, told in self.told.items() if told.values is not None
        ]  # fmt: skip


def trial(
    number: int, values: Sequence[float], sets: dict[str, str],
    stopped: bool = False, system: str | None = None,
) -> Any:  # fmt: skip
    """Return a trial with an outcome as the study has it."""
    attributes: dict[str, Any] = {SETS: sets, STOPPED: stopped}
    if system is not None:
        attributes = {SYSTEM: system, SETS: sets}
    return SimpleNamespace(number=number, values=list(values), user_attrs=attributes)


def searching(
    says: Says, places: Sequence[Place] = (S1,), limit: float | None = None,
    systems: Sequence[str] = ("lfru", "moe-ondemand"),
) -> tuple[Search, Runs, list[str]]:  # fmt: skip
    """Return a search whose published systems have run, its evaluator, and what it says."""
    said: list[str] = []
    runs = Runs(says)
    search = Search(places, runs, limit, said.append)  # type: ignore[arg-type]
    search.published([Candidate(name=one, system=one) for one in systems], lambda done, total: None)
    return search, runs, said
