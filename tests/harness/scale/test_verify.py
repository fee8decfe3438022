"""A scale model's figures and their comparison, with a model that answers as a test says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moebench.harness.scale import verify
from moebench.harness.scale.verify import (
    WINDOW,
    ScaleModel,
    chance_of_mentioned,
    differences,
    measure,
)
from moebench.substrate.errors import InputError
from moebench.workloads.example import Example


def example(prompt: str, answer: str) -> Example:
    return Example(id="1", prompt=prompt, choices=None, answer=answer, solution=None)


def test_a_guess_is_one_of_the_mentioned_answers_or_the_most_frequent_one() -> None:
    mentions = [
        example("the cup, the shop, the barn.", "shop"),  # two of the answers: barn and shop
        example("the barn or the shop", "barn"),
        example("neither", "barn"),  # no answer is mentioned: one guess
        example("only the barn", "shop"),
    ]
    assert chance_of_mentioned(mentions) == (1 / 2 + 1 / 2 + 1 + 1) / 4
    frequent = [example("a b c d", answer) for answer in "abbbbcd"]
    assert chance_of_mentioned(frequent) == 4 / 7


def model(**more: Any) -> ScaleModel:
    """A model whose tokenizer has a token for each letter, and 0 for the end of a text."""
    tokenizer = SimpleNamespace(
        token_to_id=lambda token: 0,
        encode=lambda text: SimpleNamespace(ids=[ord(c) for c in text]),
        decode=lambda ids: "".join(map(chr, ids)),
    )
    decoder = SimpleNamespace(shape=SimpleNamespace(num_experts=4), history="history")
    return ScaleModel(Path(), cast(Any, decoder), cast(Any, tokenizer), **more)


def test_windows_are_cut_from_texts_that_each_end() -> None:
    many = iter(["ab"] * 999)
    windows = verify._windows(model(), many, 2)
    assert [*map(len, windows)] == [WINDOW, WINDOW]
    assert windows[0][:7] == [97, 98, 0, 97, 98, 0, 97]
    assert windows[0] + windows[1] == ([97, 98, 0] * 999)[: 2 * WINDOW]
    assert len([*many]) == 999 - -(-2 * WINDOW // 3), "no more texts are made than are needed"
    # Too little text has fewer windows, and no part of one.
    assert len(verify._windows(model(), iter(["a" * (2 * WINDOW - 2)]), 3)) == 1
    assert len(verify._windows(model(), iter(["a" * (2 * WINDOW - 1)]), 3)) == 2
    endless = model()
    endless.tokenizer.token_to_id = lambda token: None
    assert verify._windows(endless, iter(["a" * WINDOW]), 1) == [[97] * WINDOW]


def test_windows_are_read_eight_at_a_time_and_half_of_each_is_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, int, int]] = []

    def read(decoder: Any, windows: list[list[int]], prompt: int) -> list[int]:
        asked.append((decoder, len(windows), prompt))
        return [one[0] for one in windows]

    monkeypatch.setattr(verify, "read", read)
    of = model()
    assert verify._routing(of, [[n] for n in range(19)]) == [*range(19)]
    assert asked == [(of.decoder, 8, 128), (of.decoder, 8, 128), (of.decoder, 3, 128)]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A workload of 100 questions, of which every fourth is answered wrongly."""
    asked: list[Any] = []

    def write(decoder: Any, prompts: list[list[int]], most: int, stop: int) -> list[list[int]]:
        asked.append((len(prompts), most, stop))
        return [[*prompt, ord("!")] for prompt in prompts]

    def load(chosen: Any, count: int) -> Any:
        assert count == 100
        return SimpleNamespace(examples=[example(f"q{n}", str(n % 4)) for n in range(count)])

    chosen = SimpleNamespace(max_new_tokens=12)
    monkeypatch.setattr(verify, "workload", lambda family: chosen)
    monkeypatch.setattr(verify, "load", load)
    monkeypatch.setattr(verify, "build_prompt", lambda of, one: one.prompt)
    monkeypatch.setattr(verify, "write", write)
    monkeypatch.setattr(verify, "is_correct", lambda of, one, text: (
        text == f"{one.prompt}!" and one.answer != "3"))  # fmt: skip
    lengths = []

    def margins(history: Any, sizes: list[int]) -> np.ndarray:
        lengths.extend(sizes)
        return np.array([0.5, 1.0, 2.0, 3.336] if len(sizes) > 40 else [4.0])

    monkeypatch.setattr(verify, "margins", margins)
    return asked


def test_accuracy_is_the_share_of_right_answers_and_how_sure_they_are(answers: list[Any]) -> None:
    assert verify._accuracy(model(), "facts", 100) == {
        "score": 0.75, "stderr": 0.0433, "n": 100, "chance": 0.25, "margin": 2.0, "unsure": 0.2,
        "answers": "1110" * 25,
    }  # fmt: skip
    # A quick check computes the whole one's first batch.
    assert answers == [(32, 12, 0), (68, 12, 0)]
    quick = verify._accuracy(model(), "passages", 32)
    assert (quick["n"], quick["answers"], quick["margin"]) == (32, "1110" * 8, 4.0)
    assert quick["chance"] == 1.0  # no answer is mentioned
    assert answers[2:] == [(32, 12, 0)]
    assert verify._accuracy(model(), "arithmetic", 32)["chance"] == 0
    assert verify._accuracy(model(), "inflection", 32)["chance"] == 0
    assert verify._accuracy(model(), "equations", 32)["chance"] == 0.25


