"""Calibration: a system is fitted on the routing of texts other than the run's own.

A policy that learns has ``calibrates = True`` and a method ``calibrate``.  It is given the routing
of texts that the lossless model wrote: answers to the train half of the run's own workload, as
DuoServe-MoE (§4) and FlashMoE (§4.1) do; ``--calibrate-from`` names another workload, as DAOP's
ShareGPT (§V-A).  Only train splits are read, so what is measured was never learnt from.  A replayed
trace calibrates from its last sequences, as far as they are not replayed; for a drawn one, other
texts of the same model are drawn.  A policy may name a trace of its own instead
(``calibration_trace``).

``--calibrate-texts`` says how many.  By default it is the number of the policy's paper
(``calibration_texts``), or all that there are where these are fewer; policies of one system that
learn are shown the same texts, as many as the one that asks for most.

A policy that learns from more than the chosen experts says so (``learns_from``): gate scores, the
states that gates read, prompts' embeddings, what the system's predictors say, how sensitive layers
are to their experts (which no trace holds).  Nobody is given, and nothing is kept of, what no
policy of the system asks for.

Routing is kept below the store by the hash of weights, texts and what is asked for, and so is what
a policy makes of it.  Both are part of a run's identity: `identity` hashes whatever a policy reads.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from moebench.results.spec import RunSpec
from moebench.substrate.engine.policies import Policy
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import Form, ModelShape
from moebench.substrate.progress_events import report_phase
from moebench.substrate.terms import LOOKAHEADS, WORDS, Learnt, Lookahead, Losses, RoutedSequence
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.replay import routing, routings
from moebench.systems.learn.artefacts import Artefact, content_hash, kept
from moebench.systems.registry import name_of
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.prompts import build_prompt
from moebench.workloads.workload import Workload

if TYPE_CHECKING:  # what a run learns from is named without torch, which takes a second to import
    from moebench.substrate.models.decoder import Decoder
    from moebench.substrate.models.rounding import RoundingDecoder
    from moebench.substrate.models.sensitivity import DifferentiableDecoder

#: At most how many tokens of a prompt are read, and how many are written after it.
PROMPT_TOKENS, NEW_TOKENS = 256, 64

#: How many texts are written together.
TOGETHER = 32

Progress = Callable[[int, int], None]


class Learnable(NamedTuple):
    """Routing that a system may be fitted on, with its source.

    ``losses`` makes the losses on these texts with experts in other forms; None if no model
    computes.
    """

    sequences: Sequence[RoutedSequence]
    origin: str
    losses: Callable[[Sequence[Form]], Losses] | None = None


def learners(system: System) -> dict[str, Policy]:
    """Return the policies that must be calibrated, by decision."""
    return {name: policy for name, policy in system.policies.items() if policy.calibrates}


def source(spec: RunSpec) -> Workload:
    """Return the workload whose training split a run calibrates from.

    Raises UsageError: the run's own workload has none, and no other was named.
    """
    if spec.calibrate_from is not None:
        return workload(spec.calibrate_from)
    own = workload(spec.workload)
    if own.train_split_available:
        return own
    raise UsageError(
        f"{spec.system} must be calibrated, and workload {own.name} has no train split; "
        f"give --calibrate-from WORKLOAD, for example {DEFAULT_WORKLOAD}"
    )


#: Seed with which texts for calibration are drawn: runs of all seeds share what a system learns.
TEXTS_SEED = 0


def wanted_texts(spec: RunSpec, system: System) -> int:
    """Return the number of texts for calibration: the given one, or the paper's."""
    if spec.calibrate_texts is not None:
        return spec.calibrate_texts
    shown = [p for p in learners(system).values() if not p.calibration_trace]
    return max(policy.calibration_texts for policy in shown)


def texts(spec: RunSpec, system: System, data_dir: Path | None) -> PromptSet:
    """Return the examples that a run calibrates from, which do not depend on the run's seed.

    Raises InputError: ``--calibrate-texts`` asks for more than there are.
    """
    return load(
        source(spec), "train", wanted_texts(spec, system), TEXTS_SEED, data_dir,
        or_fewer=spec.calibrate_texts is None,
    )  # fmt: skip


def learnt_from(policies: Iterable[Policy]) -> frozenset[Learnt]:
    """Return the recorded data, beside chosen experts, that a system's policies are fitted on."""
    shown = [p for p in policies if p.calibrates and not p.calibration_trace]
    return frozenset[Learnt]().union(*(policy.learns_from for policy in shown))


