"""Losses of a model whose experts are rounded, each to a form of its own, on whole texts.

Shape letters: T rows (all tokens of all texts), L layers, E experts, H hidden.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import RoutedSequence


class RoundingDecoder(Decoder):
    """A decoder that predicts whole texts with each expert in a form of its own.

    A prediction restarts at the first layer in which the form of a used expert differs from the
    last whole pass: forms that differ in one expert share all layers before it.
    """

    def read(self, texts: Sequence[Sequence[int]]) -> None:
        """Set the texts of later predictions."""
        self.begin(texts, 0)
        self.embed("prefill")
        self._embedded = self._x
        #: Of the last whole pass: the forms; each MoE layer's residual ``[T, H]``, after attention,
        #: and its active experts.
        self._whole: np.ndarray | None = None
        self._states: dict[int, Tensor] = {}
        self._active: dict[int, list[int]] = {}

    def predictions(self, forms_LE: np.ndarray) -> Tensor:
        """Return the likeliest next token of each row, ``[T]``."""
        first = self._first_changed(forms_LE)
        whole = first == self.shape.moe_layers[0]
        if whole:
            self._whole, self._x = forms_LE.copy(), self._embedded
        else:
            self._x = self._states[first]
        for layer in range(0 if whole else first, self.shape.num_layers):
            if whole or layer != first:
                self.attend(layer)
            if layer in self.shape.dense_layers:
                self.dense(layer)
                continue
            self._mix(layer, forms_LE[layer], whole)
        return self._head(self._x).argmax(-1)

    def _mix(self, layer: int, forms_E: np.ndarray, whole: bool) -> None:
        """Compute a layer's experts in their forms; keep its state if the pass is a whole one."""
        state = self._x
        gate = self.gate(layer)
        active = list(self.dispatch(layer, gate.ids_TK, gate.ids_TK))
        if whole:
            self._states[layer], self._active[layer] = state, active
        for form in sorted({int(forms_E[expert]) for expert in active}):
            self._compute([e for e in active if forms_E[e] == form], layer, form)
        if self.shape.shared_width:
            self.shared(layer)
        self.combine(layer)

    def _compute(self, experts: list[int], layer: int, form: int) -> None:
        """Compute experts of one form, in one product if they are small."""
        block = self._blocks[layer]
        stacked = None if block.together else self._forms[form].stacked(layer, experts)
        if stacked is None:
            self.compute(layer, experts, form)
        else:
            block.compute_stacked(experts, *stacked)

    def _first_changed(self, forms_LE: np.ndarray) -> int:
        """Return the first MoE layer in which a used expert's form is not the last whole pass's."""
        layers, whole = self.shape.moe_layers, self._whole
        if whole is None:
            return layers[0]
        for layer in layers:
            active = self._active[layer]
            if (forms_LE[layer, active] != whole[layer, active]).any():
                return layer
        return layers[-1]


class RoundedLosses:
    """Losses of rounded experts on texts that the lossless model has generated.

    The loss is the share of the answers' tokens, as the model predicts each from all tokens before
    it, that are not those which it predicts with every expert in form 0, in percent.

    Args:
        decoder: makes the decoder.
        texts: with their tokens.
        identity: a hash of the weights, the texts and the forms.
    """

    def __init__(
        self, decoder: Callable[[], RoundingDecoder], texts: Sequence[RoutedSequence], identity: str
    ) -> None:
        self._decoder, self._texts, self.identity = decoder, texts, identity
        self._tokens = 0

    def of(self, forms_LE: np.ndarray, tokens: int) -> float:
        """Return the share of predicted tokens that change, in percent (`Losses`)."""
        with torch.inference_mode():
            if tokens != self._tokens:
                self._read(forms_LE, tokens)
            found = self._made.predictions(forms_LE)[self._rows]
        return 100 * float((found != self._exact).double().mean())

    def _read(self, forms_LE: np.ndarray, tokens: int) -> None:
        """Read the first texts, and predict their tokens with every expert in form 0."""
        self._tokens, texts = tokens, list[list[int]]()
        rows, start = list[int](), 0
        for text in self._texts:
            assert text.tokens_T is not None
            ids = text.tokens_T.tolist()
            if texts and start + len(ids) > tokens:
                break
            # The last token of a prompt predicts the first of its answer.
            rows += range(start + text.prefill - 1, start + len(ids))
            start += len(ids)
            texts.append(ids)
        self._made, self._rows = self._decoder(), torch.tensor(rows)
        self._made.read(texts)
        self._exact = self._made.predictions(np.zeros_like(forms_LE))[self._rows]
