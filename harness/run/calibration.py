"""What a system learns before it runs: how other questions than its own were routed.

A policy that learns has ``calibrates = True`` and a method ``calibrate``.  It is given the routing
of a few texts that the lossless model wrote: by default answers to ShareGPT, as DAOP does (§V-A),
or to the train half of the run's own workload, as DuoServe-MoE does (§4) and wherever there is no
ShareGPT; ``--calibrate-from`` names another workload.  Only train splits are read, so what is
measured was never learnt from.  A replayed trace calibrates from its last sequences, as far as they
are not replayed.

Routing is kept below the store by the hash of weights and texts; what a policy makes of it, the
policy keeps itself.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from moebench.harness.run.inputs import Inputs
from moebench.harness.run.replay import ReplayInputs
from moebench.harness.run.shared import SharedWork
from moebench.harness.run.spec import RunSpec
from moebench.substrate.engine.system import Policy, System
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.observe import read, write
from moebench.substrate.traces.replay import routings
from moebench.systems.options import build
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.prompts import build_prompt
from moebench.workloads.workload import Workload

#: How many texts are written, at most how many tokens of each prompt are read, and how many tokens
#: are written after it.
TEXTS, PROMPT_TOKENS, NEW_TOKENS = 16, 256, 64
DEFAULT = "sharegpt"


def learners(system: System) -> list[Policy]:
    """The policies that must be calibrated."""
    return [policy for policy in system.policies.values() if policy.calibrates]


def source(spec: RunSpec, data_dir: Path | None) -> Workload:
    """Whose train split a run calibrates from.

    Raises:
        UsageError: the run's own workload has none, and no other was named.
    """
    if spec.calibrate_from is not None:
        return workload(spec.calibrate_from)
    own = workload(spec.workload)
    if own.train_split_available and any(
        policy.learns_own_set for policy in learners(build(spec.system, spec.settings))
    ):
        return own
    if data_dir is not None and (data_dir / DEFAULT / "train.jsonl").is_file():
        return workload(DEFAULT)
    if own.train_split_available:
        return own
    raise UsageError(
        f"{spec.system} must be calibrated, and workload {own.name} has no train split; "
        "give --calibrate-from WORKLOAD, for example arithmetic"
    )


def texts(spec: RunSpec, data_dir: Path | None) -> PromptSet:
    """The examples that a run calibrates from."""
    return load(source(spec, data_dir), "train", TEXTS, spec.seed, data_dir)


def identity(spec: RunSpec, data_dir: Path | None) -> dict[str, str]:
    """What calibration adds to a live run's identity: nothing where nobody learns."""
    if spec.trace is not None or not learners(build(spec.system, spec.settings)):
        return {}
    return {"calibration": texts(spec, data_dir).data_hash}


def calibrate(
    system: System,
    inputs: Inputs | ReplayInputs,
    shared: SharedWork | None,
    scratch: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Let every policy that learns do so.

    Args:
        shared: of a live run's checkpoint.
        scratch: routing and what policies learnt are kept below it.
        progress: told of a policy's steps.

    Returns:
        What was learnt from, and by decision how it went; nothing where nobody learns.

    Raises:
        UsageError: there is nothing to learn from.
    """
    policies = learners(system)
    if not policies:
        return {}
    folder = scratch / "calibration"
    if isinstance(inputs, ReplayInputs):
        sequences = _not_replayed(inputs)
        learnt_from = f"the trace's last {len(sequences)} sequences"
    else:
        assert shared is not None
        sequences = _written(inputs, shared, folder)
        learnt_from = f"{source(inputs.spec, inputs.data_dir).name}: {TEXTS} texts, train split"
    shape = inputs.full
    for policy in policies:
        policy.calibrate(sequences, shape, folder, progress)
    notes = {decision: dict(p.learnt) for decision, p in system.policies.items() if p.learnt}
    return {"from": learnt_from, **notes}


def _not_replayed(inputs: ReplayInputs) -> list[RoutedSequence]:
    """The trace's last texts: the same for runs that replay a few more or less."""
    replayed = inputs.spec.prompts
    found = routings(inputs.trace)[replayed:][-TEXTS:]
    if not found:
        raise UsageError(
            f"{inputs.spec.trace}: {inputs.spec.system} must be calibrated, and all "
            f"{replayed} sequences are replayed; give fewer --prompts, or record more"
        )
    return found


def _written(inputs: Inputs, shared: SharedWork, folder: Path) -> list[RoutedSequence]:
    """Routing of texts that the lossless model writes, from a file where it was kept."""
    sample = texts(inputs.spec, inputs.data_dir)
    key = hashlib.sha256(
        f"{inputs.hashes['weights']} {sample.data_hash} {PROMPT_TOKENS} {NEW_TOKENS}".encode()
    ).hexdigest()[:16]
    path = folder / f"routing-{key}.safetensors"
    if path.exists():
        kept = load_file(path)
        return [RoutedSequence(kept[f"ids.{i}"], int(kept[f"prefill.{i}"])) for i in range(TEXTS)]
    decoder, chosen = shared.decoder(), source(inputs.spec, inputs.data_dir)
    encode = inputs.tokenizer.encode
    prompts = [encode(build_prompt(chosen, e)).ids[:PROMPT_TOKENS] for e in sample.examples]
    answers = write(decoder, prompts, NEW_TOKENS, inputs.end)
    found = [
        read(decoder, [[*prompt, *answer]], len(prompt))[0]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    _keep(path, found)
    return found


def _keep(path: Path, sequences: Sequence[RoutedSequence]) -> None:
    arrays = {f"ids.{i}": s.ids_TLK.astype(np.int16) for i, s in enumerate(sequences)}
    arrays |= {f"prefill.{i}": np.array(s.prefill) for i, s in enumerate(sequences)}
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_suffix(".partial")
    save_file(arrays, half_written)
    half_written.replace(path)
