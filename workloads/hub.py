"""Data sets from the Hugging Face hub, through the ``datasets`` library.

``--data-dir hub:`` means the hub, ``--data-dir hub:DIR`` a folder with copies of its
repositories (``DIR/openai/gsm8k``, ...).  Each row becomes a record in the format of the evaluation
data and passes the same checks.  As in that data, an example whose options are not all different
is left out.
"""

import hashlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.data import read_records
from moebench.workloads.example import LETTERS, Example, listed
from moebench.workloads.scoring import boxed

PREFIX = "hub:"
Row = Mapping[str, Any]
#: Converts a row to the keys of a record that differ from `_DEFAULTS`.
Convert = Callable[[Row], dict[str, object]]


@dataclass(frozen=True, slots=True)
class HubSet:
    """The location of a data set on the hub, and the function that converts its rows.

    ``test`` and ``train`` are splits in the syntax of ``datasets``; ``train`` is None if there is
    none.  Several ``configs`` are joined in their order.
    """

    repository: str
    configs: tuple[str | None, ...]
    test: str
    train: str | None
    convert: Convert


def is_hub(data_dir: Path) -> bool:
    """Return whether this path means the hub and not a folder of data."""
    return str(data_dir).startswith(PREFIX)


def read_hub(
    folders: tuple[str, ...], split: Literal["test", "train"], data_dir: Path
) -> tuple[list[Example], str]:
    """Return every example of the hub's sets with these folder names, and the name of their source.

    Raises:
        UsageError: ``datasets`` is not installed, or a set is not known on the hub.
        InputError: the hub cannot be reached, a set has no such split, or a row is not as expected.
    """
    examples: list[Example] = []
    sources = []
    for folder in folders:
        if folder not in HUB:
            raise UsageError(
                f"{folder} is not read from the hub; give --data-dir DIR, a folder that holds it "
                f"(from the hub: {', '.join(sorted(HUB))})"
            )
        found = HUB[folder]
        wanted = found.test if split == "test" else found.train
        if wanted is None:
            raise InputError(
                f"{PREFIX}{found.repository}: no such split of {folder}; splits that exist: test"
            )
        records = [
            (place, {"id": f"{folder}/{split}/{number}", **_DEFAULTS, "split": split, **record})
            for number, (place, record) in enumerate(_records(found, wanted, data_dir))
            if not _repeats_an_option(record)
        ]
        examples += read_records(records, split)
        sources.append(f"{PREFIX}{found.repository} {wanted}")
    return examples, " + ".join(sources)


_DEFAULTS: dict[str, object] = {"choices": None, "answers": None}


def _records(found: HubSet, wanted: str, data_dir: Path) -> list[tuple[str, dict[str, object]]]:
    mirror = str(data_dir).removeprefix(PREFIX)
    path = str(Path(mirror) / found.repository) if mirror else found.repository
    if mirror and not Path(path).is_dir():
        raise InputError(f"{path}: no such folder; --data-dir hub:DIR holds OWNER/NAME folders")
    records = []
    for config in found.configs:
        for number, row in enumerate(_rows(path, config, wanted), start=1):
            place = f"{PREFIX}{found.repository}:{number}"
            try:
                records.append((place, found.convert(row)))
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                columns = ", ".join(row)
                raise InputError(
                    f"{place}: the row is not as expected ({type(error).__name__}: {error}); "
                    f"its columns are {columns}"
                ) from error
    return records


def _rows(path: str, config: str | None, split: str) -> list[Row]:
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise UsageError(
            "the hub is read through datasets, which is not installed; "
            "pip install moebench[hub], or give --data-dir DIR"
        ) from None
    try:
        return list(datasets.load_dataset(path, config, split=split))
    except Exception as error:  # network, hub and format errors share no other base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{PREFIX}{path}: split {split} cannot be read ({reason}); "
            "check the connection, or give --data-dir DIR"
        ) from error


def _repeats_an_option(record: Mapping[str, object]) -> bool:
    choices = record.get("choices")
    return isinstance(choices, list) and len(set(choices)) != len(choices)


def _options(question: str, choices: list[str], answer: int) -> dict[str, object]:
    return {"prompt": question + listed(choices), "choices": choices, "answer": answer}


def _free(question: str, answers: list[str]) -> dict[str, object]:
    unique = list(dict.fromkeys(answers))
    return {"prompt": question, "answer": unique[0], "answers": unique}


def _gsm8k(row: Row) -> dict[str, object]:
    solution, _, answer = row["answer"].partition("\n#### ")
    return {"prompt": row["question"], "answer": answer.strip(), "solution": solution}


