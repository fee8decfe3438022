"""A run's accuracy, worked out by hand on distributions of two tokens."""

import math
from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from moebench.harness.run.accuracy import Accuracy
from moebench.substrate.models.shared import SharedWork
from moebench.workloads.catalogue import workload
from moebench.workloads.example import Example

LN3 = math.log(3)
#: KL(p‖q) of p = (1/2, 1/2) against q = (3/4, 1/4); the other way round it is 0.1308.
KL = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)


SUM = Example(id="s", prompt="Two and two?", choices=None, answer="4")


class KnownModel:
    """Stands for the lossless model: logits as it was told, and it remembers the texts."""

    def __init__(self, logits: list[Tensor]) -> None:
        self.logits = logits
        self.texts: list[list[int]] = []

    def lossless(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Tensor]:
        self.texts = [list(text) for text in texts]
        pairs = zip(self.logits, starts, strict=True)
        return [logits[start:].log_softmax(-1) for logits, start in pairs]


def accuracy(questions: int = 1) -> Accuracy:
    return Accuracy(workload("arithmetic"), [SUM] * questions)


def compare(
    found: Accuracy, model: KnownModel, prompts: list[list[int]], tokens: list[list[int]],
    own: list[Tensor],
) -> None:  # fmt: skip
    found.compare(slice(0, len(prompts)), cast(SharedWork, model), prompts, tokens, own)


def test_agreement_and_kl() -> None:
    prompt, tokens = [7, 8, 9], [0, 1, 0]
    even, first, second = [0.0, 0.0], [LN3, 0.0], [0.0, LN3]
    # The lossless model on prompt + two tokens; only the last two rows stand for decoded steps.
    model = KnownModel([torch.tensor([second, second, second, even, first])])
    own = [torch.tensor([first]), torch.tensor([first]), torch.tensor([first])]
    found = accuracy()
    compare(found, model, [prompt], [tokens], own)
    assert model.texts == [[7, 8, 9, 0, 1]]
    document = found.document()
    # Step 1: (1/2, 1/2) against (3/4, 1/4), both choose token 0; step 2: equal.
    assert document["agreement"] == 1
    assert document["kl"] == pytest.approx(KL / 2, abs=1e-6)


def test_agreement_counts_choices() -> None:
    first, second = [LN3, 0.0], [0.0, LN3]
    model = KnownModel([torch.tensor([first] * 4)])
    own = [torch.tensor([row]) for row in (second, first, second, first)]
    found = accuracy()
    compare(found, model, [[5]], [[0, 0, 0, 0]], own)
    document = found.document()
    assert document["agreement"] == round(2 / 3, 6)
    # KL of (3/4, 1/4) against (1/4, 3/4), once in three steps.
    assert document["kl"] == pytest.approx(0.5 * LN3 / 3, abs=1e-6)


def test_sequences_of_a_batch_keep_their_own_prompts() -> None:
    first, second = [LN3, 0.0], [0.0, LN3]
    # Prompts of one and three tokens: rows 1 and 3 are the first decoded steps.
    model = KnownModel([torch.tensor([second, first]), torch.tensor([first] * 3 + [second])])
    own = [torch.tensor([first, first]), torch.tensor([first, second])]
    found = accuracy(questions=2)
    compare(found, model, [[1], [2, 3, 4]], [[0, 0], [0, 1]], own)
    assert model.texts == [[1, 0], [2, 3, 4, 0]]
    assert found.document()["agreement"] == 1
    assert found.document()["kl"] == 0


def test_shifted_logits_are_the_same_distribution() -> None:
    model = KnownModel([torch.tensor([[0.0, 0.0], [LN3, 0.0]])])
    found = accuracy()
    own = [torch.zeros(1, 2), torch.tensor([[LN3 + 50, 50.0]])]
    compare(found, model, [[1]], [[0, 0]], own)
    assert found.document()["kl"] == pytest.approx(0, abs=1e-5)


