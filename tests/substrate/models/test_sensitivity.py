"""Layer sensitivities: gradients by a row's lowest expert, compared with finite differences."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moebench.substrate.errors import UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.layers import gate_weights
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.sensitivity import DifferentiableDecoder
from tests.substrate.models.checkpoints import FAMILIES
from tests.substrate.models.driver import PROMPTS

TEXT, SEED = PROMPTS[0], 3


class Nudged(Decoder):
    """Decoder that drops a fraction of the weight of one row's lowest expert in one layer."""

    nudge: tuple[int, int, float] = (-1, 0, 0.0)
    share = 0.0

    def dispatch(self, layer, ids_TK, weigh_as_TK):
        active = super().dispatch(layer, ids_TK, weigh_as_TK)
        at, row, fraction = self.nudge
        if layer == at:
            kept = ids_TK.copy()
            kept[:, -1] = -1
            dropped = gate_weights(
                self.shape, self._logits, self._scores, torch.from_numpy(kept), True
            )
            weights = self._blocks[layer].weights
            weights[row] += fraction * (dropped - weights)[row]
            chosen = self._scores[row, torch.from_numpy(ids_TK)[row]]
            self.share = (chosen[-1] / chosen.sum()).item()
        return active


def made(kind: type, path: Path):
    checkpoint, dtype = Checkpoint(path), torch.float64
    return kind(checkpoint.shape, checkpoint.common(dtype), ResidentExperts(checkpoint, dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_differentiable_decoder_equals_the_decoder(family, directories):
    differentiable = made(DifferentiableDecoder, directories[family])
    for prompt in PROMPTS:
        (found,) = differentiable.full_logits([prompt])
        (truth,) = made(Decoder, directories[family]).full_logits([prompt])
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "text"), [("mixtral", TEXT), ("qwen2_moe", TEXT), ("phimoe", PROMPTS[2])]
)
def test_sensitivity_is_the_squared_slope_of_the_labels_likelihood(family, text, directories):
    found = made(DifferentiableDecoder, directories[family]).sensitivity(text, SEED)
    decoder = made(Nudged, directories[family])

    def log_probabilities() -> torch.Tensor:
        (logits,) = decoder.full_logits([text])
        return logits.double().log_softmax(-1)

    draw = torch.Generator().manual_seed(SEED)
    labels = torch.multinomial(log_probabilities().float().exp(), 1, generator=draw)
    step, truth = 0.004, []
    for layer in decoder.shape.moe_layers:
        slopes = []
        for row in range(len(text)):
            ends = []
            for fraction in (step, -step):
                decoder.nudge = (layer, row, fraction)
                ends.append(log_probabilities().gather(1, labels).sum().item())
            slopes.append((ends[0] - ends[1]) / (2 * step) / decoder.share)
        truth.append(np.mean(np.square(slopes)))
    assert found == pytest.approx(truth, rel=0.03)
    assert min(truth) > 1e-4


def test_sensitivity_depends_only_on_seed_and_text(directories):
    decoder = made(DifferentiableDecoder, directories["mixtral"])
    with torch.inference_mode():
        first = decoder.sensitivity(TEXT, SEED)
    decoder.sensitivity(PROMPTS[2], SEED)
    assert decoder.sensitivity(TEXT, SEED).tolist() == first.tolist()
    assert decoder.sensitivity(TEXT, SEED + 1).tolist() != first.tolist()
    assert first.shape == (len(decoder.shape.moe_layers),)
    with pytest.raises(UsageError, match="2 texts at once: gradients are of one text at a time"):
        decoder.full_logits(PROMPTS[:2])
