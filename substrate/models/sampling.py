"""Drawing of next tokens from a model's logits: temperature and nucleus (top-p) sampling.

With logits ``z`` and temperature ``T`` token ``v`` is drawn with probability ``p_v``, proportional
to ``exp(z_v / T)``.  Top-p keeps the likeliest tokens whose probabilities first add up to ``P`` or
more, and draws among them in proportion (Holtzman et al., "The Curious Case of Neural Text
Degeneration", §3.1).  DuoServe-MoE's models answer with "a temperature-based sampling process"
(§6.1), without a figure.

A draw is the argmax of ``z_v / T + g_v`` over the kept tokens, with Gumbel noise ``g``: this has
the probabilities above.  The noise comes from a counter-based generator (Philox).  Its key is the
seed and a hash of the prompt, its counter is the place of the token in the answer.  A token
therefore depends on its logits, seed, prompt and place alone: not on the other texts of its batch,
on the order of batches, or on the system.  Systems with equal logits draw equal tokens; others
draw with the same noise, so that their texts differ only where their distributions do.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: T, above 0.
        top_p: P, above 0 and at most 1; 1 keeps all tokens.
        seed: 0 to 2^63 - 1.
    """

    temperature: float
    top_p: float = 1.0
    seed: int = 0

    def draw(self, logits_V: np.ndarray, prompt: int, place: int) -> int:
        """Return the token that is drawn.

        Args:
            logits_V: unscaled.
            prompt: `hash_of` the prompt.
            place: number of tokens that follow the prompt before this one.
        """
        scaled_V = logits_V.astype(np.float64)
        with np.errstate(over="ignore"):  # with a tiny temperature all but the likeliest are -inf
            scaled_V = (scaled_V - scaled_V.max()) / self.temperature
        if self.top_p < 1:
            scaled_V = np.where(nucleus(scaled_V, self.top_p), scaled_V, -np.inf)
        # A draw advances the lowest of the counter's four words, the place is the next one.
        bits = np.random.Philox(key=[self.seed, prompt], counter=[0, place, 0, 0])
        noise_V = np.random.Generator(bits).gumbel(size=len(scaled_V))
        return int(np.argmax(scaled_V + noise_V))


def nucleus(scaled_V: np.ndarray, top_p: float) -> np.ndarray:
    """Return which tokens top-p keeps, as booleans ``[V]``; of equally likely ones the first.

    Args:
        scaled_V: logits over the temperature, with a maximum of 0.
    """
    order_V = np.argsort(-scaled_V, kind="stable")
    weights_V = np.exp(scaled_V[order_V])
    before_V = np.cumsum(weights_V) - weights_V
    kept_V = np.empty(len(scaled_V), dtype=bool)
    kept_V[order_V] = before_V < top_p * weights_V.sum()
    return kept_V


def hash_of(prompt: Sequence[int]) -> int:
    """Return a hash of a prompt's token ids, 0 to 2^64 - 1."""
    digest = hashlib.sha256(np.asarray(prompt, dtype="<i8").tobytes()).digest()
    return int.from_bytes(digest[:8], "little")