def test_without_a_decoded_token_there_is_nothing_to_compare() -> None:
    model = KnownModel([])
    found = accuracy()
    compare(found, model, [[1]], [[0]], [torch.zeros(1, 2)])
    document = found.document()
    assert model.texts == []
    assert (document["agreement"], document["kl"]) == (None, None)


def test_scores() -> None:
    found = accuracy(questions=4)
    found.answered(slice(0, 1), [[1]], [1.0])
    found.answered(slice(1, 4), [[1], [2], [3]], [1.0, 1.0, 0.0])
    document = found.document()
    assert (document["score"], document["n"], document["metric"]) == (75, 4, "exact_number")
    # A share of 3/4 over four answers: √(3/16 / 4), in per cent.
    assert document["stderr"] == round(100 * math.sqrt(0.1875 / 4), 4)


def test_a_chat_workload_has_no_score() -> None:
    found = Accuracy(workload("mt_bench"), [SUM])
    found.answered(slice(0, 1), [[1, 2]], None)
    document = found.document()
    assert (document["score"], document["n"], document["stderr"]) == (None, 0, None)
    assert document["metric"] == "none"


def test_a_sequence_that_ended_early_counts_only_its_own_steps() -> None:
    first, second = [LN3, 0.0], [0.0, LN3]
    model = KnownModel([torch.tensor([first] * 3), torch.tensor([first] * 2)])
    own = [torch.tensor(step) for step in ([first, first], [first, first], [first, second])]
    found = accuracy(questions=2)
    compare(found, model, [[1], [2]], [[0, 0, 0], [0, 0]], own)
    assert model.texts == [[1, 0, 0], [2, 0]]
    assert found.document()["items"]["decoded"] == [2, 1]
    assert found.document()["agreement"] == 1


def test_each_question_keeps_its_own_record() -> None:
    found = accuracy(questions=3)
    found.answered(slice(0, 2), [[1, 2], [3]], [1.0, 0.0])
    found.answered(slice(2, 3), [[1, 2]], [1.0])
    document = found.document()
    assert (document["score"], document["n"]) == (pytest.approx(200 / 3, abs=1e-4), 3)
    answers = document["items"]["answer"]
    assert answers[0] == answers[2] != answers[1]


def test_plain_text_has_a_perplexity() -> None:
    found = Accuracy(workload("text"), [SUM] * 2)
    found.read(slice(0, 2), [-4 * LN3, -2 * LN3], [4, 2])
    document = found.document()
    assert document["score"] == pytest.approx(3)
    assert (document["stderr"], document["metric"]) == (pytest.approx(0, abs=1e-4), "perplexity")


def test_an_answer_is_cut_that_reached_its_length_without_an_end() -> None:
    found = accuracy(questions=3)
    texts = ["It is 4", "It is 4\nQuestion: Five and", "It is"]
    found.replied(slice(0, 3), [[1], [2], [3]], [SUM] * 3, texts, [True, False, False])
    document = found.document()
    # The second went on to a new question, which is where an answer ends.
    assert document["cut"] == 1
    assert document["items"]["value"] == [1.0, 1.0, 0.0]


def test_answers_in_own_words_have_rouge_of_words_and_of_pairs() -> None:
    """ "the earth is round" holds 3 of "the earth is flat"'s 4 words, and 2 of its 3 pairs."""
    question = Example(id="t", prompt="Is it flat?", choices=None, answer="the earth is round")
    found = Accuracy(workload("truthfulqa_gen"), [question] * 2)
    texts = ["the earth is flat", "the earth is round"]
    for at, text in enumerate(texts):
        found.replied(slice(at, at + 1), [[at]], [question], [text], [True])
    assert [one.rouge1 for one in found.rouges] == pytest.approx([3 / 4, 1])
    assert [one.rouge2 for one in found.rouges] == pytest.approx([2 / 3, 1])
    assert found.document()["items"]["value"] == pytest.approx([3 / 4, 1.0])


def test_what_is_not_written_is_not_cut() -> None:
    found = accuracy()
    found.answered(slice(0, 1), [[1]], [1.0])
    assert found.document()["cut"] is None
