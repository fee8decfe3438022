"""Replays: runs of a system on recorded or drawn routing, without computing tokens.

The simulated machine needs no mathematics.  This computer computes with random weights in the
model's shape, so that every copy and every product has its true size.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from moebench.harness.run import learn
from moebench.harness.run.identity import bits_hash, profile_hash, system_hash
from moebench.harness.run.learn import Learnable
from moebench.harness.run.routing import Source, source_of
from moebench.harness.run.session import Session
from moebench.harness.stage.kinds import memory_of, open_stage
from moebench.harness.stage.stage import Stage, StageRequest
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import model_shape, scale_names
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.dummy import DummyWeights
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import WORDS, Lookahead
from moebench.substrate.traces.computing import RoutedDecoder
from moebench.substrate.traces.file import Header, TraceFile
from moebench.substrate.traces.law import LAW, Law
from moebench.substrate.traces.passes import RoutingTrace, TracedModel, pass_steps
from moebench.substrate.traces.record import AHEAD
from moebench.substrate.traces.replay import Replay, check_topology
from moebench.substrate.traces.scores import Reconstruction, spread_of
from moebench.systems.registry import name_of

#: The data among `WORDS` that a trace can hold.
ARRAYS = WORDS.keys() - {"token_embeddings"}


@dataclass(slots=True, kw_only=True)
class ReplaySession(Session):
    """A run that replays a trace instead of computing.

    Attributes:
        source: where the trace is from; it may be made when it is first needed.
        data_dir: folder of evaluation sets, for texts that systems learn from.
        trace, replayed: once the session is open, the trace and what the system sees of it.
    """

    source: Source
    data_dir: Path | None = None
    trace: TraceFile = field(init=False)
    replayed: Replay = field(init=False)

    def __post_init__(self) -> None:
        """Check the trace against what the run needs.

        Raises UsageError: another topology, or the trace lacks scores or predictions.
        """
        check_topology(self.source.name, self.source.header, self.full)
        _check(self.spec, self.source, self.system)

    @property
    def identified(self) -> RunSpec:
        """Spec without the trace's path, since the trace's content identifies the run."""
        return self.spec.model_copy(update={"trace": None})

    @property
    def unknown_latencies(self) -> Sequence[str]:
        """TTFT and end-to-end time, where a sequence has no recorded prefill."""
        return ("ttft_ms", "e2e_ms") if self.without_prompt else ()

    @property
    def without_prompt(self) -> int:
        """Number of replayed sequences without a recorded prefill."""
        return sum(n == 0 for n in self.trace.prompts[: self.spec.prompts])

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, new ones included."""
        prompts = [self.trace.prompt(s) for s in range(self.spec.prompts)]
        return max(prompts) + self.spec.new_tokens

    def varied(self, spec: RunSpec) -> "ReplaySession":
        """Return the run of another spec on the same trace."""
        system = spec.make_system()
        hashes = _hashes(spec, system, self.source, self.full, self.data_dir)
        return replace(self, spec=spec, system=system, hashes=hashes)

    def drawn_under(self, law: Law, scratch: Path, tokens: int) -> RoutingTrace | None:
        """Return the first tokens of the first batch, drawn by a law; None if routing is not.

        Args:
            tokens: most passes, the prefill's included.
        """
        if self.source.under is None:
            return None
        spec, trace = self.spec, self.source.under(law).open(scratch)
        found = Replay(trace, self.full, spec.batch, spec.batch, min(tokens, spec.new_tokens),
                       self.system.lookaheads)  # fmt: skip
        return RoutingTrace(self.full, [list(batch) for batch in found.batches])

    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Return texts that are not replayed, or those of a live run, for calibration."""
        if self.source.session is not None:
            weights = self.source.session.weights
            return weights.learnable(self.spec, self.system, self.data_dir, scratch, progress)
        trace, replayed = self.source.learnable(scratch, self.spec.prompts)
        return learn.not_replayed(trace, self.spec, self.system, self.source.name, replayed)

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Open the stage of the machine that the spec names; notes state the limits of a replay."""
        spec, evict = self.spec, self.system.evict
        self.trace = self.source.open(scratch)
        reconstruction = None
        if spec.reconstruct_scores:
            reconstruction = Reconstruction(spread_of(self.trace.header.model))
        self.replayed = Replay(
            self.trace, self.full, spec.batch, spec.prompts, spec.new_tokens,
            self.system.lookaheads, self.system.reads_hidden or self.system.reads_token_norms,
            reconstruction,
        )  # fmt: skip
        if evict.clairvoyant:
            evict.set_future(pass_steps(p for batch in self.replayed.batches for p in batch))
        content = hashlib.sha256(self.full.model_dump_json().encode()).hexdigest()[:16]
        size = f"{self.full.total_params / 1e9:.3g} B random parameters"
        # This computer computes with random weights in the model's shape.
        weights = DummyWeights(self.full) if spec.machine == "local" else None
        request = StageRequest(
            spec=spec, system=self.system, full=self.full, longest=self.longest, model=self._model,
            weights=weights, weights_name=f"random-{content}", ran=f"{spec.model}'s shape, {size}",
            scratch=scratch, keep_timeline=keep_timeline,
        )  # fmt: skip
        stage = open_stage(request, stack)
        stage.notes += ([] if weights is None else _random_weights(weights)) + _notes(self)
        return stage

    def _model(self, decoder: Decoder | None) -> Model:
        """Return the engine's model: the trace, or a decoder with the trace's routing."""
        if decoder is None:
            return self.wrap(TracedModel(self.replayed))
        return cast(Model, RoutedDecoder(self.replayed, decoder))

    def check_memory(self) -> None:
        """Refuse a run whose longest recorded sequence does not fit into memory."""
        if self.spec.trace is not None:
            self.trace = self.source.open(Path())
            memory_of(self.spec, self.system, self.full, self.longest)

    def answer(self, stage: Stage, rows: slice) -> list[Generation]:
        """Replay a batch; all sequences stop when the shortest ends."""
        return [self._replay(stage, rows, self.spec.new_tokens)]

    def begin(self, stage: Stage, tokens: int, batches: int = 1) -> None:
        """Replay the first batches for at most ``tokens`` tokens each."""
        for first in range(0, batches * self.spec.batch, self.spec.batch):
            rows = slice(first, first + self.spec.batch)
            self._replay(stage, rows, min(tokens, self.spec.new_tokens))

    def _replay(self, stage: Stage, rows: slice, tokens: int) -> Generation:
        sequences = range(self.spec.prompts)[rows]
        passes = min(tokens, *map(self.trace.passes, sequences))
        return stage.engine.generate([[0] * self.trace.prompt(s) for s in sequences], passes)

    def accuracy(self) -> dict[str, Any]:
        """Return an ``accuracy`` part without figures, since a replay generates no text."""
        return {
            **dict.fromkeys(("score", "stderr", "metric", "chance", "cut", "agreement", "kl")),
            "n": 0,
            "items": {name: [] for name in ("value", "answer", "decoded", "agreed", "kl")},
        }

    @property
    def origin(self) -> dict[str, Any]:
        """Entries of the document's provenance that describe the source of routing."""
        return {
            "weights": f"none: routing replayed from {self.source.name}",
            "weights_hash": self.trace.header.source.get("weights_hash"),
            "trace_hash": self.trace.hash,
            "data": f"{self.sample.source}: {self.spec.prompts} of {self.sample.available}",
        }


