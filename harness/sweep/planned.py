"""Names and checks the cells of a sweep before any runs, and opens each of their inputs once.

A plan of a million cells has few models, machines, systems and prompts: every input is opened,
hashed and checked when the first cell asks for it, and remembered.  What a cell is called, and why
it cannot run, are what its own session would say (`harness.run.session.Prepared`), which is asked
for all cells but live ones on a simulated machine.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from moebench.harness.run import learn
from moebench.harness.run.identity import profile_hash, run_id
from moebench.harness.run.questions import Question, check_questions, drawn, question_of
from moebench.harness.run.weights import OpenWeights, computing_system, open_weights, own_hashes
from moebench.harness.stage.kinds import memory_of
from moebench.harness.sweep.worker import Opened
from moebench.results.spec import RunSpec
from moebench.substrate.engine.system import System
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.models.shape import ModelShape

if TYPE_CHECKING:
    from moebench.harness.run.live import ComputingSession


class _Inputs(NamedTuple):
    """Inputs of a cell: its system and weights, tokens of its longest text, and all hashes."""

    system: System
    weights: OpenWeights
    longest: int
    hashes: dict[str, str]


class Learning(NamedTuple):
    """What the system of a live run learns from, as its session has it."""

    spec: RunSpec
    system: System
    weights: OpenWeights
    data_dir: Path | None

    @property
    def full(self) -> ModelShape:
        """The model that is charged."""
        return self.weights.full


class Planned:
    """Knows the id of each cell of a plan, and the reason if a cell cannot run.

    The systems that it builds are for reading only: no run is made on them.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        #: Opens whole sessions, one at a time.
        self.opened = Opened(data_dir)
        self._known: dict[Hashable, Any] = {}

    def cell_id(self, spec: RunSpec) -> str:
        """Return the id of a cell: its run id, or a repeatable id for a measured run.

        A cell whose inputs cannot be opened is known by its spec: it fails when it is run.
        """
        if not _is_shared(spec):
            return self.opened.cell_id(spec)
        try:
            return run_id(spec, **self._inputs(spec).hashes)
        except MoeBenchError:
            return run_id(spec, inputs="unusable")

    def problem(self, spec: RunSpec) -> str | None:
        """Return the reason why a cell cannot run, if known before running it; else None."""
        if not _is_shared(spec):
            return self.opened.problem(spec)
        try:
            found = self._inputs(spec)
            # Memory depends on the prompts by the length of the longest alone.
            alike = spec.model_dump_json(exclude={"seed", "workload"})
            self._once(("memory", alike, found.longest), lambda: _check_memory(spec, found))
        except MoeBenchError as error:
            return str(error)
        return None

    def learning(self, spec: RunSpec) -> "Learning | ComputingSession | None":
        """Return what a cell's system learns from if its model computes here; else None.

        Raises MoeBenchError: an input cannot be opened.
        """
        if spec.native or spec.replays:
            return None
        if not _is_shared(spec):
            return cast("ComputingSession", self.opened.session(spec))
        found = self._inputs(spec)
        weights = replace(found.weights, expert_dtype=spec.expert_dtype)
        return Learning(spec, found.system, weights, self.data_dir)

    def _inputs(self, spec: RunSpec) -> _Inputs:
        """Return a cell's inputs, checked in the order of `harness.run.live.prepare`.

        Raises MoeBenchError: one cannot be opened, or they do not fit together.
        """
        made = (spec.system, spec.variant, *sorted(spec.overrides.items()))
        system = self._once(("system", made), lambda: computing_system(spec))
        read = (spec.model, spec.weights, spec.plain_prompts)
        weights = self._once(("weights", read), lambda: open_weights(spec))
        asked = (
            read, spec.workload, spec.prompts, spec.seed, spec.few_shot, spec.scoring,
            spec.new_tokens,
        )  # fmt: skip
        data_hash, longest = self._once(
            ("prompts", asked), lambda: self._prompts(spec, read, weights)
        )
        texts = (spec.calibrate_from, spec.calibrate_texts, spec.workload)
        own = self._once(
            ("own", made, texts if learn.learners(system) else (), spec.quant, spec.model),
            lambda: own_hashes(spec, system, self.data_dir),
        )
        place = (spec.machine, spec.software)
        profile = self._once(("profile", place), lambda: profile_hash(spec))
        hashes = weights.hashes | {"data": data_hash, "profile": profile} | own
        return _Inputs(system, weights, longest + spec.new_tokens, hashes)

    def _prompts(self, spec: RunSpec, read: Hashable, weights: OpenWeights) -> tuple[str, int]:
        """Return the hash of a cell's prompts and the tokens of the longest, after their check."""
        chosen, sample, shots = drawn(spec, self.data_dir)

        def question(example: Any) -> Question:
            asked = ("question", read, spec.scoring, chosen.name, example, shots)
            found: Question = self._once(
                asked, lambda: question_of(spec.scoring, chosen, example, shots, weights.texts)
            )
            return found

        questions = list(map(question, sample.examples))
        check_questions(spec, sample, questions, weights.checkpoint)
        return sample.data_hash, max(one.length for one in questions)

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned when the key was asked for first, or raise its error."""
        if key not in self._known:
            try:
                self._known[key] = make()
            except MoeBenchError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, MoeBenchError):
            raise found.with_traceback(None)
        return found


def _check_memory(spec: RunSpec, found: _Inputs) -> None:
    """Refuse a cell whose weights and longest text do not fit into memory."""
    memory_of(spec, found.system, found.weights.full, found.longest)


def _is_shared(spec: RunSpec) -> bool:
    """Return whether a cell is a live run on a simulated machine, whose inputs are known here."""
    return not (spec.native or spec.replays or spec.machine == "local")
