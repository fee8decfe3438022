"""Training of FlashMoE's eviction networks: input features, labels by Belady's rule, optimiser.

    paper                          moebench
    ─────                          ────────
    r_t, f_t                       History.r, History.f
    FFN input [1/r ‖ f/max f]      History.features
    ml_cache                       Network
    "Generate Dataset", Fig. 4     features, labels
    "masked target data"           the mask of `labels`
    Table 1                        EvictionNetworkOptions, _fit

Our choices where the paper is silent:

- The label of an expert is the distance to its next use in steps, at most a *horizon* of three
  quarters of the experts, divided by the horizon (as in the code of malmong/CECAR).
- Labels that the record does not determine are masked: an expert that is not routed again before
  the sequence ends, if the end is nearer than the horizon.  With ``cached``, experts that Belady's
  cache would not hold are masked too, so that the network learns possible victims only.
- "Learning rate decay 1e-2" is AdamW's weight decay, whose default it is.
- Early stopping as in `systems.learn.stacked`, after ``PATIENCE`` epochs; batches of 256 tokens.
  Layers are trained in groups of ``TOGETHER``, which stop on their own: the data of a group fit
  into memory.  (Shown 512 texts, OLMoE's losses are least after 10 epochs and Qwen3's after 2, and
  ten further epochs improve neither.)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moebench.substrate.analysis.cache_replay import replay, topology
from moebench.substrate.errors import UsageError
from moebench.systems.learn.artefacts import Artefact, content_hash, kept
from moebench.systems.learn.stacked import Trained, initial, train, validating
from moebench.systems.policies.evict_belady import Belady

if TYPE_CHECKING:
    import torch

#: Part of the hash: increased when the same data and options lead to other networks.
VERSION = 3

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2

#: Epochs without a smaller validation loss after which training stops, and layers of a group.
PATIENCE, TOGETHER = 3, 4


class History:
    """Recency r and frequency f of each expert's use in each layer, ``[L, E]`` (FlashMoE §3.2)."""

    def __init__(self, layers: int, experts: int) -> None:
        self.r = np.full((layers, experts), np.inf)
        self.f = np.zeros((layers, experts))

    def step(self, layer: int, experts: Sequence[int] | np.ndarray) -> None:
        """Set r of the routed experts to 1 and increase their f; increase r of all others."""
        routed, r = np.asarray(experts), self.r[layer]  # otherwise a list is converted twice
        r += 1
        r[routed] = 1
        self.f[layer][routed] += 1

    def features(self, layer: int) -> np.ndarray:
        """Return a layer's network input [1/r ‖ f / max f], ``[2E]`` in [0, 1]."""
        f = self.f[layer]
        return np.concatenate([1 / self.r[layer], f / max(f.max(), 1)])


@dataclass(frozen=True, slots=True)
class Network:
    """A feed-forward network for each layer: 2E → hidden → hidden/2 → E, SiLU between.

    ``weights`` are ``[L, in, out]``, ``biases`` ``[L, out]``; ``note`` describes the training.
    """

    weights: Sequence[np.ndarray]
    biases: Sequence[np.ndarray]
    note: Mapping[str, str] = field(default_factory=dict)

    def distances(self, layer: int, features: np.ndarray) -> np.ndarray:
        """Return each expert's predicted distance to its next use over the horizon, ``[E]``."""
        x, last = features.astype(np.float32), len(self.weights) - 1
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ w[layer]
            x += b[layer]
            if i < last:
                gate = np.negative(x)
                np.exp(gate, out=gate)
                gate += 1
                x /= gate
        return x

    @property
    def bytes_per_layer(self) -> int:
        """Size of one layer's network in bytes."""
        return sum(a[0].nbytes for a in (*self.weights, *self.biases))


@dataclass(frozen=True, slots=True)
class EvictionNetworkOptions:
    """Training options of the networks, described in `systems.flashmoe.LearnedEviction`."""

    hidden: int = 128
    epochs: int = 200
    cached: int = 0
    seed: int = 0