def prepare(spec: RunSpec, data_dir: Path | None) -> ReplaySession:
    """Open the trace of a run, or plan the drawn one, and check it against the charged model."""
    source, full = source_of(spec, data_dir), model_shape(spec.model)
    top_k = source.header.top_k
    if top_k != full.top_k and top_k < full.num_experts:
        full = full.model_copy(update={"top_k": top_k})
    system = spec.make_system()
    hashes = _hashes(spec, system, source, full, data_dir)
    return ReplaySession(
        spec=spec, system=system, full=full, sample=source.sample, hashes=hashes, source=source,
        data_dir=data_dir,
    )  # fmt: skip


def _hashes(
    spec: RunSpec, system: System, source: Source, full: ModelShape, data_dir: Path | None
) -> dict[str, str]:
    return {
        "trace": source.hash,
        "weights": source.hash,  # what routes, for a run's provenance
        "model": full.model_dump_json(),
        "data": source.sample.data_hash,
        "profile": profile_hash(spec),
        "system": system_hash(system),
        "numpy": np.__version__,
        **learn.identity(spec, system, data_dir),
        **bits_hash(spec),
    }


def _check(spec: RunSpec, source: Source, system: System) -> None:
    """Refuse a trace that lacks data which a system reads."""
    name, header = source.name, source.header
    _check_predictions(spec, source, system)
    _check_weight_norms(spec, source, system)
    live = _without(spec)
    for decision, policy in system.policies.items():
        if source.session is None and "loss" in learn.learnt_from([policy]):
            raise UsageError(learn.no_losses(name, decision, policy))
        reads = {
            "hidden": policy.reads_hidden, "embedding": policy.reads_embedding,
            "token_embeddings": policy.reads_token_embeddings,
        }  # fmt: skip
        learns = learn.learnt_from([policy])
        for what in WORDS:
            if not header.has(what) and (reads.get(what) or what in learns):
                verb = "reads" if reads.get(what) else "learns from"
                record = ", or record a trace that holds them: moebench trace record"
                raise UsageError(
                    f"{name}: holds no {WORDS[what]}, {decision}={name_of(decision, policy)} "
                    f"{verb} them; swap it with --set, {'or ' * (what not in ARRAYS)}{live}"
                    f"{record * (what in ARRAYS)}"
                )
    if header.scores is not None and spec.reconstruct_scores:
        raise UsageError(f"--reconstruct-scores: {name} has gate scores")
    readers = readers_of_scores(system)
    if header.scores is None and readers and not spec.reconstruct_scores:
        raise UsageError(
            f"{name}: holds no gate scores, {spec.title} reads them "
            f"({', '.join(readers)}); swap these with --set, or give --reconstruct-scores"
        )


