"""From a model's text to a value in [0, 1], and from many of those to a score with its error.

Each metric is one way to find an answer in a text.  Reference and text go through the same
normalisation, so that ``7.0`` is ``7`` and ``"The Beatles."`` is ``"beatles"``; a text in which no
answer is found is wrong.

- ``exact_number`` (GSM8K): the number after ``####``, else the last number.
- ``choice``: after ``####``, else anywhere, the first capital letter that stands alone and names an
  option.  A model that repeats the option's text instead of its letter is not credited.
- ``text`` (TriviaQA, SQuAD): the first line, normalised as SQuAD's official script does; right if
  it equals any accepted answer.
- ``exact_text`` (MATH, BIG-Bench Hard): after ``####``, in ``\\boxed{}``, or the first line;
  punctuation and capitals count there (``-3``, ``] ) >``), typesetting and blanks do not.
- ``rouge`` (TruthfulQA in own words): ROUGE-1 and ROUGE-2, the F-measure against the nearest of the
  accepted answers (Lin 2004, as lm-eval computes it: no stemming).
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
    """The mean of ``n`` values with its standard error, both in percent.

    For right and wrong answers that is the share of right ones and sqrt(p (1 - p) / n).  ``stderr``
    is 0 when all values agree, which says nothing about the next one.  A perplexity is no
    percentage: it and its error are as they are.
    """

    score: float
    n: int
    stderr: float
    metric: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Rouge:
    """How near a text is to the accepted answers.

    Attributes:
        rouge1, rouge2: F-measure of unigrams and bigrams in [0, 1], of the nearest accepted answer.
        true1, true2: whether that is nearer than every wrong option (lm-eval's ``rouge1_acc``,
            ``rouge2_acc``); None for a question without options.  DAOP's Table VI holds their
            shares: each is a multiple of 1/817, TruthfulQA's size.
    """

    rouge1: float
    rouge2: float
    true1: bool | None
    true2: bool | None


def score(values: Iterable[float], metric: Metric) -> Score:
    """The score of per-question values in [0, 1], as ``item_value`` gives them.

    Raises:
        UsageError: there are none, so there is no mean.
    """
    items = [float(value) for value in values]
    if not items:
        raise UsageError("no answers to score; give --prompts 1 or more")
    n = len(items)
    mean = math.fsum(items) / n
    variance = math.fsum((value - mean) ** 2 for value in items) / n
    return Score(score=100 * mean, n=n, stderr=100 * math.sqrt(variance / n), metric=metric)


def perplexity(log_likelihoods: Sequence[float], tokens: Sequence[int]) -> Score:
    """Perplexity per token over passages: exp(-sum of log-likelihoods / number of tokens).

    Args:
        log_likelihoods: of each passage, in nats.
        tokens: how many tokens of each passage were counted.

    The standard error treats passages as independent: the delta method on a ratio of sums.

    Raises:
        UsageError: no tokens were counted.
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
    """How this question is scored: BIG-Bench Hard mixes questions with and without options."""
    if workload.scored and workload.metric != "rouge" and example.choices is not None:
        return "choice"
    return workload.metric


def item_value(workload: Workload, example: Example, text: str) -> float:
    """What the text that a model wrote after the prompt is worth.

    1.0 or 0.0 for right or wrong, ROUGE-1's F-measure where that is the metric.

    Raises:
        UsageError: the workload has no reference answers.
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
    """What guessing scores on these questions, in percent; None where none has options.

    Nobody guesses a text or a number: a question without options is worth 0.
    """
    without = workload.chance
    options = workload.scored and workload.metric != "rouge"
    if not (options and any(example.choices for example in examples)):
        return without
    shares = [100 / len(e.choices) if e.choices else without or 0.0 for e in examples]
    return sum(shares) / len(shares)


def is_correct(workload: Workload, example: Example, text: str) -> bool:
    """Whether what the model wrote is worth a full point.

    Raises:
        UsageError: the workload has no reference answers.
    """
    return item_value(workload, example, text) == 1.0


def rouge(workload: Workload, example: Example, text: str) -> Rouge:
    """ROUGE-1 and ROUGE-2 of what a model wrote; its text ends at the workload's stop strings."""
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
    return Rouge(
        rouge1=rouge1,
        rouge2=rouge2,
        true1=rouge1 > wrong1 if options else None,
        true2=rouge2 > wrong2 if options else None,
    )


def extract(metric: Metric, text: str, stop: tuple[str, ...] = (), options: int = 26) -> str:
    """The answer in a model's text, normalised for comparison; empty where none is found.

    ``stop`` strings and the end-of-text token end the text; ``options`` is how many letters, from
    A, name an option.

    Raises:
        UsageError: the metric compares no extracted answer.
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
    _, mark, final = text.partition(_MARK)
    for found in _LETTER.finditer(final if mark else text):
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
    text = text.split(_MARK)[1] if _MARK in text else boxed(text) or text
    bare = _TYPESETTING.sub("", _first_line(text)).removesuffix(".")
    return re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", bare)


def boxed(text: str) -> str:
    """What stands in the first ``\\boxed{...}``, inner braces included; empty without one."""
    _, opening, rest = text.partition("\\boxed{")
    depth = 1 if opening else 0
    for at, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[:at]
    return ""
