"""The decoder compared with transformers, or a plain reference if transformers has no class.

The verbs are driven by `run`, one pass after the other, just as an engine would call them.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from moebench.substrate.errors import IntegrityError, UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import Gate, Lookahead
from tests.substrate.models.checkpoints import (
    FAMILIES,
    HF_FAMILIES,
    REMOTE_CONFIGS,
    make_checkpoint,
)
from tests.substrate.models.driver import PROMPTS, load, run
from tests.substrate.models.plain import PlainModel

STEPS = 33
TOLERANCE = 1e-4


# ---------------------------------------------------------------------------- transformers agree


def transformers_logits(path: Path, prompt: list[int], steps: int) -> tuple[Tensor, Tensor]:
    """Return one prompt's prefill logits, and logits of every greedy step, from transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return greedy_logits(model, prompt, steps)


@torch.inference_mode()
def greedy_logits(
    model: transformers.PreTrainedModel, prompt: list[int], steps: int
) -> tuple[Tensor, Tensor]:
    model.eval()
    out = model(torch.tensor([prompt]), use_cache=True)
    prefill, logits = out.logits[0], [out.logits[0, -1]]
    for _ in range(steps - 1):
        token = logits[-1].argmax().view(1, 1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[0, -1])
    return prefill, torch.stack(logits)


@pytest.mark.slow
@pytest.mark.parametrize("family", HF_FAMILIES)
def test_a_ragged_batch_agrees_with_transformers_on_each_prompt(family, directories, decoders):
    batch = run(decoders[family], PROMPTS, STEPS)
    texts = decoders[family].full_logits(PROMPTS)
    for b, prompt in enumerate(PROMPTS):
        prefill, steps = transformers_logits(directories[family], prompt, STEPS)
        assert steps.std() > 0.1  # not a trivial model
        assert (texts[b] - prefill).abs().max() < TOLERANCE
        assert (batch[:, b] - steps).abs().max() < TOLERANCE
        assert torch.equal(batch[:, b].argmax(-1), steps.argmax(-1))


