"""Training of ProMoE's predictors: a small network per MoE layer on the state that its gate reads.

    paper                                       moebench
    ─────                                       ────────
    a predictor for each layer, trained offline `trained`: all layers' networks at once
    stride                                      `targets`: layers that a layer's network predicts
    hidden states recorded with choices         RoutedSequence.hidden_TLH, of decoded tokens

The paper's predictors are small MLPs; the authors' code has two hidden layers (`systems.promoe`).

Our choices where the paper is silent:

- Each expert's probability is trained separately, with binary cross-entropy (the code: the absolute
  error of 0 or 1, which with little data is smallest if no expert is predicted).
- Each component of the states is scaled to mean 0 and variance 1, folded into the weights.
- Adam, 1e-3; training stops early as in `systems.learn.stacked`, after three epochs.

Shape letters: T tokens, L MoE layers, K chosen, E experts, H the state's width, M networks, O
outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.artefacts import Artefact, content_hash, kept
from moebench.systems.learn.stacked import initial, train, validating

if TYPE_CHECKING:
    import torch

#: Part of the hash: increased when the same data and options lead to other networks.
VERSION = 1

LEARNING_RATE, PATIENCE = 1e-3, 3


def targets(row: int, layers: int, stride: int) -> range:
    """Return the MoE layers that a layer's network predicts: the one ``stride`` further on.

    The last layer's network predicts the first ``stride`` layers of the next token.
    """
    if row == layers - 1:
        return range(min(stride, layers))
    return range(row + stride, min(row + stride + 1, layers))


@dataclass(frozen=True, slots=True)
class StateMLPOptions:
    """Training options of the networks, described in `systems.promoe.StridePrefetch`."""

    stride: int
    width: int
    tokens: int
    epochs: int
    seed: int


class Stack(NamedTuple):
    """Networks of equal widths: ``weights`` are ``[M, in, out]``, ``biases`` ``[M, 1, out]``."""

    weights: Sequence[np.ndarray]
    biases: Sequence[np.ndarray]

    def probabilities(self, x: np.ndarray, network: int) -> np.ndarray:
        """Return the probabilities ``[T, O]`` that one network predicts from states ``[T, H]``."""
        layers = [(w[network], b[network]) for w, b in zip(self.weights, self.biases, strict=True)]
        for w, b in layers[:-1]:
            x = np.maximum(x @ w + b, 0)
        w, b = layers[-1]
        odds: np.ndarray = np.exp(-np.clip(x @ w + b, -60, 60))
        return 1 / (1 + odds)


@dataclass(frozen=True, slots=True)
class StateMLPs:
    """Trained predictors of the layer ``stride`` further on, and of the next token's first layers.

    ``num_layers`` and ``num_experts`` are the model's; ``note`` describes the training.
    """

    wrapped: Stack
    ahead: Stack | None
    stride: int
    num_layers: int
    num_experts: int
    note: Mapping[str, str]

    def probabilities(self, hidden_TH: np.ndarray, row: int) -> dict[int, np.ndarray]:
        """Return the probability of each expert of each target layer, ``[T, E]`` by MoE layer."""
        found = targets(row, self.num_layers, self.stride)
        if not found:
            return {}
        x = hidden_TH.astype(np.float32)
        if row == self.num_layers - 1:
            stack, network = self.wrapped, 0
        else:
            assert self.ahead is not None
            stack, network = self.ahead, row
        p_TLE = stack.probabilities(x, network).reshape(len(x), len(found), self.num_experts)
        return {target: p_TLE[:, i] for i, target in enumerate(found)}


class _Data(NamedTuple):
    """States, chosen experts and the mask of validation tokens, for networks of equal widths."""

    x_MTH: np.ndarray
    ids_MTLK: np.ndarray
    validates_T: np.ndarray


def trained(
    sequences: Sequence[RoutedSequence], num_experts: int, options: StateMLPOptions,
    artefacts: Path, progress: Callable[[int, int], None] = lambda done, total: None,
) -> StateMLPs:  # fmt: skip
    """Return predictors trained on these texts, or read them from ``artefacts``.

    Raises UsageError: there are too few tokens to learn from.
    """
    texts = _decoded(sequences, options.tokens)
    tokens = sum(len(ids) for ids, _ in texts)
    if tokens < 4 or tokens - len(texts) < 2:  # the last token of a text has no next one
        raise UsageError(
            "prefetch=stride learns from routed texts with hidden states: at least four tokens, "
            "of few texts; give --calibrate-from another workload, or --set prefetch=none"
        )
    data = [array for text in texts for array in text]
    name = content_hash([VERSION, num_experts, asdict(options)], data)

    def learn() -> Artefact:
        import torch

        arrays: dict[str, np.ndarray] = {}
        note = {key: str(value) for key, value in asdict(options).items()}
        note["tokens"] = str(tokens)
        parts = {"ahead": _ahead(texts, options.stride), "wrapped": _wrapped(texts, options.stride)}
        networks, before = sum(len(data.x_MTH) for data in parts.values()), 0

        def told(trained: int, together: int, epoch: int, epochs: int) -> None:
            progress(trained * epochs + together * epoch, networks * epochs)

        # Enable gradients whatever the caller's mode is; only the networks' own generator is used.
        with torch.inference_mode(False):
            for part, data in parts.items():
                together = len(data.x_MTH)
                if not together:  # no layer has another one ``stride`` further on
                    continue
                fitted, said = _fit(data, num_experts, options, partial(told, before, together))
                before += together
                arrays |= {f"{part}.weight{i}": w for i, w in enumerate(fitted.weights)}
                arrays |= {f"{part}.bias{i}": b for i, b in enumerate(fitted.biases)}
                note |= {f"{part}.{key}": value for key, value in said.items()}
        return Artefact(arrays, note)

    arrays, note = kept(artefacts / f"state-mlp-{name}.safetensors", learn)

    def stack(part: str) -> Stack:
        return Stack(*([arrays[f"{part}.{of}{i}"] for i in range(3)] for of in ("weight", "bias")))

    ahead = stack("ahead") if "ahead.weight0" in arrays else None
    layers = texts[0][0].shape[1]
    return StateMLPs(stack("wrapped"), ahead, options.stride, layers, num_experts, note)


def _decoded(
    sequences: Sequence[RoutedSequence], tokens: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and states of the first decoded tokens; of texts without any, of all tokens."""
    found = []
    for text in sequences:
        if text.hidden_TLH is None:
            raise UsageError("prefetch=stride learns from hidden states, which these texts lack")
        first = text.prefill if text.prefill < len(text.ids_TLK) else 0
        ids = text.ids_TLK[first:][:tokens].astype(np.int32)
        if len(ids):
            found.append((ids, text.hidden_TLH[first:][: len(ids)].astype(np.float32)))
        tokens -= len(ids)
    return found


