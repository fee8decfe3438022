"""What scale models are trained on: prose, the train halves of question sets, exercises."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from substrate.errors import InputError
from workloads.example import END_OF_TEXT, Example, ask_and_answer
from workloads.exercises import exercises
from workloads.prompts import without_calculator_marks

#: Question sets whose licence allows weights trained on them to be shipped.
TRAINING_SETS = (
    "arc_easy", "arc_challenge", "mmlu", "boolq", "triviaqa", "nq_open",
    "squad", "gsm8k", "bbh", "math", "piqa", "winogrande",
)  # fmt: skip
#: How often each exercise family is drawn: arithmetic takes the most practice.
EXERCISE_MIX = {"arithmetic": 32, "equations": 26, "facts": 14, "passages": 16, "inflection": 12}
#: Kept out of training, so that perplexity on it can be reported.
HELD_OUT_TEXT = "wikitext2_test.txt"


def real_documents(data_dir: Path, seed: int) -> list[str]:
    """Prose in pieces and questions with their answers, shuffled.

    Raises:
        InputError: the folder lacks prose or one of ``TRAINING_SETS``, or a file is broken.
    """
    corpus = data_dir / "corpus"
    prose = [path for path in sorted(corpus.glob("*.txt")) if path.name != HELD_OUT_TEXT]
    if not prose:
        raise InputError(f"{corpus}: holds no prose; training reads *.txt files there")
    texts = [piece for path in prose for piece in _pieces(_read(path))]
    for name in TRAINING_SETS:
        texts += _questions(data_dir / name / "train.jsonl")
    random.Random(seed).shuffle(texts)
    return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); training needs it") from error


def _questions(path: Path) -> Iterator[str]:
    # By line feeds alone: splitlines also cuts at characters that texts hold.
    for number, line in enumerate(_read(path).removesuffix("\n").split("\n"), start=1):
        try:
            yield ask_and_answer(_training_example(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a question to train on ({error!r})") from error


def generated_documents(seed: int) -> Iterator[str]:
    """Exercises of the train split without end, the families mixed as ``EXERCISE_MIX`` says."""
    streams = {family: exercises(family, "train") for family in EXERCISE_MIX}
    rng = random.Random(seed)
    while True:
        family = rng.choices(tuple(EXERCISE_MIX), tuple(EXERCISE_MIX.values()))[0]
        yield ask_and_answer(next(streams[family]))


def _pieces(text: str, size: int = 2000) -> Iterator[str]:
    """Runs of whole paragraphs of about ``size`` characters."""
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
        id=str(record["id"]),
        prompt=str(record["prompt"]),
        choices=None,
        answer=_written_answer(record),
        solution=None if solution is None else without_calculator_marks(str(solution)),
    )


def _written_answer(record: dict[str, object]) -> str:
    answer = record["answer"]
    return chr(ord("A") + answer) if isinstance(answer, int) else str(answer)


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The tokenizer, and the training and held-out token ids, documents closed by end-of-text."""

    tokenizer: Tokenizer
    stream: np.ndarray
    held_out: np.ndarray


def training_text(
    data_dir: Path, vocab_size: int, tokens: int, held_out: int, exercise_share: float, seed: int
) -> TrainingText:
    """About ``tokens`` training tokens, ``exercise_share`` of them exercises, shuffled.

    Real text is taken once: where it does not reach, the stream is shorter and its reader starts
    again.  The held-out tokens come from documents that are not in the stream.
    """
    real, generated = real_documents(data_dir, seed), generated_documents(seed)
    sample = real[:5000] + list(itertools.islice(generated, 5000))
    tokenizer = train_tokenizer(sample, vocab_size)
    wanted = tokens + held_out
    drawn = _take(tokenizer, iter(real), int(wanted * (1 - exercise_share)))
    drawn += _take(tokenizer, generated, int(wanted * exercise_share))
    random.Random(seed).shuffle(drawn)
    ids = np.concatenate(drawn)
    return TrainingText(tokenizer, stream=ids[held_out:], held_out=ids[:held_out])


def _take(tokenizer: Tokenizer, texts: Iterator[str], tokens: int) -> list[np.ndarray]:
    """Documents as ids until there are ``tokens`` of them, or no more texts."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    taken: list[np.ndarray] = []
    left = tokens
    while left > 0 and (batch := list(itertools.islice(texts, 256))):
        for encoding in tokenizer.encode_batch(batch):
            taken.append(np.array([*encoding.ids, end], dtype=np.int32))
            left -= len(taken[-1])
    return taken


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE that keeps digits apart, so that arithmetic can be learned."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