def identity(spec: RunSpec, system: System, data_dir: Path | None) -> dict[str, str]:
    """Return the hashes of calibration data, part of a run's identity; empty if none is used."""
    found = {}
    for decision, policy in learners(system).items():
        if policy.calibration_trace:
            trace = open_trace(find_trace(policy.calibration_trace))
            found[f"calibration {decision}"] = trace.hash
        elif spec.trace is None and spec.routing in ("model", "replayed"):
            found["calibration"] = texts(spec, system, data_dir).data_hash
    return found


def folder(scratch: Path) -> Path:
    """Return the folder that keeps calibration routing and fitted policies."""
    return scratch / "calibration"


def silent(done: int, total: int) -> None:
    """Report no progress."""


def calibrate(
    system: System, shape: ModelShape, learnable: Callable[[], Learnable], scratch: Path,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Calibrate every policy of a system that must be fitted.

    Args:
        shape: the model that is charged.
        learnable: returns routing of other texts than the run's own.
        scratch: routing and fitted policies are kept below it.
        progress: called with the steps done and to do.

    Returns:
        by decision, where the routing came from and how the policy did; empty if none learns.

    Raises UsageError: there is nothing to learn from.
    """
    learnt = {}
    shown: Learnable | None = None
    for decision, policy in learners(system).items():
        report_phase("calibrate")
        if policy.calibration_trace:
            found = recorded(policy, shape, decision)
        else:
            found = shown = shown or learnable()
        policy.calibrate(found.sequences, shape, folder(scratch), progress)
        if "loss" in policy.learns_from:
            if found.losses is None:
                raise UsageError(no_losses(found.origin, decision, policy))
            losses = found.losses(system.forms)
            policy.measure(losses, shape, folder(scratch), progress)
        learnt[decision] = {"from": found.origin, **policy.learnt}
    return learnt


def no_losses(source: str, decision: str, policy: Policy) -> str:
    """Return the refusal of a policy that measures losses, where no model computes."""
    instead = policy.without_losses and f", or give --set {decision}.{policy.without_losses}"
    return (
        f"{source}: holds no losses of rounded weights, {decision}={name_of(decision, policy)} "
        f"measures them; run it live, or swap it with --set{instead}"
    )


def recorded(policy: Policy, shape: ModelShape, decision: str) -> Learnable:
    """Return the sequences of the trace that a policy names for its calibration.

    Raises:
        InputError: no such trace.
        UsageError: it is another model's, or lacks what the policy learns from.
    """
    name = policy.calibration_trace
    trace = open_trace(find_trace(name))
    header = trace.header
    has = (header.num_moe_layers, header.num_experts)
    if has != (len(shape.moe_layers), shape.num_experts):
        raise UsageError(
            f"{decision}.trace={name} is {header.model}'s: {has[0]} layers of {has[1]} experts; "
            f"the model has {len(shape.moe_layers)} of {shape.num_experts}"
        )
    for what in sorted(policy.learns_from & WORDS.keys()):
        if not header.has(what):
            raise UsageError(
                f"{decision}.trace={name}: holds no {WORDS[what]}, which {decision} learns from; "
                "name another, or record one with: moebench trace record"
            )
    return Learnable(routings(trace, also=policy.learns_from), f"trace {name} ({trace.hash})")


def not_replayed(
    trace: TraceFile, spec: RunSpec, system: System, name: str, replayed: int | None = None
) -> Learnable:
    """Return the last sequences of a trace that the run itself does not replay.

    Args:
        replayed: how many of the trace's first sequences are replayed; by default ``spec.prompts``.

    Raises UsageError: there are none, or fewer than ``--calibrate-texts`` asks for.
    """
    rest = range(spec.prompts if replayed is None else replayed, len(trace.sequences))
    if rest and len(rest) < (spec.calibrate_texts or 0):
        raise UsageError(
            f"--calibrate-texts {spec.calibrate_texts}: {name} holds {len(rest)} sequences beside "
            f"the {spec.prompts} that are replayed; give fewer --prompts, or record more"
        )
    last, also = rest[-wanted_texts(spec, system) :], learnt_from(system.policies.values())
    if not last:
        raise UsageError(
            f"{name}: {spec.system} must be calibrated, and all {spec.prompts} sequences are "
            "replayed; give fewer --prompts, or record more"
        )
    found = [routing(trace, sequence, also) for sequence in last]
    count = len(found)
    said = f"{count} other drawn texts" if replayed == 0 else f"the trace's last {count} sequences"
    return Learnable(found, said)


@dataclass(frozen=True)
class LosslessModel:
    """A model with every expert in memory, which generates the texts for calibration.

    Attributes:
        decoder, differentiable, rounding: make a decoder, one whose loss can be differentiated, and
            one with experts in several forms.
        weights_hash: identity of its weights.
        end: the token that ends a text; without one every text has the same number of tokens.
    """

    decoder: "Callable[[], Decoder]"
    differentiable: "Callable[[], DifferentiableDecoder]"
    rounding: "Callable[[Sequence[Form]], RoundingDecoder]"
    weights_hash: str
    tokenizer: Tokenizer
    end: int | None


def written(
    chosen: Workload, sample: PromptSet, model: LosslessModel, folder: Path, progress: Progress,
    also: frozenset[Learnt] = frozenset(), predicted: Iterable[Lookahead] = (),
) -> Learnable:  # fmt: skip
    """Return the routing of texts that the lossless model generates, kept in `folder`.

    Args:
        progress: called with how many texts were generated and read, and how many there are.
        also: what is kept beside chosen experts.
        predicted: the kinds of predictions that are kept, if these are.
    """
    count = len(sample.examples)
    kinds = [kind for kind in LOOKAHEADS if kind in predicted] if "predictions" in also else []

    def write_texts() -> Artefact:
        from moebench.substrate.traces.observe import read, write

        decoder, states = model.decoder(), bool(also & {"hidden", "embedding"})
        sensitive = model.differentiable() if "sensitivity" in also else None
        found: list[RoutedSequence] = []
        for first in range(0, count, TOGETHER):
            prompts = [
                model.tokenizer.encode(build_prompt(chosen, e)).ids[:PROMPT_TOKENS]
                for e in sample.examples[first : first + TOGETHER]
            ]
            for prompt, answer in zip(
                prompts, write(decoder, prompts, NEW_TOKENS, model.end), strict=True
            ):
                text = [*prompt, *answer]
                (routed,) = read(
                    decoder, [text], len(prompt), kinds, states, "token_embeddings" in also
                )
                if sensitive is not None:
                    measured_L = sensitive.sensitivity(text, seed=len(found))
                    routed = replace(routed, sensitivity_L=measured_L)
                if "loss" in also:
                    routed = replace(routed, tokens_T=np.array(text, dtype=np.int32))
                found.append(routed)
            progress(len(found), count)
        return _packed(found, also)

    asked = [
        model.weights_hash, sample.data_hash, PROMPT_TOKENS, NEW_TOKENS, model.end, *sorted(also),
        *kinds,
    ]  # fmt: skip
    name = content_hash(asked)
    arrays, _ = kept(folder / f"routing-{name}.safetensors", write_texts)
    found = [
        RoutedSequence(
            arrays[f"ids.{i}"], arrays[f"prefill.{i}"].item(), scores_TLE=arrays.get(f"scores.{i}"),
            hidden_TLH=arrays.get(f"hidden.{i}"), embedding_H=arrays.get(f"embedding.{i}"),
            predicted_TLE={kind.value: arrays[f"{kind}.{i}"] for kind in kinds},
            embedding_TH=arrays.get(f"token_embeddings.{i}"),
            sensitivity_L=arrays.get(f"sensitivity.{i}"), tokens_T=arrays.get(f"loss.{i}"),
        )
        for i in range(count)
    ]  # fmt: skip

    def losses(forms: Sequence[Form]) -> Losses:
        from moebench.substrate.models.rounding import RoundedLosses

        identity = content_hash([name, *forms])
        return RoundedLosses(partial(model.rounding, forms), found, identity)

    return Learnable(found, f"{chosen.name}: {count} texts, train split", losses)


def _packed(sequences: Sequence[RoutedSequence], also: frozenset[Learnt]) -> Artefact:
    arrays = {}
    for i, s in enumerate(sequences):
        arrays[f"ids.{i}"], arrays[f"prefill.{i}"] = s.ids_TLK.astype(np.int16), np.array(s.prefill)
        more = {
            "scores": s.scores_TLE, "hidden": s.hidden_TLH, "embedding": s.embedding_H,
            "token_embeddings": s.embedding_TH, "sensitivity": s.sensitivity_L, "loss": s.tokens_T,
        }  # fmt: skip
        arrays |= {f"{what}.{i}": x for what, x in more.items() if what in also and x is not None}
        arrays |= {f"{kind}.{i}": predicted_TLE for kind, predicted_TLE in s.predicted_TLE.items()}
    return Artefact(arrays)
