"""Losses of rounded experts: restarted predictions equal whole passes, for every family."""

import numpy as np
import pytest
import torch

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.rounding import RoundedLosses, RoundingDecoder
from moebench.substrate.terms import RoutedSequence
from tests.substrate.models.checkpoints import FAMILIES
from tests.substrate.models.driver import PROMPTS

TEXTS = [[*prompt, 5, 9, 2] for prompt in PROMPTS]
FORMS = (None, "int8", "row-int4")


def experts_of(path):
    checkpoint = Checkpoint(path)
    if checkpoint.shape.expert_bias:
        pytest.skip("experts with biases are not quantised")
    dtype = torch.float32
    each = [ResidentExperts(checkpoint, dtype, form) for form in FORMS]
    return checkpoint.shape, checkpoint.common(dtype), each


def rounding(path):
    shape, common, each = experts_of(path)
    made = RoundingDecoder(shape, common, each[0], more=each[1:])
    made.read(TEXTS)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_uniform_forms_predict_as_a_decoder_with_these_experts(family, directories):
    with torch.inference_mode():
        made = rounding(directories[family])
        shape, common, each = experts_of(directories[family])
        for form, experts in enumerate(each):
            whole = torch.cat(Decoder(shape, common, experts).full_logits(TEXTS)).argmax(-1)
            found = made.predictions(np.full((shape.num_layers, shape.num_experts), form))
            assert (found == whole).float().mean() > 0.99  # sums in another order


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prediction_does_not_depend_on_those_before_it(family, directories):
    random = np.random.default_rng(0)
    with torch.inference_mode():
        made = rounding(directories[family])
        shape = made.shape
        dims = (shape.num_layers, shape.num_experts)
        base = np.ones(dims, dtype=int)
        changed = [base]
        for layer in shape.moe_layers:
            one = base.copy()
            one[layer, random.integers(shape.num_experts)] = 2
            changed += [one, random.integers(0, 3, dims)]
        for forms_LE in changed:
            found = made.predictions(forms_LE)
            assert torch.equal(found, rounding(directories[family]).predictions(forms_LE))


def test_the_loss_is_the_share_of_changed_tokens_of_answers(directories):
    path, asked = directories["mixtral"], []

    def decoder():
        asked.append(None)
        shape, common, each = experts_of(path)
        return RoundingDecoder(shape, common, each[0], more=each[1:])

    texts = [RoutedSequence(np.zeros((len(t), 1, 1)), len(t) - 3, tokens_T=np.array(t))
             for t in TEXTS]  # fmt: skip
    losses = RoundedLosses(decoder, texts, "name")
    shape = Checkpoint(path).shape
    exact = np.zeros((shape.num_layers, shape.num_experts), dtype=int)
    assert losses.of(exact, 10_000) == 0
    made = rounding(path)
    with torch.inference_mode():
        differ = made.predictions(exact) != made.predictions(exact + 2)
    starts = np.cumsum([0, *map(len, TEXTS)])
    rows = [n for end in starts[1:] for n in range(end - 4, end)]
    assert losses.of(exact + 2, 10_000) == pytest.approx(100 * float(differ[rows].float().mean()))
    losses.of(exact, 1)  # fewer tokens than a text has: the first text alone
    assert len(losses._rows) == 4
    assert len(asked) == 2
