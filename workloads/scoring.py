"""From a model's text to right or wrong, and from many of those to a score with its error.

Each metric is one way to find an answer in a text.  Reference and text go through the same
normalisation, so that ``7.0`` is ``7`` and ``"The Beatles."`` is ``"beatles"``; a text in which no
answer is found is wrong.

- ``exact_number`` (GSM8K): the number after ``####``, else the last number.
- ``choice``: the first capital letter that stands alone and names an option.  A model that repeats
  the option's text instead of its letter is not credited.
- ``text`` (TriviaQA, SQuAD): the first line, normalised as SQuAD's official script does; right if
  it equals any accepted answer.
- ``exact_text`` (MATH, BIG-Bench Hard): after ``####``, in ``\\boxed{}``, or the first line;
  punctuation and capitals count there (``-3``, ``] ) >``), typesetting and blanks do not.
"""

import math
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass

from substrate.errors import UsageError
from workloads.catalogue import Metric, Workload
from workloads.example import END_OF_TEXT, Example

_MARK = "####"
# A sign counts only where no term stands before it: "10-3" ends in 3, "= -3" in -3.
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)])-)?\$?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:\.(?P<part>[0-9]+))?"
)
_LETTER = re.compile(r"(?<![A-Za-z0-9])([A-Z])(?!['\u2019]?[A-Za-z0-9])")
# "A dog" and "I think" are English; "A is right" and "A because ..." answer the question.
_PROSE = re.compile(r" (?!(?:is|and|or|because|since|as)\b)[a-z]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2018\u2019\u00b4\u201c\u201d")
_TYPESETTING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;: ]|\\?\$|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A share of right answers: ``score`` and its standard error ``stderr`` in percent.

    ``stderr`` is that of a proportion, sqrt(p (1 - p) / n); it is 0 when all ``n`` answers agree,
    which says nothing about the next one.
    """

    score: float
    n: int
    stderr: float
    metric: Metric


def score(flags: Iterable[bool], metric: Metric) -> Score:
    """The score of answers that were right (``True``) or wrong.

    Raises:
        UsageError: there are none, so there is no share.
    """
    marks = [bool(flag) for flag in flags]
    if not marks:
        raise UsageError("no answers to score; give --prompts 1 or more")
    p, n = sum(marks) / len(marks), len(marks)
    return Score(score=100 * p, n=n, stderr=100 * math.sqrt(p * (1 - p) / n), metric=metric)


def metric_of(workload: Workload, example: Example) -> Metric:
    """How this question is scored: BIG-Bench Hard mixes questions with and without options."""
    if workload.scored and example.choices is not None:
        return "choice"
    return workload.metric


def is_correct(workload: Workload, example: Example, text: str) -> bool:
    """Whether what the model wrote after the prompt answers the question.

    Raises:
        UsageError: the workload has no reference answers.
    """
    metric = metric_of(workload, example)
    if example.choices is not None:
        found = extract(metric, text, stop=workload.stop, options=len(example.choices))
        return found == example.answer_text
    found = extract(metric, text, stop=workload.stop)
    accepted = {example.answer_text, *(example.answers or ())}
    return found != "" and found in {extract(metric, answer) for answer in accepted}


def extract(metric: Metric, text: str, stop: tuple[str, ...] = (), options: int = 26) -> str:
    """The answer in a model's text, normalised for comparison; empty where none is found.

    ``stop`` strings and the end-of-text token end the text; ``options`` is how many letters, from
    A, name an option.

    Raises:
        UsageError: the metric is "none": there is nothing to compare with.
    """
    text = cut(text, stop)
    if metric == "exact_number":
        return _number(text)
    if metric == "choice":
        return _letter(text, string.ascii_uppercase[:options])
    if metric == "text":
        return _normalised(_first_line(text))
    if metric == "exact_text":
        return _exact_text(text)
    raise UsageError("chat prompts have no reference answers; use a scored workload")


def cut(text: str, stop: tuple[str, ...] = ()) -> str:
    """The text before the first stop string or end-of-text token."""
    for end in (*stop, END_OF_TEXT):
        text = text.split(end, 1)[0]
    return text


def _number(text: str) -> str:
    text = text.replace("\u2212", "-")  # the typeset minus sign
    for tail in text.split(_MARK)[1:]:
        if found := _NUMBER.search(tail.split("\n")[0]):
            return _canonical(found)
    numbers = list(_NUMBER.finditer(text))
    return _canonical(numbers[-1]) if numbers else ""


def _canonical(found: re.Match[str]) -> str:
    """One spelling for each value: 007, 7.0 and 7. are 7; -0 is 0."""
    whole = found["whole"].replace(",", "").lstrip("0") or "0"
    part = (found["part"] or "").rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return f"-{value}" if found["sign"] and value != "0" else value


def _letter(text: str, options: str) -> str:
    for found in _LETTER.finditer(text):
        letter = found[1]
        if letter in options and not (letter in "AI" and _PROSE.match(text, found.end())):
            return letter
    return ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].strip()


def _normalised(line: str) -> str:
    """SQuAD's normalisation; an answer made only of what it removes ("The The") stays itself."""
    lower = line.lower()
    words = _ARTICLES.sub(" ", lower.translate(_PUNCTUATION)).split()
    return " ".join(words or lower.split())


def _exact_text(text: str) -> str:
    text = text.split(_MARK)[1] if _MARK in text else _boxed(text) or text
    bare = _TYPESETTING.sub("", _first_line(text)).removesuffix(".")
    return re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", bare)


def _boxed(text: str) -> str:
    """What stands in the first ``\\boxed{...}``, inner braces included; empty without one."""
    _, opening, rest = text.partition("\\boxed{")
    depth = 1 if opening else 0
    for at, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[:at]
    return ""
