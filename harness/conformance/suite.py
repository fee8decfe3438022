"""The conformance suite: checks of a system by running it.

    options      every option reaches its policy and is described
    runs         prefill and decode end, and every sequence has its tokens
    invariants   lanes, slots, bytes, order, counts and the lower bound, from the run's spans
    lossless     a system that claims it generates the resident model's tokens
    repeats      the same run again has the same spans and tokens

All but the first are checked in every `Case`, on the simulated machine: a fine-grained and a coarse
model, one sequence and three, a device that holds few experts and one that holds most, routing that
the model computes and routing that is replayed.  A system that must know the future is checked on
replays only.  Trained systems are calibrated on a few texts.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moebench.harness.conformance.bench import Bench, NotChecked, Run, bench_in
from moebench.harness.conformance.cases import CASES, Case
from moebench.harness.conformance.host_memory import check_host_memory
from moebench.harness.conformance.invariants import (
    BrokenError,
    check_counts,
    check_micro_batches,
    check_order,
    check_timeline,
    check_times,
    must,
)
from moebench.harness.conformance.swaps import check_options
from moebench.harness.conformance.watch import Claim
from moebench.harness.run.bound import bound
from moebench.harness.run.live import LiveSession
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.systems.options import build
from moebench.systems.registry import Variant

CHECKS = ("options", "runs", "invariants", "lossless", "repeats")

State = Literal["ok", "failed", "n/a"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a system.

    Attributes:
        check: one of `CHECKS`.
        case: the conditions; None for options.
        state: ``n/a`` if there is nothing to check.
        detail: the violation, or the reason why there is nothing to check.
    """

    system: str
    variant: Variant
    check: str
    case: Case | None
    state: State
    detail: str = ""

    @property
    def title(self) -> str:
        """The system's name as in runs."""
        return self.system if self.variant == "published" else f"{self.system} ({self.variant})"

    def __str__(self) -> str:
        where = "" if self.case is None else f" ({self.case})"
        return f"{self.title}: {self.check} {self.state}{where}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a system's checks."""

    findings: list[Finding]

    @property
    def failures(self) -> list[str]:
        """One line for each check that failed."""
        return [str(found) for found in self.findings if found.state == "failed"]

    @property
    def ran(self) -> bool:
        """Whether the system exists in any of the cases."""
        return any(f.state != "n/a" for f in self.findings if f.check == "runs")


def check_system(
    system: str | type[System], variant: Variant = "published", cases: Sequence[Case] = CASES,
    progress: Callable[[int, int], None] = lambda done, total: None, scratch: Path | None = None,
) -> Report:  # fmt: skip
    """Check a system in all cases and return the findings.

    Args:
        system: a name as ``--system`` takes it, or a class of your own at the top of a module.
        progress: called with the cases done and to do.
        scratch: a folder for trained artefacts; None is one that is deleted with this process.

    Raises UnknownNameError, UsageError: there is no such system, or it cannot be built.
    """
    name = system if isinstance(system, str) else f"{system.__module__}:{system.__qualname__}"
    build(name, variant=variant)
    checked = _Checked(name, variant, bench_in(scratch))
    checked.check("options", None, lambda: check_options(name, variant))
    for done, case in enumerate(cases, start=1):
        checked.check_case(case)
        progress(done, len(cases))
    return Report(checked.findings)


# ----------------------------------------------------------------------------- one system


@dataclass
class _Checked:
    """Runs the checks of one system and collects their findings."""

    name: str
    variant: Variant
    bench: Bench
    findings: list[Finding] = field(default_factory=list)

    def add(self, check: str, case: Case | None, state: State, detail: str = "") -> None:
        self.findings.append(Finding(self.name, self.variant, check, case, state, detail))

    def check(self, check: str, case: Case | None, work: Callable[[], None]) -> bool:
        """Run one check, record its result or exception, and return whether it passed."""
        try:
            work()
        except NotChecked as why:
            self.add(check, case, "n/a", str(why))
        except Exception as error:  # a system's own code may raise anything
            self.add(check, case, "failed", _line(error))
        else:
            self.add(check, case, "ok")
            return True
        return False

    def check_case(self, case: Case) -> None:
        """Run the system in a case, check the run, and repeat it."""
        bench, ran = self.bench, list[Run]()

        def runs() -> None:
            ran.append(bench.run(self.name, self.variant, case))
            check_lengths(ran[0])

        def repeats() -> None:
            again = bench.run(self.name, self.variant, case)
            must(ran[0].recorded == again.recorded, "the same run again went otherwise")

        if self.check("runs", case, runs):
            self.check("invariants", case, lambda: check_invariants(ran[0]))
            self.check("lossless", case, lambda: check_lossless(ran[0], bench))
            self.check("repeats", case, repeats)


