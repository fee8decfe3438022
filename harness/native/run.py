"""Runs of third-party packages: the same prompts, a process of its own, timed tokens.

What a package does not say is null in the document: cache ratios, lanes, transfers, a bound.  What
is known from outside is under ``metrics.process``: memory, page faults, bytes from the disk.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from moebench.harness.native.limits import Limit
from moebench.harness.native.process import NativeProcess
from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.document import Result, document_of, generated_tokens, unknown
from moebench.harness.run.identity import system_hash
from moebench.harness.run.live import decoded, open_inputs, up_to
from moebench.harness.run.questions import Question
from moebench.harness.run.session import Outcome, Prepared
from moebench.harness.run.weights import OpenWeights, named
from moebench.harness.stage.kinds import memory_of
from moebench.harness.stage.local import DTYPE
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import NotApplicableError
from moebench.substrate.files_read import below, collect_reads, record_read
from moebench.substrate.machines import energy
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.progress_events import report_phase
from moebench.systems.native.base import LOCAL, Job, NativeSystem
from moebench.systems.native.sizes import parse_size
from moebench.systems.options import build, describe
from moebench.workloads.catalogue import workload
from moebench.workloads.workload import Workload

#: Tokens of the first batch that are written before anything is timed.
WARM_UP = 3

#: Counters of the process, of which a run's share is their growth; the others are highest values.
_COUNTERS = ("read_bytes", "asked_bytes", "major_faults", "minor_faults")


@dataclass(slots=True, kw_only=True)
class NativeSession(Prepared):
    """A prepared run of a third-party package."""

    system: NativeSystem
    weights: OpenWeights
    workload: Workload
    questions: list[Question]
    accuracy: Accuracy = field(init=False)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text, new ones included."""
        return max(q.length for q in self.questions) + self.spec.new_tokens

    def varied(self, spec: RunSpec) -> "NativeSession":
        """Return the run of another spec on the same weights and prompts."""
        system = _checked(spec, self.weights.checkpoint)
        # Every run on this computer is a measurement of its own.
        own = {"system": system_hash(system), "profile": f"{time.time_ns()}"}
        weights = replace(self.weights, shared=None)
        hashes = self.hashes | own
        return replace(self, spec=spec, system=system, hashes=hashes, weights=weights)

    def share(self, shared: SharedWork | None) -> SharedWork:
        """Share reference logits with an earlier run of the same weights."""
        return self.weights.share(shared)

    def check_memory(self) -> None:
        """Do nothing: the package itself reports what does not fit."""

    def close(self) -> None:
        """Release the weights' files."""
        self.weights.checkpoint.close()

    def job(self, scratch: Path) -> Job:
        """Return the job of the package's process, after writing the files that it needs."""
        content = self.hashes["weights"]
        model = record_read(
            self.system.model_file(self.weights.checkpoint, content, scratch / "native")
        )
        return Job(
            adapter=type(self.system).__module__, libraries=list(self.system.libraries),
            model=str(model.absolute()),
            folder=str((scratch / "native" / f"{self.spec.system}-{os.getpid()}").absolute()),
            options={name: getattr(self.system, name) for name in describe(self.system)},
            context=self.longest, batch=self.spec.batch,
        )  # fmt: skip

    def limit_bytes(self) -> int | None:
        """Return the process's memory limit beyond its libraries, in bytes; None if unlimited."""
        limit = self.system.memory_limit
        if limit != LOCAL:
            return None if limit is None else parse_size("memory_limit", limit)
        # An on-demand system has no memory of its own: what it has is what is offered.
        ours = self.spec.model_copy(update={"software": DEFAULT_SOFTWARE})
        capacity = memory_of(ours, build("moe-ondemand"), self.full, self.longest).capacity
        shape, size = self.weights.checkpoint.shape, DTYPE.itemsize
        experts = capacity.slots * shape.expert_params * size
        common = (
            shape.total_params * size
            - len(shape.moe_layers) * shape.num_experts * shape.expert_params * size
        )
        kv = self.longest * self.spec.batch * shape.kv_bytes_per_token()
        return common + experts + kv


