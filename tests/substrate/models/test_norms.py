"""Norms of experts' weights, from checkpoints of every family."""

import numpy as np
import pytest
import torch

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.norms import expert_norms
from moebench.substrate.models.resident import ResidentExperts
from tests.substrate.models.checkpoints import make_checkpoint


@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral", "gpt_oss"])
def test_a_norm_is_the_root_of_the_squares_of_all_matrices_without_biases(family, tmp_path):
    checkpoint = Checkpoint(make_checkpoint(tmp_path, family))
    shape, experts = checkpoint.shape, ResidentExperts(checkpoint, torch.float32)
    norms_LE = expert_norms(checkpoint)
    assert norms_LE.shape == (len(shape.moe_layers), shape.num_experts)
    for row, layer in enumerate(shape.moe_layers):
        for expert in range(shape.num_experts):
            matrices = [m for m in experts.matrices(layer, expert) if m.ndim == 2]
            squares = sum(float((m.double() ** 2).sum()) for m in matrices)
            assert norms_LE[row, expert] == pytest.approx(squares**0.5)
    assert len(np.unique(norms_LE)) == norms_LE.size
