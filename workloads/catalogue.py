"""Catalogue of workloads, with each paper's number of few-shot examples.

A score is comparable only at the same number of few-shot examples, and the papers differ:
``few_shot_of`` returns each paper's count.  ``max_new_tokens`` limits a scored answer; a run that
measures latency sets its own limit.
"""

from typing import Any

from moebench.substrate.errors import UnknownNameError
from moebench.workloads.exercises import FAMILIES
from moebench.workloads.workload import Category, Likelihood, Metric, Paper, Workload

#: Default workload of a run: generated, so that it is the same everywhere.
DEFAULT_WORKLOAD = "passages"


def workload(name: str) -> Workload:
    """Return the workload with this name, or raise `UnknownNameError`."""
    if name not in _CATALOGUE:
        raise UnknownNameError("workload", name, _CATALOGUE)
    return _CATALOGUE[name]


def workload_names() -> tuple[str, ...]:
    """Return the names of all workloads, in alphabetical order."""
    return tuple(sorted(_CATALOGUE))


def few_shot_of(workload: Workload, paper: str | None) -> int:
    """Return a paper's number of few-shot examples, or the workload's default if it states none.

    ``paper`` is a name of ``Paper``, or None.  The caller checks whether examples are available (a
    train split, a prompt that fits the model).
    """
    counts = workload.few_shot_in.items()
    return next((count for name, count in counts if name == paper), workload.few_shot)


_SMOE: dict[Paper, int] = {"SMoE": 0}


def _free(
    name: str, title: str, category: Category, metric: Metric, tokens: int,
    papers: dict[Paper, int] | None = None, *, train: bool = True, **others: Any,
) -> Workload:  # fmt: skip
    """Return a workload; ``others`` are further fields of it."""
    source = {"source": "generated" if name in FAMILIES else (name,)}
    return Workload(
        name=name, title=title, category=category, metric=metric, max_new_tokens=tokens,
        few_shot_in=papers or {}, train_split_available=train, **(source | others),
    )  # fmt: skip


def _options(
    name: str, title: str, category: Category, likelihood: Likelihood,
    papers: dict[Paper, int] | None = None, **others: Any,
) -> Workload:  # fmt: skip
    """Return a multiple-choice workload; answers are limited to a letter and a few words."""
    return _free(name, title, category, "choice", 16, papers, likelihood=likelihood, **others)


def _gaokao(name: str, subject: str) -> Workload:
    title = f"GAOKAO-Bench, {subject}"
    return _options(f"gaokao_{name}", title, "exam", "letters", _SMOE, train=False)


# SMoE, section VI-A, names OpenCompass's basic prompts and no counts: these prompts have no
# examples, except four on GSM8K.  DAOP's counts are in its section V-A.
_GAOKAO = (
    _gaokao("math_i", "mathematics I"), _gaokao("math_ii", "mathematics II"),
    _gaokao("history", "history"), _gaokao("biology", "biology"),
)  # fmt: skip
_ALL = (
    *_GAOKAO,
    _options(
        "gaokao", "GAOKAO-Bench, four subjects", "exam", "letters", _SMOE, train=False,
        source=tuple(subject.name for subject in _GAOKAO),
    ),
    _options("arc_easy", "ARC-Easy", "exam", "texts", {"DAOP": 0}, per_byte=True),
    _options("arc_challenge", "ARC-Challenge", "exam", "texts", {"DAOP": 25}, per_byte=True),
    _options("mmlu", "MMLU", "exam", "letters", {"DAOP": 5}),
    _options("wic", "Word-in-Context", "language", "letters", _SMOE, train=False),
    _options("boolq", "BoolQ", "knowledge", "texts", _SMOE),
    _free(
        "triviaqa", "TriviaQA, closed book", "knowledge", "text", 32,
        {"SMoE": 0, "DAOP": 0, "FlashMoE": 0},
    ),
    _free("nq_open", "Natural Questions, closed book", "knowledge", "text", 32),
    _options("truthfulqa", "TruthfulQA, one true answer (MC1)", "knowledge", "texts", train=False),
    _free(
        "truthfulqa_gen", "TruthfulQA, in the model's own words", "knowledge", "rouge", 64,
        {"DAOP": 0}, source=("truthfulqa",), train=False,
    ),
    _options("race_middle", "RACE-middle", "understanding", "letters", _SMOE),
    _free("squad", "SQuAD v1.1", "understanding", "text", 32, {"DuoServe-MoE": 0}),
    _free(
        "gsm8k", "GSM8K, grade-school mathematics", "reasoning", "exact_number", 256,
        {"SMoE": 4, "DAOP": 5},
    ),
    _free(
        "orca_math", "Orca-Math, word problems", "reasoning", "exact_number", 256,
        {"DuoServe-MoE": 0},
    ),
    _free("arithmetic", "Generated arithmetic word problems", "reasoning", "exact_number", 64),
    _free("equations", "Generated sums and sequences", "exam", "exact_number", 32),
    _free("inflection", "Generated sentences to inflect", "language", "exact_text", 32),
    _free(
        "facts", "Generated questions on learnt facts", "knowledge", "exact_text", 64, chance=25.0
    ),
    _free("passages", "Generated stories of moves", "understanding", "exact_text", 32),
    _free(
        "bbh", "BIG-Bench Hard, direct answers", "reasoning", "exact_text", 64, {"DAOP": 3},
        likelihood="letters",
    ),
    _free("math", "MATH, competition mathematics", "reasoning", "exact_text", 512, {"DAOP": 0}),
    _options(
        "hellaswag", "HellaSwag", "commonsense", "endings", {"DAOP": 10},
        per_byte=True, train=False,
    ),
    _options("piqa", "PIQA", "commonsense", "texts", {"DAOP": 0}, per_byte=True),
    _options("winogrande", "WinoGrande XL", "commonsense", "blank", {"DAOP": 5}),
    _free("alpaca", "Alpaca instructions", "chat", "none", 256),
    _free("sharegpt", "ShareGPT, first user turns", "chat", "none", 256, {"DAOP": 0}),
    _free("mt_bench", "MT-Bench, first turns", "chat", "none", 512, train=False),
    _free(
        "text", "Plain text: WikiText-2", "language modelling", "perplexity", 128,
        source=("corpus",), template="{prompt}",
    ),
    _free(
        "c4", "Plain text: C4", "language modelling", "perplexity", 128, {"DAOP": 0},
        source=("corpus",), template="{prompt}", train=False,
    ),
)  # fmt: skip
_CATALOGUE = {entry.name: entry for entry in _ALL}
