"""Training text of scale models: prose, train halves of question sets, generated exercises."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from moebench.substrate.errors import InputError
from moebench.workloads.example import END_OF_TEXT, Example, ask, ask_and_answer
from moebench.workloads.exercises import exercises
from moebench.workloads.prompts import without_calculator_marks

#: Question sets whose licence allows weights trained on them to be shipped.
TRAINING_SETS = (
    "arc_easy", "arc_challenge", "mmlu", "boolq", "triviaqa", "nq_open",
    "squad", "gsm8k", "bbh", "math", "piqa", "winogrande",
)  # fmt: skip
#: Relative frequency of each exercise family; arithmetic needs the most training.
EXERCISE_MIX = {"arithmetic": 34, "equations": 20, "facts": 16, "passages": 14, "inflection": 16}
#: Loss weight of a token in an exercise's prompt; a token of its answer has weight 1.
QUESTION_WEIGHT = 0.1
#: File of the corpus that is not trained on, so that perplexity on it can be reported.
HELD_OUT_TEXT = "wikitext2_test.txt"


class Document(NamedTuple):
    """A training text: its kind, a prompt with a small loss weight, and text with full weight."""

    kind: str
    asked: str
    learnt: str


def real_documents(data_dir: Path, seed: int) -> list[Document]:
    """Return pieces of prose and question-answer pairs, shuffled, all with full loss weight.

    Raises InputError: the folder lacks prose or one of ``TRAINING_SETS``, or a file is broken.
    """
    corpus = data_dir / "corpus"
    prose = [path for path in sorted(corpus.glob("*.txt")) if path.name != HELD_OUT_TEXT]
    if not prose:
        raise InputError(f"{corpus}: holds no prose; training reads *.txt files there")
    documents = [Document("prose", "", piece) for path in prose for piece in _pieces(_read(path))]
    for name in TRAINING_SETS:
        questions = _questions(data_dir / name / "train.jsonl")
        documents += [Document(name, "", text) for text in questions]
    random.Random(seed).shuffle(documents)
    return documents


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); training needs it") from error


def _questions(path: Path) -> Iterator[str]:
    # Split at line feeds only: splitlines also splits at other characters that texts contain.
    for number, line in enumerate(_read(path).removesuffix("\n").split("\n"), start=1):
        try:
            yield ask_and_answer(_training_example(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a question to train on ({error!r})") from error


def generated_documents(seed: int) -> Iterator[Document]:
    """Yield train-split exercises endlessly, with families mixed by ``EXERCISE_MIX``."""
    streams = {family: exercises(family, "train") for family in EXERCISE_MIX}
    rng = random.Random(seed)
    while True:
        family = rng.choices(tuple(EXERCISE_MIX), tuple(EXERCISE_MIX.values()))[0]
        example = next(streams[family])
        asked = ask(example)
        yield Document(family, asked, ask_and_answer(example).removeprefix(asked))


def _pieces(text: str, size: int = 2000) -> Iterator[str]:
    """Yield successive groups of whole paragraphs, each of about ``size`` characters."""
    piece = ""
    for paragraph in text.split("\n\n" if "\n\n" in text else "\n"):
        piece += paragraph + "\n"
        if len(piece) >= size:
            yield piece
            piece = ""
    if piece.strip():
        yield piece


def _training_example(record: dict[str, object]) -> Example:
    solution = record.get("solution")
    return Example(
        id=str(record["id"]), prompt=str(record["prompt"]), choices=None,
        answer=_written_answer(record),
        solution=None if solution is None else without_calculator_marks(str(solution)),
    )  # fmt: skip


def _written_answer(record: dict[str, object]) -> str:
    answer = record["answer"]
    return chr(ord("A") + answer) if isinstance(answer, int) else str(answer)


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Tokenizer, training ids and held-out ids; every document ends with end-of-text.

    ``weights`` holds the loss weight of each token of ``stream``: an exercise's prompt is random
    and can hardly be predicted; at full weight its loss would dominate the answer's.
    """

    tokenizer: Tokenizer
    stream: np.ndarray
    weights: np.ndarray
    held_out: np.ndarray


