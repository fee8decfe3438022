"""Scoring: the value in [0, 1] of a generated text, and the mean score with its standard error.

Each metric is one way to find an answer in a text.  Reference and text are normalised in the same
way, so that ``7.0`` is ``7`` and ``"The Beatles."`` is ``"beatles"``; a text in which no answer is
found is wrong.

- ``exact_number`` (GSM8K): the number after ``####``, else the last number.
- ``choice``: after ``####``, else anywhere, the first single capital letter that names an option.
  A model that repeats the option's text instead of its letter is not credited.
- ``text`` (TriviaQA, SQuAD): the first line, normalised as SQuAD's official script does; right if
  it equals any accepted answer.
- ``exact_text`` (MATH, BIG-Bench Hard): after ``####``, in ``\\boxed{}``, or the first line;
  punctuation and capitals matter (``-3``, ``] ) >``), typesetting and blanks do not.
- ``rouge`` (TruthfulQA, generated): ROUGE-1 and ROUGE-2, the F-measure against the nearest accepted
  answer (Lin 2004, as lm-eval computes it: no stemming).
- ``perplexity`` (plain text): from log-likelihoods; see ``perplexity``.
"""

import math
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moebench.substrate.errors import UsageError
from moebench.workloads.example import END_OF_TEXT, LETTERS, Example
from moebench.workloads.workload import Metric, Workload

_MARK = "####"
# A sign counts only if no term precedes it: "10-3" ends in 3, "= -3" in -3.
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
    """The mean of ``n`` values with its standard error, both in percent.

    For right and wrong answers these are the share of right ones and sqrt(p (1 - p) / n).  If all
    values agree, ``stderr`` is 0, which does not predict the next value.  Perplexity and its error
    are not percentages.
    """

    score: float
    n: int
    stderr: float
    metric: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Rouge:
    """ROUGE scores of a generated text against the accepted and the wrong answers.

    Attributes:
        rouge1, rouge2: F-measure of unigrams and bigrams in [0, 1], of the nearest accepted answer.
        true1, true2: whether that is nearer than every wrong option (lm-eval's ``rouge1_acc``,
            ``rouge2_acc``); None without options.  DAOP's Table VI states their shares: each is a
            multiple of 1/817, TruthfulQA's size.
    """

    rouge1: float
    rouge2: float
    true1: bool | None
    true2: bool | None


def score(values: Iterable[float], metric: Metric) -> Score:
    """Return the score of the examples' values in [0, 1], which ``item_value`` returns."""
    items = [float(value) for value in values]
    if not items:
        raise UsageError("no answers to score; give --prompts 1 or more")
    n = len(items)
    mean = math.fsum(items) / n
    variance = math.fsum((value - mean) ** 2 for value in items) / n
    return Score(score=100 * mean, n=n, stderr=100 * math.sqrt(variance / n), metric=metric)


def perplexity(log_likelihoods: Sequence[float], tokens: Sequence[int]) -> Score:
    """Return perplexity per token over passages: exp(-sum of log-likelihoods / number of tokens).

    ``log_likelihoods`` are in nats, of all counted tokens of each passage.  The standard error
    treats passages as independent: the delta method on a ratio of sums.
    """
    total = sum(tokens)
    if total < 1:
        raise UsageError("no tokens to score; give --prompts 1 or more")
    pairs = list(zip(log_likelihoods, tokens, strict=True))
    per_token = -math.fsum(log_likelihoods) / total
    spread = math.sqrt(math.fsum((-value - per_token * n) ** 2 for value, n in pairs)) / total
    value = math.exp(per_token)
    return Score(score=value, n=len(pairs), stderr=value * spread, metric="perplexity")


def metric_of(workload: Workload, example: Example) -> Metric:
    """Return the metric of one example: BIG-Bench Hard mixes examples with and without options."""
    if workload.scored and workload.metric != "rouge" and example.choices is not None:
        return "choice"
    return workload.metric


