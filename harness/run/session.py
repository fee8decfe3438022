"""A run that is ready to start: what it reads is open, checked and hashed, its system is built."""

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
    """A finished run: its document, the spans of the report's excerpt, and raw records."""

    document: dict[str, Any]
    picture: list[dict[str, Any]]
    timeline: Timeline
    generations: list[Generation]


class Prepared(Protocol):
    """What sweeps, stores and documents use of any run: a `Session`, or a third-party package's.

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
        """Equal for equal results; every measurement on this computer has its own."""

    @property
    def unknown_latencies(self) -> Sequence[str]:
        """Latencies of the document that the run cannot know."""

    def varied(self, spec: RunSpec) -> Self:
        """Return the run of another spec of `sweep.worker.group_of` on what is open already."""

    def share(self, shared: SharedWork | None) -> SharedWork | None:
        """Use work that runs of the same weights share; None where nothing is computed.

        Args:
            shared: an earlier run's, of the same weights and prompts.
        """

    def check_memory(self) -> None:
        """Refuse what does not fit, where that is known before anything is opened.

        Raises:
            BudgetError, UsageError: it does not fit.
        """

    def close(self) -> None:
        """Release what was opened."""


@dataclass(slots=True, kw_only=True)
class Session(ABC):
    """A run on our engine: it computes (`live`), replays a trace, or an evaluator makes requests.

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
        """Equal for equal results; every measurement on this computer has its own."""
        if self._run_id is None:
            self._run_id = run_id(self.identified, **self.hashes)
        return self._run_id

    @property
    def identified(self) -> RunSpec:
        """The spec as far as it identifies the run."""
        return self.spec

    @property
    def unknown_latencies(self) -> Sequence[str]:
        """Latencies of the document that the run cannot know."""
        return ()

    @property
    def origin(self) -> dict[str, Any]:
        """Entries of the document's provenance that only this kind of session knows."""
        return {}

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of the longest text, new ones included; of a replay, once it is open."""

    @abstractmethod
    def varied(self, spec: RunSpec) -> Self:
        """Return the run of another spec of `sweep.worker.group_of` on what is open already."""

    def share(self, shared: SharedWork | None) -> SharedWork | None:
        """Use work that runs of the same weights share; None where nothing is computed.

        Args:
            shared: an earlier run's, of the same weights and prompts.
        """
        return None

    @abstractmethod
    def check_memory(self) -> None:
        """Refuse what does not fit, where that is known before anything is opened.

        Raises:
            BudgetError, UsageError: it does not fit.
        """

    @abstractmethod
    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Return how other texts than the run's own were routed, for systems that are calibrated.

        Args:
            scratch: the folder where such routing is kept.
            progress: called with the texts done and to do, where they must be generated.

        Raises:
            UsageError: there are no such texts.
        """

    @abstractmethod
    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Build model, machine, memory and engine.

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
        """Return the ``accuracy`` part of the document, once all batches were run."""

    def close(self) -> None:
        """Release what was opened."""
