"""Random weights with the tensors and sizes of a model's shape."""

import pytest
import torch

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.dummy import DummyWeights
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.resident import ResidentExperts
from tests.substrate.models.checkpoints import FAMILIES
from tests.substrate.models.driver import PROMPTS, run


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_dummy_weights_have_checkpoint_shapes_and_finite_logits(family, directories):
    checkpoint = Checkpoint(directories[family])
    weights = DummyWeights(checkpoint.shape)
    assert weights.distinct == checkpoint.distinct
    ours, theirs = weights.common(torch.float32), checkpoint.common(torch.float32)
    assert {name: t.shape for name, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    decoder = Decoder(checkpoint.shape, ours, ResidentExperts(weights, torch.float32))
    logits = run(decoder, PROMPTS, 12)
    assert logits.isfinite().all()
    assert 1e-3 < logits.std() < 1e3


def test_experts_share_records_where_all_would_be_too_many(directories, tmp_path):
    shape = Checkpoint(directories["deepseek"]).shape
    weights = DummyWeights(shape, most=3 * shape.expert_params + 1)
    assert weights.distinct == 3
    store = ExpertStore.build(weights, tmp_path / "experts.bin", torch.float32)
    assert store.path.stat().st_size == 3 * store.stride_bytes
    offsets = [
        store.offset(layer, expert)
        for layer in shape.moe_layers
        for expert in range(shape.num_experts)
    ]
    assert offsets[:3] * (len(offsets) // 3) == offsets[: len(offsets) // 3 * 3]
    first, second = (weights.expert_record(shape.moe_layers[0], e, torch.float32) for e in (0, 1))
    assert not torch.equal(first, second)
    again = DummyWeights(shape).expert_record(shape.moe_layers[0], 1, torch.float32)
    assert torch.equal(second, again)