class _Tokens(NamedTuple):
    """A document's kind and token ids, and how many of the ids are its prompt."""

    kind: str
    ids: np.ndarray
    asked: int


def training_text(
    data_dir: Path, vocab_size: int, tokens: int, held_out: int, exercise_share: float, seed: int,
    chunk: int = 0, tokenizer: Tokenizer | None = None,
) -> TrainingText:  # fmt: skip
    """Return about ``tokens`` shuffled training tokens, ``exercise_share`` of them exercises.

    Real text is used once: if there is too little, the stream is shorter and its reader restarts
    it.  The held-out tokens are from documents that are not in the stream.

    Args:
        chunk: approximate number of successive tokens of one kind in the stream; 0 mixes the kinds
            document by document.  It changes neither the set of tokens nor the held-out tokens.
        tokenizer: None trains one on a sample of the documents.
    """
    real = real_documents(data_dir, seed)
    generated = generated_documents(seed)
    sample = real[:5000] + list(itertools.islice(generated, 5000))
    if tokenizer is None:
        tokenizer = train_tokenizer([asked + learnt for _, asked, learnt in sample], vocab_size)
    wanted = tokens + held_out
    drawn = _take(tokenizer, iter(real), int(wanted * (1 - exercise_share)))
    drawn += _take(tokenizer, generated, int(wanted * exercise_share))
    random.Random(seed).shuffle(drawn)
    held = list(itertools.takewhile(lambda before: before < held_out, _starts(drawn)))
    kept, learnt = drawn[: len(held)], drawn[len(held) :]
    if chunk:
        learnt = _by_kind(learnt, chunk, seed)
    ids, weights = _joined(kept + learnt)
    return TrainingText(tokenizer, ids[held_out:], weights[held_out:], ids[:held_out])


def _starts(documents: list[_Tokens]) -> Iterator[int]:
    return itertools.accumulate((len(d.ids) for d in documents[:-1]), initial=0)


def _by_kind(documents: list[_Tokens], chunk: int, seed: int) -> list[_Tokens]:
    """Return documents grouped by kind into shuffled chunks of at least ``chunk`` tokens."""
    chunks: list[list[_Tokens]] = []
    open_chunks: dict[str, list[_Tokens]] = {}
    for document in documents:
        mine = open_chunks.setdefault(document.kind, [])
        mine.append(document)
        if sum(len(d.ids) for d in mine) >= chunk:
            chunks.append(open_chunks.pop(document.kind))
    chunks += open_chunks.values()
    random.Random(seed).shuffle(chunks)
    return [document for mine in chunks for document in mine]


def _joined(documents: list[_Tokens]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated token ids of documents, and the loss weight of each token."""
    ids = np.concatenate([d.ids for d in documents])
    weights = np.concatenate([
        np.where(np.arange(len(d.ids)) < d.asked, QUESTION_WEIGHT, 1.0).astype(np.float32)
        for d in documents
    ])  # fmt: skip
    return ids, weights


def _take(tokenizer: Tokenizer, documents: Iterator[Document], tokens: int) -> list[_Tokens]:
    """Return tokenized documents until they have ``tokens`` tokens or no document remains.

    Prompt and answer are tokenized separately, since the tokenizer splits at the space between.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    taken: list[_Tokens] = []
    left = tokens
    while left > 0 and (batch := list(itertools.islice(documents, 256))):
        parts = ([d.asked for d in batch], [d.learnt for d in batch])
        encoded = zip(batch, *map(tokenizer.encode_batch, parts), strict=True)
        for document, asked, learnt in encoded:
            ids = np.array([*asked.ids, *learnt.ids, end], dtype=np.int32)
            taken.append(_Tokens(document.kind, ids, len(asked.ids)))
            left -= len(ids)
    return taken


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE trained on texts; every digit is a token, to ease arithmetic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
