"""Norms of experts' weights, which some policies take as a measure of an expert's importance."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from moebench.substrate.models.checkpoint import Checkpoint


def expert_norms(checkpoint: "Checkpoint") -> np.ndarray:
    """Return the Frobenius norm ``[L, E]`` of each expert's matrices, one row for each MoE layer.

    It is the root of the sum of squares of all numbers in the expert's matrices, as they are
    stored; biases do not count.
    """
    import torch

    shape = checkpoint.shape
    matrices = shape.ffn_matrices * shape.expert_width * shape.hidden_size
    norms_LE = np.zeros((len(shape.moe_layers), shape.num_experts))
    for row, layer in enumerate(shape.moe_layers):
        for expert in range(shape.num_experts):
            record = checkpoint.expert_record(layer, expert, torch.float32)[:matrices]
            norms_LE[row, expert] = float(torch.linalg.vector_norm(record, dtype=torch.float64))
    return norms_LE
