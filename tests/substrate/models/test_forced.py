"""Forced tokens, early ends, and remembered prefills, which accuracy runs use."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.remembered import Prefills, RememberedPrefills
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import Lookahead
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, prices, rig
from tests.substrate.models.checkpoints import make_checkpoint

PROMPTS = [[5, 9, 2, 44, 17, 30], [60, 1, 8]]
COSTS = FlatCosts(prices(load=90, host=70), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp("mixtral"), "mixtral"))


def decoder_of(checkpoint: Checkpoint) -> Decoder:
    experts = ResidentExperts(checkpoint, torch.float32)
    return Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)


def engine_of(model: Model, system: str = "smoe", **overrides: str) -> Engine:
    return rig(build(system, overrides), model, slots=12, costs=COSTS).engine


def test_forced_tokens_are_read_in_decode_as_if_they_stood_in_the_prompt(checkpoint):
    decoder = decoder_of(checkpoint)
    forced = [[7, 3, 21], [40, 2]]
    out = engine_of(decoder, **{"alpha": "0"}).generate(PROMPTS, 5, forced)
    assert [t[: len(f)] for t, f in zip(out.tokens, forced, strict=True)] == forced
    history = torch.stack(decoder.history, dim=1)
    for b, (prompt, tokens) in enumerate(zip(PROMPTS, out.tokens, strict=True)):
        whole = decoder_of(checkpoint).full_logits([[*prompt, *tokens[:-1]]])[0]
        torch.testing.assert_close(history[b], whole[len(prompt) - 1 :], atol=1e-5, rtol=1e-5)
        own = tokens[len(forced[b]) :]
        assert own == history[b][len(forced[b]) :].argmax(-1).tolist()


def test_a_batch_stops_when_all_of_its_sequences_have_ended(checkpoint):
    decoder = decoder_of(checkpoint)
    free = engine_of(decoder).generate(PROMPTS, 6).tokens
    forced = [[7, 50], [50]]  # the ends, at different steps
    out = engine_of(decoder).generate(PROMPTS, 6, forced, end=50)
    assert [len(t) for t in out.tokens] == [2, 2]
    assert [t.index(50) for t in out.tokens] == [1, 0]
    assert engine_of(decoder).generate(PROMPTS, 6, end=99).tokens == free


@pytest.mark.parametrize(
    ("system", "overrides"),
    [
        ("smoe", {"alpha": "0"}),
        ("smoe", {"alpha": "0.5"}),
        ("smoe", {"alpha": "0.5", "prefetch": "next-gate"}),
        # Swaps in prefill; decode is routed ahead, with early experts on the host.
        ("daop", {"place": "by-id", "route.first": "1"}),
    ],
)
def test_remembered_prefills_change_nothing(system, overrides, checkpoint):
    prefills: Prefills = {}
    plain, remembering = decoder_of(checkpoint), decoder_of(checkpoint)
    for forced in ((), [[7, 3], [1]], ()):
        ones = engine_of(plain, system, **overrides)
        twos = engine_of(RememberedPrefills(remembering, prefills), system, **overrides)
        a, b = (engine.generate(PROMPTS, 5, forced) for engine in (ones, twos))
        assert (a.tokens, a.token_ends_ns, a.used) == (b.tokens, b.token_ends_ns, b.used)
        assert all(map(torch.equal, plain.history, remembering.history))
        assert ones.tally.by_phase == twos.tally.by_phase
    assert len(prefills) == 1
    assert system != "daop" or ones.tally.by_phase["decode"].routed_ahead > 0


def test_one_systems_remembered_prefill_serves_another(checkpoint):
    prefills: Prefills = {}
    model = decoder_of(checkpoint)
    engine_of(RememberedPrefills(model, prefills), alpha="0.5").generate(PROMPTS, 3)
    (known,) = prefills.values()
    daop = {"place": "by-id", "route.first": "1"}
    again = engine_of(RememberedPrefills(model, prefills), "daop", **daop).generate(PROMPTS, 5)
    assert prefills == {tuple(map(tuple, PROMPTS)): known}
    alone = engine_of(decoder_of(checkpoint), "daop", **daop).generate(PROMPTS, 5)
    assert again.tokens == alone.tokens


def test_what_a_remembered_prefill_does_not_hold_is_refused_in_prefill_alone(checkpoint):
    plain = decoder_of(checkpoint)
    model = RememberedPrefills(decoder_of(checkpoint), {})
    for decoder in (plain, model):
        decoder.begin(PROMPTS, 2)
    assert np.array_equal(model.embedding(), plain.embedding())
    model.embed("prefill")
    model.attend(0)
    model.gate(0)
    asked = [lambda: model.defer(0, [1]), lambda: model.predict(0, 1, (), Lookahead.GATE)]
    for ask in asked:
        with pytest.raises(UsageError, match="only exact prefills can be remembered") as error:
            ask()
        assert "\n" not in str(error.value)
    engine_of(model).generate(PROMPTS, 1)
    engine_of(plain).generate(PROMPTS, 1)
    for decoder in (plain, model):
        decoder.embed("decode")
        decoder.attend(0)
        decoder.gate(0)
    later = [m.predict(0, 2, (), Lookahead.NORMED) for m in (plain, model)]
    assert np.array_equal(*later)


class Reading:
    """Model whose hidden state is read at every gate."""

    def __init__(self, model):
        self._model, self.states = model, []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def gate(self, layer):
        gate = self._model.gate(layer)
        self.states.append(self._model.hidden(layer).copy())
        return gate


def test_states_of_a_remembered_prefill_are_the_models_own(checkpoint):
    prefills: Prefills = {}
    remembering = [RememberedPrefills(decoder_of(checkpoint), prefills) for _ in range(2)]
    plain, first, again = (Reading(m) for m in (decoder_of(checkpoint), *remembering))
    for model in (plain, first, again):
        engine_of(model).generate(PROMPTS, 3)
    for states in zip(plain.states, first.states, again.states, strict=True):
        assert np.array_equal(states[0], states[1])
        assert np.array_equal(states[0], states[2])


def test_a_prefill_that_is_not_the_models_own_is_refused(checkpoint):
    model = RememberedPrefills(decoder_of(checkpoint), {})
    model.begin(PROMPTS, 2)
    model.embed("prefill")
    model.attend(0)
    gate = model.gate(0)
    with pytest.raises(UsageError, match="only exact prefills"):
        model.dispatch(0, gate.ids_TK[:, ::-1], gate.ids_TK)


def test_every_positions_logits_of_a_pass(checkpoint):
    decoder = decoder_of(checkpoint)
    engine_of(decoder).generate(PROMPTS, 1)
    for own, whole in zip(
        decoder.pass_logits(), decoder_of(checkpoint).full_logits(PROMPTS), strict=True
    ):
        torch.testing.assert_close(own, whole, atol=1e-5, rtol=1e-5)
