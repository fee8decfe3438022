"""Identifies how floating-point sums round: a hash of a model's outputs on fixed inputs.

Rounding follows from the processor, the kernels that its libraries choose for it, their versions,
the number of threads and the order in which the decoder adds.  No list of names determines it:
two processors with the same features can be given different kernels.  So a computed result
identifies it.
"""

import hashlib
from pathlib import Path

import torch

from moebench.substrate.models.shared import SharedWork
from moebench.substrate.models.weights import Checkpoint
from moebench.substrate.traces.observe import write

#: Token counts of the texts of each batch: one text as in the check's runs, and several.
BATCHES = ((100,), (3, 20, 50))
#: Tokens that are generated after each text.
NEW_TOKENS = 8


@torch.inference_mode()
def probe(weights: Path, threads: int) -> str:
    """Return a hash of a model's log-probabilities on fixed texts: equal where sums round alike.

    The texts are processed as a prompt is: a prefill, decoding step by step, and the
    lossless model's pass over the finished text with the KL divergence between the two.

    Args:
        weights: the scale model's folder.
        threads: threads of the runs that the hash describes.

    Returns:
        16 hexadecimal digits.
    """
    torch.set_num_threads(threads)
    checkpoint = Checkpoint(weights)
    shared, digest = SharedWork(checkpoint), hashlib.sha256()
    for lengths in BATCHES:
        # Squares are spread over the vocabulary: nine experts in ten are reached.
        texts = [[i * i % checkpoint.shape.vocab_size for i in range(n)] for n in lengths]
        decoder = shared.decoder()
        written = write(decoder, texts, NEW_TOKENS, stop=None)
        own_BSV = torch.stack(decoder.history, dim=1).log_softmax(-1)
        finished = [[*text, *new[:-1]] for text, new in zip(texts, written, strict=True)]
        lossless_BSV = torch.stack(shared.lossless(finished, lengths))
        kl_B = (lossless_BSV.exp() * (lossless_BSV - own_BSV[:, 1:])).sum((1, 2))
        for computed in (own_BSV, lossless_BSV, kl_B):
            digest.update(computed.numpy().tobytes())
    checkpoint.close()
    return digest.hexdigest()[:16]