def first_tokens(sequences: Sequence[np.ndarray], tokens: int) -> list[np.ndarray]:
    """Return the first sequences ``[T, L, K]`` with at most ``tokens`` tokens; at least one."""
    found: list[np.ndarray] = []
    for ids in sequences:
        tokens -= len(ids)
        if found and tokens < 0:
            break
        found.append(np.asarray(ids))
    return found


# ----------------------------------------------------------------------------- data


def features(ids_TLK: np.ndarray, num_experts: int) -> np.ndarray:
    """Return the `History.features` after each token of a sequence, all at once, ``[L, T, 2E]``."""
    tokens, layers, _ = ids_TLK.shape
    now = np.arange(tokens)[:, None, None]
    routed = np.zeros((tokens, layers, num_experts), dtype=bool)
    np.put_along_axis(routed, ids_TLK, True, axis=2)
    r = now - np.maximum.accumulate(np.where(routed, now, -np.inf)) + 1
    f = routed.cumsum(axis=0)
    seen = np.concatenate([1 / r, f / np.maximum(f.max(axis=2, keepdims=True), 1)], axis=2)
    return seen.transpose(1, 0, 2).astype(np.float32)


def labels(ids_TLK: np.ndarray, num_experts: int, cached: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return each expert's distance to its next use by Belady's rule, and the mask, ``[L, T, E]``.

    The mask is limited to what Belady keeps in ``cached`` slots of a layer; 0 does not limit it.
    """
    tokens, layers, _ = ids_TLK.shape
    horizon = max(1, num_experts * 3 // 4)
    distance = np.empty((layers, tokens, num_experts))
    following = np.full((layers, num_experts), np.inf)
    rows = np.arange(layers)[:, None]
    for t in range(tokens - 1, -1, -1):
        distance[:, t] = following - t
        following[rows, ids_TLK[t]] = t
    left = tokens - 1 - np.arange(tokens)
    known = np.isfinite(distance) | (left[:, None] >= horizon)
    if cached:
        known &= _held_by_belady(ids_TLK, num_experts, cached)
    return (np.minimum(distance, horizon) / horizon).astype(np.float32), known


def _held_by_belady(ids_TLK: np.ndarray, num_experts: int, slots: int) -> np.ndarray:
    """Return which experts Belady's cache holds when a step's victims are chosen, ``[L, T, E]``."""
    tokens, layers, k = ids_TLK.shape
    steps = [(layer, ids.tolist()) for token in np.sort(ids_TLK) for layer, ids in enumerate(token)]
    done = replay(Belady(), [steps], topology(layers, num_experts, k), slots * layers)
    held = np.zeros((tokens, layers, num_experts), dtype=bool)
    inside = np.zeros((layers, num_experts), dtype=bool)
    evicted = iter([*done.evicted, (len(steps), -1, -1)])
    step, victim, _ = next(evicted)
    for now, (layer, ids) in enumerate(steps):
        held[now // layers, layer] = inside[layer]
        inside[layer, ids] = True
        while step == now:
            inside[divmod(victim, num_experts)] = False
            step, victim, _ = next(evicted)
    return held.transpose(1, 0, 2)


# ----------------------------------------------------------------------------- networks


def trained(
    sequences: Sequence[np.ndarray], num_experts: int, options: EvictionNetworkOptions,
    artefacts: Path, progress: Callable[[int, int], None] = lambda done, total: None,
) -> Network:  # fmt: skip
    """Return networks trained on sequences ``[T, L, K]``, or read them from ``artefacts``.

    Raises UsageError: there is not a single pair of tokens to learn from.
    """
    if sum(len(ids) for ids in sequences) < 2:
        raise UsageError("evict=flashmoe: the calibration data holds less than two tokens")
    data = (ids.astype(np.int32) for ids in sequences)
    name = content_hash([VERSION, num_experts, asdict(options)], data)

    def learn() -> Artefact:
        import torch

        with torch.inference_mode(False):  # a run disables gradients, training needs them
            network = _fit(sequences, num_experts, options, progress)
        arrays = {f"weight{i}": w for i, w in enumerate(network.weights)}
        arrays |= {f"bias{i}": b for i, b in enumerate(network.biases)}
        return Artefact(arrays, network.note)

    arrays, note = kept(artefacts / f"eviction-network-{name}.safetensors", learn)
    weights, biases = ([arrays[f"{part}{i}"] for i in range(3)] for part in ("weight", "bias"))
    return Network(weights, biases, note)


def _fit(
    sequences: Sequence[np.ndarray], num_experts: int, options: EvictionNetworkOptions,
    progress: Callable[[int, int], None],
) -> Network:  # fmt: skip
    """Train the independent networks of all layers with Table 1's settings, group by group."""
    import torch

    generator = torch.Generator().manual_seed(options.seed)
    widths = [2 * num_experts, options.hidden, options.hidden // 2, num_experts]
    groups = range(0, sequences[0].shape[1], TOGETHER)
    found: list[Trained] = []
    for at, first in enumerate(groups):
        layers = [ids[:, first : first + TOGETHER] for ids in sequences]
        data, split = _data(layers, num_experts, options.cached)
        parameters = initial(len(data[0]), widths, generator)
        optimizer = torch.optim.AdamW(
            parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
        )

        def told(done: int, most: int, before: int = at) -> None:
            progress(before * most + done, len(groups) * most)

        found.append(
            train(parameters, optimizer, _losses, data, split, options.epochs, PATIENCE, generator,
                  told)
        )  # fmt: skip
    arrays = [torch.cat(parts).numpy() for parts in zip(*(one.parameters for one in found),
                                                        strict=True)]  # fmt: skip
    loss = torch.cat([one.loss for one in found])
    note = {name: str(value) for name, value in asdict(options).items()}
    note |= {"tokens": str(split), "texts": str(len(sequences))}
    note |= {"epochs": _span(one.epochs for one in found)}
    note |= {"best_epoch": _span(one.best_epoch for one in found)}
    note |= {"validation_mse": f"{float(loss.mean()):.6f}"}
    return Network(arrays[0::2], [b[:, 0] for b in arrays[1::2]], note)


def _span(counts: Iterable[int]) -> str:
    """Return the least and the greatest of some counts in words: "5" or "5 to 12"."""
    known = list(counts)
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low} to {high}"


def _data(
    sequences: Sequence[np.ndarray], num_experts: int, cached: int
) -> "tuple[list[torch.Tensor], int]":
    """Return inputs, labels and masks ``[L, N, ...]``, and the first validation token's index."""
    import torch

    lengths = [len(ids) for ids in sequences]
    validates = validating(lengths)
    tokens, layers = len(validates), sequences[0].shape[1]
    # Where each text's tokens go: those for validation last, otherwise in the given order.
    places = np.empty(tokens, dtype=np.int64)
    places[np.argsort(validates, kind="stable")] = np.arange(tokens)
    x = np.empty((layers, tokens, 2 * num_experts), dtype=np.float32)
    y = np.empty((layers, tokens, num_experts), dtype=np.float32)
    counts = np.empty((layers, tokens, num_experts), dtype=bool)
    for ids, at in zip(sequences, np.split(places, np.cumsum(lengths)[:-1]), strict=True):
        x[:, at] = features(ids, num_experts)
        y[:, at], counts[:, at] = labels(ids, num_experts, cached)
    parts = [torch.from_numpy(part) for part in (x, y, counts)]
    return parts, tokens - int(validates.sum())


def _losses(
    parameters: "Sequence[torch.Tensor]", x: "torch.Tensor", y: "torch.Tensor", m: "torch.Tensor"
) -> "torch.Tensor":
    """Return each layer's mean squared error over the unmasked labels, ``[L]``."""
    import torch

    for i in range(0, len(parameters), 2):
        x = torch.baddbmm(parameters[i + 1], x, parameters[i])
        if i + 2 < len(parameters):
            x = torch.nn.functional.silu(x)
    return ((x - y) ** 2 * m).sum((1, 2)) / m.sum((1, 2)).clamp(min=1)
