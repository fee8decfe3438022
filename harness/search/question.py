"""What is searched for: the options of a run but its system, and which prompts are read when."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import scale_names
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import load

#: Batches of a validation.
VALIDATED = 5

#: Most seeds after the first that are tried for prompts that were not read before.
_SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A place for which a composition is searched.

    Attributes:
        name: of the place, for tables: a setting, or model and machine.
        given: the options of a run as `resolve` takes them, without system, prompts and seed.
        live: whether models compute, as they must where routing may change; else routing that is
            recorded once, or drawn, is replayed.
        data_dir: the folder of evaluation sets, if any.
    """

    name: str
    given: Mapping[str, Any]
    live: bool = False
    data_dir: Path | None = None

    @property
    def batch(self) -> int:
        """Texts that are decoded together."""
        return int(self.given.get("batch", 1))

    def spec(
        self, system: str, sets: Mapping[str, str], batches: int, seed: int, **more: Any
    ) -> RunSpec:
        """Return the spec of a system's run on whole batches of the prompts that a seed draws.

        Raises MoeBenchError: one line, if the run cannot be.
        """
        own = {"prompts": batches * self.batch, "seed": seed, "routing": self.routing, **more}
        return resolve(
            self.data_dir, **{**self.given, "system": system, "overrides": dict(sets), **own}
        )

    @property
    def routing(self) -> str:
        """The source of routing: the model, its recording, or a drawn trace where none ships."""
        if "routing" in self.given:
            return str(self.given["routing"])
        shape = resolve(self.data_dir, **{**self.given, "system": "moe-ondemand"}).model
        if shape not in scale_names() and "weights" not in self.given:
            if self.live:
                raise UsageError(
                    f"--kl with model {shape}: no scale model of it ships, so no text can be "
                    "computed; allowed: --weights DIR, or leave --kl out"
                )
            return "drawn"
        return "model" if self.live else "replayed"

    def with_(self, name: str, **changed: Any) -> "Question":
        """Return the question in another place: with other options of the run."""
        return replace(self, name=name, given={**self.given, **changed})


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of a question's prompts: no prompt of validation is one of the search.

    Attributes:
        search: one batch each; a trial that is slower on the first is not run on the second.
        validation: `VALIDATED` batches together.
    """

    search: tuple[int, int]
    validation: int


def seeds_of(question: Question, first: int) -> Seeds:
    """Return the first seeds from ``first`` on that draw disjoint prompts.

    Raises UsageError: the workload has too few prompts.
    """
    spec = question.spec("moe-ondemand", {}, 1, first)
    chosen, number = workload(spec.workload), question.batch
    if spec.routing == "drawn":  # every seed draws texts of its own
        return Seeds((first, first + 1), first + 2)

    def prompts(seed: int, batches: int) -> set[str]:
        found = load(chosen, "test", batches * number, seed, question.data_dir)
        return {repr(example) for example in found.examples}

    def following() -> Iterator[int]:
        yield from range(first + 1, first + _SEEDS)

    read = prompts(first, 1)
    second = next((seed for seed in following() if not read & prompts(seed, 1)), None)
    if second is not None:
        read |= prompts(second, 1)
        for seed in following():
            if seed > second and not read & prompts(seed, VALIDATED):
                return Seeds((first, second), seed)
    raise UsageError(
        f"workload {spec.workload}: too few prompts for {2 + VALIDATED} batches of {number} that "
        "have none in common; give a smaller --batch or another --workload"
    )
