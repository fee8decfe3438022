"""Rotary angles compared with transformers', and invariants of a rotation."""

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from moebench.substrate.models.config import shape_of
from moebench.substrate.models.rotary import Rotations, frequencies, half_split

WIDTH = 16
_SCALED = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    "yarn": {
        "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.5,
    },
    "yarn, not truncated": {
        "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
    },
    "yarn, its factor given": {
        "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.25,
    },
    "longrope": {
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + 0.1 * i for i in range(WIDTH // 2)],
        "long_factor": [1.0 + 3 * i for i in range(WIDTH // 2)],
    },
}  # fmt: skip


def config_of(kind: str) -> dict:
    rope = {"rope_type": kind.split(",")[0], "rope_theta": 5e5, **_SCALED[kind]}
    return {
        "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 32,
        "num_attention_heads": 2, "vocab_size": 9, "num_local_experts": 2,
        "num_experts_per_tok": 1, "intermediate_size": 8, "max_position_embeddings": 131072,
        "head_dim": WIDTH, "rope_parameters": rope,
    }  # fmt: skip


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kind", _SCALED)
def test_angles_are_those_of_transformers(kind, long):
    config = config_of(kind)
    theirs = PreTrainedConfig(**{k: v for k, v in config.items() if k != "model_type"})
    length = 5000 if long else 4000
    angles, factor = ROPE_INIT_FUNCTIONS[kind.split(",")[0]](theirs, None, seq_len=length)
    found, found_factor = frequencies(shape_of(config), long)
    torch.testing.assert_close(found, angles, rtol=1e-6, atol=0)
    assert found_factor == pytest.approx(factor)


def test_longer_texts_turn_by_their_own_factors():
    """Each sequence by its own length, from the pass on in which it outgrows the original one."""
    config = config_of("longrope")
    config["rope_parameters"]["original_max_position_embeddings"] = 4
    shape = shape_of(config)
    rotations = Rotations(shape, 8, torch.float32)
    (cos, _), *_ = rotations.turns([3, 4], [4, 5])
    for row, (position, long) in enumerate([(3, False), (4, True)]):
        angles, factor = frequencies(shape, long)
        torch.testing.assert_close(cos[row, 0, : WIDTH // 2], (position * angles).cos() * factor)


@pytest.mark.parametrize(("rotary", "neighbours"), [(None, True), (8, False), (8, True)])
def test_every_value_of_a_head_is_arranged_once(rotary, neighbours):
    shape = shape_of(config_of("linear")).model_copy(
        update={"rotary_dim": rotary, "rope_interleaved": neighbours}
    )
    order = half_split(shape)
    assert sorted(order.tolist()) == list(range(WIDTH))
    pairs = order.view(2, -1).T[: (rotary or WIDTH) // 2]
    distance = 1 if neighbours else (rotary or WIDTH) // 2
    assert {(b - a).item() for a, b in pairs} == {distance}
