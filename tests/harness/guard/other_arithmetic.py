"""Arithmetic that rounds differently, as another processor's does."""

import pytest
import torch
from torch import Tensor

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.formats import unpack


def in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Change the arithmetic: sum each expert's inner width in reverse order."""
    record = Checkpoint.expert_record

    def backwards(self: Checkpoint, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        gate_up, down = unpack(self.shape, record(self, layer, expert, dtype))
        gate, up = gate_up.chunk(2)
        return torch.cat([part.flatten() for part in (gate.flip(0), up.flip(0), down.flip(1))])

    patch.setattr(Checkpoint, "expert_record", backwards)
