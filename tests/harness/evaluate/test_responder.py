"""Responses computed in decode or in one pass, compared with passes of the resident model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.evaluate.responder import Feed, Pair, Responder, before
from moebench.harness.evaluate.session import EvaluatedSession, prepare_evaluated, resolve_evaluated
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shared import SharedWork
from tests.harness.commands import refused
from tests.harness.evaluate.sessions import responding

pytestmark = pytest.mark.usefixtures("tiny_models")

TEXTS = ["Where is the cup?\nAnswer:", "Question: the shop? the cup\nAnswer:", "a cup", "x"]


def pairs_of(session: EvaluatedSession) -> list[Pair]:
    """Return contexts and continuations of different lengths."""
    encode = session.responder.encode
    ends = [" shop", " the cup is in the shop", " a", " Answer: the shop where"]
    return [Pair(encode(text), encode(end)) for text, end in zip(TEXTS, ends, strict=True)]


@torch.inference_mode()
def in_one_piece(session: EvaluatedSession, pair: Pair) -> tuple[float, bool]:
    """Return a continuation's log-likelihood from one pass of the resident model."""
    decoder = SharedWork(session.weights.checkpoint).decoder()
    logits = decoder.full_logits([[*pair.context, *pair.continuation]])[0]
    rows = logits[len(pair.context) - 1 : -1]
    taken = torch.tensor(pair.continuation)
    values = rows.log_softmax(-1).gather(1, taken[:, None])
    return float(values.sum()), bool((rows.argmax(-1) == taken).all())


@torch.inference_mode()
def greedy(session: EvaluatedSession, text: str, tokens: int) -> list[int]:
    """Return the resident model's greedy text, with a full pass for each token."""
    decoder = SharedWork(session.weights.checkpoint).decoder()
    ids = session.responder.encode(text)
    for _ in range(tokens):
        ids = [*ids, int(decoder.full_logits([ids])[0][-1].argmax())]
    return ids[-tokens:]


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize("batch", [1, 3])
def test_likelihoods_are_the_resident_models(mode: str, batch: int) -> None:
    with responding(mode, batch=batch) as session:
        pairs = pairs_of(session)
        likeliest = Pair(pairs[0].context, greedy(session, TEXTS[0], 3))
        answers = session.responder.read([*pairs, likeliest])
        for pair, answer in zip([*pairs, likeliest], answers, strict=True):
            value, is_greedy = in_one_piece(session, pair)
            assert answer.log_likelihood == pytest.approx(value, abs=1e-4)
            assert answer.greedy == is_greedy
        assert answers[-1].greedy
        assert session.responder.requests == {"generated": 0, "read": 5}
        accuracy = session.responder.accuracy()
        expected = (1.0, 0.0) if mode == "decode" else (None, None)
        assert (accuracy["agreement"], accuracy["kl"]) == expected


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize("batch", [1, 4])
def test_texts_are_the_resident_models(mode: str, batch: int) -> None:
    with responding(mode, batch=batch) as session:
        wanted = [session.weights.tokenizer.decode(greedy(session, text, 6)) for text in TEXTS]
        assert session.responder.write(TEXTS, 6) == wanted


def test_a_text_ends_before_its_stop_and_costs_nothing_after_it() -> None:
    with responding() as session:
        responder = session.responder
        (whole,) = responder.write(TEXTS[:1], 12)
        stop = whole[len(whole) // 2 :][:2]
        assert responder.write(TEXTS[:1], 12, ["never", stop]) == [whole.partition(stop)[0]]
        long, short = responder.generations
        assert len(short.token_ends_ns) < len(long.token_ends_ns)


def test_an_answers_first_token_comes_out_of_decode() -> None:
    with responding() as decoding, responding("prefill") as prefilling:
        for session in (decoding, prefilling):
            session.responder.write(TEXTS[:1], 1)
        cue = decoding.responder.encode("\nAnswer:")
        (decoded,), (prefilled,) = (s.responder.generations for s in (decoding, prefilling))
        assert decoded.tokens[0][: len(cue)] == cue
        assert len(decoded.tokens[0]) == len(cue) + 1
        assert decoded.tokens[0][-1] == prefilled.tokens[0][0]
        assert len(prefilled.tokens[0]) == 1


def test_what_is_too_long_loses_its_beginning_and_is_counted() -> None:
    with responding(max_length=12) as session:
        responder = session.responder
        long = responder.encode(" ".join(TEXTS))
        (answer,) = responder.read([Pair(long, long[:4])])
        value, _ = in_one_piece(session, Pair(long[-8:], long[:4]))
        assert answer.log_likelihood == pytest.approx(value, abs=1e-4)
        assert responder.truncated == 1
        responder.write([" ".join(TEXTS), "x"], 4)
        assert responder.truncated == 2
        with pytest.raises(UsageError, match="12 tokens leave no room"):
            responder.write(["x"], 12)
        with pytest.raises(UsageError, match="empty context"):
            responder.read([Pair([], long[:4])])


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=12),
    batch=st.integers(1, 4),
    room=st.integers(18, 24),
)
def test_groups_keep_order_and_fit_batch_and_length(
    sizes: list[tuple[int, int]], batch: int, room: int
) -> None:
    feeds = [Feed([0] * prompt, [], steps, 0) for prompt, steps in sizes]
    groups = list(Responder(None, batch, None, room, "decode")._groups(feeds))
    assert [feed for group in groups for feed in group] == feeds
    for group in groups:
        assert 1 <= len(group) <= batch
        assert max(len(f.prompt) for f in group) + max(f.steps for f in group) <= room


def test_a_text_is_cut_at_whatever_stop_comes_first() -> None:
    assert before("one two three", ["three", " two", ""]) == "one"
    assert before("one", ["two"]) == "one"


def test_invalid_eval_options_are_refused_before_loading() -> None:
    asked = ("eval", "--engine", "lm-eval", "--tasks", "passages", "--setting", "S3")
    assert "--mode quick: allowed: decode, prefill" in refused(
        *asked, "--system", "smoe", "--mode", "quick"
    )
    packaged = refused(*asked, "--system", "native-llamacpp", "--machine", "local")
    assert "is not asked by evaluators" in packaged
    assert "unknown workload 'passage'; nearest: passages" in refused(
        "eval", "--engine", "lm-eval", "--tasks", "passage", "--system", "smoe"
    )
    assert "unknown evaluator 'lmeval'; nearest: lm-eval" in refused(
        "eval", "--engine", "lmeval", "--tasks", "passages", "--system", "smoe"
    )
    assert "needs a data folder" in refused(
        "eval", "--engine", "lm-eval", "--tasks", "gsm8k", "--system", "smoe"
    )
    spec = resolve_evaluated(None, None, system="smoe", setting="S3")
    with pytest.raises(UsageError, match="--max-length 4096: allowed: 2 to 2048"):
        prepare_evaluated(spec, None, 4096)
