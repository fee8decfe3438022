"""The decoder that computes the forward pass of all model families (implements `Model`).

Shape letters: B sequences, T rows (all tokens of this pass), H hidden, E experts, K chosen.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.errors import IntegrityError, UsageError
from moebench.substrate.models.attention import attention_kind
from moebench.substrate.models.block import Block, RoutedAhead, places_of
from moebench.substrate.models.device import CPU, Device
from moebench.substrate.models.fused import FusedLayer, expert_function
from moebench.substrate.models.layers import Norm
from moebench.substrate.models.protocol import Experts
from moebench.substrate.models.rotary import Rotations
from moebench.substrate.models.rows import ManyRows, Rows, Stacks, Values
from moebench.substrate.models.sampling import Sampling, hash_of
from moebench.substrate.models.shape import ROPE_TYPES, ModelShape
from moebench.substrate.models.states import Foreseen, Prefilled
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores, Texts

#: Most (row, rank) places that are computed in one product.  More places are a prefill, in which
#: experts run one by one, each on all its rows.
GATHERED_PLACES = 64


class Decoder:
    """The forward pass of a model in one dtype: with torch, few rows in compiled loops.

    Results do not depend on the order in which a layer's experts are computed: outputs are
    gathered and summed by rank, so a lossless system reproduces the resident model bit for bit.

    Args:
        common: non-expert weights, on the device.
        reuse_predictions: use a complete prediction as the next layer's attention and gate.  Only
            for virtual time: on a real machine, the layer's measured time would be missing.
        reads_state: the gate's read-back includes the state, with which host experts compute.
        more: the experts as their records are in form 1 and further ones.
    """

    #: Computes the layers of a pass of many rows.
    many_rows = ManyRows

    def __init__(
        self, shape: ModelShape, common: Mapping[str, Tensor], experts: Experts,
        reuse_predictions: bool = False, device: Device = CPU, reads_state: bool = True,
        more: Sequence[Experts] = (),
    ) -> None:  # fmt: skip
        if shape.rope_type not in ROPE_TYPES:
            raise UsageError(
                f"the decoder has no mathematics for rope_type {shape.rope_type}; "
                f"allowed: {', '.join(ROPE_TYPES)}"
            )
        self.shape = shape
        self.experts, self._forms = experts, (experts, *more)
        self._expert = expert_function(shape)
        self._device, self._reads_state = device, reads_state
        self._reuse_predictions = reuse_predictions
        #: How batches that begin from now on draw their tokens; None takes the likeliest.
        self.sampling: Sampling | None = None
        self._ahead: Foreseen | None = None
        self._read_state: Values | None = None
        self._embedding = common["embed"]
        self._head_weight = self._embedding if shape.tied_head else common["head"]
        self._head_bias = common.get("head.bias")
        self._final_norm = Norm(shape, common["norm"], common.get("norm.bias"))
        self._layers = [FusedLayer(shape, common, layer) for layer in range(shape.num_layers)]
        #: All experts of each layer, where they are small and in memory.
        self._stacks: dict[int, Stacks] = {}
        for layer in shape.moe_layers:
            if (stacks := experts.all_of(layer)) is not None:
                self._stacks[layer] = stacks
        self._many = self.many_rows(shape, self._layers, self._stacks, device)

    @cached_property
    def _few(self) -> Rows | None:
        """Computes decoded rows of a small model, where calls of torch take most of the time."""
        if not self._stacks:  # and none of a token's measured time is spent on imports
            return None
        try:
            from moebench.substrate.models.few_rows import FewRows, computes
        except ImportError:  # no Numba, or one that does not support this NumPy
            return None
        if not computes(self.shape, self._embedding):
            return None
        return FewRows(self.shape, self._layers, self._stacks)

    # ------------------------------------------------------------------ one batch, one pass

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
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
        dims = (s.num_layers, longest, *attention_kind(s).entry(s))
        #: KV cache of each sequence: ``[layer, position, *entry]``.
        self._caches = [self._embedding.new_zeros(dims) for _ in prompts]
        self._rotations = Rotations(s, longest, self._embedding.dtype, self._device)
        self._ahead = None
        #: Layers that were routed ahead and have not been summed.
        self._routed_ahead: dict[int, RoutedAhead] = {}
        #: The layer that was dispatched last (until the next gate); all layers with outputs that
        #: were not added yet; and the layer that deferred outputs to the current one.
        self._block: Block | None = None
        self._blocks: dict[int, Block] = {}
        self._carried: Block | None = None
        self._prompts = [list(p) for p in prompts]
        self._tokens: list[list[int]] = [list(p) for p in prompts]
        self._forced = [list(tokens) for tokens in forced] or [[] for _ in prompts]
        self._hashes = [hash_of(p) for p in prompts] if self.sampling else []
        self._cached = [0] * len(prompts)
        #: Logits ``[B, V]`` of each pass of this batch.
        self.history: list[Tensor] = []

    def embed(self, phase: Phase) -> int:
        """Embed the next tokens of all sequences as rows ``[T, H]`` and return T."""
        self._new = (
            [len(p) for p in self._tokens] if phase == "prefill" else [1] * len(self._tokens)
        )
        self._starts = self._cached
        self._cached = [c + n for c, n in zip(self._starts, self._new, strict=True)]
        ids = [t for seq, n in zip(self._tokens, self._new, strict=True) for t in seq[-n:]]
        turns = self._rotations.turns(self._starts, self._cached)
        few = phase == "decode" and len(ids) * self.shape.top_k <= GATHERED_PLACES
        self._rows: Rows = (self._few if few else None) or self._many
        self._rows.embed(self._caches, self._starts, self._cached, turns)
        self._x: Values = self._embedding[self._device.index(ids)]
        return len(ids)

    def attend(self, layer: int) -> None:
        """Add the layer's attention output to the residual.

        Only `embed` changes the cache's length, so a prediction may run the next layer's attention:
        its entries are beyond the cached positions, and the true pass overwrites them.
        """
        ahead = self._ahead
        self._x = ahead.attended if ahead else self._rows.attended(layer, self._x)

    # ------------------------------------------------------------------ the MoE block

    def gate(self, layer: int) -> Gate:
        """Return the gate scores of the normalised state and the model's own top-k experts."""
        ahead = self._ahead
        own = ahead.scored if ahead else self._rows.scored(layer, self._x)
        self._y, self._logits, self._scores = own
        self._ahead, self._block = None, None
        self._shared_out: Values | None = None
        if layer in self._routed_ahead:
            _, self._logits, self._scores, *_ = self._routed_ahead[layer]
        _, logits, scores = own
        ids = self._rows.own_choice(logits, scores)
        state = (self._y,) if self._reads_state else ()
        # The control thread waits for the device only here in each layer.
        scores, ids, *read = self._device.read(scores, ids, *state)
        self._read_state = read[0] if read else None
        return Gate(np.asarray(scores), np.asarray(ids))

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Group rows by expert, fix the experts' weights, and return each expert's row count."""
        ids = weigh_as = self._rows.put(ids_TK)
        chosen = weighed = ids_TK.ravel().tolist()
        if weigh_as_TK is not ids_TK:
            weigh_as, weighed = self._rows.put(weigh_as_TK), weigh_as_TK.ravel().tolist()
        fewer = min(weighed, default=0) < 0
        weights = self._rows.gate_weights(self._logits, self._scores, weigh_as, fewer)
        if fewer or (chosen is not weighed and min(chosen) < 0):
            ids = torch.as_tensor(ids)
            ids, weights = ids.clamp(min=0), torch.as_tensor(weights).masked_fill(ids < 0, 0)
        places, read_as = places_of(chosen), None
        if self.shape.weighs_input:
            read_as, weights = weights, (torch.as_tensor(weights) != 0).float()
        # One product changes no measured time: the machine still times every expert for which
        # `compute` is called, and only those enter the sum.
        together = len(chosen) <= GATHERED_PLACES and layer in self._stacks
        if together:
            outputs = self._rows.outputs(layer, self._y, ids, read_as)
        else:
            outputs = torch.as_tensor(self._y).new_zeros(len(chosen), self.shape.hidden_size)
        self._block = self._blocks[layer] = Block(
            layer, self._device, self._y, self._read_state, weights, chosen, places, outputs,
            together, read_as,
        )  # fmt: skip
        return {expert: len(filled) for expert, filled in places.items()}

    def weigh(self, layer: int, weights_TK: np.ndarray) -> None:
        """Replace the weights of the experts of the layer that was dispatched last."""
        self._blocks[layer].weights = self._device.put(torch.from_numpy(weights_TK)).float()

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        """Compute the SwiGLU of experts on the rows that chose them."""
        block = self._blocks[layer]
        if form:
            block.compute(experts, partial(self._swiglu, layer, form=form), alone=True)
            return
        stacked = None if block.together else self.experts.stacked(layer, experts)
        if stacked is None:
            block.compute(experts, partial(self._swiglu, layer))
        else:
            block.compute_stacked(experts, *stacked)

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        """Compute experts with the host's matrices; ``ahead``: on the state of early routing."""
        swiglu = partial(self._swiglu, layer, on_host=True, form=form)
        if ahead:
            self._routed_ahead[layer].compute(experts, self.shape.top_k, swiglu)
        else:
            self._blocks[layer].compute_on_host(experts, swiglu, alone=form > 0)

    def _swiglu(
        self, layer: int, expert: int, rows: Tensor, on_host: bool = False, form: int = 0
    ) -> Tensor:
        return self._expert(rows, *self._forms[form].matrices(layer, expert, on_host))

    def shared(self, layer: int) -> None:
        """Compute the shared experts on all rows."""
        self._shared_out = self._rows.shared(layer, self._y)

    def combine(self, layer: int) -> None:
        """Add the outputs of routed and shared experts to the residual."""
        block, routed = self._blocks[layer], self._routed_ahead.pop(layer, None)
        if not block.deferred:  # The host may still be computing deferred experts.
            del self._blocks[layer]
        if routed is not None:
            block.take(routed.outputs)
        weights = block.weights_now()
        if self.shape.shared_width and self._shared_out is None:
            raise IntegrityError(f"layer {layer}: shared experts were never computed")
        self._x = self._ahead.mixed if self._ahead else self._mixed(block, weights)
        carried, self._carried = self._carried, block if block.deferred else None
        if carried is not None:
            del self._blocks[carried.layer]
            self._x = torch.as_tensor(self._x) + carried.late_sum()

    def _mixed(self, block: Block, weights_TK: Values) -> Values:
        """Return the residual plus shared experts plus the weighted sum over ranks ``[T, H]``."""
        return self._rows.mixed(self._x, self._shared_out, weights_TK, block.outputs)

    def dense(self, layer: int) -> None:
        """Add the output of a dense layer's SwiGLU block to the residual."""
        self._x = self._rows.dense(layer, self._x)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return predicted gate scores of a later layer, from this layer's state or part output."""
        if lookahead is Lookahead.NORMED:
            return self._numpy(self._rows.gated(later, self._y)[1])
        if lookahead is Lookahead.GATE:
            return self._numpy(self._rows.scored(later, self._x)[2])
        if lookahead in (Lookahead.SHARED, Lookahead.SHARED_RESIDUAL):
            return self._numpy(self._rows.scored(later, self._unattended(later, lookahead))[2])
        if lookahead is not Lookahead.LAYER:
            raise UsageError(
                f"layer {layer} computes no prediction of kind {lookahead}: it is known where "
                "recorded routing is replayed"
            )
        if later != layer + 1:
            raise UsageError(f"layer {layer} cannot run layer {later} ahead: others are between")
        exact, mixed, block = False, self._x, self._block
        if block is not None:
            weights, complete = block.weights, len(done) == len(block.places)
            exact = complete and not block.deferred and self._carried is None
            if not complete:  # The prediction leaves out experts that are not computed yet.
                weights = torch.as_tensor(weights) * block.filled_by(done)
            mixed = self._mixed(block, weights)
        attended = self._rows.attended(layer + 1, mixed)
        scored = self._rows.scored(layer + 1, attended)
        # The KV cache holds the entries of the last prediction.
        exact = exact and self._reuse_predictions
        self._ahead = Foreseen(mixed, attended, scored) if exact else None
        return self._numpy(scored[2])

    def _numpy(self, values: Values) -> np.ndarray:
        return np.asarray(self._device.read(values)[0])

    def _unattended(self, later: int, lookahead: Lookahead) -> Tensor:
        """Return a later layer's gate input under the assumption of identity attention."""
        x = self._y if self._shared_out is None else self._y + self._shared_out
        x = torch.as_tensor(x + self._x if lookahead is Lookahead.SHARED_RESIDUAL else x)
        return x + self._layers[later].attention_norm(x)

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """Store the gate results of a layer, computed early from the previous layer's state."""
        logits, scores = self._rows.gated(layer, self._y)
        read_as = None
        if self.shape.weighs_input:  # These weights are provisional: `dispatch` may set others.
            ids = self._rows.put(ids_TK)
            read_as = self._rows.gate_weights(logits, scores, ids, True)
            (read_as,) = self._device.read(read_as)
        self._routed_ahead[layer] = RoutedAhead(
            self._read_state, logits, scores, places_of(ids_TK.ravel().tolist()), {}, read_as
        )

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Leave the outputs of these active experts to the next layer's sum."""
        assert self._block is not None, "dispatch comes before"
        self._block.deferred = frozenset(experts)
        self._ahead = None if experts else self._ahead  # A prediction includes deferred outputs.

    def hidden(self, layer: int) -> np.ndarray:
        """Return the normalised state ``[T, H]``, which also routes a later layer ahead."""
        if self._read_state is None:
            return self._numpy(torch.as_tensor(self._y).float())
        return torch.as_tensor(self._read_state).float().numpy()

    def token_norms(self, layer: int) -> np.ndarray:
        """Return the Euclidean norm of each row of `hidden` ``[T]``."""
        norms: np.ndarray = np.linalg.norm(self.hidden(layer), axis=1)
        return norms

    def token_embeddings(self) -> np.ndarray:
        """Return the embedding of each row of the pass ``[T, H]``, before its first layer."""
        return self._numpy(self._x.float())

    def embedding(self) -> np.ndarray:
        """Return the mean token embedding of each prompt ``[B, H]``."""
        prompts = map(self._device.index, self._prompts)
        return self._numpy(
            torch.stack([self._embedding[prompt].float().mean(0) for prompt in prompts])
        )

    # ------------------------------------------------------------------ the end of a pass

    def head(self) -> list[int]:
        """Append and return each sequence's next token: forced, drawn, or the likeliest."""
        x = torch.as_tensor(self._x)
        if len(x) > len(self._new):
            x = x[self._device.index([end - 1 for end in accumulate(self._new)])]
        return self._choose(self._head(x))

    def _choose(self, logits_BV: Tensor) -> list[int]:
        step = len(self.history)
        logits_BV, ids_B = self._device.read(logits_BV, logits_BV.argmax(dim=-1))
        self.history.append(logits_BV)
        chosen: list[int] = ids_B.tolist()
        if self.sampling is not None:
            rows = zip(logits_BV.numpy(), self._hashes, strict=True)
            chosen = [self.sampling.draw(logits_V, prompt, step) for logits_V, prompt in rows]
        for b, (tokens, forced) in enumerate(zip(self._tokens, self._forced, strict=True)):
            if step < len(forced):
                chosen[b] = forced[step]
            tokens.append(chosen[b])
        return chosen

    def pass_logits(self) -> list[Tensor]:
        """Return each sequence's logits ``[rows, V]`` at all positions of the last pass."""
        return list(torch.split(self._head(torch.as_tensor(self._x)), self._new))

    def _head(self, x: Tensor) -> Tensor:
        return F.linear(self._final_norm(x), self._head_weight, self._head_bias).float()

    def prefilled(self) -> Prefilled:
        """Return copies of the KV caches and logits of the prefill that just ended."""
        caches = [cache[:, :n].clone() for cache, n in zip(self._caches, self._cached, strict=True)]
        return Prefilled(caches, self.history[0])

    def take_prefill(self, prefilled: Prefilled) -> list[int]:
        """Restore a stored prefill of the prompts after `begin`, and return the first tokens."""
        self._cached = [cache.shape[1] for cache in prefilled.caches]
        for mine, theirs in zip(self._caches, prefilled.caches, strict=True):
            mine[:, : theirs.shape[1]] = theirs
        return self._choose(prefilled.logits)

    def full_logits(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the lossless reference logits ``[len, V]`` of whole texts from one batched pass.

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
            self.compute(layer, list(self.dispatch(layer, gate.ids_TK, gate.ids_TK)))
            if self.shape.shared_width:
                self.shared(layer)
            self.combine(layer)
        return self.pass_logits()
