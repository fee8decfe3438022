"""Data shared by runs of the same weights: experts in memory, prefills, reference logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.imported import every_expert
from moebench.substrate.models.protocol import Experts, Model
from moebench.substrate.models.remembered import Prefills, RememberedPrefills
from moebench.substrate.models.rounding import RoundingDecoder
from moebench.substrate.models.sensitivity import DifferentiableDecoder
from moebench.substrate.models.shape import ExpertDtype, Form, RecordDtype


class SharedWork:
    """Weights, prefills and reference logits that one process keeps between runs of a checkpoint.

    Args:
        checkpoint: the weights of all runs that share this object.
        expert_dtype: type to which runs quantise experts; the reference does not quantise them.
        remember: also keep prefills and reference logits, for repeated prompts of small models:
            long texts of a full-size model would fill the memory.
    """

    def __init__(
        self, checkpoint: Checkpoint, remember: bool = False,
        expert_dtype: ExpertDtype | None = None,
    ) -> None:  # fmt: skip
        self.checkpoint, self._expert_dtype = checkpoint, expert_dtype
        with torch.inference_mode(False):  # Inference tensors have no gradients.
            self._common = checkpoint.common(torch.float32)
            self._exact = every_expert(checkpoint, torch.float32)
        self._reference = Decoder(checkpoint.shape, self._common, self._exact)
        self._rounded: dict[RecordDtype, Experts] = {}
        self._prefills: Prefills | None = {} if remember else None
        self._lossless: dict[tuple[int, ...], Tensor] = {}

    def _experts(self, dtype: RecordDtype | None) -> Experts:
        """Return the experts that runs compute with; quantised ones are dequantised to fp32."""
        if dtype is None:
            return self._exact
        if dtype not in self._rounded:
            with torch.inference_mode(False):
                self._rounded[dtype] = every_expert(self.checkpoint, torch.float32, dtype)
        return self._rounded[dtype]

    def decoder(
        self, reuse_predictions: bool = False, forms: Sequence[Form] = (Form(),)
    ) -> Decoder:
        """Return a decoder with all experts in memory, in the precision of each form."""
        each = [self._experts(form.dtype or self._expert_dtype) for form in forms]
        return Decoder(
            self.checkpoint.shape, self._common, each[0], reuse_predictions, more=each[1:]
        )

    def rounding(self, forms: Sequence[Form]) -> RoundingDecoder:
        """Return a decoder that measures losses of experts in these forms."""
        each = [self._experts(form.dtype or self._expert_dtype) for form in forms]
        return RoundingDecoder(self.checkpoint.shape, self._common, each[0], more=each[1:])

    def differentiable(self) -> DifferentiableDecoder:
        """Return a decoder with gradients and with all experts in memory."""
        experts = self._experts(self._expert_dtype)
        with torch.inference_mode(False):
            return DifferentiableDecoder(self.checkpoint.shape, self._common, experts)

    def remembering(self, decoder: Decoder) -> Model:
        """Return a model that replays known prefills, or the decoder if prefills are not kept."""
        return decoder if self._prefills is None else RememberedPrefills(decoder, self._prefills)

    def lossless(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Tensor]:
        """Return log-probabilities ``[len - start, V]`` of the lossless model for each text.

        Args:
            texts: token ids.
            starts: for each text, the first position whose next token is predicted.
        """
        keys = [tuple(text) for text in texts]
        known = self._lossless if self._prefills is not None else {}
        new = dict(pair for pair in zip(keys, starts, strict=True) if pair[0] not in known)
        for key, logits in zip(new, self._reference.full_logits(list(new)) if new else [],
                               strict=True):  # fmt: skip
            known[key] = logits[new[key] :].log_softmax(-1)
        return [known[key] for key in keys]