def _checked(spec: RunSpec, checkpoint: Checkpoint) -> NativeSystem:
    """Build the package's adapter, and refuse weights that it cannot run.

    Raises:
        UsageError: it is not installed.
        NotApplicableError: it cannot run them.
    """
    system = spec.make_native()
    system.check_installed(spec.system)
    reason = system.why_not(checkpoint.shape, spec.batch)
    if checkpoint.store is not None:
        reason = "imported weights, which packages cannot read; give the original folder"
    if reason is not None:
        raise NotApplicableError(f"{spec.system} with {checkpoint.path.name}: {reason}")
    return system


def prepare(spec: RunSpec, data_dir: Path | None) -> NativeSession:
    """Open weights and prompts, and check that the package is installed."""
    spec.make_native().check_installed(spec.system)
    found = open_inputs(spec, data_dir)
    system = _checked(spec, found.weights.checkpoint)
    return NativeSession(
        spec=spec, system=system, full=found.weights.full, sample=found.sample,
        hashes=found.hashes | {"system": system_hash(system)}, weights=found.weights,
        workload=workload(spec.workload), questions=found.questions,
    )  # fmt: skip


# ------------------------------------------------------------------------- the run


@dataclass(slots=True)
class _Told:
    """Facts that the package's process reports besides tokens."""

    versions: dict[str, str | None] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    load_ns: int = 0
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)

    def grown(self, counter: str) -> int | None:
        """Return the growth of a process counter during the timed part; None if unknown."""
        return self.after[counter] - self.before[counter] if counter in self.after else None

    def figures(self) -> dict[str, int | None]:
        """Return the growth of counters in the timed part, and the peak memory with loading."""
        found: dict[str, int | None] = {name: self.grown(name) for name in _COUNTERS}
        return found | {"peak_rss_bytes": self.after.get("peak_rss_bytes")}


def run(session: NativeSession, scratch: Path, progress: Callable[[int, int], None]) -> Outcome:
    """Run a third-party package on the session's prompts.

    Args:
        scratch: where files are kept that are written from checkpoints, and its log.

    Raises MoeBenchError: it failed; its process has ended.
    """
    started = time.monotonic()
    torch.set_num_threads(1)
    spec, system = session.spec, session.system
    session.accuracy = Accuracy(session.workload, session.sample.examples)
    size = session.limit_bytes()
    limit = None if size is None else Limit(size)
    report_phase("load")
    told, generations = _Told(), []
    log = scratch / "native" / f"{spec.system}-{os.getpid()}.log"
    with ExitStack() as stack:
        used = stack.enter_context(collect_reads())
        job = session.job(scratch)
        process = stack.enter_context(NativeProcess(spec.system, job, log, system.timeout_s, limit))
        told.versions = process.receive()["imported"]
        if limit is not None:
            limit.imported()
        loaded = process.receive()
        told.facts, told.load_ns = loaded["loaded"], loaded["load_ns"]
        if limit is not None:
            limit.apply()
        warm = min(WARM_UP, spec.new_tokens)
        told.before = _generate(process, session, slice(0, spec.batch), warm)[1]
        batches, meter = range(0, spec.prompts, spec.batch), energy.open_meter(None)
        for done, first in enumerate(batches):
            rows = slice(first, first + spec.batch)
            with meter:
                generation, told.after = _generate(process, session, rows, spec.new_tokens)
            generations.append(generation)
            progress(done + 1, len(batches))
    report_phase("scoring")
    for first, generation in zip(batches, generations, strict=True):
        _score(session, slice(first, first + spec.batch), generation)
    result = _result(session, generations, told, limit, meter)
    origin = {"kept": below(scratch, used), "wall_s": round(time.monotonic() - started, 3)}
    return Outcome(document_of(session, result, origin), [], Timeline(False), generations)


