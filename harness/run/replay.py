"""A run on a recorded trace: the simulated machine and the system's decisions, no mathematics."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from moebench.harness.run.inputs import RunInputs
from moebench.harness.run.spec import RunSpec, run_id
from moebench.harness.run.stage import Stage, set_up_replay
from moebench.substrate.engine.loop import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.passes import TracedModel, pass_steps
from moebench.substrate.traces.replay import Replay
from moebench.substrate.traces.scores import Reconstruction, spread_of
from moebench.systems.options import build
from moebench.systems.registry import name_of, source_hash
from moebench.workloads.draw import PromptSet

#: Shared decisions that look at no gate score.  One of a user's own counts as looking, unless its
#: class says ``reads_scores = False``.
SCORE_FREE = {
    "place": {"by-id", "popular", "none"},
    "route": {"exact"},
    "assign": {"load", "host"},
    "prefetch": {"none", "whole-layer", "expert-mlp"},
    "evict": {"static", "lru", "lfu", "fifo", "lifo", "arc", "lecar", "belady", "flashmoe"},
}


@dataclass(slots=True)
class ReplayInputs(RunInputs):
    """A trace instead of weights and questions."""

    trace: TraceFile

    @property
    def run_id(self) -> str:
        """The trace's content counts, not where it lies."""
        return run_id(self.spec.model_copy(update={"trace": None}), **self.hashes)

    @property
    def prompts(self) -> list[int]:
        """Rows of each sequence's prefill."""
        return [self.trace.prompt(s) for s in range(self.spec.prompts)]

    @property
    def without_prompt(self) -> int:
        """How many of the replayed sequences have no recorded prefill."""
        return sum(n == 0 for n in self.trace.prompts[: self.spec.prompts])

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


def prepare_replay(spec: RunSpec) -> ReplayInputs:
    """Open the trace and check it against the model that is charged.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    assert spec.trace is not None
    trace = open_trace(find_trace(spec.trace))
    full = model_shape(spec.model)
    if trace.header.top_k != full.top_k and trace.header.top_k < full.num_experts:
        full = full.model_copy(update={"top_k": trace.header.top_k})
    system = build(spec.system, spec.settings)
    _replay(spec, trace, full, system)
    hashes = {
        "trace": trace.hash,
        "weights": trace.hash,  # what routes, for a run's provenance
        "model": full.model_dump_json(),
        "data": trace.hash,
        "profile": load_profile(spec.machine).content_hash(),
        "system": source_hash(spec.system),
        "numpy": np.__version__,
    }
    sample = PromptSet(
        examples=(), source=f"trace of {trace.header.workload}", split="test", seed=spec.seed,
        available=len(trace.sequences), data_hash=trace.hash,
    )  # fmt: skip
    return ReplayInputs(spec, full, sample, hashes, trace)


def no_accuracy() -> dict[str, Any]:
    """What a replay knows of accuracy: nothing."""
    return {
        **dict.fromkeys(("score", "stderr", "metric", "agreement", "kl")),
        "n": 0,
        "items": {name: [] for name in ("value", "answer", "decoded", "agreed", "kl")},
    }


def stage_of(inputs: ReplayInputs, system: System, keep: bool) -> Stage:
    """Wire a replay; its notes say what it cannot know."""
    spec, trace = inputs.spec, inputs.trace
    model = _replay(spec, trace, inputs.full, system)
    if system.evict.clairvoyant:
        system.evict.foresee(pass_steps(p for batch in model.batches for p in batch))
    longest = max(inputs.prompts) + spec.new_tokens
    stage = set_up_replay(spec, system, TracedModel(model), inputs.full, longest, keep)
    stage.notes += _notes(inputs, system, model)
    return stage


def replay(inputs: ReplayInputs, stage: Stage, rows: slice) -> list[Generation]:
    """Replay a batch: sequences in lock step until the shortest ends."""
    spec, trace = inputs.spec, inputs.trace
    sequences = range(spec.prompts)[rows]
    passes = min(spec.new_tokens, *map(trace.passes, sequences))
    prompts = [[0] * trace.prompt(s) for s in sequences]
    return [stage.engine.generate(prompts, passes)]


def _replay(spec: RunSpec, trace: TraceFile, full: Any, system: System) -> Replay:
    """What the system will see.

    Raises:
        UsageError: the trace lacks scores or predictions that the system needs.
    """
    lookahead, reconstruction = system.lookahead, None
    if lookahead is not Lookahead.NONE and trace.predicted(lookahead) is None:
        kinds = ", ".join(trace.header.predictions) or "none"
        raise UsageError(
            f"{spec.trace}: holds no predictions of kind {lookahead} (it holds: {kinds}); "
            f"{spec.system} needs them; use --set prefetch=none, or a trace that has them"
        )
    if trace.scores_TLE is not None:
        if spec.reconstruct_scores:
            raise UsageError(f"--reconstruct-scores: {spec.trace} has gate scores")
    elif spec.reconstruct_scores:
        reconstruction = Reconstruction(spread_of(trace.header.model))
    elif readers := readers_of_scores(system):
        raise UsageError(
            f"{spec.trace}: holds no gate scores, {spec.system} reads them "
            f"({', '.join(readers)}); swap these with --set, or give --reconstruct-scores"
        )
    return Replay(trace, full, spec.batch, spec.prompts, spec.new_tokens, lookahead, reconstruction)


def readers_of_scores(system: System) -> list[str]:
    """The decisions of a system that look at gate scores, as ``--set`` names them."""
    readers = []
    for decision, policy in system.policies.items():
        name = name_of(decision, policy)
        if getattr(policy, "reads_scores", name not in SCORE_FREE[decision]):
            readers.append(f"{decision}={name}")
    return readers


def _notes(inputs: ReplayInputs, system: System, model: Replay) -> list[str]:
    spec, header = inputs.spec, inputs.trace.header
    notes = [f"routing replayed from trace {inputs.trace.hash} ({header.model}, {header.workload})"]
    if model.lookahead in header.predictions:
        made = header.predictions[model.lookahead].made
        notes.append(f"predictions as recorded: {made}")
    if not header.lossless:
        notes.append("the recorded system substituted experts: the text is not the model's own")
    if not system.lossless:
        notes.append(
            f"{spec.system} substitutes experts; the trace does not follow the text that it "
            "would have written"
        )
    if model.reconstruction is not None:
        notes.append(model.reconstruction.note)
    if inputs.without_prompt:
        notes.append(
            f"{inputs.without_prompt} of {spec.prompts} sequences have no recorded prompt: their "
            "first decoded token stands for it, so TTFT is not known"
        )
    passes = [inputs.trace.passes(s) for s in range(spec.prompts)]
    if min(passes) < spec.new_tokens:
        notes.append(
            f"sequences hold {min(passes)} to {max(passes)} tokens: a batch ends with its shortest"
        )
    native = model_shape(spec.model).top_k
    if native != header.top_k:
        notes.append(f"the trace ran with top-{header.top_k}, the model has top-{native}")
    return notes + header.notes