def _check_weight_norms(spec: RunSpec, source: Source, system: System) -> None:
    """Refuse a system that reads the norms of experts' weights, which a replay does not have."""
    readers = {d: policy for d, policy in system.policies.items() if policy.reads_weight_norms}
    if not readers:
        return
    named = [f"{decision}={name_of(decision, policy)}" for decision, policy in readers.items()]
    options = {policy.without_weight_norms for policy in readers.values()} - {""}
    instead = " and ".join(sorted(options)) or "other policies"
    raise UsageError(
        f"{source.name}: holds no norms of experts' weights, {' and '.join(named)} "
        f"read{'s' * (len(named) == 1)} them; use --set {instead}, or {_without(spec)}"
    )


def _check_predictions(spec: RunSpec, source: Source, system: System) -> None:
    """Refuse a trace whose predictions do not reach as many layers ahead as a system needs."""
    header, live = source.header, _without(spec)
    asking = (("route", system.route, "exact"), ("prefetch", system.prefetch, "none"))
    for decision, asker, plain in asking:
        predictor = asker.predictor
        if predictor is None or predictor.lookahead in (Lookahead.NONE, Lookahead.EXACT):
            continue
        kind, asked = predictor.lookahead, predictor.layers
        held = header.layers_ahead(kind)
        again = "record the trace again" if asked <= AHEAD.get(kind, 0) and spec.trace else live
        who = f"{decision}={name_of(decision, asker)}"
        if not held:
            kinds = ", ".join(header.predictions) or "none"
            lacks = f"no predictions of kind {kind} (it holds: {kinds}); {who} reads them"
        elif held < asked:
            lacks = f"predictions of kind {kind} {held} MoE layer(s) ahead; {who} reads {asked}"
        elif predictor.in_prefill:
            lacks, again = f"predictions of decoded tokens only; {who} predicts in prefill", live
        else:
            continue
        raise UsageError(f"{source.name}: holds {lacks}; use --set {decision}={plain}, or {again}")


def _without(spec: RunSpec) -> str:
    """Return the hint for a live run in place of a replay."""
    if spec.trace is None and spec.model not in scale_names():
        return f"give --weights DIR (no scale model of {spec.model} ships)"
    return f"run without {'--routing' if spec.trace is None else '--trace'}"


def readers_of_scores(system: System) -> list[str]:
    """Return the decisions of a system that read gate scores, as ``--set`` names them."""
    return [
        f"{decision}={name_of(decision, policy)}"
        for decision, policy in system.policies.items()
        if policy.reads_scores
    ]


def _of_the_law(spec: RunSpec) -> str:
    """Return a note on routing that is drawn by the law, without recorded statistics."""
    return (
        f"no scale model and no recorded routing of {spec.model}: drawn by a law with the medians "
        f"of eight recorded families (correlation of rows {LAW.lasting:g}, of neighbours "
        f"{LAW.next:g}, predictions of a recall of {LAW.recipe.recall:g}); prompts are counted by "
        "the scale models' tokenizer"
    )


def _random_weights(weights: DummyWeights) -> list[str]:
    """Return notes on the random weights that a replay on this computer computes with."""
    shape = weights.shape
    total = len(shape.moe_layers) * shape.num_experts
    notes = ["weights are random numbers in the model's shape; routing decides which are used"]
    if weights.distinct < total:
        notes.append(f"{weights.distinct} random records stand for {total} experts")
    return notes


def _of_the_system(spec: RunSpec, system: System, header: Header) -> list[str]:
    """Return notes on what a replay does not compute or know of a system's decisions."""
    notes = []
    if len(system.forms) > 1:
        names = ", ".join(form.name for form in system.forms[1:])
        notes.append(
            f"records in other forms ({names}) are charged; the trace does not follow the text "
            f"that {spec.title} would have written with them"
        )
    if not (system.route.lossless_at(system.alpha) and system.assign.lossless):
        notes.append(
            f"{spec.title} substitutes experts; the trace does not follow the text that it "
            "would have written"
        )
    if system.reads_token_norms and not header.has("hidden"):
        notes.append("the trace holds no hidden states: the norm of every token counts as 1")
    return notes


def _notes(session: ReplaySession) -> list[str]:
    spec, header, model = session.spec, session.trace.header, session.replayed
    trace = session.trace
    notes = [f"routing replayed from trace {trace.hash} ({header.model}, {header.workload})"]
    if spec.routing != "model":
        notes.insert(0, f"routing is {spec.routing}: {session.source.name}")
    if session.source.under is not None:
        notes.insert(0, _of_the_law(spec))
    for kind in model.lookaheads:
        if kind in header.predictions:
            notes.append(f"predictions as recorded: {header.predictions[kind].made}")
    if not header.lossless:
        notes.append("the recorded system substituted experts: the text is not the model's own")
    notes += _of_the_system(spec, session.system, header)
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