def _generate(
    process: NativeProcess, session: NativeSession, rows: slice, new_tokens: int
) -> tuple[Generation, dict[str, int]]:
    """Generate a batch; return its timed tokens and the process's counters."""
    end = session.weights.end if session.spec.scoring == "generation" else None
    prompts = _prompts(session, rows)
    process.send({"prompts": prompts, "new_tokens": new_tokens, "end": end})
    generation = Generation([[] for _ in prompts], process.receive()["started"])
    report_phase("prefill")
    while "done" not in (answer := process.receive()):
        report_phase("decode", len(generation.token_ends_ns) + 1, new_tokens)
        generation.token_ends_ns.append(answer["ns"])
        for text, token in zip(generation.tokens, answer["tokens"], strict=True):
            text.append(token)
    return generation, answer["done"]


def _prompts(session: NativeSession, rows: slice) -> list[list[int]]:
    """Return a batch's whole prompts; unlike in a live run, cues are prefilled as well."""
    return [[*q.prompt, *q.continuations[0]] for q in session.questions[rows]]


def _score(session: NativeSession, rows: slice, generation: Generation) -> None:
    """Score a batch's texts, and compare tokens only, since packages return no logits."""
    end = session.weights.end if session.spec.scoring == "generation" else None
    tokens = [up_to(end, text) for text in generation.tokens]
    texts = decoded(session.weights.tokenizer, tokens)
    ended = [session.weights.end in t for t in tokens]
    session.accuracy.replied(rows, tokens, session.sample.examples[rows], texts, ended)
    shared = session.weights.shared or session.share(None)
    session.accuracy.compare(rows, shared, _prompts(session, rows), tokens, None)


# ------------------------------------------------------------------------- the document


def _result(
    session: NativeSession, generations: list[Generation], told: _Told, limit: Limit | None,
    meter: energy.Meter,
) -> Result:  # fmt: skip
    spec, system, checkpoint = session.spec, session.system, session.weights.checkpoint
    ran = named(spec, checkpoint)
    end = session.weights.end if spec.scoring == "generation" else None
    return Result(
        generations=generations,
        texts=[up_to(end, text) for g in generations for text in g.tokens],
        resolved={"alpha": None, "cache_ratio": None, "slots": None, "options": describe(system)},
        badge="measured",
        ran=ran,
        lossless=system.lossless,
        memory={
            "offered_device_bytes": None, "offered_host_bytes": None,
            "expert_bytes": checkpoint.shape.expert_params * DTYPE.itemsize, "slot_bytes": None,
            "limit_bytes": session.limit_bytes(), "limited_by": None if limit is None else limit.by,
            "page_cache_limited": None if limit is None else limit.page_cache,
        },
        notes=_notes(session, ran, told, limit),
        metrics={
            **unknown(),
            **meter.figures(generated_tokens(generations)),
            "process": told.figures(),
        },
        load_ns=told.load_ns,
        switches=told.grown("involuntary_switches"),
        accuracy=session.accuracy.document(),
        bound={"tpot_ms": None, "ratio": None},
        versions=told.versions,
        provenance={"threads": system.threads},
    )  # fmt: skip


def _notes(session: NativeSession, ran: str, told: _Told, limit: Limit | None) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in told.versions.items())
    threads = session.system.threads
    held = "no limit on its memory: files that were read stay in the page cache"
    if limit is not None:
        held = f"its memory is limited to {limit.text}, from when its model was loaded"
    return [
        f"{ran} ran in fp32, measured on this computer's CPU: {versions}, in a process of its own "
        f"with {threads} thread{'s' if threads > 1 else ''}; {WARM_UP} tokens before it were not "
        "timed",
        held, *session.system.remarks(), *told.facts,
    ]  # fmt: skip
