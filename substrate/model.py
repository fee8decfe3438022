"""One compact decoder for all families: the mathematics that the engine asks for, step by step.

A `Model` answers; it never decides.  The engine calls its verbs in order (embed, attend, gate,
dispatch, expert, ..., combine, head) and a machine prices or times each.  `Decoder` does the real
mathematics; `substrate.trace.TracedModel` answers the same verbs from a recorded trace.

Shape letters: B sequences, T rows (all tokens of this pass), H hidden, E experts, K chosen.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from substrate.arch import GateKind, ModelShape
from substrate.errors import UsageError
from substrate.layers import (
    gate_scores,
    gate_weights,
    normalise,
    rms_norm,
    rope_tables,
    rotate,
    swiglu,
)
from substrate.naming import PROJECTIONS
from substrate.weights import fuse_attention

Phase = Literal["prefill", "decode"]
Ids = np.ndarray
Scores = np.ndarray


class Lookahead(StrEnum):
    """What a prefetcher's prediction of the next layer's gate scores is computed from."""

    NONE = "none"
    GATE = "gate"  # next gate on this layer's post-attention state (DAOP, Mixtral-Offloading)
    LAYER = "layer"  # resident and shared experts, next attention, next gate (SMoE §IV-C)


class Gate(NamedTuple):
    """What a layer's router says: scores ``[T, E]`` and the model's own choice ``[T, K]``."""

    scores_TE: Scores
    ids_TK: Ids


class Experts(Protocol):
    """Where the mathematics finds an expert's matrices: in memory, or in the slots of a device."""

    def matrices(self, layer: int, expert: int) -> tuple[Tensor, Tensor]:
        """Gate above up ``[2·I, H]``, and down ``[H, I]``."""


class Model(Protocol):
    """The verbs of a forward pass.  One pass is a prefill of B prompts or one token for each."""

    shape: ModelShape

    def begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Start a batch: prompts as token ids, and how many tokens each will generate at most."""

    def embed(self, phase: Phase) -> int:
        """Feed the prompts, or the last chosen tokens; returns the number of rows T."""

    def attend(self, layer: int) -> None:
        """Attention of a layer, its KV cache extended."""

    def gate(self, layer: int) -> Gate:
        """Scores of all experts and the model's own choice."""

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Fix the experts of each row; returns active experts (ascending) with their row counts.

        ``weigh_as_TK`` names, position by position, the expert whose gate weight is used.
        """

    def expert(self, layer: int, expert: int) -> None:
        """Compute one active expert on its rows."""

    def shared(self, layer: int) -> None:
        """Compute the shared experts on all rows."""

    def combine(self, layer: int) -> None:
        """Add the weighted sum of the routed experts, and the shared ones, to the residual."""

    def dense(self, layer: int) -> None:
        """The feed-forward block of a layer without routed experts."""

    def predict(self, layer: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Scores ``[T, E]`` that the next layer's gate would give, from the experts ``done``."""

    def head(self) -> list[int]:
        """Choose each sequence's next token (greedy; ties to the lowest id)."""


