"""What a configuration leaves out has the value that transformers gives it."""

import inspect
import re

import pytest

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models import config as module
from moebench.substrate.models.config import READERS, shape_of

#: Keys that every file states, as their value belongs to the model and not to its family.
STATED = {
    "first_k_dense_replace", "head_dim", "intermediate_size", "intermediate_size_mlp",
    "max_position_embeddings", "n_shared_experts", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters", "sliding_window",
}  # fmt: skip
#: Optional keys that the readers name.
OPTIONAL = set(re.findall(r'c\.get\("(\w+)"', inspect.getsource(module))) - STATED

#: Values other than transformers' own, where its defaults are what a reader refuses.
OTHER = {"deepseek_v2": {"q_lora_rank": None, "num_experts_per_tok": 6}}


@pytest.mark.parametrize("family", sorted(READERS))
def test_a_key_that_is_left_out_means_what_transformers_takes(family: str) -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    if family not in auto.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {family}")
    stated = auto.CONFIG_MAPPING[family](**OTHER.get(family, {})).to_dict()
    stated |= {"model_type": family}
    whole = shape_of(stated)
    tried = sorted(OPTIONAL & stated.keys())
    assert len(tried) >= 2
    for key in tried:
        rest = {name: value for name, value in stated.items() if name != key}
        try:
            assert shape_of(rest) == whole, key
        except CheckpointError as error:
            pytest.fail(f"{family} without {key}: {error}")
