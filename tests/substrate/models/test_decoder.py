"""The decoder against transformers, and against a plain reference where transformers has no class.

The verbs are driven by `run`, one pass after the other, just as an engine would call them.
"""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from moebench.substrate.errors import IntegrityError, UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.weights import Checkpoint, ResidentExperts
from moebench.substrate.terms import Gate, Lookahead
from tests.substrate.models.checkpoints import (
    FAMILIES,
    HF_FAMILIES,
    REMOTE_CONFIGS,
    make_checkpoint,
)

PROMPTS = [[5, 9, 2, 44, 17, 17, 30], [3], [60, 1, 8, 52]]
STEPS = 33
TOLERANCE = 1e-4

Order = Callable[[Iterable[int]], Iterable[int]]
Choose = Callable[[int, Gate], np.ndarray]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny matrices gain nothing from a second thread, and a busy machine loses much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    """One checkpoint a family; every other one is sharded."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {f: make_checkpoint(root / f, f, sharded=i % 2 > 0) for i, f in enumerate(FAMILIES)}


@pytest.fixture(scope="module")
def decoders(directories) -> dict[str, Decoder]:
    return {family: load(path) for family, path in directories.items()}


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    checkpoint = Checkpoint(path)
    experts = ResidentExperts(checkpoint, dtype)
    return Decoder(checkpoint.shape, checkpoint.common(dtype), experts)


def run(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    steps: int,
    order: Order = list,
    choose: Choose = lambda layer, gate: gate.ids_TK,
    before_combine: Callable[[int, Gate, dict[int, int]], None] = lambda layer, gate, active: None,
) -> Tensor:
    """Logits ``[steps, B, V]`` that each greedy choice was made from: one prefill, then decode."""
    decoder.begin(prompts, steps)
    logits = []
    for step in range(steps):
        decoder.embed("decode" if step else "prefill")
        for layer in range(decoder.shape.num_layers):
            decoder.attend(layer)
            if layer in decoder.shape.dense_layers:
                decoder.dense(layer)
                continue
            gate = decoder.gate(layer)
            active = decoder.dispatch(layer, choose(layer, gate), gate.ids_TK)
            for expert in order(active):
                decoder.compute(layer, [expert])
            if decoder.shape.shared_width:
                decoder.shared(layer)
            before_combine(layer, gate, active)
            decoder.combine(layer)
        assert decoder.head() == decoder.history[-1].argmax(-1).tolist()
        logits.append(decoder.history[-1])
    return torch.stack(logits)


# ---------------------------------------------------------------------------- transformers agree


@torch.inference_mode()
def transformers_logits(path: Path, prompt: list[int], steps: int) -> tuple[Tensor, Tensor]:
    """One prompt alone: all prefill logits, and those of every greedy step with its own cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    out = model(torch.tensor([prompt]), use_cache=True)
    prefill, logits = out.logits[0], [out.logits[0, -1]]
    for _ in range(steps - 1):
        token = logits[-1].argmax().view(1, 1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[0, -1])
    return prefill, torch.stack(logits)


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


# --------------------------------------------------------------- a plain reference, token by token


