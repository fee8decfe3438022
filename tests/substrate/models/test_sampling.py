"""Temperature and top-p sampling, against probabilities that are computed by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moebench.substrate.engine.loop import Engine
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.remembered import Prefills, RememberedPrefills
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.sampling import Sampling, hash_of, nucleus
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, prices, rig
from tests.substrate.models.checkpoints import make_checkpoint

#: Probabilities at temperature 1.
SHARES = np.array([0.05, 0.5, 0.15, 0.3])
LOGITS = np.log(SHARES) + 7
PROMPTS = [[5, 9, 2, 44, 17, 30], [60, 1, 8], [5, 9, 2]]
COSTS = FlatCosts(prices(load=90, host=70), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)


def frequencies(sampling: Sampling, draws: int = 4000) -> np.ndarray:
    drawn = [sampling.draw(LOGITS, 11, place) for place in range(draws)]
    return np.bincount(drawn, minlength=len(LOGITS)) / draws


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), SHARES),
        # Temperature 0.5 squares the probabilities: 25, 2500, 225 and 900 of 3650.
        (Sampling(0.5), np.array([25, 2500, 225, 900]) / 3650),
        # 0.5 and 0.3 are the first to add up to 0.7: 5 and 3 of 8.
        (Sampling(1.0, 0.7), np.array([0, 5, 0, 3]) / 8),
        (Sampling(1.0, 0.81, 3), np.array([0, 50, 15, 30]) / 95),
        # At temperature 0.5 the likeliest alone has 0.68, with the second 0.93.
        (Sampling(0.5, 0.68), np.array([0, 1, 0, 0])),
        (Sampling(0.5, 0.69), np.array([0, 25, 0, 9]) / 34),
    ],
)
def test_tokens_have_the_probabilities_of_temperature_and_top_p(
    sampling: Sampling, expected: np.ndarray
) -> None:
    """4,000 draws: standard errors of at most 0.008."""
    found = frequencies(sampling)
    assert np.abs(found - expected).max() < 0.032
    assert not found[expected == 0].any()


def test_equally_likely_tokens_are_kept_from_the_first_on() -> None:
    assert nucleus(np.zeros(4), 0.5).tolist() == [True, True, False, False]
    assert nucleus(np.zeros(4), 0.51).tolist() == [True, True, True, False]


LOGIT = st.floats(-50, 50, width=32)


@given(arrays(np.float32, 12, elements=LOGIT), st.floats(1e-320, 2, exclude_min=True),
       st.floats(0, 1, exclude_min=True), st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1),
       st.integers(0, 10**7))  # fmt: skip
def test_a_draw_is_repeatable_and_from_the_nucleus(
    logits_V: np.ndarray, temperature: float, top_p: float, seed: int, prompt: int, place: int
) -> None:
    sampling = Sampling(temperature, top_p, seed)
    token = sampling.draw(logits_V, prompt, place)
    assert token == sampling.draw(logits_V.copy(), prompt, place)
    likelier = logits_V.astype(float) > logits_V[token]
    with np.errstate(over="ignore"):
        weights = np.exp((logits_V.astype(float) - logits_V.max()) / temperature)
    assert weights[likelier].sum() <= top_p * weights.sum() * (1 + 1e-9)


@given(arrays(np.float32, 12, elements=LOGIT, unique=True), st.integers(0, 10**6))
def test_a_vanishing_temperature_and_a_vanishing_top_p_take_the_likeliest(
    logits_V: np.ndarray, place: int
) -> None:
    assert Sampling(1e-300).draw(logits_V, 1, place) == logits_V.argmax()
    assert Sampling(2.0, 1e-12).draw(logits_V, 1, place) == logits_V.argmax()


def test_seed_prompt_and_place_each_change_the_noise() -> None:
    """By chance an eighth of 200 draws among 8 equally likely tokens is equal."""
    even = np.zeros(8)

    def drawn(seed: int = 0, prompt: int = 1, first: int = 0) -> list[int]:
        return [Sampling(1.0, seed=seed).draw(even, prompt, first + i) for i in range(200)]

    base = drawn()
    assert base == drawn()
    for other in (drawn(seed=1), drawn(prompt=2), drawn(first=1)):
        equal = sum(a == b for a, b in zip(base, other, strict=True))
        assert 5 <= equal <= 50


def test_the_hash_of_a_prompt_depends_on_order_and_length() -> None:
    found = {hash_of(prompt) for prompt in ([1, 2], [2, 1], [1, 2, 0], [258], [])}
    assert len(found) == 5
    assert all(0 <= one < 2**64 for one in found)


# ----------------------------------------------------------------------------- the engine


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp("mixtral"), "mixtral"))


def decoder_of(checkpoint: Checkpoint) -> Decoder:
    experts = ResidentExperts(checkpoint, torch.float32)
    decoder = Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)
    decoder.sampling = Sampling(1.0, 0.9, 4)
    return decoder


def engine_of(system: str, model) -> Engine:
    return rig(build(system), model, slots=6, costs=COSTS).engine


@pytest.fixture(scope="module")
def alone(checkpoint: Checkpoint) -> list[list[int]]:
    """The texts of the prompts, each in a batch of its own."""
    with torch.inference_mode():
        return [
            engine_of("moe-ondemand", decoder_of(checkpoint)).generate([prompt], 10).tokens[0]
            for prompt in PROMPTS
        ]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2]])
@pytest.mark.parametrize("system", ["moe-ondemand", "mixtral-offloading", "acc"])
def test_a_text_does_not_depend_on_its_batch_or_on_a_lossless_system(
    checkpoint: Checkpoint, alone: list[list[int]], system: str, order: list[int]
) -> None:
    prompts = [PROMPTS[i] for i in order]
    with torch.inference_mode():
        together = engine_of(system, decoder_of(checkpoint)).generate(prompts, 10)
    assert together.tokens == [alone[i] for i in order]


def test_greedy_texts_are_others(checkpoint: Checkpoint, alone: list[list[int]]) -> None:
    greedy = decoder_of(checkpoint)
    greedy.sampling = None
    with torch.inference_mode():
        found = engine_of("moe-ondemand", greedy).generate(PROMPTS, 10).tokens
    assert all(a != b for a, b in zip(found, alone, strict=True))


def test_a_remembered_prefill_draws_the_same_first_token(
    checkpoint: Checkpoint, alone: list[list[int]]
) -> None:
    known: Prefills = {}
    for _ in range(2):  # the second time the prefill is known
        model = RememberedPrefills(decoder_of(checkpoint), known)
        with torch.inference_mode():
            found = engine_of("moe-ondemand", model).generate(PROMPTS[:1], 10).tokens
        assert found == alone[:1]


def test_forced_tokens_take_their_places(checkpoint: Checkpoint) -> None:
    """What follows forced tokens is drawn with the noise of its own place."""
    with torch.inference_mode():
        free = engine_of("moe-ondemand", decoder_of(checkpoint)).generate(PROMPTS[:1], 8).tokens[0]
        forced = engine_of("moe-ondemand", decoder_of(checkpoint)).generate(
            PROMPTS[:1], 8, [free[:3]]
        )
    assert forced.tokens[0] == free


def test_of_many_equally_likely_tokens_the_nucleus_keeps_the_first() -> None:
    """Half of 400 equal tokens; then all likelier ones and the first of the others."""
    assert np.flatnonzero(nucleus(np.zeros(400), 0.5)).tolist() == list(range(200))
    scaled = -np.random.default_rng(0).integers(0, 3, 400).astype(float)
    weights = np.exp(scaled)
    wanted, total = set(), 0.0
    for token in sorted(range(400), key=lambda at: (-scaled[at], at)):
        if total < 0.8 * weights.sum():
            wanted.add(token)
        total += weights[token]
    assert set(np.flatnonzero(nucleus(scaled, 0.8)).tolist()) == wanted
