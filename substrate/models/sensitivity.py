"""Sensitivity of a model's predictions to its experts, from a backward pass over whole texts.

Shape letters: T rows, H hidden, E experts, K chosen experts, L MoE layers, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moebench.substrate.errors import UsageError
from moebench.substrate.models.attention import GroupedQueryAttention
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.layers import gate_weights, own_choice
from moebench.substrate.models.rows import ManyRows
from moebench.substrate.terms import Gate, Ids, Texts


class _Uncached(ManyRows):
    """Computes the layers without a KV cache, as in-place writes stop gradients."""

    def _found(self, layer: int, attention: GroupedQueryAttention, q: Tensor, kv: Tensor) -> Tensor:
        keys, values = attention.split(self._shape, kv.transpose(0, 1)[None])
        return attention.attend(q, keys, values, self._windows[0].masks[layer])


class DifferentiableDecoder(Decoder):
    """A decoder of one whole text at a time, with gradients.

    Its weights must not be inference tensors, which autograd cannot save for a backward pass.
    """

    many_rows = _Uncached

    def sensitivity(self, text: Sequence[int], seed: int) -> np.ndarray:
        """Return each MoE layer's sensitivity to the share of a row's lowest expert, fp32 ``[L]``.

        With d_t the share of a row's lowest expert in its K gate scores, and ℓ the negative
        log-likelihood of the text's labels, this is the Fisher information

            s_l = mean over t of (∂ℓ / ∂d_t)²

        with one label for each position, drawn from the model's prediction.  A row that drops a
        share d of layer l's experts changes the predictions by about ½ · s_l · d² nats (KL), summed
        over its own and all later positions.

        Args:
            seed: random seed of the labels.
        """
        draw = torch.Generator().manual_seed(seed)
        with torch.inference_mode(False), torch.enable_grad():
            (logits_TV,) = self.full_logits([text])
            log_TV = logits_TV.log_softmax(-1)
            labels_T1 = torch.multinomial(log_TV.detach().exp(), 1, generator=draw)
            log_TV.gather(1, labels_T1).sum().backward()  # type: ignore[no-untyped-call]
        found: np.ndarray = torch.stack([self._squared(*mix) for mix in self._mixes]).numpy()
        return found

    @torch.no_grad()
    def _squared(
        self, weights_TK: Tensor, ids_TK: Tensor, logits_TE: Tensor, scores_TE: Tensor
    ) -> Tensor:
        """Return the mean of (∂ℓ / ∂d)², from the first-order effect of dropping lowest experts."""
        kept_TK = ids_TK.clone()
        kept_TK[:, -1] = -1
        left_TK = gate_weights(self.shape, logits_TE, scores_TE, kept_TK, True)
        if self.shape.weighs_input:  # The weights of outputs are then 1 or 0.
            left_TK = (left_TK != 0).to(left_TK.dtype)
        change_TK = left_TK - weights_TK
        chosen_TK = scores_TE.gather(1, ids_TK)
        share_T = chosen_TK[:, -1] / chosen_TK.sum(1)
        assert weights_TK.grad is not None
        effect_T = (weights_TK.grad * change_TK).sum(1)
        # Rows whose lowest expert has share 0 have no effect.
        return (effect_T / share_T).nan_to_num().square().mean()

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch of exactly one text."""
        if len(prompts) != 1:
            raise UsageError(f"{len(prompts)} texts at once: gradients are of one text at a time")
        super().begin(prompts, new_tokens, forced)
        #: Each MoE layer's weights and chosen experts ``[T, K]``, gate logits, scores ``[T, E]``.
        self._mixes: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def gate(self, layer: int) -> Gate:
        """Return the gate scores and the model's own choice, without gradients."""
        self._y, self._logits, self._scores = self._rows.scored(layer, self._x)
        self._block, self._shared_out = None, None
        logits, scores = self._logits.detach(), self._scores.detach()
        return Gate(scores.numpy(), own_choice(self.shape, logits, scores).numpy())

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Group rows by expert as the decoder does, and retain the gradients of the weights."""
        rows = super().dispatch(layer, ids_TK, weigh_as_TK)
        weights = self._blocks[layer].weights
        weights.requires_grad_().retain_grad()
        ids = torch.from_numpy(ids_TK)
        self._mixes.append((weights, ids, self._logits.detach(), self._scores.detach()))
        return rows
