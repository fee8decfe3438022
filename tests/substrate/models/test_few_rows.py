"""Few rows of a small model, compared with torch's formulas and with each other."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import GATHERED_PLACES, Decoder
from moebench.substrate.models.layers import gate_scores, gate_weights
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.rows import ManyRows
from moebench.substrate.models.shape import GateKind
from moebench.substrate.terms import Gate
from tests.substrate.models.checkpoints import FAMILIES
from tests.substrate.models.driver import PROMPTS, load, passes, run

few_rows = pytest.importorskip(
    "moebench.substrate.models.few_rows", reason="numba is not installed: pip install '.[fast]'"
)

#: Compressed keys, sinks and a clamped SwiGLU, which only torch computes.
OTHERS = {"deepseek_v2", "gpt_oss"}
STEPS = 6


def decoded_by(decoder: Decoder) -> type:
    """Decode, and return the class that computed the last pass."""
    run(decoder, PROMPTS, 2)
    return type(decoder._rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_few_rows_have_the_logits_of_torch(family, decoders, monkeypatch):
    few = run(decoders[family], PROMPTS, STEPS)
    assert (decoded_by(decoders[family]) is few_rows.FewRows) is (family not in OTHERS)
    monkeypatch.setattr(decoders[family], "_few", None)
    many = run(decoders[family], PROMPTS, STEPS)
    assert decoded_by(decoders[family]) is ManyRows
    torch.testing.assert_close(few, many, rtol=0, atol=2e-5)
    assert torch.equal(few[0], many[0])  # the prefill
    if family not in OTHERS:
        assert not torch.equal(few[1:], many[1:])


@pytest.mark.parametrize("decision", ["fewer", "more", "weights", "deferred", "alone"])
@pytest.mark.parametrize("family", ["qwen2_moe", "llama4_text"])
def test_decisions_of_systems_have_the_logits_of_torch(family, decision, decoders, monkeypatch):
    """More experts than `GATHERED_PLACES` has places are computed one by one."""
    decoder = decoders[family]
    shape = decoder.shape
    monkeypatch.setattr(decoder, "_forms", (decoder.experts, decoder.experts))

    def moe(step: int, layer: int, gate: Gate) -> None:
        ids_TK, now = gate.ids_TK.copy(), decision if step else ""
        if now == "fewer":
            ids_TK[:, -1] = -1
        if now == "more":
            ids_TK = np.tile(ids_TK, GATHERED_PLACES)
        active = list(decoder.dispatch(layer, ids_TK, ids_TK))
        assert active == sorted({*ids_TK.flat} - {-1})
        if now == "weights":
            decoder.weigh(layer, np.linspace(0, 1, ids_TK.size).reshape(ids_TK.shape))
        if now == "deferred" and layer + 1 in shape.moe_layers:
            decoder.defer(layer, active[:1])
        decoder.compute(layer, active, form=1 if now == "alone" else 0)
        if shape.shared_width:
            decoder.shared(layer)

    few = passes(decoder, PROMPTS, STEPS, moe)
    assert type(decoder._rows) is few_rows.FewRows
    monkeypatch.setattr(decoder, "_few", None)
    torch.testing.assert_close(few, passes(decoder, PROMPTS, STEPS, moe), rtol=0, atol=2e-5)


def test_a_prompt_and_many_rows_are_computed_with_torch(decoders):
    decoder = decoders["mixtral"]
    decoder.begin([[3]], 2)
    decoder.embed("prefill")
    assert type(decoder._rows) is ManyRows
    most = GATHERED_PLACES // decoder.shape.top_k
    assert most * decoder.shape.top_k == GATHERED_PLACES
    for count, computed_by in ((most, few_rows.FewRows), (most + 1, ManyRows)):
        run(decoder, [[3]] * count, 2)
        assert type(decoder._rows) is computed_by


def test_other_numbers_than_fp32_are_computed_with_torch(directories):
    assert decoded_by(load(directories["qwen2_moe"], torch.bfloat16)) is ManyRows
    assert decoded_by(load(directories["qwen2_moe"], torch.float64)) is ManyRows


def test_models_with_other_formulas_are_not_computed(decoders):
    shape, like = decoders["qwen2_moe"].shape, torch.zeros(1)
    assert few_rows.computes(shape, like)
    assert not few_rows.computes(shape, like.to("meta"))
    latent = decoders["deepseek_v2"].shape.latent
    for other in ({"attention_sinks": True}, {"swiglu_limit": 7.0}, {"latent": latent}):
        assert not few_rows.computes(shape.model_copy(update=other), like)


@pytest.mark.parametrize("gate", list(GateKind))
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_weights_are_those_of_torch_for_every_gate(gate, scale, decoders):
    shape = decoders["qwen2_moe"].shape.model_copy(
        update={"gate": gate, "routed_scaling_factor": scale}
    )
    logits = torch.linspace(-1, 1, 2 * shape.num_experts).view(2, -1).sin()
    scores, ids = gate_scores(shape, logits), torch.tensor([[3, 1], [0, 2]])
    few = few_rows.FewRows(shape, [], {})
    for chosen, fewer in ((ids, False), (torch.tensor([[3, -1], [0, 2]]), True)):
        given = (values.numpy() for values in (logits, scores, chosen))
        found = torch.from_numpy(few.gate_weights(*given, fewer))
        truth = gate_weights(shape, logits, scores, chosen, fewer)
        torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-7)


def test_a_choice_limited_to_groups_is_that_of_torch(decoders):
    """The best expert of all is in group 0, whose others are worse than those of group 1."""
    shape = decoders["qwen2_moe"].shape.model_copy(
        update={"num_experts": 4, "top_k": 2, "gate_groups": (2, 1)}
    )
    few = few_rows.FewRows(shape, [], {})
    scores = np.array([[0.4, 0.1, 0.3, 0.2]], np.float32)
    assert few.own_choice(np.log(scores), scores).tolist() == [[0, 1]]
    free = few_rows.FewRows(shape.model_copy(update={"gate_groups": None}), [], {})
    assert free.own_choice(np.log(scores), scores).tolist() == [[0, 2]]


def test_without_numba_all_rows_are_computed_with_torch(directories, monkeypatch):
    expected = run(load(directories["qwen2_moe"]), PROMPTS, STEPS)
    monkeypatch.setitem(sys.modules, "moebench.substrate.models.few_rows", None)
    decoder = load(directories["qwen2_moe"])
    assert decoded_by(decoder) is ManyRows
    torch.testing.assert_close(run(decoder, PROMPTS, STEPS), expected, rtol=0, atol=2e-5)


def test_experts_in_slots_are_computed_with_torch_and_nothing_is_imported(directories, monkeypatch):
    """A machine that measures its tokens must not compile loops meanwhile."""
    decoder = load(directories["qwen2_moe"])
    slots = Decoder(decoder.shape, *_parts(directories["qwen2_moe"]))
    monkeypatch.delitem(sys.modules, "moebench.substrate.models.few_rows")
    assert decoded_by(slots) is ManyRows
    assert "moebench.substrate.models.few_rows" not in sys.modules
    run(decoder, PROMPTS, 2)
    assert "moebench.substrate.models.few_rows" in sys.modules


class _Separate(ResidentExperts):
    """Experts of which each is in a place of its own, as in slots."""

    def all_of(self, layer: int) -> None:
        return None


def _parts(path: Path) -> tuple[dict[str, torch.Tensor], ResidentExperts]:
    checkpoint = Checkpoint(path)
    return checkpoint.common(torch.float32), _Separate(checkpoint, torch.float32)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - OTHERS))
def test_a_row_has_the_same_bits_alone_and_among_others(family, decoders):
    """Its sums do not depend on how many rows a pass has; the KV cache has the same bits, too."""
    decoder, prompt = decoders[family], PROMPTS[0]
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(3, decoder.shape.hidden_size, generator=generator)
    layer = decoder.shape.moe_layers[0]

    def computed(states: torch.Tensor) -> list[np.ndarray]:
        decoder.begin([prompt] * len(states), 2)
        decoder.embed("prefill")
        decoder.embed("decode")
        few = decoder._rows
        for cache in decoder._caches:
            cache.copy_(torch.linspace(-1, 1, cache.numel()).view_as(cache))
        attended = few.attended(layer, states)
        y, logits, scores = few.scored(layer, attended)
        ids = few.own_choice(logits, scores)
        weights = few.gate_weights(logits, scores, ids, False)
        outputs = few.outputs(layer, y, ids, None)
        shared = few.shared(layer, y) if decoder.shape.shared_width else None
        mixed = few.mixed(attended, shared, weights, outputs)
        caches = np.stack([cache[layer, len(prompt)] for cache in decoder._caches])
        return [attended, y, logits, scores, ids, weights, mixed, caches,
                outputs.reshape(len(states), -1)]  # fmt: skip

    together = computed(rows)
    for at in range(3):
        for all_of, one in zip(together, computed(rows[at : at + 1]), strict=True):
            assert np.array_equal(all_of[at : at + 1], one)


def test_arrays_need_not_follow_each_other_in_memory(decoders):
    """A system may pass on a part of a larger array, such as the head of a sorted list."""
    decoder = decoders["qwen2_moe"]

    def choose(layer, gate):
        return np.argsort(-gate.scores_TE, axis=1, kind="stable")[:, : decoder.shape.top_k]

    parts = run(decoder, PROMPTS, STEPS, choose=choose)
    assert torch.equal(parts, run(decoder, PROMPTS, STEPS))
