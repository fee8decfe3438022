"""lm-eval's model class: requests in batches, on a responder that answers by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate.responder import Pair
from moebench.substrate.errors import UsageError

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install '.[eval]'")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import lm-eval, which takes half a second, before the first test."""
    import moebench.harness.evaluate.lm_eval_model  # noqa: F401


class Responder:
    """Writes a text in capitals; a text's log-likelihood is less the sum of its tokens."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def write(self, texts: list[str], most: int, stops: list[str]) -> list[str]:
        self.asked.append((texts, most, stops))
        return [text.upper() for text in texts]

    def read(self, pairs: Sequence[Pair]) -> list[Any]:
        self.asked.append([tuple(map(tuple, pair)) for pair in pairs])
        return [SimpleNamespace(log_likelihood=-float(sum(asked)), greedy=len(asked) == 1)
                for _, asked in pairs]  # fmt: skip


class Letters:
    """A tokenizer whose tokens are letters; a text begins with 9 unless it is said otherwise."""

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        return SimpleNamespace(ids=[9] * add_special_tokens + [ord(c) - 96 for c in text])


class Kept:
    """What lm-eval's cache was given."""

    def __init__(self) -> None:
        self.partial: list[Any] = []

    def add_partial(self, *what: Any) -> None:
        self.partial.append(what)


def model(end: int | None = 0, batch: int = 2) -> tuple[Any, Responder, list[tuple[int, int]]]:
    from moebench.harness.evaluate.lm_eval_model import RespondingLM

    responder, steps = Responder(), list[tuple[int, int]]()
    weights = SimpleNamespace(
        end=end, tokenizer=Letters(), checkpoint=SimpleNamespace(path=Path("there"))
    )
    session: Any = SimpleNamespace(
        responder=responder, spec=SimpleNamespace(batch=batch), max_length=5, weights=weights
    )
    made = RespondingLM(session, lambda done, total: steps.append((done, total)))
    made.set_cache_hook(Kept())
    return made, responder, steps


def asking(text: str, **settings: Any) -> Any:
    return SimpleNamespace(args=(text, settings))


def test_a_model_is_as_its_session() -> None:
    """A text's last token is not fed, so that an input is one token shorter."""
    made, _, _ = model(end=7)
    assert (made.batch_size, made.max_length, made.eot_token_id) == (2, 4, 7)
    assert made.tok_encode("ab") == made.tok_encode("ab", True) == [9, 1, 2]
    assert made.tok_encode("ab", add_special_tokens=False) == [1, 2]
    endless, _, _ = model(end=None)
    with pytest.raises(UsageError, match=r"^there: no file says which token ends a text, and "):
        assert endless.eot_token_id


def test_texts_are_written_in_batches_of_equal_settings() -> None:
    made, responder, steps = model()
    short, long = {"until": ["."], "max_gen_toks": 5}, {"until": "\n", "max_gen_toks": 9}
    requests = [*(asking(text, **short) for text in "abc"), asking("d", **long), asking("e")]
    assert made.generate_until(requests) == ["A", "B", "C", "D", "E"]
    assert responder.asked == [
        (["a", "b"], 5, ["."]), (["c"], 5, ["."]), (["d"], 9, ["\n"]), (["e"], 256, []),
    ]  # fmt: skip
    assert steps == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert made.cache_hook.partial == [
        ("generate_until", request.args, request.args[0].upper()) for request in requests
    ]
    with pytest.raises(UsageError, match="asks for sampled texts; moebench writes greedily"):
        made.generate_until([asking("a", do_sample=True, temperature=0.5)])


def test_likelihoods_are_read_in_batches_and_kept_by_text() -> None:
    made, responder, steps = model()
    found = made._loglikelihood_tokens(
        [(("x", "y"), [1], [2]), (None, [3], [4, 5]), (("z", ""), [6, 7], [8])]
    )
    assert found == [(-2.0, True), (-9.0, False), (-8.0, True)]
    assert responder.asked == [[((1,), (2,)), ((3,), (4, 5))], [((6, 7), (8,))]]
    assert steps == [(2, 3), (3, 3)]
    assert made.cache_hook.partial == [
        ("loglikelihood", ("x", "y"), (-2.0, True)), ("loglikelihood", ("z", ""), (-8.0, True)),
    ]  # fmt: skip


def test_long_texts_are_read_in_windows_that_predict_each_token_once() -> None:
    """Tokens 9 1 2 3 4 5 6 in windows of four inputs, the first of which is the end of a text."""
    made, responder, _ = model()
    texts = [SimpleNamespace(args=("abcdef",)), SimpleNamespace(args=("b",))]
    assert made.loglikelihood_rolling(texts) == [-(9 + 21.0), -(9 + 2.0)]
    windows = [pair for batch in responder.asked for pair in batch]
    assert [token for _, asked in windows for token in asked] == [9, 1, 2, 3, 4, 5, 6, 9, 2]
    assert all(context and len(context) + len(asked) - 1 <= 4 for context, asked in windows)
    assert windows[0] == ((0,), (9, 1, 2, 3))
    assert made.cache_hook.partial == [
        ("loglikelihood_rolling", ("abcdef",), -30.0), ("loglikelihood_rolling", ("b",), -11.0),
    ]  # fmt: skip
