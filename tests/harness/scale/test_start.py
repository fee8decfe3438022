"""Initial weights: their sizes, and heads that attend to the preceding token and copy."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from moebench.harness.scale.start import (
    COPIED,
    COPYING_LAYERS,
    MATCH_LOGIT,
    PREVIOUS_LAYERS,
    PREVIOUS_LOGIT,
    READ_COPIED,
    SHARED,
    initial,
    teach_copying,
)

#: Four heads of 16, which share two heads of keys and values; angles of 1, .29, .084 and .025
#: radians a token, and of .0071, .0021, .0006 and .0002, which barely turn.
D, HEADS, KV, VOCABULARY, LAYERS = 16, 4, 2, 50, 5
SLOW = [4, 5, 6, 7]


def shape(**more: Any) -> Any:
    base = {"head_dim": D, "hidden_size": 64, "rope_theta": 20_000.0, "num_layers": LAYERS,
            "tied_head": False, "moe_layers": (1, 3), "num_heads": HEADS,
            "num_kv_heads": KV}  # fmt: skip
    return SimpleNamespace(**base | more)


def tensors(of: Any) -> dict[str, Tensor]:
    """Random weights; the output head is zero, so that what it gets is seen."""
    g, h = torch.Generator().manual_seed(1), of.hidden_size
    made = {"embed": torch.randn(VOCABULARY, h, generator=g), "head": torch.zeros(VOCABULARY, h)}
    for layer in range(of.num_layers):
        for name, rows in (("q", HEADS), ("k", KV), ("v", KV)):
            made[f"layers.{layer}.{name}"] = torch.randn(rows * of.head_dim, h, generator=g)
        made[f"layers.{layer}.o"] = torch.randn(h, HEADS * of.head_dim, generator=g)
        made[f"layers.{layer}.router"] = torch.randn(8, h, generator=g)
    return made


def taught(of: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after."""
    made = tensors(of)
    before = {name: one.clone() for name, one in made.items()}
    teach_copying(made, of, torch.Generator().manual_seed(2))
    return before, made


