"""Scoring on hand-computed cases: extracted answers, scores and standard errors."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.workloads.catalogue import workload, workload_names
from moebench.workloads.draw import load
from moebench.workloads.example import END_OF_TEXT, Example, ask, ask_and_answer
from moebench.workloads.scoring import (
    chance,
    cut,
    extract,
    is_correct,
    item_value,
    metric_of,
    perplexity,
    rouge,
    score,
)
from moebench.workloads.workload import Metric


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", "1234"),
        ("#### 1,234,567", "1234567"),
        ("That makes $18.", "18"),
        ("$18.00", "18"),
        ("-3", "-3"),
        ("-$3", "-3"),
        ("$-3", "-3"),
        ("\u22123 degrees", "-3"),
        ("He has 10-3", "3"),
        ("(10)-3", "3"),
        ("10 - 3 = 7. 7 * 2 = 14.", "14"),
        ("5 - 8 = -3.", "-3"),
        ("7.0", "7"),
        ("7", "7"),
        ("7.", "7"),
        ("007", "7"),
        ("-0.0", "0"),
        ("0.50", "0.5"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("1,2,3", "3"),
        ("12,34", "34"),
        ("in 3, 4 and 5,", "5"),
        ("65%", "65"),
        ("3 apples", "3"),
        ("no number", ""),
        ("", ""),
        ("#### 5\n\n#### 6", "5"),
        ("20 + 2 = 22.\n#### 22 of 40", "22"),
        ("9 left\n#### none", "9"),
        ("9\n####\n#### 8", "8"),
        ("#### ", ""),
        (f"#### 12{END_OF_TEXT}Question: 99", "12"),
    ],
)
def test_exact_number(text: str, number: str) -> None:
    assert extract("exact_number", text) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (" B", "B"),
        ("B. no", "B"),
        ("(C)", "C"),
        ("**D**", "D"),
        ("The answer is B.", "B"),
        ("答案是C。", "C"),
        ("【答案】D<eoa>", "D"),
        ("Because A is wrong", "A"),
        ("A because B is wrong", "A"),
        ("A dog barks, so B", "B"),
        ("I think C", "C"),
        ("I'm sure: D", "D"),
        ("E or B", "B"),
        ("no letter", ""),
        ("b", ""),
        ("ABC", ""),
        ("42", ""),
        ("", ""),
        ("\n\nA", "A"),
    ],
)
def test_choice_among_four(text: str, letter: str) -> None:
    assert extract("choice", text, options=4) == letter


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" The Beatles.\nThey were", "beatles"),
        ("a  Tale of  two CITIES!", "tale of two cities"),
        ("\u2018Tis", "tis"),
        ("Gretzky, Wayne", "gretzky wayne"),
        ("The The", "the the"),
        ("?", "?"),
        ("\n\nParis\nFrance", "paris"),
        ("another theme", "another theme"),
        (" ", ""),
    ],
)
def test_text(text: str, answer: str) -> None:
    assert extract("text", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" True\nfalse", "True"),
        ("] ) >", "])>"),
        ("-15", "-15"),
        (r"\boxed{\dfrac{1}{2}} is it", r"\frac{1}{2}"),
        (r"so it is $\boxed{3}$", "3"),
        (r"\boxed{ {1, 2} ", r"\boxed{{1,2}"),
        (r"2 + 2 = 4.\n#### $\tfrac34$.".replace(r"\n", "\n"), r"\frac34"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"\leftarrow", r"\leftarrow"),
        (r"14,\!400", "14,400"),
        (r"\$0.50", "0.50"),
        ("", ""),
    ],
)
def test_exact_text(text: str, answer: str) -> None:
    assert extract("exact_text", text) == answer


def test_stop_strings_and_the_end_of_text_cut() -> None:
    text = f" 7\nQuestion: how many? 8{END_OF_TEXT}9"
    assert cut(text) == " 7\nQuestion: how many? 8"
    assert cut(text, ("\nQuestion:",)) == " 7"
    assert cut(text, ("how", "\nQ", " 7")) == ""
    assert extract("exact_number", text) == "8"
    assert extract("exact_number", text, ("\nQuestion:",)) == "7"


def question(answer: str | int, **fields: tuple[str, ...]) -> Example:
    if isinstance(answer, int):
        fields.setdefault("choices", ("w", "x", "y", "z"))
    return Example(
        id="q", prompt="?", choices=fields.get("choices"), answer=answer,
        answers=fields.get("answers"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "example", "text", "right"),
    [
        ("gsm8k", question("18"), " 9 * 2 = 18.\n#### $18.00", True),
        ("gsm8k", question("18"), " 18 apples\n\nQuestion: and 3?", True),
        ("gsm8k", question("18"), " 18 - 1 = 17", False),
        ("gsm8k", question("1,234"), "1234", True),
        ("gsm8k", question("3"), "-3", False),
        ("gsm8k", question("7"), "no idea", False),
        ("gsm8k", question("none"), "no idea", False),
        ("mmlu", question(1), " B", True),
        ("mmlu", question(1), " x", False),
        ("mmlu", question(1), " C, not B", False),
        ("mmlu", question(1), "", False),
        ("triviaqa", question("Wayne Gretzky", answers=("Wayne Gretzky", "Gretzky")),
         "the gretzky.", True),
        ("triviaqa", question("The", answers=("The",)), "", False),
        ("triviaqa", question("Paris"), "Paris, France", False),
        ("bbh", question(2), "(C)", True),
        ("bbh", question("] ) >"), " ] ) >", True),
        ("bbh", question("] ) >"), " ] ) )", False),
        ("math", question(r"\frac{1}{2}"), r"\boxed{\dfrac{1}{2}}", True),
        ("math", question("-3"), "3", False),
    ],
)  # fmt: skip
def test_is_correct(name: str, example: Example, text: str, right: bool) -> None:
    assert is_correct(workload(name), example, text) is right


def test_a_question_with_options_is_scored_by_its_letter() -> None:
    assert metric_of(workload("bbh"), question(0)) == "choice"
    assert metric_of(workload("bbh"), question("True")) == "exact_text"


def test_letters_beyond_the_options_do_not_count() -> None:
    two, three = (
        Example(id="e", prompt="?", choices=("one", "two", "three")[:n], answer=1) for n in (2, 3)
    )
    assert [item_value(workload("boolq"), one, " C B") for one in (two, three)] == [1.0, 0.0]


def test_a_chat_set_has_nothing_to_score() -> None:
    assert not workload("alpaca").scored
    with pytest.raises(UsageError, match="no reference answers"):
        is_correct(workload("alpaca"), question("x"), "x")


def test_a_score_by_hand() -> None:
    result = score([True, False, False, False], "choice")
    assert (result.score, result.n, result.metric) == (25.0, 4, "choice")
    assert result.stderr == pytest.approx(100 * math.sqrt(0.25 * 0.75 / 4))
    sure = score([True] * 5, "text")
    assert (sure.score, sure.stderr) == (100.0, 0.0)


def test_no_answers_have_no_score() -> None:
    with pytest.raises(UsageError, match="no answers to score"):
        score([], "choice")


@given(st.lists(st.booleans(), min_size=1))
def test_a_score_is_a_share_with_the_error_of_a_proportion(flags: list[bool]) -> None:
    result = score(iter(flags), "choice")
    p = sum(flags) / len(flags)
    assert result.stderr == pytest.approx(100 * math.sqrt(p * (1 - p) / len(flags)), abs=1e-9)
    assert result.score == pytest.approx(100 * sum(flags) / len(flags))
    assert 0 <= result.stderr <= 50 / math.sqrt(len(flags)) + 1e-9


def test_a_mean_of_values_has_the_standard_error_of_a_mean() -> None:
    result = score([0.2, 0.4, 0.9], "rouge")
    assert result.score == pytest.approx(50.0)
    assert result.stderr == pytest.approx(100 * math.sqrt((0.09 + 0.01 + 0.16) / 3 / 3))


OWN_WORDS = Example(
    id="t", prompt="What happens?", choices=("You die quickly.", "Nothing at all happens."),
    answer=1, answers=("Nothing at all happens.", "You digest it."),
)  # fmt: skip


@pytest.mark.slow
def test_rouge_by_hand() -> None:
    """Two of its two and of the reference's four words are shared, but no pair of neighbours."""
    entry = workload("truthfulqa_gen")
    found = rouge(entry, OWN_WORDS, " Nothing happens.\nQuestion: You digest it?")
    assert found.rouge1 == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    assert found.rouge2 == 0.0
    assert (found.true1, found.true2) == (True, False)
    assert item_value(entry, OWN_WORDS, " Nothing happens.") == found.rouge1
    assert not is_correct(entry, OWN_WORDS, " Nothing happens.")


