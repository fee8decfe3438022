"""Which workloads exist, and how their prompts are drawn.

``few_shot`` is 0 everywhere: no few-shot examples are shown unless a setting asks for them.  The
papers' accuracy tables were made with harnesses that use counts of their own (often several worked
examples on GSM8K), and a setting that reproduces one changes the count with
``workload.model_copy(update={"few_shot": n})``; a score is comparable only at the same count.

``max_new_tokens`` bounds an answer that is scored; a run that measures latency sets its own.
"""

import hashlib
import itertools
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from substrate.errors import InputError, UnknownNameError, UsageError
from workloads.data import SPLITS, read_examples
from workloads.example import Example
from workloads.exercises import FAMILIES, Split, exercises

Category = Literal[
    "exam", "language", "knowledge", "understanding", "reasoning", "commonsense", "chat"
]
#: How an answer is found in a model's text and compared; see ``workloads.scoring``.
Metric = Literal["exact_number", "choice", "text", "exact_text", "none"]

#: How many generated problems a draw chooses from (more when more are asked for).
GENERATED_POOL = 1000


class Workload(BaseModel):
    """A question set with the way its prompts are put and its answers are scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    category: Category
    #: Folders under the data folder whose files are joined in this order, or "generated".
    source: tuple[str, ...] | Literal["generated"]
    #: For questions without options; one with options is always scored as "choice".
    metric: Metric
    few_shot: int = Field(default=0, ge=0)
    max_new_tokens: int = Field(ge=1)
    #: Where an answer ends, beside the end-of-text token: here, a model goes on to a new question.
    stop: tuple[str, ...] = ("\nQuestion:",)
    #: Whether calibration data and few-shot examples can come from a split of their own.
    train_split_available: bool = True

    @property
    def scored(self) -> bool:
        """Whether answers are scored: a chat set only supplies prompts."""
        return self.metric != "none"


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
    if workload.source == "generated":
        size = max(GENERATED_POOL, count or 0)
        examples, source = (
            list(itertools.islice(exercises(workload.name, split), size)),
            "generated",
        )
    else:
        files = _files(workload, workload.source, split, data_dir)
        examples = [example for file in files for example in read_examples(file)]
        source = " + ".join(f"{file.parent.name}/{file.name}" for file in files)
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


def _files(
    workload: Workload, folders: tuple[str, ...], split: Split, data_dir: Path | None
) -> list[Path]:
    """The split's file in each of the workload's folders; all of them exist."""
    if data_dir is None:
        raise UsageError(
            f"workload {workload.name} needs a data folder; "
            "give --data-dir DIR, or use --workload arithmetic, which needs none"
        )
    files = [data_dir / folder / f"{split}.jsonl" for folder in folders]
    for file in files:
        if not file.parent.is_dir():
            raise InputError(
                f"{file.parent}: no such folder, but workload {workload.name} reads it; "
                "give --data-dir DIR, the folder that holds one folder per data set"
            )
        if not file.is_file():
            present = [name for name in SPLITS if (file.parent / f"{name}.jsonl").is_file()]
            raise InputError(
                f"{file}: no such split of workload {workload.name}; "
                f"splits that exist: {', '.join(present) or 'none'}"
            )
    return files


def _content_hash(examples: list[Example]) -> str:
    content = json.dumps([asdict(example) for example in examples], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _options(name: str, title: str, category: Category, train: bool = True) -> Workload:
    """A set whose questions have options; room for a letter and a few words around it."""
    return Workload(
        name=name,
        title=title,
        category=category,
        source=(name,),
        metric="choice",
        max_new_tokens=16,
        train_split_available=train,
    )


def _free(
    name: str, title: str, category: Category, metric: Metric, tokens: int, train: bool = True
) -> Workload:
    return Workload(
        name=name,
        title=title,
        category=category,
        source="generated" if name in FAMILIES else (name,),
        metric=metric,
        max_new_tokens=tokens,
        train_split_available=train,
    )


_GAOKAO = (
    _options("gaokao_math_i", "GAOKAO-Bench, mathematics I", "exam", train=False),
    _options("gaokao_math_ii", "GAOKAO-Bench, mathematics II", "exam", train=False),
    _options("gaokao_history", "GAOKAO-Bench, history", "exam", train=False),
    _options("gaokao_biology", "GAOKAO-Bench, biology", "exam", train=False),
)
_ALL = (
    *_GAOKAO,
    _options("gaokao", "GAOKAO-Bench, four subjects", "exam", train=False).model_copy(
        update={"source": tuple(subject.name for subject in _GAOKAO)}
    ),
    _options("arc_easy", "ARC-Easy", "exam"),
    _options("arc_challenge", "ARC-Challenge", "exam"),
    _options("mmlu", "MMLU", "exam"),
    _options("wic", "Word-in-Context", "language", train=False),
    _options("boolq", "BoolQ", "knowledge"),
    _free("triviaqa", "TriviaQA, closed book", "knowledge", "text", 32),
    _free("nq_open", "Natural Questions, closed book", "knowledge", "text", 32),
    _options("truthfulqa", "TruthfulQA, one true answer (MC1)", "knowledge", train=False),
    _options("race_middle", "RACE-middle", "understanding"),
    _free("squad", "SQuAD v1.1", "understanding", "text", 32),
    _free("gsm8k", "GSM8K, grade-school mathematics", "reasoning", "exact_number", 256),
    _free("arithmetic", "Generated arithmetic word problems", "reasoning", "exact_number", 64),
    _free("equations", "Generated sums and sequences", "exam", "exact_text", 32),
    _free("inflection", "Generated sentences to inflect", "language", "exact_text", 32),
    _free("facts", "Generated questions on learnt facts", "knowledge", "exact_text", 64),
    _free("passages", "Generated stories of moves", "understanding", "exact_text", 32),
    _free("bbh", "BIG-Bench Hard, direct answers", "reasoning", "exact_text", 64),
    _free("math", "MATH, competition mathematics", "reasoning", "exact_text", 512),
    _options("hellaswag", "HellaSwag", "commonsense", train=False),
    _options("piqa", "PIQA", "commonsense"),
    _options("winogrande", "WinoGrande XL", "commonsense"),
    _free("alpaca", "Alpaca instructions", "chat", "none", 256),
    _free("sharegpt", "ShareGPT, first user turns", "chat", "none", 256),
    _free("mt_bench", "MT-Bench, first turns", "chat", "none", 512, train=False),
)
_CATALOGUE = {entry.name: entry for entry in _ALL}