def test_shares_have_four_digits_and_margins_two(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 of 32 are right; a guess is right once in seven, and margins are unsure once in three."""
    monkeypatch.setattr(verify, "chance_of_mentioned", lambda asked: 1 / 7)
    monkeypatch.setattr(verify, "margins", lambda history, sizes: np.array([0.0, 1.23456, 9.0]))
    found = verify._accuracy(model(), "passages", 32)
    assert (found["score"], found["stderr"]) == (0.75, 0.0765)
    assert (found["chance"], found["margin"], found["unsure"]) == (0.1429, 1.23, 0.3333)
    monkeypatch.setattr(verify, "QUICK", 11)
    assert verify._accuracy(model(), "passages", 11)["score"] == 0.8182


def test_nothing_is_sure_or_unsure_where_nothing_is_written(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "margins", lambda history, sizes: np.array([]))
    found = verify._accuracy(model(), "facts", 32)
    assert (found["margin"], found["unsure"]) == (None, None)


@pytest.mark.parametrize(("quick", "count"), [(True, 32), (False, 100)])
def test_all_families_and_prose_are_measured(
    quick: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "FAMILIES", ("facts", "passages"))
    monkeypatch.setattr(verify, "_accuracy", lambda of, family, n: (family, n))
    monkeypatch.setattr(
        verify, "exercises", lambda family, split: iter([example("q" * 999, "a")] * 9)
    )
    monkeypatch.setattr(verify, "_routing", lambda of, windows: windows)
    monkeypatch.setattr(verify, "summary", lambda windows, experts: (len(windows), experts))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "wikitext2_test.txt").write_text("x" * 5000)
    seen: list[tuple[int, int]] = []
    found = measure(model(), tmp_path, quick, lambda *done: seen.append(done))
    assert found == {
        "accuracy": {"facts": ("facts", count), "passages": ("passages", count)},
        # Eight windows of each family; as many in total of prose.
        "statistics": {"exercises": (16, 4), "wikitext2_test": (16, 4)},
    }
    assert seen == [(n, 4) for n in range(1, 5)]
    seen.clear()
    without = measure(model(), None, quick, lambda *done: seen.append(done))
    assert without["statistics"] == {"exercises": (16, 4)}
    assert seen == [(n, 3) for n in range(1, 4)]
    with pytest.raises(InputError, match=r"_test.txt: cannot be read .*statistics of prose"):
        measure(model(), tmp_path / "none", quick, lambda *done: None)


def figures(answers: str = "", **statistics: Any) -> dict[str, Any]:
    accuracy = {"facts": {"answers": answers, "n": len(answers)}} if answers else {}
    return {"accuracy": accuracy, "statistics": {"exercises": statistics}}


@pytest.mark.parametrize(
    ("now", "then", "says"),
    [
        (figures("1" * 10), figures("1" * 8 + "00"), []),
        (figures("1" * 10), figures("1" * 7 + "000"),
         ["accuracy of facts: 3 of 10 answers turned"]),
        (figures("1" * 100), figures("1" * 95 + "0" * 5), []),
        (figures("1" * 100), figures("0" * 6 + "1" * 94),
         ["accuracy of facts: 6 of 100 answers turned"]),
        # A quick check has the first answers alone.
        (figures("1" * 10), figures("1" * 10 + "0" * 90), []),
        (figures("1"), figures(), ["accuracy of facts: not in the manifest"]),
        (figures(), figures("1"), []),
        (figures(a={"b": [1.0, 0.02]}), figures(a={"b": [1.0, 0.0]}), []),
        (figures(a={"b": [1.0, 0.03]}), figures(a={"b": [1.0, 0.0]}),
         ["exercises: a.b[1] is 0.03, the manifest says 0.0"]),
        (figures(a=-10.2), figures(a=-10.0), []),
        (figures(a=-10.3), figures(a=-10.0), ["exercises: a is -10.3, the manifest says -10.0"]),
        (figures(a=None), figures(a=None), []),
        (figures(a=1.0), figures(a=None), ["exercises: a is 1.0, the manifest says None"]),
        (figures(b=1.0, a=1.0), figures(b=3.0, a=2.0),
         ["exercises: a is 1.0, the manifest says 2.0",
          "exercises: b is 1.0, the manifest says 3.0"]),
        ({"accuracy": {}, "statistics": {"prose": {"a": 1}}}, figures(a=2), []),
    ],
)  # fmt: skip
def test_figures_differ_beyond_their_tolerance(
    now: dict[str, Any], then: dict[str, Any], says: list[str]
) -> None:
    assert differences(now, then) == says
