"""A run on a recorded trace: the simulated machine and the system's decisions, no mathematics."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moebench.harness.run import calibration
from moebench.harness.run.identity import run_id, system_hash
from moebench.harness.run.session import Learnable, Session
from moebench.harness.run.spec import RunSpec
from moebench.harness.run.stage import Stage, memory_for, simulated
from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.passes import TracedModel, pass_steps
from moebench.substrate.traces.replay import Replay
from moebench.substrate.traces.scores import Reconstruction, spread_of
from moebench.systems.options import build
from moebench.systems.registry import name_of
from moebench.workloads.draw import PromptSet


@dataclass(slots=True, kw_only=True)
class ReplaySession(Session):
    """A run that replays a trace instead of computing."""

    trace: TraceFile
    #: What the system sees of the trace.
    replayed: Replay = field(init=False)

    def __post_init__(self) -> None:
        """Check the trace against what the system needs.

        Raises:
            UsageError: the trace lacks scores or predictions that the system needs.
        """
        spec, trace = self.spec, self.trace
        self.replayed = Replay(
            trace, self.full, spec.batch, spec.prompts, spec.new_tokens, self.system.lookaheads,
            _reconstruction(spec, trace, self.system),
        )  # fmt: skip

    @property
    def run_id(self) -> str:
        """The trace's content counts, not where it lies."""
        return run_id(self.spec.model_copy(update={"trace": None}), **self.hashes)

    @property
    def without_prompt(self) -> int:
        """How many of the replayed sequences have no recorded prefill."""
        return sum(n == 0 for n in self.trace.prompts[: self.spec.prompts])

    def varied(self, spec: RunSpec) -> "ReplaySession":
        """The same trace under another spec."""
        system = build(spec.system, spec.overrides)
        hashes = _hashes(spec, system, self.trace, self.full)
        return replace(self, spec=spec, system=system, hashes=hashes)

    def learnable(self, folder: Path) -> Learnable:
        """The trace's last sequences."""
        return calibration.not_replayed(self.trace, self.spec)

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """A simulated machine; the notes say what a replay cannot know."""
        spec, evict = self.spec, self.system.evict
        if evict.clairvoyant:
            evict.set_future(pass_steps(p for batch in self.replayed.batches for p in batch))
        prompts = [self.trace.prompt(s) for s in range(spec.prompts)]
        memory = memory_for(spec, self.system, self.full, max(prompts) + spec.new_tokens)
        model = TracedModel(self.replayed)
        stage = simulated(spec, self.system, model, self.full, memory, keep_timeline)
        stage.notes += _notes(self)
        return stage

    def answer(self, stage: Stage, rows: slice) -> list[Generation]:
        """Replay a batch: sequences in lock step until the shortest ends."""
        sequences = range(self.spec.prompts)[rows]
        passes = min(self.spec.new_tokens, *map(self.trace.passes, sequences))
        prompts = [[0] * self.trace.prompt(s) for s in sequences]
        return [stage.engine.generate(prompts, passes)]

    def accuracy(self) -> dict[str, Any]:
        """No figure: a replay writes no text."""
        return {
            **dict.fromkeys(("score", "stderr", "metric", "agreement", "kl")),
            "n": 0,
            "items": {name: [] for name in ("value", "answer", "decoded", "agreed", "kl")},
        }

    def mark(self, document: dict[str, Any]) -> None:
        """Say what a replay did not measure, and where its routing comes from."""
        if self.without_prompt:
            document["metrics"] |= {"ttft_ms": None, "e2e_ms": None}
        document["provenance"] |= {
            "weights": f"none: routing replayed from {self.spec.trace}",
            "weights_hash": self.trace.header.source.get("weights_hash"),
            "trace_hash": self.trace.hash,
            "data": f"{self.sample.source}: {self.spec.prompts} of {self.sample.available}",
        }


