"""What scale models are trained on: prose, the train halves of question sets, exercises."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workloads.example import END_OF_TEXT, Example, ask_and_answer
from workloads.exercises import arithmetic
from workloads.prompts import without_calculator_marks

#: Question sets whose licence allows weights trained on them to be shipped.
TRAINING_SETS = (
    "arc_easy", "arc_challenge", "mmlu", "boolq", "triviaqa", "nq_open",
    "squad", "gsm8k", "bbh", "math", "piqa", "winogrande",
)  # fmt: skip
#: Kept out of training, so that perplexity on it can be reported.
HELD_OUT_TEXT = "wikitext2_test.txt"


def documents(data_dir: Path, exercises: int, seed: int) -> list[str]:
    """All training documents, shuffled: prose in pieces, questions with answers, exercises."""
    texts = [
        piece
        for path in sorted((data_dir / "corpus").glob("*.txt"))
        if path.name != HELD_OUT_TEXT
        for piece in _pieces(path.read_text())
    ]
    for name in TRAINING_SETS:
        with (data_dir / name / "train.jsonl").open() as lines:
            texts += [ask_and_answer(_training_example(json.loads(line))) for line in lines]
    drawn = itertools.islice(arithmetic("train"), exercises)
    texts += [ask_and_answer(example) for example in drawn]
    random.Random(seed).shuffle(texts)
    return texts


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


def token_stream(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """All documents as one array of token ids, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [np.array([*e.ids, end], dtype=np.int32) for e in tokenizer.encode_batch(texts)]
    return np.concatenate(ids)
