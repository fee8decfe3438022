"""Which workloads exist, and how their prompts are drawn.

A score is comparable only at the same number of few-shot examples, and the papers differ:
``few_shot_of`` gives each paper's count.  ``max_new_tokens`` bounds an answer that is scored; a run
that measures latency sets its own.
"""

import hashlib
import itertools
import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from substrate.errors import InputError, UnknownNameError, UsageError
from workloads.data import SPLITS, read_examples, read_passages
from workloads.example import Example, stem
from workloads.exercises import FAMILIES, Split, exercises
from workloads.hub import HUB, is_hub, read_hub

Category = Literal[
    "exam", "language", "knowledge", "understanding", "reasoning", "commonsense", "chat",
    "language modelling",
]  # fmt: skip
Paper = Literal["SMoE", "DAOP", "DuoServe-MoE", "FlashMoE"]
#: How an answer is found in a model's text and compared; see ``workloads.scoring``.
Metric = Literal["exact_number", "choice", "text", "exact_text", "rouge", "perplexity", "none"]
#: What is scored where options are compared by likelihood; see ``workloads.likelihood``.
Likelihood = Literal["letters", "texts", "endings", "blank"]

#: How many generated problems a draw chooses from (more when more are asked for).
GENERATED_POOL = 1000
#: Plain text: the file of each split, and how many words a passage has.
TEXT_FILES = {"test": "wikitext2_test.txt", "train": "wikitext2_valid.txt"}
PASSAGE_WORDS = 128


class Workload(BaseModel):
    """A question set with the way its prompts are put and its answers are scored.

    Attributes:
        template: what a model reads, the question in place of ``{prompt}``.
        few_shot: examples before a question where no paper is followed.
        few_shot_in: the papers that use this workload, each with its number of examples: 0 where
            the paper states none.
        likelihood: how options are compared by likelihood; None for questions without options.
        per_byte: whether an option's log-likelihood is divided by its length (lm-eval's
            ``acc_norm``) before options are compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    category: Category
    #: Folders under the data folder whose files are joined in this order, or "generated".
    source: tuple[str, ...] | Literal["generated"]
    #: For questions without options; one with options is always scored as "choice".
    metric: Metric
    template: str = "Question: {prompt}\nAnswer:"
    few_shot: int = Field(default=0, ge=0)
    few_shot_in: dict[Paper, Annotated[int, Field(ge=0)]] = {}
    likelihood: Likelihood | None = None
    per_byte: bool = False
    #: Percent that guessing scores, where the options stand in the question's text alone.
    chance: float | None = None
    max_new_tokens: int = Field(ge=1)
    #: Where an answer ends, beside the end-of-text token: here, a model goes on to a new question.
    stop: tuple[str, ...] = ("\nQuestion:",)
    #: Whether calibration data and few-shot examples can come from a split of their own.
    train_split_available: bool = True

    @property
    def scored(self) -> bool:
        """Whether written answers are scored: not for chat prompts and plain text."""
        return self.metric not in ("none", "perplexity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The prompts of one run, with everything that is needed to draw them again.

    ``available`` is how many there were to draw from; ``data_hash`` is 16 hex digits of a SHA-256
    over the chosen examples' content in their order, so that it changes with any of them.
    """

    examples: tuple[Example, ...]
    source: str
    split: Split
    seed: int
    available: int
    data_hash: str


def workload(name: str) -> Workload:
    """A workload by its name.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in _CATALOGUE:
        raise UnknownNameError("workload", name, _CATALOGUE)
    return _CATALOGUE[name]


def workload_names() -> tuple[str, ...]:
    """Every workload's name, in alphabetical order."""
    return tuple(sorted(_CATALOGUE))


def few_shot_of(workload: Workload, paper: str | None) -> int:
    """How many examples this paper shows before a question; the default where it does not say.

    ``paper`` is a name of ``Paper``, or None.  Whether the examples can be had (a train split, a
    prompt that fits the model) is for the caller to see.
    """
    for name, count in workload.few_shot_in.items():
        if name == paper:
            return count
    return workload.few_shot


def default_workload(data_dir: Path | None) -> str:
    """GSM8K where its test questions are at hand, otherwise what needs no data."""
    if data_dir is not None and (data_dir / "gsm8k" / "test.jsonl").is_file():
        return "gsm8k"
    return "arithmetic"