def prepare(spec: RunSpec) -> ReplaySession:
    """Open the trace and check it against the model that is charged.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    assert spec.trace is not None
    trace = open_trace(find_trace(spec.trace))
    full = model_shape(spec.model)
    if trace.header.top_k != full.top_k and trace.header.top_k < full.num_experts:
        full = full.model_copy(update={"top_k": trace.header.top_k})
    system = build(spec.system, spec.overrides)
    sample = PromptSet(
        examples=(), source=f"trace of {trace.header.workload}", split="test", seed=spec.seed,
        available=len(trace.sequences), data_hash=trace.hash,
    )  # fmt: skip
    hashes = _hashes(spec, system, trace, full)
    return ReplaySession(
        spec=spec, system=system, full=full, sample=sample, hashes=hashes, trace=trace
    )


def _hashes(spec: RunSpec, system: System, trace: TraceFile, full: ModelShape) -> dict[str, str]:
    return {
        "trace": trace.hash,
        "weights": trace.hash,  # what routes, for a run's provenance
        "model": full.model_dump_json(),
        "data": trace.hash,
        "profile": load_profile(spec.machine).content_hash(),
        "system": system_hash(system),
        "numpy": np.__version__,
        **calibration.identity(spec, system, None),
    }


def _reconstruction(spec: RunSpec, trace: TraceFile, system: System) -> Reconstruction | None:
    """What replaces scores that were not recorded; None where they were, or are not needed."""
    for kind in system.lookaheads:
        if trace.predicted(kind) is None:
            kinds = ", ".join(trace.header.predictions) or "none"
            raise UsageError(
                f"{spec.trace}: holds no predictions of kind {kind} (it holds: {kinds}); "
                f"{spec.system} needs them; use --set prefetch=none, or a trace that has them"
            )
    for name, policy in system.policies.items():
        if policy.reads_hidden or policy.reads_embedding:
            raise UsageError(
                f"{spec.trace}: holds no hidden states, {name}={name_of(name, policy)} reads them; "
                "swap it with --set, or run without --trace"
            )
    if trace.scores_TLE is not None:
        if spec.reconstruct_scores:
            raise UsageError(f"--reconstruct-scores: {spec.trace} has gate scores")
        return None
    if spec.reconstruct_scores:
        return Reconstruction(spread_of(trace.header.model))
    if readers := readers_of_scores(system):
        raise UsageError(
            f"{spec.trace}: holds no gate scores, {spec.system} reads them "
            f"({', '.join(readers)}); swap these with --set, or give --reconstruct-scores"
        )
    return None


def readers_of_scores(system: System) -> list[str]:
    """The decisions of a system that look at gate scores, as ``--set`` names them."""
    return [
        f"{decision}={name_of(decision, policy)}"
        for decision, policy in system.policies.items()
        if policy.reads_scores
    ]


def _notes(session: ReplaySession) -> list[str]:
    spec, header, model = session.spec, session.trace.header, session.replayed
    trace = session.trace
    notes = [f"routing replayed from trace {trace.hash} ({header.model}, {header.workload})"]
    for kind in model.lookaheads:
        if kind in header.predictions:
            notes.append(f"predictions as recorded: {header.predictions[kind].made}")
    if not header.lossless:
        notes.append("the recorded system substituted experts: the text is not the model's own")
    if not session.system.lossless:
        notes.append(
            f"{spec.system} substitutes experts; the trace does not follow the text that it "
            "would have written"
        )
    if model.reconstruction is not None:
        notes.append(model.reconstruction.note)
    if session.without_prompt:
        notes.append(
            f"{session.without_prompt} of {spec.prompts} sequences have no recorded prompt: their "
            "first decoded token stands for it, so TTFT is not known"
        )
    passes = [trace.passes(s) for s in range(spec.prompts)]
    if min(passes) < spec.new_tokens:
        notes.append(
            f"sequences hold {min(passes)} to {max(passes)} tokens: a batch ends with its shortest"
        )
    native = model_shape(spec.model).top_k
    if native != header.top_k:
        notes.append(f"the trace ran with top-{header.top_k}, the model has top-{native}")
    return notes + header.notes