#: Other options of a family than those of `checkpoints`.
OTHERWISE = {
    "grouped experts": (
        "deepseek_v2",
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "plain rotations": ("deepseek_v2", {"rope_parameters": {"rope_type": "default"}}),
    "one group": ("glm4_moe", {"n_group": 1, "topk_group": 1, "use_qk_norm": False}),
    "stretched": ("glm4_moe", {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5,
    }}),
    "two experts": ("llama4_text", {"num_experts_per_tok": 2, "use_qk_norm": False}),
    "even temperature": ("llama4_text", {"attn_temperature_tuning": False, "moe_layers": [0, 2]}),
    "no biases": ("gpt_oss", {"attention_bias": False, "layer_types": ["full_attention"] * 3}),
    "some windows": ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 5}),
    "every window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5}),
    "more biases": ("qwen3_moe", {"attention_bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_options_of_a_family_agree_too(name, tmp_path):
    family, changes = OTHERWISE[name]
    path = make_checkpoint(tmp_path / "otherwise", family, **changes)
    decoder = load(path)
    batch = run(decoder, PROMPTS, STEPS)
    texts = decoder.full_logits(PROMPTS)
    for b, prompt in enumerate(PROMPTS):
        prefill, steps = transformers_logits(path, prompt, STEPS)
        assert (texts[b] - prefill).abs().max() < TOLERANCE
        assert (batch[:, b] - steps).abs().max() < TOLERANCE


# --------------------------------------------------------------- a plain reference, token by token


@pytest.mark.parametrize("family", REMOTE_CONFIGS)
def test_remote_families_agree_with_a_plain_reference(family, directories, decoders):
    plain = PlainModel(directories[family])
    decode_steps = 6
    batch = run(decoders[family], PROMPTS, decode_steps)
    prefill = decoders[family].full_logits(PROMPTS)
    for b, prompt in enumerate(PROMPTS):
        text = prompt + batch[:-1, b].argmax(-1).tolist()
        truth = plain.logits(text)
        assert truth.std() > 0.1
        assert (prefill[b] - truth[: len(prompt)]).abs().max() < TOLERANCE
        assert (batch[:, b] - truth[len(prompt) - 1 :]).abs().max() < TOLERANCE


# ---------------------------------------------- families that transformers has only in other words


class _Open(torch.nn.Module):
    """Gate of a shared expert whose sigmoid is one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((*x.shape[:-1], 1), float("inf"))


def as_qwen2(path: Path) -> transformers.PreTrainedModel:
    """Return transformers' Qwen2-MoE with the weights of DeepSeek-MoE v1 or XVERSE-MoE.

    That is DeepSeek's remote code in other words; of XVERSE-MoE it is what SGLang's
    ``xverse_moe.py`` and the SMoE authors' module compute.
    """
    c = json.loads((path / "config.json").read_text())
    deepseek = c["model_type"] == "deepseek"
    width = c["moe_intermediate_size" if deepseek else "intermediate_size"]
    config = transformers.Qwen2MoeConfig(
        **{key: c[key] for key in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "max_position_embeddings", "rms_norm_eps", "norm_topk_prob",
        )},
        num_key_value_heads=c["num_attention_heads"],
        qkv_bias=False,
        num_experts=c["n_routed_experts" if deepseek else "num_experts"],
        num_experts_per_tok=c["num_experts_per_tok" if deepseek else "moe_top_k"],
        moe_intermediate_size=width,
        shared_expert_intermediate_size=width
        * c["n_shared_experts" if deepseek else "num_shared_experts"],
        mlp_only_layers=list(range(c.get("first_k_dense_replace", 0))),
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.Qwen2MoeForCausalLM(config)
    stored = {}
    for file in path.glob("*.safetensors"):
        stored |= load_file(file)
    state = {
        name.replace("shared_experts", "shared_expert").replace("router", "gate"): tensor
        for name, tensor in stored.items()
        if ".experts." not in name
    }
    for name in stored:
        if name.endswith("experts.0.gate_proj.weight"):
            prefix = name.removesuffix(".0.gate_proj.weight")
            every = range(config.num_experts)
            gate, up, down = (
                torch.stack([stored[f"{prefix}.{e}.{p}_proj.weight"] for e in every])
                for p in ("gate", "up", "down")
            )
            state |= {
                f"{prefix}.gate_up_proj": torch.cat((gate, up), dim=1),
                f"{prefix}.down_proj": down,
            }
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown
    assert {name.split(".mlp.")[1] for name in missing} == {"shared_expert_gate.weight"}
    for layer in model.model.layers:
        layer.mlp.shared_expert_gate = _Open()
    return model


@pytest.mark.parametrize("renormalised", [False, True])
@pytest.mark.parametrize("family", REMOTE_CONFIGS)
def test_remote_families_agree_with_transformers_in_other_words(family, renormalised, tmp_path):
    path = make_checkpoint(tmp_path / family, family, norm_topk_prob=renormalised)
    model, decoder = as_qwen2(path), load(path)
    batch = run(decoder, PROMPTS, STEPS)
    texts = decoder.full_logits(PROMPTS)
    for b, prompt in enumerate(PROMPTS):
        prefill, steps = greedy_logits(model, prompt, STEPS)
        assert steps.std() > 0.1
        assert (texts[b] - prefill).abs().max() < TOLERANCE
        assert (batch[:, b] - steps).abs().max() < TOLERANCE


# ------------------------------------------------------------------------ order, batch, precision


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_experts_changes_no_bit(family, decoders):
    shuffler = random.Random(7)
    ascending = run(decoders[family], PROMPTS, 6)
    for order in (
        lambda active: sorted(active, reverse=True),
        lambda active: shuffler.sample(list(active), len(active)),
    ):
        assert torch.equal(run(decoders[family], PROMPTS, 6, order), ascending)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt_oss"])  # it has biases
def test_experts_one_by_one_and_several_at_once_give_the_same_bits(family, decoders, monkeypatch):
    """One by one as they arrive in slots; several in one grouped product."""
    text = [PROMPTS[0] * 8]
    experts, grouped = decoders[family].experts, []
    monkeypatch.setattr(decoders[family], "_stacks", {})
    (together,) = decoders[family].full_logits(text)

    def alone(layer: int, chosen: Sequence[int]) -> None:
        grouped.append(stacked(layer, chosen) is not None)

    stacked = experts.stacked
    monkeypatch.setattr(experts, "stacked", alone)
    assert torch.equal(decoders[family].full_logits(text)[0], together)
    assert any(grouped)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_decodes_as_its_sequences_do_alone(family, decoders):
    batch = run(decoders[family], PROMPTS, 6)
    alone = [run(decoders[family], [prompt], 6) for prompt in PROMPTS]
    torch.testing.assert_close(batch, torch.cat(alone, dim=1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral", "deepseek"])
def test_a_substitution_may_send_two_ranks_to_one_expert(family, decoders):
    """Then its output counts once for each rank, in a pass of one row as in one of several."""

    def choose(layer: int, gate: Gate) -> np.ndarray:
        ids = gate.ids_TK.copy()
        ids[:, 1] = ids[:, 0]
        return ids

    batch = run(decoders[family], PROMPTS, 4, choose=choose)
    alone = [run(decoders[family], [prompt], 4, choose=choose) for prompt in PROMPTS]
    torch.testing.assert_close(batch, torch.cat(alone, dim=1), rtol=0, atol=2e-5)
    assert not torch.allclose(batch[0], run(decoders[family], PROMPTS, 1)[0], atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_near_fp32(family, directories, decoders):
    text = [PROMPTS[0]]
    near = load(directories[family], torch.bfloat16).full_logits(text)[0]
    exact = decoders[family].full_logits(text)[0]
    assert (near - exact).abs().median() < 0.1 * exact.std()


# --------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_lookahead_with_all_experts_is_exact_and_leaves_no_trace(family, decoders):
    decoder, shape = decoders[family], decoders[family].shape
    undisturbed = run(decoder, PROMPTS, 8)
    predicted: dict[int, np.ndarray] = {}
    compared = 0

    def predict(layer: int, gate: Gate, active: dict[int, int]) -> None:
        nonlocal compared
        if layer in predicted:
            np.testing.assert_allclose(gate.scores_TE, predicted.pop(layer), rtol=0, atol=1e-6)
            compared += 1
        if layer + 1 < shape.num_layers:
            everyone = list(active)
            decoder.predict(layer, layer + 1, everyone[::2], Lookahead.LAYER)
            decoder.predict(layer, layer + 1, [], Lookahead.LAYER)
            decoder.predict(layer, layer + 1, [], Lookahead.GATE)
            decoder.predict(layer, layer + 1, [], Lookahead.NORMED)
            exact = decoder.predict(layer, layer + 1, everyone[::-1], Lookahead.LAYER)
            predicted[layer + 1] = exact

    assert torch.equal(run(decoder, PROMPTS, 8, before_combine=predict), undisturbed)
    assert compared == 8 * (len(shape.moe_layers) - 1)


class _Silent:
    """Experts whose output is zero."""

    def __init__(self, experts: ResidentExperts) -> None:
        self._experts = experts

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, Tensor]:
        gate_up, down = self._experts.matrices(layer, expert)
        return gate_up, torch.zeros_like(down)

    def stacked(self, layer: int, experts: Sequence[int]) -> None:
        """Return None, so that experts are computed one by one."""

    def all_of(self, layer: int) -> None:
        """Return None, so that experts are computed one by one."""


@pytest.mark.parametrize("lookahead", [Lookahead.GATE, Lookahead.LAYER])
def test_lookahead_is_exact_when_ignored_parts_are_zero(lookahead, directories):
    """Silent experts make LAYER exact from none; silent attention makes GATE exact as well."""
    checkpoint = Checkpoint(directories["mixtral"])
    common = checkpoint.common(torch.float32)
    if lookahead is Lookahead.GATE:
        for layer in range(checkpoint.shape.num_layers):
            common[f"layers.{layer}.o"] *= 0
    experts = ResidentExperts(checkpoint, torch.float32)
    decoder = Decoder(checkpoint.shape, common, _Silent(experts))
    scores, guesses = [], []

    def predict(layer: int, gate: Gate, active: dict[int, int]) -> None:
        scores.append(gate.scores_TE)
        if layer + 1 < checkpoint.shape.num_layers:
            guesses.append(decoder.predict(layer, layer + 1, [], lookahead))

    run(decoder, PROMPTS, 1, before_combine=predict)
    for truth, guess in zip(scores[1:], guesses, strict=True):
        np.testing.assert_allclose(guess, truth, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize("kind", [Lookahead.EXACT, Lookahead.NONE])
def test_what_a_later_gate_will_choose_is_not_computed(kind, decoders):
    decoder = decoders["mixtral"]

    def predict(layer: int, gate: Gate, active: dict[int, int]) -> None:
        decoder.predict(layer, layer + 1, [], kind)

    with pytest.raises(UsageError, match=f"no prediction of kind {kind}"):
        run(decoder, PROMPTS, 1, before_combine=predict)


@pytest.mark.parametrize(
    ("prompts", "new_tokens", "said"),
    [
        ([[1] * 65], 0, r"65 positions, the model has 64"),
        ([[1], [1] * 60], 5, r"65 positions, the model has 64"),
        ([[1], []], 5, r"prompt 1 is empty"),
        ([], 5, r"no prompt"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(prompts, new_tokens, said, decoders):
    with pytest.raises(UsageError, match=said):
        decoders["mixtral"].begin(prompts, new_tokens)


def test_a_text_may_fill_the_last_position(decoders):
    assert decoders["mixtral"].shape.max_positions == 64
    decoders["mixtral"].begin([[1] * 60], 4)


def test_an_unknown_rotary_embedding_is_refused_not_ignored(tmp_path):
    scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    path = make_checkpoint(tmp_path / "scaled", "mixtral", rope_parameters=scaled, head_dim=8)
    with pytest.raises(UsageError, match="rope_type dynamic; allowed: default, linear, llama3"):
        load(path)


def test_a_forgotten_expert_is_an_error_not_a_zero(decoders):
    with pytest.raises(IntegrityError, match="never computed"):
        run(decoders["mixtral"], PROMPTS, 1, order=lambda active: list(active)[1:])
