"""Routing source of a replay: a given trace, a drawn trace, or recordings of the real model.

| ``--routing`` | who chooses the experts |
|---|---|
| ``model`` | the model that computes, or with ``--trace`` the one that was recorded |
| ``replayed`` | the model that would compute: its run is recorded once, and replayed |
| ``drawn`` | a trace drawn with the real model's statistics, or by a law if none are known |
| ``real`` | recordings of the real model in the data folder |

``replayed`` saves the computation of all runs but one: a lossless system chooses the same experts
and takes the same times as in a live run.  A system that substitutes experts would write another
text and route it otherwise, which a replay leaves out.  Systems learn from the same texts as live.

The last two are a second opinion: does a conclusion depend on the routing of the scale model?  A
drawn trace has the lengths of the prompts that ``model`` would read.  Both have scores and
predictions, so that every system runs on them (by the law, no predictions).  They are made when a
run first needs them, and kept below the store.

Systems that learn are shown other texts: of recordings, those that are not replayed; otherwise a
second drawn trace of the same model.  A run's seed draws the replayed texts alone, so that runs
with several seeds learn from the same texts: what is learnt is learnt once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from moebench.harness.run.identity import code_hash
from moebench.harness.run.live import LiveSession
from moebench.harness.run.live import prepare as prepare_live
from moebench.harness.run.questions import prompts_to_draw
from moebench.harness.run.recording import EXACT, once, planned_header, record
from moebench.harness.run.rules import recorded_texts
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.files_read import record_read
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import Header, TraceFile, open_trace
from moebench.substrate.traces.law import LAW, Law
from moebench.substrate.traces.recipes import SynthesisRecipe, recipes
from moebench.substrate.traces.recordings import recorded_header, replayable, write_texts
from moebench.substrate.traces.synthesis import Synthesis, Topology, drawn_header, synthesize
from moebench.systems.learn.artefacts import content_hash
from moebench.workloads.draw import PromptSet

#: How many texts more than are replayed there are, at most, for systems that learn: for each system
#: the same, so that all replay the same trace.  (A text of Qwen3-30B-A3B holds about 2 MB.)
LEARNABLE = 64

#: Seeds of drawn models, which are the same in all runs, and of the texts that systems learn from.
MODEL_SEED, LEARNT_SEED = 0, 2**31


@dataclass(frozen=True, slots=True)
class Source:
    """A trace to replay, its calibration sequences, and its provenance.

    Attributes:
        name: what messages and provenance call it.
        header: what the trace is; known before it is made.
        hash: of all that the trace depends on.
        sample: where the prompts are from.
        open: the trace; what is made for a run is kept below the folder that it is called with.
        under: of a trace drawn by the law: returns such a trace of the first batch's texts, drawn
            by another law.
        session: of a recording of this program's own: the run that is recorded.
        learnt: a trace of the texts that systems learn from; None if they are the last ones of the
            replayed trace.
    """

    name: str
    header: Header
    hash: str
    sample: PromptSet
    open: Callable[[Path], TraceFile]
    under: "Callable[[Law], Source] | None" = None
    session: "LiveSession | None" = None
    learnt: Callable[[Path], TraceFile] | None = None

    def learnable(self, scratch: Path, prompts: int) -> tuple[TraceFile, int]:
        """Return the trace that systems learn from, and how many of its first texts are replayed.

        Args:
            prompts: the texts that a run replays.
        """
        if self.learnt is None:
            return self.open(scratch), prompts
        return self.learnt(scratch), 0


def source_of(spec: RunSpec, data_dir: Path | None) -> Source:
    """Return the routing source of a replay.

    Raises MoeBenchError: it cannot be had; one line.
    """
    if spec.trace is not None:
        return _given(spec.trace, spec.seed)
    kinds = {"replayed": _replayed, "drawn": _drawn, "real": _real}
    return kinds[spec.routing](spec, data_dir)


def _given(name: str, seed: int) -> Source:
    trace = open_trace(find_trace(name))
    sample = PromptSet(
        examples=(), source=f"trace of {trace.header.workload}", split="test", seed=seed,
        available=len(trace.sequences), data_hash=trace.hash,
    )  # fmt: skip
    return Source(name, trace.header, trace.hash, sample, lambda scratch: trace)


def _replayed(spec: RunSpec, data_dir: Path | None) -> Source:
    """Record the run of the resident model, which all systems then replay."""
    session = prepare_live(once(spec), data_dir)
    header = planned_header(session)
    made_of = content_hash([session.run_id, EXACT])

    def write(out: Path) -> None:
        record(prepare_live(session.spec, data_dir), out, EXACT)

    name = f"a recording of {header.source['weights']}"
    return Source(name, header, made_of, session.sample, _kept(f"replayed-{made_of}", write),
                  session=session)  # fmt: skip


def _drawn(spec: RunSpec, data_dir: Path | None) -> Source:
    """Draw sequences of the prompts' lengths, and others for calibration."""
    sample, questions = prompts_to_draw(spec, data_dir)
    lengths = [len(question.prompt) for question in questions]
    recipe = recipes().get(spec.model)
    if recipe is not None:
        name = f"a trace drawn as {spec.model} routes, seed {spec.seed}"
        found = _synthesized(spec, sample, lengths, recipe, name)
        return _with_learnable(found, spec, recipe, data_dir)

    def under(law: Law) -> Source:
        return _synthesized(spec, sample, lengths[: spec.batch], law.recipe, f"{name}, {law}")

    name = f"a trace drawn for {spec.model} by the law of recorded families, seed {spec.seed}"
    found = _synthesized(spec, sample, lengths, LAW.recipe, name)
    return _with_learnable(replace(found, under=under), spec, LAW.recipe, data_dir)


