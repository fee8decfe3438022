"""A run that is ready to start: what it reads is open, checked and hashed, its system is built."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.run.identity import run_id
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.terms import RoutedSequence
from moebench.workloads.draw import PromptSet


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its document, the picture's spans, and the records behind them."""

    document: dict[str, Any]
    picture: list[dict[str, Any]]
    timeline: Timeline
    generations: list[Generation]


class Learnable(NamedTuple):
    """Routing that a system may learn from, and where it is from."""

    sequences: Sequence[RoutedSequence]
    origin: str


@dataclass(slots=True, kw_only=True)
class Prepared(ABC):
    """What every run is made of: `Session` runs on our engine, `native.NativeSession` a package.

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
        """Equal for equal results; every measurement on this computer is its own."""
        return run_id(self.spec, **self.hashes)

    @abstractmethod
    def varied(self, spec: RunSpec) -> "Prepared":
        """The same weights, questions or trace under another spec of `sweep.worker.group_of`."""

    def share(self, shared: SharedWork | None) -> SharedWork | None:
        """Use work that runs of the same weights share; None where nothing is computed.

        Args:
            shared: an earlier run's, of the same weights and questions.
        """
        return None

    def check_memory(self) -> None:
        """Refuse what does not fit, where that is known before anything is opened.

        Raises:
            BudgetError, UsageError: it does not.
        """

    def close(self) -> None:
        """Release what was opened."""


@dataclass(slots=True, kw_only=True)
class OnEngine(Prepared):
    """A run on our engine: a `Session` knows its prompts, an evaluator asks `evaluate.session`.

    Attributes:
        system: built once, for this run alone.
        wrap: put around the model, for example to record what it answers.
    """

    system: System
    wrap: Callable[[Model], Model] = lambda model: model

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of the longest text, new ones included; of a replay, once it is open."""

    @abstractmethod
    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """How other texts than the run's own were routed; kept below ``scratch`` where that helps.

        Args:
            progress: told of texts done and to do, where they must be written.

        Raises:
            UsageError: there are none.
        """

    @abstractmethod
    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Build model, machine, memory and engine.

        Args:
            scratch: where expert records are kept for a local machine, and drawn traces.
            keep_timeline: keep every span, not only the picture's.
            stack: closes what the machine holds open.
        """

    def written(self, generation: Generation) -> list[list[int]]:
        """The texts of a batch that the model wrote by itself, as token ids."""
        return generation.tokens

    @abstractmethod
    def accuracy(self) -> dict[str, Any]:
        """The ``accuracy`` part of the document, once all batches were run."""

    def mark(self, document: dict[str, Any]) -> None:
        """Say in the document what only this kind of session knows."""


@dataclass(slots=True, kw_only=True)
class Session(OnEngine):
    """One run: `live.LiveSession` computes it, `replay.ReplaySession` answers from a trace."""

    @abstractmethod
    def varied(self, spec: RunSpec) -> "Session":
        """The same weights, questions or trace under another spec of `sweep.worker.group_of`."""

    @abstractmethod
    def answer(self, stage: Stage, rows: slice) -> list[Generation]:
        """Run a batch of prompts."""

    @abstractmethod
    def begin(self, stage: Stage, tokens: int) -> None:
        """Run the first batch's prompts for so many tokens at most; no answer is scored."""
