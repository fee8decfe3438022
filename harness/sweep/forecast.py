"""Forecasts of a sweep's or a run's wall time, from rates that are measured on this computer.

| what | where its rates are from |
|---|---|
| runs | stored runs of like cells, else a short run of a like cell (`measured`) |
| generated texts for learning | a few tokens of the lossless model (`Learner`) |
| trained policies | two epochs on one text (`Learner`) |

What the store holds already takes no time.  `harness.sweep.estimate` computes with the rates.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from moebench.harness.sweep.estimate import (
    START_S,
    Counts,
    Expected,
    Part,
    Rates,
    Task,
    Training,
    Writing,
    duration,
    each_seconds,
    mean_rates,
    rates_of,
    run_seconds,
    slowdown,
    sweep_seconds,
    training_seconds,
    writing_seconds,
)
from moebench.harness.sweep.planned import Learning, Planned
from moebench.harness.sweep.worker import Job
from moebench.reports.text import counted
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.progress_events import phase_listener
from moebench.systems.registry import needs_import

if TYPE_CHECKING:
    from moebench.harness.run.live import ComputingSession
    from moebench.results.store import Store
    from moebench.substrate.engine.policies import Policy
    from moebench.substrate.models.shared import SharedWork
    from moebench.substrate.terms import RoutedSequence

#: Rates of cells that are like no measured one: of S3's scale model on a slow core, and of replays.
LIVE = Rates(0.5, 0.15, 0.025)
REPLAY = Rates(0.1, 0.02, 0.006)

#: Longest time in seconds for which short runs are begun.
MEASURE_S = 8.0

#: Sweeps that take less than this by the constants are not worth the time of measurements.
WORTH_S = 30.0

#: Tokens of a short run.
TOKENS = 17

#: Tokens of a text, after the first, that are written for a measurement.
WRITTEN = 8

#: Tokens that a policy is trained on for a measurement: a few of its batches.
TRAINED = 1024

#: Folder below which no file can be created: whatever must be made there raises an OSError.
_NOWHERE = Path(os.devnull)


# ----------------------------------------------------------------------------- a run's pace


class Pace:
    """Listener for a run's phases that derives its rates from the first decoded tokens.

    Args:
        clock: returns seconds from any start.
        after, for_s: decoded tokens, and seconds of decoding, after which the rates are known; the
            end of the first batch is enough.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, after: int = 8, for_s: float = 1.0
    ) -> None:
        self._clock, self._after, self._for_s = clock, after, for_s
        self.began = clock()
        self._prefilled = self._decoded = 0.0
        self._scored: float | None = None
        self._passes = 0
        self.rates: Rates | None = None

    def phase(self, name: str, done: int, total: int | None) -> None:
        """Note the time of a phase; after enough decoded tokens of the first batch, set `rates`."""
        if self.rates is not None:
            return
        now = self._clock()
        if name == "decode" and done == 1 and not self._passes:
            self._decoded = now
        elif name == "decode":
            enough = done > self._after and now - self._decoded >= self._for_s
            if enough:
                self._know(now)
        elif self._passes:  # the first batch was decoded
            self._know(now)
        elif name == "prefill":
            self._prefilled = now
        if name == "decode":
            self._passes = done

    def _know(self, now: float) -> None:
        pass_s = (now - self._decoded) / self._passes
        # The lossless model reads each text once for its scores, about as long as a prefill takes.
        batch_s = 2 * (self._decoded - self._prefilled)
        self.rates = Rates(self._prefilled - self.began, batch_s, pass_s)


# ----------------------------------------------------------------------------- load


class Load:
    """Samples how many other processes could run, from a thread, while its context lasts.

    Args:
        file: Linux's load averages; the fourth field has the number of runnable tasks.
        every_s: time between two samples.
    """

    def __init__(self, file: Path = Path("/proc/loadavg"), every_s: float = 0.1) -> None:
        self._file, self._every_s = file, every_s
        self._over = threading.Event()
        self.samples: list[int] = []

    def __enter__(self) -> Self:
        """Take the first sample, and start the thread."""
        self.sample()
        self._thread = threading.Thread(target=self._run, daemon=True, name="load")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.sample()

    def sample(self) -> None:
        """Add the number of runnable tasks, but for the one that samples and the one that works."""
        with suppress(OSError, ValueError, IndexError):
            runnable = int(self._file.read_text().split()[3].partition("/")[0])
            self.samples.append(max(0, runnable - 2))

    def slowdown(self, processes: int) -> float:
        """Return the wall time of busy processes over their CPU time, beside the sampled load."""
        load = sum(self.samples) / len(self.samples) if self.samples else 0.0
        return slowdown(load, processes, os.cpu_count() or 1)