def _orca_math(row: Row) -> dict[str, object]:
    """Convert a row; the answer is the last number of the solution, or the whole solution."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", row["answer"])
    answer = numbers[-1].rstrip(",") if numbers else row["answer"]
    return {"prompt": row["question"], "answer": answer, "solution": row["answer"]}


def _math(row: Row) -> dict[str, object]:
    solution = row["solution"]
    answer = boxed(solution[max(solution.rfind("\\boxed{"), 0) :])
    return {"prompt": row["problem"], "answer": answer or solution, "solution": solution}


def _boolq(row: Row) -> dict[str, object]:
    question = f"{row['passage']}\nQuestion: {row['question']}?"
    return _options(question, ["yes", "no"], 0 if row["answer"] else 1)


def _wic(row: Row) -> dict[str, object]:
    question = (
        f"Sentence 1: {row['sentence1']}\nSentence 2: {row['sentence2']}\n"
        f'Question: Is the word "{row["word"]}" used with the same meaning in both sentences?'
    )
    return _options(question, ["yes", "no"], 0 if row["label"] else 1)


def _race(row: Row) -> dict[str, object]:
    question = f"{row['article'].strip()}\nQuestion: {row['question']}"
    return _options(question, row["options"], LETTERS.index(row["answer"]))


def _hellaswag(row: Row) -> dict[str, object]:
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    endings = [_without_brackets(ending) for ending in row["endings"]]
    return _options(_without_brackets(context), endings, int(row["label"]))


def _without_brackets(text: str) -> str:
    """Remove WikiHow's bracketed headings, as lm-eval does."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip()


def _arc(row: Row) -> dict[str, object]:
    choices = row["choices"]
    return _options(row["question"], choices["text"], choices["label"].index(row["answerKey"]))


def _piqa(row: Row) -> dict[str, object]:
    return _options(row["goal"], [row["sol1"], row["sol2"]], int(row["label"]))


def _winogrande(row: Row) -> dict[str, object]:
    return _options(row["sentence"], [row["option1"], row["option2"]], int(row["answer"]) - 1)


def _mmlu(row: Row) -> dict[str, object]:
    return _options(row["question"].strip(), row["choices"], int(row["answer"]))


def _truthfulqa(row: Row) -> dict[str, object]:
    """Convert a row; shuffle the options, of which the true one is always first in the data."""
    first, second = row["mc1_targets"], row["mc2_targets"]
    right = first["choices"][first["labels"].index(1)]
    choices = list(first["choices"])
    seed = hashlib.sha256(row["question"].encode()).hexdigest()
    random.Random(seed).shuffle(choices)
    true = [c for c, label in zip(second["choices"], second["labels"], strict=True) if label]
    answers = list(dict.fromkeys([right, *true]))
    return {**_options(row["question"], choices, choices.index(right)), "answers": answers}


def _triviaqa(row: Row) -> dict[str, object]:
    answer = row["answer"]
    return _free(row["question"], [answer["value"], *answer["aliases"]])


def _nq_open(row: Row) -> dict[str, object]:
    return _free(row["question"], list(row["answer"]))


def _squad(row: Row) -> dict[str, object]:
    question = f"{row['context']}\nQuestion: {row['question'].strip()}"
    return _free(question, list(row["answers"]["text"]))


def _alpaca(row: Row) -> dict[str, object]:
    prompt = "\n".join(part for part in (row["instruction"], row["input"]) if part)
    turns = [{"role": "user", "content": prompt}]
    return {"prompt": prompt, "answer": row["output"], "turns": turns}


_MATH = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
    "prealgebra", "precalculus",
)  # fmt: skip
#: Sets by the name of the data folder.  If a test split's labels are secret, validation is "test".
HUB: dict[str, HubSet] = {
    "gsm8k": HubSet("openai/gsm8k", ("main",), "test", "train", _gsm8k),
    # Orca-Math has one split; the first 1000 of its 200k problems are kept for testing.
    "orca_math": HubSet(
        "microsoft/orca-math-word-problems-200k", (None,), "train[:1000]", "train[1000:]",
        _orca_math,
    ),
    "math": HubSet("EleutherAI/hendrycks_math", _MATH, "test", "train", _math),
    "boolq": HubSet("google/boolq", (None,), "validation", "train", _boolq),
    "wic": HubSet("aps/super_glue", ("wic",), "validation", "train", _wic),
    "race_middle": HubSet("ehovy/race", ("middle",), "test", "train", _race),
    "hellaswag": HubSet("Rowan/hellaswag", (None,), "validation", "train", _hellaswag),
    "arc_easy": HubSet("allenai/ai2_arc", ("ARC-Easy",), "test", "train", _arc),
    "arc_challenge": HubSet("allenai/ai2_arc", ("ARC-Challenge",), "test", "train", _arc),
    "piqa": HubSet("baber/piqa", (None,), "validation", "train", _piqa),
    "winogrande": HubSet(
        "allenai/winogrande", ("winogrande_xl",), "validation", "train", _winogrande
    ),
    "mmlu": HubSet("cais/mmlu", ("all",), "test", "dev", _mmlu),
    "truthfulqa": HubSet(
        "truthfulqa/truthful_qa", ("multiple_choice",), "validation", None, _truthfulqa
    ),
    "triviaqa": HubSet(
        "mandarjoshi/trivia_qa", ("rc.nocontext",), "validation", "train", _triviaqa
    ),
    "nq_open": HubSet(
        "google-research-datasets/nq_open", (None,), "validation", "train", _nq_open
    ),
    "squad": HubSet("rajpurkar/squad", (None,), "validation", "train", _squad),
    # Alpaca has one split too; its first 1000 rows are kept for testing.
    "alpaca": HubSet("tatsu-lab/alpaca", (None,), "train[:1000]", "train[1000:]", _alpaca),
}  # fmt: skip