@pytest.mark.parametrize(
    ("name", "dims", "deviation"),
    [
        ("embed", (400, 100), 1.0), ("head", (400, 100), 0.02),
        ("layers.0.q", (400, 100), 0.1), ("layers.0.router", (400, 25), 0.2),
        ("layers.0.o", (400, 100), 0.1 / math.sqrt(2 * LAYERS)),
        ("layers.0.experts.down", (8, 100, 25), 0.2 / math.sqrt(2 * LAYERS)),
        ("layers.0.experts.up", (8, 25, 100), 0.1),
    ],
)  # fmt: skip
def test_random_weights_keep_the_size_of_what_they_read(
    name: str, dims: tuple[int, ...], deviation: float
) -> None:
    drawn = initial(name, dims, shape(), torch.Generator().manual_seed(0))
    assert drawn.shape == dims
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.03)
    assert abs(float(drawn.mean())) < deviation / 20
    again = initial(name, dims, shape(), torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_biases_begin_at_zero_and_norms_at_one() -> None:
    g = torch.Generator()
    assert torch.equal(initial("layers.0.q.bias", (5,), shape(), g), torch.zeros(5))
    assert torch.equal(initial("norm", (5,), shape(), g), torch.ones(5))


def head(made: dict[str, Tensor], layer: int, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and output weights of one head."""
    own, theirs = slice(number * D, (number + 1) * D), slice(number // 2 * D, (number // 2 + 1) * D)
    q, k, v, o = (made[f"layers.{layer}.{name}"] for name in "qkvo")
    return q[own], k[theirs], v[theirs], o[:, own]


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE: the two halves of a head's values as coordinates that are turned."""
    angles = position * 20_000.0 ** (-torch.arange(D // 2) / (D // 2))
    a, b = x[: D // 2], x[D // 2 :]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()))


@pytest.mark.parametrize("layer", PREVIOUS_LAYERS)
def test_a_head_attends_to_the_preceding_token_whatever_it_is(layer: int) -> None:
    _, made = taught(shape())
    q, k, v, o = head(made, layer, 0)
    states = made["embed"] * math.sqrt(64) / made["embed"].norm(dim=-1, keepdim=True)
    logits = [
        float(turned(q @ states[0], 20) @ turned(k @ states[1], position)) / math.sqrt(D)
        for position in range(25)
    ]
    assert logits[19] == pytest.approx(PREVIOUS_LOGIT, rel=1e-4)
    assert all(one < logits[19] - 1 for n, one in enumerate(logits) if n != 19)
    # It copies what identifies a token into directions of their own.
    assert torch.equal(v[COPIED:], torch.zeros(D - COPIED, 64))
    assert torch.equal(o[:, COPIED:], torch.zeros(64, D - COPIED))
    one = torch.eye(COPIED)
    assert torch.allclose(v[:COPIED] @ v[:COPIED].T, one, atol=1e-5)
    assert torch.allclose(o[:, :COPIED].T @ o[:, :COPIED], one, atol=1e-5)
    assert torch.allclose(v[:COPIED] @ o[:, :COPIED], torch.zeros(COPIED, COPIED), atol=1e-5)


@pytest.mark.parametrize("layer", COPYING_LAYERS)
def test_a_head_copies_tokens_whose_preceding_token_is_the_current_one(layer: int) -> None:
    _, made = taught(shape())
    q, k, v, o = head(made, layer, HEADS - 1)
    _, _, here, before = head(made, 0, 0)
    places = [*SLOW, *(n + D // 2 for n in SLOW)]
    others = [n for n in range(D) if n not in places]
    scale = math.sqrt(MATCH_LOGIT * math.sqrt(D) / len(places) / 0.6)
    assert torch.allclose(q[places], here[: len(places)] * scale)
    assert torch.allclose(k[places], before[:, : len(places)].T * scale)
    for part in (q, k):
        assert torch.equal(part[others], torch.zeros(len(others), 64))
    assert torch.equal(v[:COPIED], here[:COPIED])
    copied = o[:, :COPIED].T
    assert torch.allclose(copied @ copied.T, torch.eye(COPIED), atol=1e-5)
    for part in (here[:COPIED], before[:, :COPIED].T):
        assert float((copied @ part.T).abs().max()) < 1e-5


def test_embeddings_are_the_token_and_a_direction_that_all_share() -> None:
    _, made = taught(shape())
    embed, root = made["embed"], math.sqrt(64)
    _, _, here, before = head(made, 0, 0)
    copied = head(made, 2, HEADS - 1)[3][:, :COPIED].T
    shared = embed.mean(0)
    query = head(made, 0, 0)[0]
    always = query[0] / query[0].norm()  # all that such a head's query reads
    always = always * torch.sign(shared @ always)
    assert torch.allclose(embed @ always, torch.full((VOCABULARY,), root * SHARED), atol=1e-3)
    own = embed - root * SHARED * always
    assert torch.allclose(own.norm(dim=-1), torch.full((VOCABULARY,), root), atol=1e-3)
    for part in (before[:, :COPIED].T, copied):
        assert float((own @ part.T).abs().max()) < 1e-3
    assert float((own @ here[:COPIED].T).abs().max()) > 0.5
    # The output head reads what was copied as the token's own part.
    expected = READ_COPIED * (own @ here[:COPIED].T @ copied) / math.sqrt(COPIED)
    assert torch.allclose(made["head"], expected, atol=1e-4)
    for layer in (1, 3):
        assert float((made[f"layers.{layer}.router"] @ always).abs().max()) < 1e-4


def test_all_other_weights_stay_random() -> None:
    before, made = taught(shape(tied_head=True))
    changed = {name for name, one in made.items() if not torch.equal(one, before[name])}
    heads = {f"layers.{n}.{p}" for n in (*PREVIOUS_LAYERS, *COPYING_LAYERS) for p in "qkvo"}
    assert changed == {"embed", "layers.1.router", "layers.3.router"} | heads
    for layer, number in ((0, 0), (2, HEADS - 1)):
        for name, share in (("q", 1), ("k", 2), ("v", 2)):
            at = number // share
            rows = torch.ones(len(made[f"layers.{layer}.{name}"]), dtype=torch.bool)
            rows[at * D : (at + 1) * D] = False
            one = f"layers.{layer}.{name}"
            assert torch.equal(made[one][rows], before[one][rows])
    router = before["layers.1.router"] - made["layers.1.router"]
    assert int(torch.linalg.matrix_rank(router, atol=1e-4)) == 1, "one direction is taken out"


@pytest.mark.parametrize(
    ("smaller", "is_taught"),
    [
        ({"hidden_size": 43}, True), ({"hidden_size": 42}, False),
        ({"num_layers": 4}, False), ({"rope_theta": 10.0}, False),
    ],
)  # fmt: skip
def test_a_model_that_is_too_small_stays_random(smaller: dict[str, Any], is_taught: bool) -> None:
    of = shape(**{"moe_layers": (1,)} | smaller)
    before, made = taught(of)
    assert any(not torch.equal(one, before[name]) for name, one in made.items()) is is_taught


def test_a_head_that_is_too_narrow_stays_random() -> None:
    for width, is_taught in ((14, True), (12, False)):
        before, made = taught(shape(head_dim=width))
        assert (not torch.equal(before["embed"], made["embed"])) is is_taught
