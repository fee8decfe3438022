"""Sessions: runs with opened, checked and hashed inputs and a built system."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from moebench.harness.run.identity import run_id
from moebench.harness.run.learn import Learnable
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.shared import SharedWork
from moebench.workloads.draw import PromptSet


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its document, the spans of the timeline excerpt, and raw records."""

    document: dict[str, Any]
    picture: list[dict[str, Any]]
    timeline: Timeline
    generations: list[Generation]


class Prepared(Protocol):
    """Interface of any prepared run: a `Session`, or a third-party package's run.

    Attributes:
        full: the model that is charged, or that a local run's stands for.
        sample: the prompts; of a replay it only says where they are from.
        hashes: by name, the content of everything that the run reads.
    """

    spec: RunSpec
    full: ModelShape
    sample: PromptSet
    hashes: dict[str, str]

    @property
    def run_id(self) -> str:
        """Run id: equal for equal results, and unique for each measurement on this computer."""

    @property
    def unknown_latencies(self) -> Sequence[str]:
        """Names of latencies that the run cannot determine."""

    def varied(self, spec: RunSpec) -> Self:
        """Return the run of another spec of the same group, on the inputs that are open already."""

    def share(self, shared: SharedWork | None) -> SharedWork | None:
        """Share computed work with runs of the same weights; None for a replay.

        Args:
            shared: an earlier run's, of the same weights and prompts.
        """

    def check_memory(self) -> None:
        """Refuse a run that does not fit into memory, if that is known before its stage is opened.

        Raises:
            BudgetError, UsageError: it does not fit.
        """

    def close(self) -> None:
        """Close the opened inputs."""


@dataclass(slots=True, kw_only=True)
class Session(ABC):
    """A run on the engine: live, a replay, or one that answers an evaluator's requests.

    Attributes:
        full, sample, hashes: as in `Prepared`.
        system: built once, for this run alone.
        wrap: put around the model, for example to record what it returns.
    """

    spec: RunSpec
    full: ModelShape
    sample: PromptSet
    hashes: dict[str, str]
    system: System
    wrap: Callable[[Model], Model] = lambda model: model
    _run_id: str | None = field(default=None, init=False)

    @property
    def run_id(self) -> str:
        """Run id: equal for equal results, and unique for each measurement on this computer."""
        if self._run_id is None:
            self._run_id = run_id(self.identified, **self.hashes)
        return self._run_id

    @property
    def identified(self) -> RunSpec:
        """Part of the spec that identifies the run."""
        return self.spec

    @property
    def unknown_latencies(self) -> Sequence[str]:
        """Names of latencies that the run cannot determine."""
        return ()

    @property
    def origin(self) -> dict[str, Any]:
        """Entries of the document's provenance that are specific to this kind of session."""
        return {}

    @property
    @abstractmethod
    def longest(self) -> int:
        """Number of tokens of the longest text, new ones included."""

    @abstractmethod
    def varied(self, spec: RunSpec) -> Self:
        """Return the run of another spec of the same group, on the inputs that are open already."""

    def share(self, shared: SharedWork | None) -> SharedWork | None:
        """Share computed work with runs of the same weights; None for a replay.

        Args:
            shared: an earlier run's, of the same weights and prompts.
        """
        return None

    @abstractmethod
    def check_memory(self) -> None:
        """Refuse a run that does not fit into memory, if that is known before its stage is opened.

        Raises:
            BudgetError, UsageError: it does not fit.
        """

    @abstractmethod
    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Return the routing of texts other than the run's own, for calibration.

        Args:
            scratch: the folder where such routing is kept.
            progress: called with the texts done and to do, where they must be generated.

        Raises:
            UsageError: there are no such texts.
        """

    @abstractmethod
    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Build the run's stage: model, machine, memory and engine.

        Args:
            scratch: where expert records are kept for a local machine, and drawn traces.
            keep_timeline: keep every span, not only those of the report's excerpt.
            stack: closes what the machine holds open.
        """

    def written(self, generation: Generation) -> list[list[int]]:
        """Return the texts of a batch that the model generated by itself, as token ids."""
        return generation.tokens

    @abstractmethod
    def accuracy(self) -> dict[str, Any]:
        """Return the ``accuracy`` part of the document, after all batches were run."""

    def close(self) -> None:
        """Close the opened inputs."""