def test_rouge_takes_the_nearest_accepted_answer_and_sees_the_wrong_one() -> None:
    entry = workload("truthfulqa_gen")
    digest = rouge(entry, OWN_WORDS, "you DIGEST it")
    assert (digest.rouge1, digest.rouge2, digest.true1, digest.true2) == (1.0, 1.0, True, True)
    die = rouge(entry, OWN_WORDS, "You die")
    assert die.rouge1 == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert (die.true1, die.true2) == (False, False)
    assert item_value(entry, OWN_WORDS, "") == 0.0
    free = rouge(entry, question("Nothing at all"), "nothing")
    assert free.rouge1 == pytest.approx(0.5)
    assert free.true1 is None


def test_perplexity_by_hand() -> None:
    """Every token at probability 1/8: perplexity 8, whatever the passages' lengths."""
    even = perplexity([-3 * math.log(8), -5 * math.log(8)], [3, 5])
    assert even.score == pytest.approx(8)
    assert (even.n, even.metric) == (2, "perplexity")
    assert even.stderr == pytest.approx(0, abs=1e-9)
    uneven = perplexity([-math.log(2) * 4, -math.log(8) * 4], [4, 4])
    assert uneven.score == pytest.approx(4)
    # Mean of two equally long passages: ln 2 and ln 8 per token, half their distance from ln 4.
    assert uneven.stderr == pytest.approx(4 * math.log(2) / math.sqrt(2))
    with pytest.raises(UsageError, match="no tokens to score"):
        perplexity([], [])


