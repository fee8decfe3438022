"""Tasks for evaluators: workloads of the catalogue, with the same examples as moebench's runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moebench.harness.settings import few_shot_count
from moebench.substrate.errors import UsageError
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.example import Example
from moebench.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """A workload's drawn examples, and the few-shot examples before each of them."""

    workload: Workload
    drawn: PromptSet
    shots: tuple[Example, ...]

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.workload.name

    @property
    def guessing(self) -> float:
        """Expected share of right answers from guessing."""
        without = (self.workload.chance or 0.0) / 100
        shares = [1 / len(e.choices) if e.choices else without for e in self.drawn.examples]
        return sum(shares) / len(shares)


def draw(
    names: Sequence[str], count: int, seed: int, few_shot: str, setting: str | None,
    data_dir: Path | None,
) -> list[Questions]:  # fmt: skip
    """Draw the examples of several workloads, as `moebench run` does with the same options.

    Args:
        few_shot: a number, or ``paper`` for the count in the setting's paper.

    Raises MoeBenchError: a name is unknown or given twice, or its data are missing.
    """
    if len(set(names)) != len(names) or not names:
        raise UsageError(f"--tasks {','.join(names)}: give each once, at least one")
    found = []
    for name in names:
        chosen = workload(name)
        shots: tuple[Example, ...] = ()
        if number := few_shot_count(few_shot, name, setting):
            shots = load(chosen, "train", number, seed, data_dir).examples
        drawn = load(chosen, count=count, seed=seed, data_dir=data_dir)
        found.append(Questions(workload=chosen, drawn=drawn, shots=shots))
    return found