def item_value(workload: Workload, example: Example, text: str) -> float:
    """Return the value in [0, 1] of the text that a model generated for an example.

    1.0 or 0.0 for right or wrong, ROUGE-1's F-measure where that is the metric.  A workload without
    reference answers is a `UsageError`.
    """
    metric = metric_of(workload, example)
    if metric == "rouge":
        return rouge(workload, example, text).rouge1
    if metric == "perplexity":
        raise UsageError("plain text has no answers to score; its perplexity needs likelihoods")
    if example.choices is not None:
        found = extract(metric, text, stop=workload.stop, options=len(example.choices))
        return float(found == example.answer_text)
    found = extract(metric, text, stop=workload.stop)
    accepted = {example.answer_text, *(example.answers or ())}
    return float(found != "" and found in {extract(metric, answer) for answer in accepted})


def chance(workload: Workload, examples: Sequence[Example]) -> float | None:
    """Return the expected score of guessing, in percent; None if no example has options.

    Texts and numbers cannot be guessed: an example without options counts as 0.
    """
    without = workload.chance
    options = workload.scored and workload.metric != "rouge"
    if not (options and any(example.choices for example in examples)):
        return without
    shares = [100 / len(e.choices) if e.choices else without or 0.0 for e in examples]
    return sum(shares) / len(shares)


def is_correct(workload: Workload, example: Example, text: str) -> bool:
    """Return whether the generated text has the full value 1."""
    return item_value(workload, example, text) == 1.0


def rouge(workload: Workload, example: Example, text: str) -> Rouge:
    """Return ROUGE-1 and ROUGE-2 of a generated text, which ends at the workload's stop strings."""
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    scorer = RougeScorer(["rouge1", "rouge2"])
    written = cut(text, workload.stop)

    def nearest(references: Iterable[str]) -> tuple[float, float]:
        found = [scorer.score(reference, written) for reference in references]
        best1 = max((one["rouge1"].fmeasure for one in found), default=0.0)
        return best1, max((one["rouge2"].fmeasure for one in found), default=0.0)

    options = example.choices or ()
    right = example.answer if isinstance(example.answer, str) else options[example.answer]
    rouge1, rouge2 = nearest({right, *(example.answers or ())})
    wrong1, wrong2 = nearest(option for option in options if option != right)
    nearer = (rouge1 > wrong1, rouge2 > wrong2) if options else (None, None)
    return Rouge(rouge1=rouge1, rouge2=rouge2, true1=nearer[0], true2=nearer[1])


def extract(metric: Metric, text: str, stop: tuple[str, ...] = (), options: int = 26) -> str:
    """Return the answer in a generated text, normalised for comparison; empty if none is found.

    ``stop`` strings and the end-of-text token end the text; ``options`` is the number of letters,
    from A, that name an option.  A metric that compares no answers is a `UsageError`.
    """
    text = cut(text, stop)
    if metric == "exact_number":
        return _number(text)
    if metric == "choice":
        return _letter(text, LETTERS[:options])
    if metric == "text":
        return _normalised(_first_line(text))
    if metric == "exact_text":
        return _exact_text(text)
    raise UsageError("chat prompts have no reference answers; use a scored workload")


def cut(text: str, stop: tuple[str, ...] = ()) -> str:
    """Return the text before the first stop string or end-of-text token."""
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
    """Return one spelling for each value: 007, 7.0 and 7. are 7; -0 is 0."""
    whole = found["whole"].replace(",", "").lstrip("0") or "0"
    part = (found["part"] or "").rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return f"-{value}" if found["sign"] and value != "0" else value


def _letter(text: str, options: str) -> str:
    _, mark, final = text.partition(_MARK)
    for found in _LETTER.finditer(final if mark else text):
        letter = found[1]
        if letter in options and not (letter in "AI" and _PROSE.match(text, found.end())):
            return letter
    return ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].strip()


def _normalised(line: str) -> str:
    """Apply SQuAD's normalisation; a line of which it would remove all ("The The") is kept."""
    lower = line.lower()
    words = _ARTICLES.sub(" ", lower.translate(_PUNCTUATION)).split()
    return " ".join(words or lower.split())


def _exact_text(text: str) -> str:
    text = text.split(_MARK)[1] if _MARK in text else boxed(text) or text
    bare = _TYPESETTING.sub("", _first_line(text)).removesuffix(".")
    return re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", bare)


def boxed(text: str) -> str:
    """Return the content of the first ``\\boxed{...}`` with inner braces; empty without one."""
    _, opening, rest = text.partition("\\boxed{")
    depth = 1 if opening else 0
    for at, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[:at]
    return ""