class Decoder:
    """The real mathematics, on torch, in one dtype.

    Results do not depend on the order in which a layer's experts are computed: outputs are
    gathered and summed by rank, so a lossless system reproduces the resident model bit for bit.
    """

    def __init__(self, shape: ModelShape, common: dict[str, Tensor], experts: Experts) -> None:
        if shape.latent or shape.attention_sinks or shape.gate_bias:
            raise UsageError(f"the decoder has no mathematics for {shape.family}; use a trace")
        if shape.rope_type != "default":
            raise UsageError(f"the decoder has no mathematics for rope_type {shape.rope_type}")
        self.shape = shape
        self.experts = experts
        self._w = common
        self._qkv = [fuse_attention(common, layer) for layer in range(shape.num_layers)]

    # ------------------------------------------------------------------ one batch, one pass

    def begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Allocate the KV cache of a batch; prompts may differ in length."""
        s = self.shape
        if not prompts:
            raise UsageError("there is no prompt; give at least one")
        for b, prompt in enumerate(prompts):
            if not prompt:
                raise UsageError(f"prompt {b} is empty; every prompt needs at least one token")
        longest = max(len(p) for p in prompts) + new_tokens
        if longest > s.max_positions:
            raise UsageError(
                f"prompt and new tokens need {longest} positions, the model has {s.max_positions}; "
                "shorten the prompts or --new-tokens"
            )
        dims = (s.num_layers, len(prompts), s.num_kv_heads, longest, s.head_dim)
        dtype = self._w["embed"].dtype
        self._keys, self._values = torch.zeros(dims, dtype=dtype), torch.zeros(dims, dtype=dtype)
        self._cos, self._sin = (t.to(dtype) for t in rope_tables(s, torch.arange(longest)))
        self._tokens: list[list[int]] = [list(p) for p in prompts]
        self._cached = [0] * len(prompts)

    def embed(self, phase: Phase) -> int:
        """Rows of all sequences, one after the other: ``[T, H]``."""
        self._new = [len(p) for p in self._tokens] if phase == "prefill" else [1] * len(self._tokens)
        self._starts = self._cached
        self._cached = [c + n for c, n in zip(self._starts, self._new, strict=True)]
        ids = [t for seq, n in zip(self._tokens, self._new, strict=True) for t in seq[-n:]]
        positions = [p for c, n in zip(self._starts, self._new, strict=True) for p in range(c, c + n)]
        self._cos_T, self._sin_T = self._cos[positions, None], self._sin[positions, None]
        self._x = self._w["embed"][ids]
        return len(ids)

    def attend(self, layer: int) -> None:
        """Pre-normed attention added to the residual."""
        self._x = self._x + self._attention(layer, self._x)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return normalise(self.shape, x, self._w[name], self._w.get(f"{name}.bias"))

    def _attention(self, layer: int, x_TH: Tensor) -> Tensor:
        """Attention over cached and new positions; the new keys and values enter the cache.

        Only `embed` moves the cache's length, so a prediction may run the next layer here: what it
        writes lies beyond that layer's length and is overwritten by the true pass.
        """
        s, d = self.shape, self.shape.head_dim
        x = self._norm(f"layers.{layer}.attention_norm", x_TH)
        qkv = F.linear(x, *self._qkv[layer])
        q, k, v = qkv.split((s.num_heads * d, s.num_kv_heads * d, s.num_kv_heads * d), dim=-1)
        q, k = self._query_key_norm(layer, q, k)
        if s.clip_qkv is not None:  # OLMoE clips what its norms give
            q, k, v = (t.clamp(-s.clip_qkv, s.clip_qkv) for t in (q, k, v))
        heads = torch.cat((q, k), dim=-1).view(-1, s.num_heads + s.num_kv_heads, d)
        heads = rotate(heads, self._cos_T, self._sin_T)
        q, k = heads.split((s.num_heads, s.num_kv_heads), dim=1)
        v = v.view(-1, s.num_kv_heads, d)
        outputs, row = [], 0
        for b, (start, n) in enumerate(zip(self._starts, self._new, strict=True)):
            rows, end = slice(row, row + n), start + n
            keys, values = self._keys[layer, b], self._values[layer, b]
            keys[:, start:end] = k[rows].transpose(0, 1)
            values[:, start:end] = v[rows].transpose(0, 1)
            out = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1)[None], keys[None, :, :end], values[None, :, :end],
                is_causal=n > 1, enable_gqa=s.num_heads != s.num_kv_heads,
            )  # fmt: skip
            outputs.append(out[0].transpose(0, 1).reshape(n, s.num_heads * d))
            row += n
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return F.linear(out, self._w[f"layers.{layer}.o"], self._w.get(f"layers.{layer}.o.bias"))

    def _query_key_norm(self, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        s = self.shape
        if s.qk_norm == "none":
            return q, k
        q_weight, k_weight = self._w[f"layers.{layer}.q_norm"], self._w[f"layers.{layer}.k_norm"]
        if s.qk_norm == "full":
            return rms_norm(q, q_weight, s.norm_eps), rms_norm(k, k_weight, s.norm_eps)
        q, k = (t.view(t.shape[0], -1, s.head_dim) for t in (q, k))
        q, k = rms_norm(q, q_weight, s.norm_eps), rms_norm(k, k_weight, s.norm_eps)
        return q.flatten(1), k.flatten(1)

    # ------------------------------------------------------------------ the MoE block

    def gate(self, layer: int) -> Gate:
        """Score the normalised hidden state; the choice is torch's top-k of the scores."""
        self._y = self._norm(f"layers.{layer}.mlp_norm", self._x)
        self._logits = F.linear(self._y, self._w[f"layers.{layer}.router"])
        return self._choose(self._logits)

    def _choose(self, logits_TE: Tensor) -> Gate:
        scores = gate_scores(self.shape, logits_TE)
        # Top-k-first gates choose by logits; a softmax keeps their order but can merge neighbours.
        by_logits = self.shape.gate in (GateKind.SPARSEMIXER, GateKind.TOPK_SOFTMAX)
        ids = (logits_TE.float() if by_logits else scores).topk(self.shape.top_k).indices
        return Gate(scores.numpy(), ids.numpy())

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Group rows by expert and fix the weights."""
        self._weights = gate_weights(self.shape, self._logits, torch.from_numpy(weigh_as_TK))
        # For each active expert, the flat (row, rank) places that it fills.
        places: dict[int, list[int]] = {}
        for place, expert in enumerate(ids_TK.ravel().tolist()):
            places.setdefault(expert, []).append(place)
        self._places = dict(sorted(places.items()))
        self._outputs: dict[int, Tensor] = {}
        return {expert: len(places) for expert, places in self._places.items()}

    def expert(self, layer: int, expert: int) -> None:
        """SwiGLU of one expert on the rows that chose it."""
        gate_up, down = self.experts.matrices(layer, expert)
        rows, places = self._y, self._places[expert]
        if rows.shape[0] > 1 or len(places) > 1:
            rows = rows[[place // self.shape.top_k for place in places]]
        gate, up = F.linear(rows, gate_up).chunk(2, dim=-1)
        self._outputs[expert] = F.linear(F.silu(gate) * up, down)

    def combine(self, layer: int) -> None:
        """Residual plus routed and shared experts."""
        missing = self._places.keys() - self._outputs.keys()
        if missing:
            raise RuntimeError(f"layer {layer}: experts {sorted(missing)} were never computed")
        self._x = self._x + self._mixture(list(self._places))
        if self.shape.shared_width:
            self._x = self._x + self._shared_out

    def _mixture(self, experts: Sequence[int]) -> Tensor:
        """Weighted sum of the given experts' outputs by row, ``[T, H]``.

        Experts are added in the order given, whatever order they were computed in.
        """
        places = [place for e in experts for place in self._places[e]]
        outputs = torch.cat([self._outputs[e] for e in experts])
        weighted = outputs * self._weights.flatten()[places, None]
        rows = torch.tensor([place // self.shape.top_k for place in places])
        return torch.zeros_like(self._x).index_add_(0, rows, weighted.to(self._x.dtype))

    def shared(self, layer: int) -> None:
        """SwiGLU of the shared experts as one block, scaled by its own sigmoid gate if it has one."""
        p = f"layers.{layer}"
        out = swiglu(self._y, *(self._w[f"{p}.shared.{n}"] for n in PROJECTIONS))
        if self.shape.shared_gated:
            out = out * F.linear(self._y, self._w[f"{p}.shared_gate"]).sigmoid()
        self._shared_out = out

    def dense(self, layer: int) -> None:
        """Residual plus a dense SwiGLU block."""
        p = f"layers.{layer}"
        y = self._norm(f"{p}.mlp_norm", self._x)
        self._x = self._x + swiglu(y, *(self._w[f"{p}.dense.{n}"] for n in PROJECTIONS))

    def predict(self, layer: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """The next MoE layer's scores on this layer's post-attention or partial output state."""
        x = self._x
        if lookahead is Lookahead.LAYER:
            if done:
                x = x + self._mixture(done)
            if self.shape.shared_width:
                x = x + self._shared_out
            x = x + self._attention(layer + 1, x)
        y = self._norm(f"layers.{layer + 1}.mlp_norm", x)
        logits = F.linear(y, self._w[f"layers.{layer + 1}.router"])
        return gate_scores(self.shape, logits).numpy()

    # ------------------------------------------------------------------ the end of a pass

    def head(self) -> list[int]:
        """Append and return the next token of each sequence; `logits` ``[B, V]`` holds the choice."""
        last = np.cumsum(self._new) - 1
        self.logits = self._head(self._x[torch.from_numpy(last)])
        chosen: list[int] = self.logits.argmax(dim=-1).tolist()
        for tokens, token in zip(self._tokens, chosen, strict=True):
            tokens.append(token)
        return chosen

    def _head(self, x: Tensor) -> Tensor:
        head = self._w["embed"] if self.shape.tied_head else self._w["head"]
        return F.linear(self._norm("norm", x), head, self._w.get("head.bias")).float()

    def full_logits(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Lossless logits ``[len, V]`` of whole texts in one batched pass: the reference.

        Every expert is resident and the model's own top-k is used.
        """
        self.begin(texts, 0)
        self.embed("prefill")
        for layer in range(self.shape.num_layers):
            self.attend(layer)
            if layer in self.shape.dense_layers:
                self.dense(layer)
                continue
            gate = self.gate(layer)
            for expert in self.dispatch(layer, gate.ids_TK, gate.ids_TK):
                self.expert(layer, expert)
            if self.shape.shared_width:
                self.shared(layer)
            self.combine(layer)
        return list(self._head(self._x).split(self._new))