def test_plain_text_has_no_answers() -> None:
    assert not workload("text").scored
    with pytest.raises(UsageError, match="perplexity needs likelihoods"):
        item_value(workload("text"), question("x"), "x")


METRICS = st.sampled_from(["exact_number", "choice", "text", "exact_text"])


@given(METRICS, st.text())
def test_any_text_can_be_read(metric: Metric, text: str) -> None:
    assert isinstance(extract(metric, text), str)


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", ".0", ".", ".00"]), st.booleans())
def test_one_number_in_every_spelling(value: int, tail: str, grouped: bool) -> None:
    spelled = f"{value:,}" if grouped else str(value)
    assert extract("exact_number", f"so #### ${spelled}{tail}") == str(value)


def test_every_reference_answer_is_right_by_its_own_metric(data_dir: Path) -> None:
    """What a perfect model trained on our documents writes must score 100 % everywhere."""
    for name in workload_names():
        if name == "orca_math":  # not in the data folder
            continue
        entry = workload(name)
        for split in ("test", "train") if entry.train_split_available else ("test",):
            for example in load(entry, split, data_dir=data_dir).examples if entry.scored else ():
                written = ask_and_answer(example).removeprefix(ask(example))
                if entry.metric == "rouge" and example.answers:
                    written = example.answers[-1]
                assert is_correct(entry, example, written), example.id


def test_a_worked_solutions_letters_do_not_count() -> None:
    assert extract("choice", " 24 - 5 = 19. A 9. B 29. C 19.\n#### C", options=4) == "C"
    assert extract("choice", " A 9. B 19.", options=4) == "A"
    assert extract("choice", " A 9.\n####", options=4) == ""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("boolq", [2, 2], 50.0),
        ("mmlu", [4, 2], 37.5),  # the mean over the examples
        ("bbh", [None, 2], 25.0),  # two kinds: a text cannot be guessed
        ("arithmetic", [None, None], None),
        ("truthfulqa_gen", [4, 4], None),  # its answers are generated
        ("text", [None], None),
    ],
)
def test_what_guessing_scores(name, options, expected):
    examples = [
        Example(id="e", prompt="?", choices=n and tuple("abcd"[:n]), answer=0 if n else "x")
        for n in options
    ]
    assert chance(workload(name), examples) == expected


def test_a_family_whose_options_stand_in_its_text_says_its_chance():
    facts = workload("facts")
    assert chance(facts, [Example(id="e", prompt="?", choices=None, answer="x")]) == 25.0
