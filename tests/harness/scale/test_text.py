"""Training text, with documents and a tokenizer that a test counts by hand."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moebench.harness.scale import text
from moebench.harness.scale.text import (
    EXERCISE_MIX,
    TRAINING_SETS,
    Document,
    generated_documents,
    real_documents,
    train_tokenizer,
    training_text,
)
from moebench.workloads.example import END_OF_TEXT


class Letters:
    """A tokenizer whose tokens are letters; the end of a text is 0."""

    def token_to_id(self, token: str) -> int:
        assert token == END_OF_TEXT
        return 0

    def encode_batch(self, texts: list[str]) -> list[Any]:
        return [SimpleNamespace(ids=[ord(c) - 96 for c in one]) for one in texts]


LETTERS = cast(Any, Letters())


def tokens(kind: str, size: int, asked: int = 0) -> text._Tokens:
    return text._Tokens(kind, np.arange(size), asked)


@pytest.mark.parametrize(
    ("written", "pieces"),
    [
        # Paragraphs are whole: a piece ends with the one that makes it ten characters long.
        ("abcd\n\nefghi\n\njk\n\nl", ["abcd\nefghi\n", "jk\nl\n"]),
        ("abcdefghij\n\nk", ["abcdefghij\n", "k\n"]),
        ("abcdefghi\nk", ["abcdefghi\n", "k\n"]),  # lines where there are no paragraphs
        ("abcdefgh\nk", ["abcdefgh\nk\n"]),
        ("abcdefghi\n\n \n\n", ["abcdefghi\n"]),  # nothing but blanks is left
        ("", []),
    ],
)
def test_prose_is_cut_between_paragraphs(written: str, pieces: list[str]) -> None:
    assert [*text._pieces(written, 10)] == pieces


def test_a_piece_of_prose_has_two_thousand_characters() -> None:
    assert [*map(len, text._pieces("x" * 1998 + "\n\n" + "y" * 1999 + "\n\n" + "z"))] == [3999, 2]


def test_questions_are_lines_whatever_separators_their_texts_have(tmp_path: Path) -> None:
    for name in TRAINING_SETS:
        (tmp_path / name).mkdir()
        one = {"id": 7, "prompt": f"one\u2028{name}", "answer": 2}
        other = {"id": 8, "prompt": "two", "answer": "so", "solution": "1+1=<<1+1=2>>2"}
        lines = (json.dumps(record, ensure_ascii=False) for record in (one, other))
        (tmp_path / name / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "b.txt").write_text("B")
    (tmp_path / "corpus" / "a.txt").write_text("A")
    found = real_documents(tmp_path, 0)
    of_sets = [
        Document(name, "", said)
        for name in TRAINING_SETS
        for said in (
            f"Question: one\u2028{name}\nAnswer: C",
            "Question: two\nAnswer: 1+1=2\n#### so",
        )
    ]
    prose = [Document("prose", "", "A\n"), Document("prose", "", "B\n")]
    assert Counter(found) == Counter([*prose, *of_sets])
    assert found == real_documents(tmp_path, 0)
    assert found != real_documents(tmp_path, 1)
    assert found != [*prose, *of_sets], "shuffled"


def test_exercises_are_mixed_as_their_families_need_training() -> None:
    drawn = [*islice(generated_documents(0), 2000)]
    assert drawn[:50] == [*islice(generated_documents(0), 50)]
    counts, total = Counter(one.kind for one in drawn), sum(EXERCISE_MIX.values())
    assert {kind: round(n / 2000, 1) for kind, n in counts.items()} == {
        kind: round(n / total, 1) for kind, n in EXERCISE_MIX.items()
    }
    for one in drawn[:50]:
        assert one.asked.startswith("Question: ")
        assert one.asked.endswith("Answer:")
        assert one.learnt.startswith(" ")


def test_documents_are_taken_until_there_are_enough_tokens() -> None:
    def documents() -> Iterator[Document]:
        for n in range(1000):
            taken.append(n)
            yield Document("k", "ab", "c")

    taken: list[int] = []
    found = text._take(LETTERS, documents(), 4 * 256)
    assert len(found) == len(taken) == 256  # whole batches
    assert (found[0].kind, found[0].ids.tolist(), found[0].asked) == ("k", [1, 2, 3, 0], 2)
    taken.clear()
    assert len(text._take(LETTERS, documents(), 4 * 256 + 1)) == len(taken) == 512
    taken.clear()
    assert text._take(LETTERS, documents(), 0) == taken == []
    assert len(text._take(LETTERS, iter([Document("k", "", "a")]), 100)) == 1


def test_a_prompt_counts_less_than_what_is_learnt() -> None:
    ids, weights = text._joined([tokens("a", 3, 2), tokens("b", 2), tokens("c", 2, 1)])
    assert ids.tolist() == [0, 1, 2, 0, 1, 0, 1]
    light = np.float32(0.1).item()
    assert weights.tolist() == [light, light, 1, 1, 1, light, 1]
    assert weights.dtype == np.float32


def test_chunks_are_of_one_kind_and_no_shorter_than_asked() -> None:
    documents = [tokens("ab"[n % 2], 3, n) for n in range(14)]  # seven of each kind
    found = text._by_kind(documents, 6, 0)
    assert sorted(d.asked for d in found) == [*range(14)]
    for kind in "ab":  # in the order of the text within a chunk of two
        mine = [d.asked for d in found if d.kind == kind]
        assert len(mine) == 7
    starts = {*range(0, 12, 4)} | {*range(1, 12, 4)}
    pairs = [(a.asked, b.asked) for a, b in pairwise(found)]
    assert {(n, n + 2) for n in starts} <= {*pairs}, "two of three tokens are a chunk"
    assert [d.asked for d in found] != [d.asked for d in text._by_kind(documents, 6, 1)]
    runs = [len([*run]) for _, run in groupby(d.kind for d in text._by_kind(documents, 99, 0))]
    assert runs == [7, 7]


def test_a_stream_is_what_is_left_after_whole_held_out_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 and 20 tokens, a quarter is real; three tokens a document, with its end."""
    monkeypatch.setattr(text, "real_documents", lambda folder, seed: [Document("r", "", "ab")] * 99)

    def exercises_(seed: int) -> Iterator[Document]:
        while True:
            yield Document("g", "x", "y")

    asked: list[int] = []
    take = text._take

    def taken(tokenizer: Any, documents: Iterator[Document], size: int) -> list[Any]:
        asked.append(size)
        return take(tokenizer, islice(documents, -(-size // 3)), size)

    monkeypatch.setattr(text, "generated_documents", exercises_)
    monkeypatch.setattr(text, "_take", taken)
    found = training_text(Path(), 0, 100, 20, 0.75, 3, tokenizer=LETTERS)
    assert asked == [30, 90]
    whole = np.concatenate([found.held_out, found.stream])
    assert len(found.held_out) == 20
    assert len(whole) == 120
    assert Counter(whole.tolist()) == {0: 40, 1: 10, 2: 10, 24: 30, 25: 30}
    assert (whole[2::3] == 0).all(), "no document is cut"
    prompts = whole[20:] == 24
    assert (found.weights == np.where(prompts, np.float32(0.1), 1)).all()
    assert found.tokenizer is LETTERS
    chunked = training_text(Path(), 0, 100, 20, 0.75, 3, chunk=15, tokenizer=LETTERS)
    assert (chunked.held_out == found.held_out).all()
    assert (chunked.stream != found.stream).any()
    # What is held out ends within a seventh document, which is not part of any chunk.
    assert chunked.stream[0] == found.stream[0] == 0


def test_a_tokenizer_is_trained_on_both_kinds_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "real_documents", lambda folder, seed: [Document("r", "", "aaa")] * 9)
    monkeypatch.setattr(
        text, "generated_documents", lambda seed: iter([Document("g", "x 12", "y")] * 9000)
    )
    seen: list[tuple[list[str], int]] = []

    def train(texts: list[str], size: int) -> Any:
        seen.append((texts, size))
        return LETTERS

    monkeypatch.setattr(text, "train_tokenizer", train)
    monkeypatch.setattr(
        LETTERS, "encode_batch", lambda texts: [SimpleNamespace(ids=[1])] * len(texts)
    )
    training_text(Path(), 77, 10, 1, 0.5, 0)
    ((texts, size),) = seen
    assert size == 77
    assert Counter(texts) == {"aaa": 9, "x 12y": 5000}


def test_every_digit_is_a_token_and_every_byte_has_one() -> None:
    trained = train_tokenizer(["in 1999 and in 1999"] * 9, 270)
    assert trained.get_vocab_size() <= 270
    assert trained.token_to_id(END_OF_TEXT) == 0
    pieces = trained.encode("in 1999 ä").tokens
    assert pieces.count("9") == 3
    assert "in" in pieces
    assert trained.decode(trained.encode("in 1999 ä").ids) == "in 1999 ä"


def test_shares_of_exercises_are_percentages():
    assert sum(EXERCISE_MIX.values()) == 100