def _with_learnable(
    found: Source, spec: RunSpec, recipe: SynthesisRecipe, data_dir: Path | None
) -> Source:
    """Add texts to learn from, as long as the prompts of seed 0, to a drawn trace.

    They depend on the run's model, workload, recipe and counts of texts and tokens, not on its
    seed.
    """
    sample, questions = prompts_to_draw(spec.model_copy(update={"seed": 0}), data_dir)
    lengths = (len(question.prompt) for question in questions)
    more = list(islice(cycle(lengths), spec.calibrate_texts or LEARNABLE))
    others = spec.model_copy(update={"seed": LEARNT_SEED})
    learnt = _synthesized(others, sample, more, recipe, found.name)
    return replace(found, learnt=learnt.open, hash=content_hash([found.hash, learnt.hash]))


def _synthesized(
    spec: RunSpec, sample: PromptSet, lengths: Sequence[int], recipe: SynthesisRecipe, name: str
) -> Source:
    """Return a trace that is drawn with a recipe, with prompts of the given lengths."""
    topology = Topology.of(model_shape(spec.model))
    header = drawn_header(topology, recipe, spec.seed, spec.model)
    made_of = content_hash([header.model_dump(mode="json"), lengths, spec.new_tokens])

    def write(out: Path) -> None:
        synthesis = Synthesis(topology, recipe, spec.seed, MODEL_SEED)
        synthesize(synthesis, spec.model, lengths, spec.new_tokens, out)

    return Source(name, header, made_of, sample, _kept(f"drawn-{made_of}", write))


def _real(spec: RunSpec, data_dir: Path | None) -> Source:
    """Return the first recorded texts for the run, and the last ones for calibration."""
    listed = recorded_texts(spec.model, spec.new_tokens, data_dir)
    chosen = [
        *listed[: spec.prompts],
        *listed[replayable(listed) :][: spec.calibrate_texts or LEARNABLE],
    ]
    header = recorded_header(spec.model, chosen)
    read = [
        (text.rows, values) for text in chosen for values in text.recording.trace.arrays.values()
    ]
    made_of = content_hash(
        [header.model_dump(mode="json"), [text.prompt for text in chosen], spec.seed],
        (values[rows] for rows, values in read),
    )
    sample = PromptSet(
        examples=(), source=f"recordings of {header.workload}", split="test", seed=spec.seed,
        available=len(listed), data_hash=made_of,
    )  # fmt: skip

    def write(out: Path) -> None:
        write_texts(spec.model, chosen, spec.seed, out)

    name = f"recordings of {spec.model}"
    return Source(name, header, made_of, sample, _kept(f"real-{made_of}", write))


def _kept(name: str, write: Callable[[Path], None]) -> Callable[[Path], TraceFile]:
    """Return a drawn trace from the store, or draw it; other code draws another one."""

    def opened(scratch: Path) -> TraceFile:
        folder = record_read(scratch / "routing" / f"{name}-{code_hash()}")
        if not folder.exists():
            try:
                write(folder)
            except (UsageError, OSError):
                if not folder.exists():  # else another process was faster
                    raise
        return open_trace(folder)

    return opened