def _line(error: Exception) -> str:
    """Return one line with the error, and its position in the code unless it is one of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, BrokenError | UsageError | BudgetError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"


# ----------------------------------------------------------------------------- checks of a run


def check_lengths(ran: Run) -> None:
    """Check that every sequence has its tokens, and that both phases used experts.

    Raises BrokenError: they do not.
    """
    spec, counts = ran.session.spec, ran.stage.engine.tally.by_phase
    written = [len(tokens) for g in ran.generations for tokens in g.tokens]
    must(len(written) == spec.prompts, f"{len(written)} sequences of {spec.prompts}")
    if not ran.session.spec.replays:
        must(set(written) == {spec.new_tokens}, f"texts of {written}, not {spec.new_tokens} tokens")
    for phase, n in counts.items():
        must(n.active > 0, f"{phase} used no expert")


def check_invariants(ran: Run) -> None:
    """Check a run's lanes, slots, order, counts, times, memory and lower bound.

    Raises BrokenError: an invariant does not hold.
    """
    stage, engine = ran.stage, ran.stage.engine
    spans, system, cache = stage.timeline.spans, engine.system, engine.cache
    shape, spec = engine.model.shape, ran.session.spec
    stored_as = spec.expert_dtype or system.expert_precision or spec.precision
    check_timeline(
        spans,
        ran.events,
        num_experts=shape.num_experts,
        num_layers=shape.num_layers,
        capacity=cache.capacity,
        record_bytes=[form.record_bytes(ran.session.full, stored_as) for form in system.forms],
        budget_bytes=stage.device.budget_bytes,
        writes_back=system.evict.writes_back,
        reads_unfinished=system.reads_unfinished,
        queued=engine.transfers.queued_uploads(),
        one_form=bool(system.place.own_forms),
    )
    check_order(spans, engine.homes, ran.deferred)
    check_micro_batches(spans)
    check_counts(spans, engine.tally.by_phase, ran.generations)
    check_times(stage.timeline, ran.generations)
    cache.check_integrity()
    must(stage.device.peak_bytes <= stage.device.budget_bytes, "more bytes than the device has")
    must(stage.host.peak_bytes <= stage.host.budget_bytes, "more bytes than the host has")
    memory = stage.machine.host_memory
    if memory is not None:
        claims = (event for event in ran.events if isinstance(event, Claim) and event.placed)
        placed = [(cache.form_of(claim.key), *cache.expert_of(claim.key)) for claim in claims]
        check_host_memory(spans, placed, memory.capacity)
    found = bound(engine, ran.generations, clairvoyant=True)
    ratio, programs = found["ratio"], found["programs"]
    must(ratio is None or ratio >= 1, f"it is faster than its lower bound: {ratio} of it")
    if programs is not None:
        least, ran_ms = found["clairvoyant_ms"], programs["tpot_ms"]
        must(least <= ran_ms, f"it is faster than the clairvoyant bound: {ran_ms} of {least} ms")


def check_lossless(ran: Run, bench: Bench) -> None:
    """Check that the tokens are the resident model's; in a replay, that no expert was replaced.

    Raises:
        BrokenError: they are not.
        NotChecked: the system does not claim it.
    """
    if not ran.stage.engine.system.lossless:
        raise NotChecked("it does not claim to be lossless")
    replaced = sum(counts.replaced for counts in ran.stage.engine.tally.by_phase.values())
    must(replaced == 0, f"{replaced} experts were replaced")
    if isinstance(ran.session, LiveSession):
        wanted = bench.resident(ran.session)
        for generation, texts in zip(ran.generations, wanted, strict=True):
            if generation.tokens != texts:
                raise BrokenError(f"it wrote {generation.tokens}, the resident model {texts}")