def reference(config: dict, w: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """DeepSeek-MoE v1 or XVERSE-MoE in fp64, one token and one expert at a time."""
    deepseek = config["model_type"] == "deepseek"
    gate = "gate" if deepseek else "router"
    top_k = config["num_experts_per_tok" if deepseek else "moe_top_k"]
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    turn = [config["rope_theta"] ** (-2 * i / width) for i in range(width // 2)]

    def rms(x: Tensor, name: str) -> Tensor:
        return w[name] * x / (x.pow(2).mean() + config["rms_norm_eps"]).sqrt()

    def block(x: Tensor, name: str) -> Tensor:
        g = w[f"{name}.gate_proj.weight"] @ x
        return w[f"{name}.down_proj.weight"] @ (g * g.sigmoid() * (w[f"{name}.up_proj.weight"] @ x))

    def rope(x: Tensor, position: int) -> Tensor:
        out = x.clone()
        for head in range(heads):
            for i in range(width // 2):
                a, b = head * width + i, head * width + i + width // 2
                angle = torch.tensor(position * turn[i], dtype=torch.float64)
                out[a] = x[a] * angle.cos() - x[b] * angle.sin()
                out[b] = x[b] * angle.cos() + x[a] * angle.sin()
        return out

    def experts(x: Tensor, name: str) -> Tensor:
        scores = (w[f"{name}.{gate}.weight"] @ x).softmax(0)
        best = sorted(range(len(scores)), key=lambda e: -float(scores[e]))[:top_k]
        scale = sum(scores[e] for e in best) if config["norm_topk_prob"] else 1.0
        routed = sum(scores[e] / scale * block(x, f"{name}.experts.{e}") for e in best)
        return routed + block(x, f"{name}.shared_experts")

    xs = [w["model.embed_tokens.weight"][t] for t in tokens]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        keys, values = [], []
        for t, x in enumerate(xs):
            y = rms(x, f"{p}.input_layernorm.weight")
            q, k, v = (w[f"{p}.self_attn.{n}_proj.weight"] @ y for n in "qkv")
            q = rope(q, t)
            keys.append(rope(k, t))
            values.append(v)
            mixed = []
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                scores = torch.stack([q[part] @ key[part] for key in keys]) / width**0.5
                mixed.append(scores.softmax(0) @ torch.stack([value[part] for value in values]))
            x = x + w[f"{p}.self_attn.o_proj.weight"] @ torch.cat(mixed)
            y = rms(x, f"{p}.post_attention_layernorm.weight")
            is_dense = layer < config.get("first_k_dense_replace", 0)
            xs[t] = x + (block(y, f"{p}.mlp") if is_dense else experts(y, f"{p}.mlp"))
    head = w["lm_head.weight"]
    return torch.stack([head @ rms(x, "model.norm.weight") for x in xs])


@pytest.mark.parametrize("family", REMOTE_CONFIGS)
def test_remote_families_agree_with_a_plain_reference(family, directories, decoders):
    config = json.loads((directories[family] / "config.json").read_text())
    tensors = {}
    for file in directories[family].glob("*.safetensors"):
        tensors |= {name: t.double() for name, t in load_file(file).items()}
    decode_steps = 6
    batch = run(decoders[family], PROMPTS, decode_steps)
    prefill = decoders[family].full_logits(PROMPTS)
    for b, prompt in enumerate(PROMPTS):
        text = prompt + batch[:-1, b].argmax(-1).tolist()
        truth = reference(config, tensors, text)
        assert truth.std() > 0.1
        assert (prefill[b] - truth[: len(prompt)]).abs().max() < TOLERANCE
        assert (batch[:, b] - truth[len(prompt) - 1 :]).abs().max() < TOLERANCE


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
            decoder.predict(layer, everyone[::2], Lookahead.LAYER)
            decoder.predict(layer, [], Lookahead.LAYER)
            decoder.predict(layer, [], Lookahead.GATE)
            predicted[layer + 1] = decoder.predict(layer, everyone[::-1], Lookahead.LAYER)

    assert torch.equal(run(decoder, PROMPTS, 8, before_combine=predict), undisturbed)
    assert compared == 8 * (len(shape.moe_layers) - 1)


class _Silent:
    """Experts that answer nothing."""

    def __init__(self, experts: ResidentExperts) -> None:
        self._experts = experts

    def matrices(self, layer: int, expert: int) -> tuple[Tensor, Tensor]:
        gate_up, down = self._experts.matrices(layer, expert)
        return gate_up, torch.zeros_like(down)

    def gathered(self, layer: int, experts: Tensor) -> None:
        """Only one by one."""


@pytest.mark.parametrize("lookahead", [Lookahead.GATE, Lookahead.LAYER])
def test_what_lookahead_ignores_is_what_it_is_blind_to(lookahead, directories):
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
            guesses.append(decoder.predict(layer, [], lookahead))

    run(decoder, PROMPTS, 1, before_combine=predict)
    for truth, guess in zip(scores[1:], guesses, strict=True):
        np.testing.assert_allclose(guess, truth, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------ what it refuses


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


def test_a_scaled_rotary_embedding_is_refused_not_ignored(tmp_path):
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    path = make_checkpoint(tmp_path / "scaled", "mixtral", rope_parameters=scaled)
    with pytest.raises(UsageError, match="rope_type linear"):
        load(path)


def test_a_forgotten_expert_is_an_error_not_a_zero(decoders):
    with pytest.raises(IntegrityError, match="never computed"):
        run(decoders["mixtral"], PROMPTS, 1, order=lambda active: list(active)[1:])
