"""Golden outputs: each scale model's logits and routing on fixed tokens, held on any arithmetic.

The same texts are computed in two ways, prefill and decode steps, with the program's own checkpoint
reader and decoder.  In the *natural* pass the model chooses its experts.  In the *forced* pass
tokens are sent to all experts in turn, with the weights of the model's own choice, so that every
expert of every layer counts and no near tie can flip.  Both are held in fp64, where processors
differ least, and the forced pass also in fp32, in which runs compute.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from moebench.harness.guard.verdicts import Finding, Verdict
from moebench.substrate.errors import InputError
from moebench.substrate.files import read_arrays
from moebench.substrate.models.catalogue import scale_names, scale_path
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.imported import every_expert

#: The golden outputs of the scale models that ship: ``MODEL.natural``, ``MODEL.forced`` (fp32
#: logits of fp64 passes) and ``MODEL.routing``.
GOLDEN = Path(__file__).parents[2] / "results" / "accuracy" / "golden.npz"

#: Token counts of the batch's texts, and forward passes: one prefill, then decode steps.
LENGTHS, STEPS = (3, 40), 5

#: Largest absolute deviation of a logit (they lie within ±10) from the golden one.  Observed under
#: other orders of sums, the kernels of other processors and several threads: 3.5e-6 in fp64, where
#: norms and gates are still rounded to fp32, and 8e-6 in fp32.  In fp64, a norm's epsilon times ten
#: deviates by 4.6e-5 or more, the last gate times 1.01 by 1.3e-5 or more, a swapped expert by 5e-4.
TOLERANCE_FP64, TOLERANCE_FP32 = 1e-5, 3e-5


@torch.inference_mode()
def outputs(decoder: Decoder, forced: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a decoder's logits and routing on the fixed texts.

    Args:
        forced: whether tokens are sent to all experts in turn.

    Returns:
        fp32 logits of each pass ``[S, B, V]``, and the model's own choice of experts
        ``[layers, T, K]`` for the rows of all passes.
    """
    shape = decoder.shape
    # Powers spread the tokens over the vocabulary.
    texts = [[(i + 1) ** 2 * 7 % shape.vocab_size for i in range(n)] for n in LENGTHS]
    later = [[(i + 5) ** 3 % shape.vocab_size for i in range(STEPS)] for _ in LENGTHS]
    decoder.begin(texts, STEPS, later)
    chosen: list[list[np.ndarray]] = [[] for _ in shape.moe_layers]
    for step in range(STEPS):
        decoder.embed("decode" if step else "prefill")
        for layer in range(shape.num_layers):
            decoder.attend(layer)
            if layer in shape.dense_layers:
                decoder.dense(layer)
                continue
            own_TK = decoder.gate(layer).ids_TK
            chosen[shape.moe_layers.index(layer)].append(own_TK)
            turn_TK = np.arange(own_TK.size).reshape(own_TK.shape) + step * own_TK.size
            ids_TK = turn_TK % shape.num_experts if forced else own_TK
            decoder.compute(layer, list(decoder.dispatch(layer, ids_TK, own_TK)))
            if shape.shared_width:
                decoder.shared(layer)
            decoder.combine(layer)
        decoder.head()
    routed = np.stack([np.concatenate(rows) for rows in chosen]).astype(np.uint8)
    return torch.stack(decoder.history).numpy(), routed


def _decoder(weights: Path, dtype: torch.dtype) -> Decoder:
    checkpoint = Checkpoint(weights)
    return Decoder(checkpoint.shape, checkpoint.common(dtype), every_expert(checkpoint, dtype))


def fingerprint(weights: Path, threads: int) -> str:
    """Return a hash of a model's fp32 outputs: equal where this program's sums round alike.

    Args:
        weights: folder of a checkpoint that fits in memory.
        threads: threads of the runs that the hash describes.
    """
    torch.set_num_threads(threads)
    decoder = _decoder(weights, torch.float32)
    found = (outputs(decoder, forced)[0].tobytes() for forced in (False, True))
    return hashlib.sha256(b"".join(found)).hexdigest()[:16]


def golden_of(name: str) -> dict[str, np.ndarray]:
    """Return the golden outputs of a scale model as this program computes them."""
    decoder = _decoder(scale_path(name), torch.float64)
    natural, routing = outputs(decoder, forced=False)
    forced, _ = outputs(decoder, forced=True)
    return {f"{name}.natural": natural, f"{name}.forced": forced, f"{name}.routing": routing}


def write_golden(path: Path = GOLDEN) -> None:
    """Accept what this program computes for every scale model that ships."""
    found: dict[str, np.ndarray] = {}
    for name in scale_names():
        found |= golden_of(name)
    np.savez_compressed(path, **found)  # type: ignore[arg-type]


def check_golden(names: Iterable[str], path: Path = GOLDEN) -> list[Finding]:
    """Compare scale models with their golden outputs, whatever the arithmetic.

    Args:
        names: of scale models that ship.

    Raises InputError: the file is damaged, or has no numbers for a model.
    """
    return [_judge(name, path) for name in names]


def _judge(name: str, path: Path) -> Finding:
    now = golden_of(name)
    known = read_arrays(path, tuple(now))
    if not all(np.isfinite(array).all() for array in known.values()):
        raise InputError(
            f"{path}: {name} has a logit that is not a number; restore the file that ships"
        )
    forced, _ = outputs(_decoder(scale_path(name), torch.float32), forced=True)
    natural_key, forced_key, routing_key = now
    fp64 = max(_farthest(now[key], known[key]) for key in (natural_key, forced_key))
    fp32 = _farthest(forced, known[forced_key])
    chosen, golden = now[routing_key], known[routing_key]
    rerouted = (
        int((chosen != golden).sum())
        if chosen.shape == golden.shape
        else max(chosen.size, golden.size)
    )
    within = rerouted == 0 and fp64 <= TOLERANCE_FP64 and fp32 <= TOLERANCE_FP32
    said = (
        f"logits differ from the golden ones by {fp64:.1e} in fp64 and {fp32:.1e} in fp32 (allowed "
        f"{TOLERANCE_FP64:.0e} and {TOLERANCE_FP32:.0e}), {rerouted} of {golden.size} choices of "
        "experts differ"
    )
    verdict = Verdict.PASS if within else Verdict.REGRESSED
    return Finding(f"{name}: model", verdict, said, "model")


def _farthest(now: np.ndarray, golden: np.ndarray) -> float:
    """Return the largest absolute deviation; infinite where a logit is missing or no number."""
    if now.shape != golden.shape:
        return float("inf")
    deviation = np.abs(now - golden)
    return float(np.where(np.isnan(deviation), np.inf, deviation).max())