# ----------------------------------------------------------------------------- counts


def counts_of(spec: RunSpec, replayed: int = 0) -> Counts:
    """Return the batches of a run and the decoded tokens of each.

    Only runs of fixed length decode a known number; others have their batches alone.
    """
    batches = -(-spec.prompts // spec.batch)
    passes = spec.new_tokens - 1 if spec.scoring == "fixed-length" or spec.replays else 0
    return Counts(batches, passes, replayed)


def replayed_tokens(spec: RunSpec) -> int:
    """Return the decoded tokens of all short replays for a run's interval; 0 if it has none."""
    from moebench.harness.run.interval import MOST_TOKENS, orders
    from moebench.harness.run.interval import TOKENS as EACH
    from moebench.substrate.machines.profile import load_profile
    from moebench.substrate.machines.profile_ranges import uncertain

    if spec.machine == "local":
        return 0
    profile = load_profile(spec.machine, spec.software)
    batches = -(-spec.prompts // spec.batch)
    whole = batches * min(MOST_TOKENS, spec.new_tokens)
    ordered = sum(whole for _ in orders(batches))
    return (1 + 2 * len(uncertain(profile))) * min(EACH, spec.new_tokens) + ordered


# ----------------------------------------------------------------------------- learning


class Learns(NamedTuple):
    """What a system learns in a run and the store does not hold.

    Attributes:
        texts: number of texts to generate; 0 if they are stored.
        written: the name of the file with their routing.
        policies: names of the policies' decisions that are trained.
        trained: tells their files from those of other runs.
    """

    texts: int
    written: str
    policies: tuple[str, ...]
    trained: Hashable


def learns(session: "Learning | ComputingSession", scratch: Path) -> Learns | None:
    """Return what the system of a live run still has to learn; None if there is nothing.

    Args:
        scratch: the store's folder.
    """
    from moebench.harness.run import learn
    from moebench.substrate.files_read import collect_reads

    learners = {
        name: policy for name, policy in learn.learners(session.system).items()
        if not policy.calibration_trace
    }  # fmt: skip
    if not learners:
        return None
    spec, system = session.spec, session.system
    weights = replace(session.weights, shared=cast("SharedWork", _Unloaded()))
    with collect_reads() as files:
        _impossible(lambda: weights.learnable(spec, system, session.data_dir, _NOWHERE, _silent))
    (routing,) = {file.name for file in files}
    trained = (routing, spec.title, tuple(sorted(spec.overrides.items())))
    folder = learn.folder(scratch)
    if not (folder / routing).exists():
        sample = learn.texts(spec, system, session.data_dir)
        return Learns(len(sample.examples), routing, tuple(learners), trained)
    found = weights.learnable(spec, system, session.data_dir, scratch, _silent)
    # Calibrated policies are not used for a run: this system is another one.
    fresh = learn.learners(spec.make_system())
    missing = []
    for name in learners:
        train = partial(fresh[name].calibrate, found.sequences, session.full, _NOWHERE, _silent)
        with collect_reads() as files:
            _impossible(train)
        missing += [name for file in files if not (folder / file.name).exists()]
    return Learns(0, routing, tuple(missing), trained) if missing else None


class _Unloaded:
    """Stands for weights that are not read: their decoders are not called."""

    decoder = differentiable = rounding = None


def _impossible(make: Callable[[], object]) -> None:
    """Call a function that must create a file below `_NOWHERE`, for the name of this file."""
    try:
        make()
    except OSError:
        return


def _silent(done: int, total: int) -> None:
    """Report no progress."""


class Learner:
    """Measures how long a live run's system takes to learn, in CPU time.

    Attributes:
        pass_s: time of one decoded token of one text, all experts in memory.
    """

    def __init__(self, session: "Learning | ComputingSession", texts: int) -> None:
        import torch

        from moebench.harness.run import learn
        from moebench.substrate.traces.observe import write
        from moebench.workloads.prompts import build_prompt

        self._session, self._learn = session, learn
        torch.set_num_threads(1)
        chosen = learn.source(session.spec)
        sample = learn.texts(session.spec, session.system, session.data_dir)
        tokenizer = session.weights.tokenizer
        prompts = [
            tokenizer.encode(build_prompt(chosen, example)).ids[: learn.PROMPT_TOKENS]
            for example in sample.examples[: min(texts, learn.TOGETHER)]
        ]
        self._decoder = session.weights.sharing().decoder()
        write(self._decoder, prompts[:1], 2, None)  # the first products are slower
        self.pass_s = self._pass(prompts[:1])[1]
        prompts_s, pass_s = self._pass(prompts)
        began = time.process_time()
        self._text = self._read(prompts[0])
        self.writing = Writing(prompts_s, pass_s, time.process_time() - began)

    def _pass(self, prompts: list[list[int]]) -> tuple[float, float]:
        """Return the time of a group's prompts, and of each of its tokens after them."""
        from moebench.substrate.traces.observe import write

        times = []
        for tokens in (1, 1 + WRITTEN):
            began = time.process_time()
            write(self._decoder, prompts, tokens, None)
            times.append(time.process_time() - began)
        return times[0], max(0.0, times[1] - times[0]) / WRITTEN

    def _read(self, prompt: list[int]) -> "RoutedSequence":
        """Return the routing of one text, recorded as for learning."""
        from moebench.substrate.terms import LOOKAHEADS
        from moebench.substrate.traces.observe import read

        system = self._session.system
        also = self._learn.learnt_from(system.policies.values())
        kinds = [k for k in LOOKAHEADS if k in system.lookaheads] if "predictions" in also else []
        text = (prompt * (self._learn.NEW_TOKENS // len(prompt) + 2))[
            : len(prompt) + self._learn.NEW_TOKENS
        ]
        states = bool(also & {"hidden", "embedding"})
        (found,) = read(
            self._decoder, [text], len(prompt), kinds, states, "token_embeddings" in also
        )
        if "sensitivity" in also:
            decoder = self._session.weights.sharing().differentiable()
            return replace(found, sensitivity_L=decoder.sensitivity(text, seed=0))
        return found

    def _trained_tokens(self, policy: "Policy") -> int:
        """Return the tokens of one text that a policy is trained on."""
        text = self._text
        return len(text.ids_TLK) - (0 if policy.trains_on_prompts else text.prefill)

    def write_seconds(self, texts: int) -> float:
        """Return the time to generate and read texts."""
        learn = self._learn
        return writing_seconds(texts, learn.NEW_TOKENS, learn.TOGETHER, self.writing)

    def training(self, name: str, texts: int) -> tuple[float, Training]:
        """Return the tokens that a policy is trained on, of some texts, and its measured rate.

        The rate has no epochs if the policy is not trained.
        """
        policy = self._learn.learners(self._session.spec.make_system())[name]
        each = self._trained_tokens(policy)
        times, steps, all_steps = [time.process_time()], [0], 0

        def step(done: int, total: int) -> None:
            nonlocal all_steps
            all_steps = total
            times.append(time.process_time())
            steps.append(done)
            if len(times) == 3:
                raise _Enough

        shown = [self._text] * -(-TRAINED // each)
        with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
            policy.calibrate(shown, self._session.full, Path(folder), step)
        if not all_steps:
            return 0.0, Training(0.0, 0)
        # A step is an epoch, or an epoch of some networks of many; the first is slower.
        step_s = (times[-1] - times[-2]) / (steps[-1] - steps[-2])
        epochs = getattr(policy, "epochs", all_steps)
        token_s = step_s * all_steps / epochs / (len(shown) * each)
        tokens = min(texts * each, getattr(policy, "tokens", float("inf")))
        return tokens, Training(token_s, epochs)

    def train_seconds(self, names: Sequence[str], texts: int) -> tuple[float, float]:
        """Return the usual and the longest time to train policies on texts."""
        rates = [self.training(name, texts) for name in names]
        usual = sum(training_seconds(*one) for one in rates)
        return usual, sum(training_seconds(*one, stops_early=False) for one in rates)


class _Enough(Exception):
    """Ends a measurement."""


# ----------------------------------------------------------------------------- short runs


def measured(session: Any, scratch: Path) -> Rates:
    """Return the rates of a cell in CPU time from a short run of it, of which nothing is kept.

    Args:
        session: prepared for `short`.

    Raises MoeBenchError: the cell cannot run here.
    """
    from moebench.harness.one_run import run

    pace = Pace(time.process_time, min(TOKENS, session.spec.new_tokens) - 2, for_s=0.0)
    with phase_listener(pace.phase):
        run(session, scratch)
    if pace.rates is not None and counts_of(session.spec).passes:
        return pace.rates
    return Rates(0.0, time.process_time() - pace.began, 0.0)


def short(spec: RunSpec) -> RunSpec:
    """Return the spec of a short run: one batch of few tokens, learnt from one text."""
    fewer: dict[str, Any] = {"prompts": spec.batch}
    if counts_of(spec).passes:
        fewer["new_tokens"] = min(spec.new_tokens, TOKENS)
    system = spec.make_system()
    if any(policy.calibrates for policy in system.policies.values()) and not spec.trace:
        fewer["calibrate_texts"] = 1
    return spec.model_copy(update=fewer)


def measurable(spec: RunSpec) -> bool:
    """Return whether a short run is cheap and safe.

    On a simulated machine, with weights that ship, and without code of the user's own.
    """
    own = needs_import(spec.system, spec.overrides)
    return not (spec.native or own or spec.machine == "local" or spec.weights is not None)


# ----------------------------------------------------------------------------- sweeps


def kind_of(spec: RunSpec) -> tuple[Hashable, ...]:
    """Return a key of cells whose runs have the same rates."""
    changed = tuple(sorted((k, v) for k, v in spec.overrides.items() if k != "alpha"))
    return (spec.model, spec.replays, spec.batch, spec.scoring, spec.machine == "local",
            spec.title, changed, spec.workload, spec.routing)  # fmt: skip


#: Leading fields of `kind_of` that like kinds share, from the most to the least alike.
_LIKE = (7, 6, 5, 4, 2)


@dataclass(slots=True)
class Forecast:
    """Expected times of the cells of a sweep.

    Attributes:
        tasks: by cell.
        seconds: of the sweep.
        sources: numbers of cells by the source of their rates.
        processes: number of cells at a time.
    """

    tasks: dict[str, Task]
    seconds: float
    sources: dict[str, int]
    processes: int

    def __str__(self) -> str:
        said = ", ".join(
            f"{counted(n, 'cell')} {source}" for source, n in self.sources.items() if n
        )
        return f"about {duration(self.seconds)}: {said or 'nothing to run'}"


#: Sources of rates, as they are printed.
STORED, MEASURED, ALIKE, CONSTANT = (
    "from stored runs like them", "from short runs just now", "from other cells",
    "from constants",
)  # fmt: skip


@dataclass(slots=True)
class Forecaster:
    """Estimates the times of cells.

    Args:
        scratch: the store's folder.
        progress: called with the cells done and to do.
    """

    store: "Store"
    planned: Planned
    processes: int
    progress: Callable[[int, int], None] = _silent
    clock: Callable[[], float] = time.monotonic
    _rates: dict[tuple[Hashable, ...], Rates] = field(default_factory=dict)
    _stored: set[Hashable] = field(default_factory=set)
    _parts: dict[Hashable, tuple[Part, ...]] = field(default_factory=dict)
    _learners: dict[Hashable, Learner] = field(default_factory=dict)
    _learning_systems: dict[Hashable, bool] = field(default_factory=dict)

    def of(self, jobs: Sequence[Job]) -> Forecast:
        """Return the forecast of cells that are run in this order."""
        with Load() as load:
            self._read_stored(jobs)
            self._measure(jobs)
            learnt = [self._learning(job.spec) for job in jobs]
        slower = load.slowdown(min(self.processes, len(jobs)))
        sources = dict.fromkeys((STORED, MEASURED, ALIKE, CONSTANT), 0)
        cells = []
        for number, (job, made) in enumerate(zip(jobs, learnt, strict=True), 1):
            rates, source = self._rates_for(job.spec)
            sources[source] += 1
            seconds = run_seconds(counts_of(job.spec), rates)
            if source != STORED:  # stored runs have wall times
                seconds *= slower
            parts = tuple(Part(part.key, part.seconds * slower) for part in made)
            alone = job.spec.machine == "local"
            cells.append(Expected(kind_of(job.spec), seconds, parts, alone))
            self.progress(number, len(jobs))
        tasks = {}
        for job, cell, seconds in zip(jobs, cells, each_seconds(cells), strict=True):
            (by_itself,) = each_seconds([cell])  # added in the same order: no rounding differs
            # A cell that needs another one's file may wait for it.
            kind = None if seconds < by_itself else (cell.kind, bool(cell.parts))
            tasks[job.cell_id] = Task(kind, seconds, cell.alone)
        seconds = sweep_seconds(cells, self.processes, START_S * slower)
        return Forecast(tasks, seconds, sources, self.processes)

    def _read_stored(self, jobs: Sequence[Job]) -> None:
        """Take rates from stored runs of the same kinds; those of systems that learn are unclear.

        The time of such a run includes learning, or does not, if another run had learnt before.
        """
        wanted = {kind_of(job.spec) for job in jobs}
        found: dict[tuple[Hashable, ...], list[Rates]] = {}
        for fields, wall_s in self.store.wall_times({job.spec.system for job in jobs}):
            try:
                spec = RunSpec.model_validate(
                    {k: v for k, v in fields.items() if k in RunSpec.model_fields}
                )
            except ValueError:  # of another version
                continue
            if kind_of(spec) in wanted and counts_of(spec).passes and not self._learner(spec):
                found.setdefault(kind_of(spec), []).append(rates_of(wall_s, counts_of(spec)))
        self._rates = {kind: mean_rates(rates) for kind, rates in found.items()}
        self._stored = set(found)

    def _measure(self, jobs: Sequence[Job]) -> None:
        """Measure short runs of the kinds with the most work, until `MEASURE_S` has passed.

        Nothing is measured for a sweep that takes less than `WORTH_S`.
        """
        work: dict[tuple[Hashable, ...], float] = {}
        one: dict[tuple[Hashable, ...], RunSpec] = {}
        for job in jobs:
            kind = kind_of(job.spec)
            if kind not in self._rates and measurable(job.spec):
                rates = REPLAY if job.spec.replays else LIVE
                work[kind] = work.get(kind, 0.0) + run_seconds(counts_of(job.spec), rates)
                one.setdefault(kind, job.spec)
        if sum(work.values()) < WORTH_S:
            return
        with tempfile.TemporaryDirectory() as folder:  # a drawn trace is drawn once for all kinds
            self._measure_kinds(sorted(work, key=lambda kind: -work[kind]), one, Path(folder))

    def _measure_kinds(
        self, kinds: Sequence[tuple[Hashable, ...]], one: Mapping[tuple[Hashable, ...], RunSpec],
        scratch: Path,
    ) -> None:  # fmt: skip
        """Measure a short run of one cell of each kind, until `MEASURE_S` has passed."""
        began = self.clock()
        shared: Any = None
        group = ""
        for kind in kinds:
            if self.clock() - began > MEASURE_S:
                return
            try:
                session = self.planned.opened.session(short(one[kind]))
                now = str((session.spec.model, session.spec.weights, session.spec.expert_dtype))
                shared = session.share(shared if now == group else None)
                group = now
                self._rates[kind] = measured(session, scratch)
            except Exception:  # it cannot run here, or has a defect: the sweep reports both
                continue

    def _rates_for(self, spec: RunSpec) -> tuple[Rates, str]:
        kind = kind_of(spec)
        if kind in self._rates:
            return self._rates[kind], STORED if kind in self._stored else MEASURED
        for fields in _LIKE:
            like = [r for k, r in self._rates.items() if k[:fields] == kind[:fields]]
            if like:
                return mean_rates(like), ALIKE
        return (REPLAY if spec.replays else LIVE), CONSTANT

    def _learning(self, spec: RunSpec) -> tuple[Part, ...]:
        """Return the files that a cell must learn, each with the time that it takes."""
        own = needs_import(spec.system, spec.overrides)
        if spec.native or own or spec.replays or not self._learner(spec):
            return ()
        fields = {"prompts", "new_tokens", "batch", "cache_ratio", "slots", "machine", "software"}
        key = spec.model_dump_json(exclude=fields)
        if key not in self._parts:
            try:
                found = self.planned.learning(spec)
                self._parts[key] = () if found is None else self._parts_of(found)
            except MoeBenchError:  # the sweep will say so
                self._parts[key] = ()
        return self._parts[key]

    def _learner(self, spec: RunSpec) -> bool:
        """Return whether a run's system learns."""
        made = (spec.title, *sorted(spec.overrides.items()))
        if made not in self._learning_systems:
            policies = () if spec.native else spec.make_system().policies.values()
            self._learning_systems[made] = any(policy.calibrates for policy in policies)
        return self._learning_systems[made]

    def _parts_of(self, session: Any) -> tuple[Part, ...]:
        from moebench.harness.run import learn

        found = learns(session, self.store.directory)
        if found is None:
            return ()
        spec = session.spec
        asked = (spec.model, spec.weights, spec.title, tuple(sorted(spec.overrides.items())),
                 spec.expert_dtype)  # fmt: skip
        texts = len(learn.texts(spec, session.system, session.data_dir).examples)
        if asked not in self._learners:
            self._learners[asked] = Learner(session, texts)
        learner = self._learners[asked]
        return (
            Part(found.written, learner.write_seconds(found.texts)),
            Part(found.trained, learner.train_seconds(found.policies, texts)[0]),
        )
