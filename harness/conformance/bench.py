"""Instrumented runs of systems in test cases; weights and prompts are opened once for all."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from moebench.harness.conformance.cases import Case, spec_of
from moebench.harness.conformance.watch import (
    Again,
    Claim,
    LetGo,
    WatchedModel,
    watch_again,
    watch_slots,
)
from moebench.harness.run.execute import EngineRun, calibrated, prepare
from moebench.harness.run.learn import silent
from moebench.harness.run.live import LiveSession
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.traces.observe import write
from moebench.systems.options import build
from moebench.systems.registry import Variant


class NotChecked(Exception):
    """Raised with the reason why a system is not checked in a case."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run and its recorded events.

    Attributes:
        events: claims and releases of slots.
        deferred: for each layer of each pass, the experts that its sum did not wait for.
    """

    case: Case
    session: EngineRun
    stage: Stage
    generations: list[Generation]
    events: list[Claim | LetGo | Again]
    deferred: list[tuple[int, ...]]

    @property
    def recorded(self) -> list[Any]:
        """All values that must be equal when the run is repeated."""
        spans = self.stage.timeline.spans
        written = [(g.tokens, g.token_ends_ns, g.used) for g in self.generations]
        timed = [(s.op, s.lane, s.start_ns, s.end_ns, s.cause) for s in spans]
        return [timed, self.events, written]


class Bench:
    """Opens weights and prompts once for all systems."""

    def __init__(self, scratch: Path | None) -> None:
        if scratch is None:
            scratch = Path(tempfile.mkdtemp(prefix="moebench-"))
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self.scratch = scratch
        self._opened: dict[str, EngineRun] = {}
        self._shared: dict[str, SharedWork] = {}
        self._resident: dict[str, list[list[list[int]]]] = {}

    def session(self, name: str, variant: Variant, case: Case) -> EngineRun:
        """Return a system's run in a case, ready to start.

        Raises NotChecked: the system does not exist for the case.
        """
        system = build(name, variant=variant)
        why_not = system.why_not(model_shape(case.model), case.batch)
        if why_not is not None:
            raise NotChecked(why_not)
        replayed = case.replayed or system.clairvoyant
        spec = spec_of(name, variant, case, replayed)
        key = self._key(spec)
        if key not in self._opened:
            self._opened[key] = prepare(spec_of("moe-ondemand", "published", case, replayed), None)
        try:
            session = self._opened[key].varied(spec)
        except UsageError as error:
            if system.clairvoyant or not case.replayed:
                raise
            raise NotChecked(str(error)) from error  # a replay refuses what its trace lacks
        if isinstance(session, LiveSession):
            session.weights.shared = self._share(session)
        return session

    def _share(self, session: LiveSession) -> SharedWork:
        """Share a model's experts between runs, but not prefills, which a system may change."""
        if session.spec.model not in self._shared:
            self._shared[session.spec.model] = SharedWork(session.weights.checkpoint)
        return self._shared[session.spec.model]

    def run(self, name: str, variant: Variant, case: Case) -> Run:
        """Run a system in a case and record its slot events and deferred experts.

        Raises NotChecked: the system does not exist for the case, or needs a larger device.
        """
        session = self.session(name, variant, case)
        watched: list[WatchedModel] = []

        def wrap(model: Any) -> Any:
            watched.append(WatchedModel(model))
            return watched[0]

        session.wrap = wrap
        torch.set_num_threads(1)
        with ExitStack() as stack, torch.inference_mode():
            try:
                stage, _ = calibrated(session, self.scratch, silent, True, stack)
                events = watch_slots(stage.engine.cache, stage.timeline)
                watch_again(stage.engine.transfers, stage.timeline, events)
                stage.start()
            except BudgetError as error:
                raise NotChecked(str(error)) from error
            events[:] = [claim._replace(placed=True) for claim in events]
            generations = list(_generate(session, stage))
            stage.timeline.finish(generations[-1].token_ends_ns[-1])
        return Run(case, session, stage, generations, events, watched[0].deferred)

    def resident(self, session: LiveSession) -> list[list[list[int]]]:
        """Return the tokens that the model generates with every expert resident, batch by batch."""
        key = self._key(session.spec)
        if key not in self._resident:
            decoder = self._share(session).decoder()
            self._resident[key] = [
                write(decoder, prompts, session.spec.new_tokens, None)
                for prompts in batches(session)
            ]
        return self._resident[key]

    def _key(self, spec: RunSpec) -> str:
        return f"{spec.model} {spec.batch} {spec.routing}"


@lru_cache(maxsize=1)
def bench_in(scratch: Path | None) -> Bench:
    """Return the `Bench` of this process."""
    return Bench(scratch)


def batches(session: LiveSession) -> Iterator[list[list[int]]]:
    """Yield the prompts as token ids, batch by batch."""
    prompts = [question.prompt for question in session.questions]
    for first in range(0, len(prompts), session.spec.batch):
        yield prompts[first : first + session.spec.batch]


def _generate(session: EngineRun, stage: Stage) -> Iterator[Generation]:
    if isinstance(session, LiveSession):
        for prompts in batches(session):
            yield stage.engine.generate(prompts, session.spec.new_tokens)
        return
    for first in range(0, session.spec.prompts, session.spec.batch):
        yield from session.answer(stage, slice(first, first + session.spec.batch))
