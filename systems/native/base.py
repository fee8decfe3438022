"""Native systems: base classes for third-party packages that run a checkpoint by themselves.

Unlike a `System`, a native system makes none of the six decisions and runs on no simulated
machine: the package is started in a process of its own (`serve`), as its user would start it, and
its tokens are timed as they are streamed.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from moebench.substrate.errors import UsageError
from moebench.systems.native.sizes import parse_size

if TYPE_CHECKING:
    from moebench.substrate.models.checkpoint import Checkpoint
    from moebench.substrate.models.shape import ModelShape

#: Called in each step with the new token of each sequence.
Put = Callable[[Sequence[int]], None]

#: Value of `memory_limit`: the bytes that a run of our own systems on this computer would have.
LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that a package's process needs for a run.

    Attributes:
        adapter: the module that defines ``runner(job) -> Runner``.
        libraries: modules to import before memory is measured.
        model: the file or folder that the package reads.
        folder: a folder for its files; removed after the run.
        options: the native system's own options.
        context: tokens of the longest text, new ones included.
        batch: sequences at once.
    """

    adapter: str
    libraries: Sequence[str]
    model: str
    folder: str
    options: Mapping[str, Any]
    context: int
    batch: int


class Runner(Protocol):
    """A package with its model loaded; ``facts`` are sentences for the run's notes on loading."""

    facts: Sequence[str]

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, end: int | None, put: Put
    ) -> None:
        """Decode a batch greedily; call ``put`` with each step's tokens at once.

        Each prompt gets at most ``new_tokens``, exactly as many without a token ``end`` of texts.
        """


@dataclass(kw_only=True)
class NativeSystem(ABC):
    """A package and the options with which it is run.

    Attributes:
        threads: number of threads that compute.
        timeout_s: it is stopped if it reports nothing for so long: no token, no end of loading.
        memory_limit: the memory of its process after loading the model, without its libraries:
            ``600MB``, or ``local`` for the weights that a run of our own systems with the same
            spec keeps in memory; null is no limit.
    """

    #: The package's paper or repository, and its version.
    paper: ClassVar[str]
    #: Modules that must be installed, with their packages.
    requires: ClassVar[Mapping[str, str]]
    #: Maximum number of sequences at once; None is any number.
    max_batch: ClassVar[int | None] = None

    threads: int = 1
    timeout_s: float = 600.0
    memory_limit: str | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}; allowed: 1 or more")
        if self.timeout_s <= 0:
            raise UsageError(f"timeout_s is {self.timeout_s}; allowed: more than 0 seconds")
        if self.memory_limit not in (None, LOCAL):
            parse_size("memory_limit", str(self.memory_limit), LOCAL)

    @property
    def lossless(self) -> bool:
        """Whether the package computes the resident model's outputs, except for rounding."""
        return True

    def why_not(self, shape: "ModelShape", batch: int) -> str | None:
        """Return why the package cannot run this model or batch size; None if it can."""
        if self.max_batch is not None and batch > self.max_batch:
            return f"at most {self.max_batch} sequence at once, {batch} were asked for"
        return None

    def missing(self) -> list[str]:
        """Return the required packages that are not installed."""
        found = self.requires.items()
        return [name for module, name in found if importlib.util.find_spec(module) is None]

    def check_installed(self, name: str) -> None:
        """Refuse to run without the required packages; state the command that installs them."""
        missing = self.missing()
        if missing:
            raise UsageError(
                f"--system {name}: {' and '.join(missing)} not installed; type: "
                "pip install 'moebench[native]'"
            )

    def model_file(self, checkpoint: "Checkpoint", content: str, folder: Path) -> Path:
        """Return the file or folder that the package reads: the checkpoint, or a converted one.

        Converted files are in ``folder``, named by the hash of the checkpoint's ``content``.
        """
        return checkpoint.path

    def remarks(self) -> Sequence[str]:
        """Return notes for the documents of the package's runs."""
        return ()

    @property
    @abstractmethod
    def libraries(self) -> Sequence[str]:
        """Modules that the package's process imports before a weight is read."""