def load(
    workload: Workload,
    split: Split = "test",
    count: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> Sample:
    """Draw ``count`` prompts of a split without replacement; all, in file order, for ``None``.

    The draw is ``random.Random(seed).sample`` over the full list, kept in drawn order, so a sample
    is not biased towards the file's beginning and is the same on every machine.

    ``data_dir`` holds one folder per data set; ``hub:`` in its place stands for the Hugging Face
    hub (``workloads.hub``).

    Raises:
        UsageError: the workload needs a data folder and there is none, or ``count`` or ``split``
            cannot be.
        InputError: a folder or split is missing, a file is broken, or ``count`` is more than
            there are.
    """
    if split not in SPLITS:
        raise UsageError(f"split {split!r} does not exist; allowed: {', '.join(SPLITS)}")
    if count is not None and count < 1:
        raise UsageError(f"{count} prompts cannot be drawn; allowed: 1 or more")
    examples, source = _examples(workload, split, count, data_dir)
    if count is not None and count > len(examples):
        raise InputError(f"{source}: {count} prompts wanted, {len(examples)} available")
    chosen = examples if count is None else random.Random(seed).sample(examples, count)
    return Sample(
        examples=tuple(chosen),
        source=source,
        split=split,
        seed=seed,
        available=len(examples),
        data_hash=_content_hash(chosen),
    )


def _examples(
    workload: Workload, split: Split, count: int | None, data_dir: Path | None
) -> tuple[list[Example], str]:
    """All examples of a split, and where they are from."""
    if workload.source == "generated":
        size = max(GENERATED_POOL, count or 0)
        return list(itertools.islice(exercises(workload.name, split), size)), "generated"
    if data_dir is None:
        raise UsageError(
            f"workload {workload.name} needs a data folder; "
            "give --data-dir DIR, or use --workload arithmetic, which needs none"
        )
    if is_hub(data_dir):
        examples, source = read_hub(workload.source, split, data_dir)
    elif workload.metric == "perplexity":
        (file,) = _files(workload, workload.source, split, data_dir)
        return read_passages(file, PASSAGE_WORDS), f"{file.parent.name}/{file.name}"
    else:
        files = _files(workload, workload.source, split, data_dir)
        examples = [example for file in files for example in read_examples(file)]
        source = " + ".join(f"{file.parent.name}/{file.name}" for file in files)
    if workload.metric == "rouge":  # answers in its own words: the options are not shown
        examples = [replace(example, prompt=stem(example)) for example in examples]
    return examples, source


def _files(
    workload: Workload, folders: tuple[str, ...], split: Split, data_dir: Path
) -> list[Path]:
    """The split's file in each of the workload's folders; all of them exist."""
    names = {name: f"{name}.jsonl" for name in SPLITS}
    if workload.metric == "perplexity":
        names = TEXT_FILES
    files = [data_dir / folder / names[split] for folder in folders]
    for file in files:
        if not file.parent.is_dir():
            raise InputError(
                f"{file.parent}: no such folder, but workload {workload.name} reads it; "
                f"{_remedy(workload)}"
            )
        if not file.is_file():
            present = [name for name in names if (file.parent / names[name]).is_file()]
            raise InputError(
                f"{file}: no such split of workload {workload.name}; "
                f"splits that exist: {', '.join(present) or 'none'}"
            )
    return files


def _remedy(workload: Workload) -> str:
    if workload.name == "orca_math":
        return (
            f"Orca-Math comes from the Hugging Face hub ({HUB['orca_math'].repository}): give "
            "--data-dir hub: when online, or write the folder yourself (format: docs/workloads.md)"
        )
    return "give --data-dir DIR, the folder that holds one folder per data set"


def _content_hash(examples: list[Example]) -> str:
    content = json.dumps([asdict(example) for example in examples], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


_SMOE: dict[Paper, int] = {"SMoE": 0}


def _options(
    name: str,
    title: str,
    category: Category,
    likelihood: Likelihood,
    papers: dict[Paper, int] | None = None,
    *,
    per_byte: bool = False,
    train: bool = True,
) -> Workload:
    """A set whose questions have options; room for a letter and a few words around it."""
    return Workload(
        name=name,
        title=title,
        category=category,
        source=(name,),
        metric="choice",
        few_shot_in=papers or {},
        likelihood=likelihood,
        per_byte=per_byte,
        max_new_tokens=16,
        train_split_available=train,
    )


def _free(
    name: str,
    title: str,
    category: Category,
    metric: Metric,
    tokens: int,
    papers: dict[Paper, int] | None = None,
    *,
    source: str | None = None,
    likelihood: Likelihood | None = None,
    train: bool = True,
) -> Workload:
    return Workload(
        name=name,
        title=title,
        category=category,
        source="generated" if name in FAMILIES else (source or name,),
        metric=metric,
        few_shot_in=papers or {},
        likelihood=likelihood,
        max_new_tokens=tokens,
        train_split_available=train,
    )


def _gaokao(subject: str, title: str) -> Workload:
    return _options(f"gaokao_{subject}", title, "exam", "letters", _SMOE, train=False)


# SMoE, section VI-A, names OpenCompass's basic prompts and no counts: they show no examples but on
# GSM8K, where they show four.  DAOP's counts are in its section V-A.
_GAOKAO = (
    _gaokao("math_i", "GAOKAO-Bench, mathematics I"),
    _gaokao("math_ii", "GAOKAO-Bench, mathematics II"),
    _gaokao("history", "GAOKAO-Bench, history"),
    _gaokao("biology", "GAOKAO-Bench, biology"),
)
_ALL = (
    *_GAOKAO,
    _options(
        "gaokao", "GAOKAO-Bench, four subjects", "exam", "letters", _SMOE, train=False
    ).model_copy(update={"source": tuple(subject.name for subject in _GAOKAO)}),
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
        {"DAOP": 0}, source="truthfulqa", train=False,
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
        "facts", "Generated questions on learnt facts", "knowledge", "exact_text", 64
    ).model_copy(update={"chance": 25.0}),
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
        "text", "Plain text: WikiText-2", "language modelling", "perplexity", 128, source="corpus"
    ).model_copy(update={"template": "{prompt}"}),
)  # fmt: skip
_CATALOGUE = {entry.name: entry for entry in _ALL}