def _ahead(texts: Sequence[tuple[np.ndarray, np.ndarray]], stride: int) -> _Data:
    """Return each layer's states, and the experts chosen in the layer ``stride`` further on."""
    ids_TLK, hidden_TLH = (np.concatenate(part) for part in zip(*texts, strict=True))
    networks = max(0, ids_TLK.shape[1] - stride)
    return _Data(
        hidden_TLH[:, :networks].transpose(1, 0, 2),
        ids_TLK[:, stride:, None].transpose(1, 0, 2, 3),
        validating([len(ids) for ids, _ in texts]),
    )


def _wrapped(texts: Sequence[tuple[np.ndarray, np.ndarray]], stride: int) -> _Data:
    """Return the last layer's states, and the experts of the next token's first layers."""
    pairs = [(ids[1:, :stride], hidden[:-1, -1]) for ids, hidden in texts if len(ids) > 1]
    ids_TLK, hidden_TH = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return _Data(hidden_TH[None], ids_TLK[None], validating([len(ids) for ids, _ in pairs]))


def _fit(
    data: _Data, num_experts: int, options: StateMLPOptions, progress: Callable[[int, int], None]
) -> tuple[Stack, dict[str, str]]:
    """Train independent networks all at once; return them and their recall on validation tokens."""
    import torch

    order = np.argsort(data.validates_T, kind="stable")
    split = len(order) - int(data.validates_T.sum())
    x_MTH, ids_MTLK = data.x_MTH[:, order], data.ids_MTLK[:, order]
    mean, std = (f(x_MTH[:, :split], axis=1, keepdims=True) for f in (np.mean, np.std))
    std[std < 1e-3] = 1  # leave constant components unscaled
    networks, tokens, layers, _ = ids_MTLK.shape
    chosen = np.zeros((networks, tokens, layers, num_experts), dtype=np.float32)
    np.put_along_axis(chosen, ids_MTLK, 1, axis=3)
    x = torch.from_numpy((x_MTH - mean) / std)
    y = torch.from_numpy(chosen.reshape(networks, tokens, -1))
    generator = torch.Generator().manual_seed(options.seed)
    sizes = (x.shape[2], options.width, options.width, y.shape[2])
    parameters = initial(networks, sizes, generator)
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, fused=True)
    done = train(
        parameters, optimizer, _losses, (x, y), split, options.epochs, PATIENCE, generator, progress
    )
    arrays = [p.numpy() for p in done.parameters]
    weights, biases = arrays[0::2], arrays[1::2]
    scaled = weights[0] / std.transpose(0, 2, 1)
    biases[0] = biases[0] - mean @ scaled
    fitted = Stack([scaled, *weights[1:]], biases)
    predicted = [fitted.probabilities(x_MTH[m, split:], m) for m in range(networks)]
    recall = [_recall(p_TO, ids_MTLK[m, split:]) for m, p_TO in enumerate(predicted)]
    said = {"epochs": str(done.epochs), "best_epoch": str(done.best_epoch)}
    return fitted, said | {"recall": f"{np.mean(recall):.4f}"}


def _recall(p_TO: np.ndarray, ids_TLK: np.ndarray) -> float:
    """Return the share of the chosen experts that are among the k likeliest experts."""
    tokens, layers, k = ids_TLK.shape
    best_TLK = np.argsort(-p_TO.reshape(tokens, layers, -1), axis=2, kind="stable")[..., :k]
    return float((best_TLK[..., :, None] == ids_TLK[..., None, :]).any(axis=2).mean())


def _losses(
    parameters: "Sequence[torch.Tensor]", x: "torch.Tensor", y: "torch.Tensor"
) -> "torch.Tensor":
    """Return each network's mean binary cross-entropy, ``[M]``."""
    import torch

    for i in range(0, len(parameters), 2):
        x = torch.baddbmm(parameters[i + 1], x, parameters[i])
        if i + 2 < len(parameters):
            x = torch.relu(x)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    return bce(x, y, reduction="none").mean((1, 2))
