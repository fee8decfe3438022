"""Task files for lm-evaluation-harness, written from workloads without network access.

| workload | request | lm-eval's metric |
|---|---|---|
| options | ``loglikelihood`` of each (`workloads.likelihood`) | ``acc``, ``acc_norm`` |
| a number | ``generate_until`` | ``exact_match`` after the two filters of lm-eval's ``gsm8k`` |
| a short text | ``generate_until`` | ``exact_match`` as in lm-eval's ``triviaqa`` |
| an exact text | ``generate_until`` | ``exact_match`` of what follows ``####``, or the first line |
| plain text | ``loglikelihood_rolling`` | perplexity by word and byte, bits per byte |

Prompts are moebench's, so that both score the same examples; metrics and filters are lm-eval's.
The files also work with lm-eval's own command: ``--include_path DIR``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from moebench.harness.evaluate.tasks import Questions
from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.example import Example
from moebench.workloads.likelihood import continuations
from moebench.workloads.prompts import build_prompt

#: Version of the tasks, increased when scores of old and new files are not comparable.
VERSION = 1.0

Record = dict[str, Any]
Config = dict[str, Any]

_EXACT: Config = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
_FIRST = {"function": "take_first"}

#: Metrics and filters of lm-eval's gsm8k.
_NUMBER: Config = {
    "metric_list": [
        {
            **_EXACT, "ignore_case": True, "ignore_punctuation": False,
            "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
        }
    ],
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [{"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}, _FIRST],
        },
        {
            "name": "flexible-extract",
            "filter": [
                {
                    "function": "regex", "group_select": -1,
                    "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)",
                },
                _FIRST,
            ],
        },
    ],
}  # fmt: skip

#: Metrics and filters of lm-eval's triviaqa.
_SHORT: Config = {
    "metric_list": [{**_EXACT, "ignore_case": True, "ignore_punctuation": True}],
    "filter_list": [
        {"name": "remove_whitespace", "filter": [{"function": "remove_whitespace"}, _FIRST]}
    ],
}

_TEXT: Config = {
    "metric_list": [{**_EXACT, "ignore_case": True, "regexes_to_ignore": ["\\.$"]}],
    "filter_list": [
        {
            "name": "answer",
            "filter": [
                {"function": "regex", "regex_pattern": "(?s)\\A(?:.*####)?[ \\t]*([^\\n]*)"},
                _FIRST,
            ],
        }
    ],
}

_PERPLEXITIES = {
    "word_perplexity": "weighted_perplexity",
    "byte_perplexity": "weighted_perplexity",
    "bits_per_byte": "bits_per_byte",
}

_KINDS: dict[str, Config] = {"exact_number": _NUMBER, "text": _SHORT, "exact_text": _TEXT}


def check(asked: Sequence[Questions]) -> None:
    """Refuse workloads whose answers lm-eval's metrics cannot score.

    MATH's answers must be compared without their typesetting, for which lm-eval needs sympy.

    Raises UsageError: a workload cannot be scored.
    """
    for questions in asked:
        chosen = questions.workload
        if chosen.name == "math" or chosen.metric not in (*_KINDS, "choice", "perplexity"):
            raise UsageError(
                f"--tasks {chosen.name}: lm-eval's metrics cannot score its answers; type: "
                f"moebench run --workload {chosen.name}"
            )


def write_tasks(asked: Sequence[Questions], folder: Path) -> None:
    """Write each workload's task file (YAML) and its examples (JSON lines).

    Raises:
        UsageError: `check` refuses a workload.
        InputError: the folder cannot be written.
    """
    check(asked)
    found = [(questions.name, *_task(questions)) for questions in asked]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, config, records in found:
            file = folder.absolute() / f"{name}.jsonl"
            lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
            file.write_text("".join(lines), encoding="utf-8")
            data = {
                "dataset_path": "json",
                "dataset_kwargs": {
                    "data_files": {"test": str(file)},
                    "cache_dir": str(folder.absolute() / "cache"),
                },
                "test_split": "test",
            }
            whole = {
                "task": name, **data, **config, "num_fewshot": 0, "metadata": {"version": VERSION},
            }  # fmt: skip
            text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error


def _task(questions: Questions) -> tuple[Config, list[Record]]:
    """Return the part of a task file that depends on the kind of answers, and the examples."""
    chosen, examples = questions.workload, questions.drawn.examples
    if chosen.metric == "perplexity":
        config: Config = {
            "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text",
            "metric_list": [
                {"metric": name, "aggregation": way, "higher_is_better": False}
                for name, way in _PERPLEXITIES.items()
            ],
        }  # fmt: skip
        return config, [{"id": e.id, "text": e.prompt} for e in examples]
    if chosen.metric == "choice":
        records = [_options(questions, example) for example in examples]
        return (_BLANK if chosen.likelihood == "blank" else _CHOICE), records
    stops = ["\n", ".", ","] if chosen.metric == "text" else list(chosen.stop)
    config = {
        "output_type": "generate_until", "doc_to_text": "query", "doc_to_target": "answers",
        **_KINDS[chosen.metric],
        "generation_kwargs": {
            "until": stops, "do_sample": False, "max_gen_toks": chosen.max_new_tokens,
        },
    }  # fmt: skip
    return config, [_written(questions, example) for example in examples]


def _written(questions: Questions, example: Example) -> Record:
    accepted = dict.fromkeys([example.answer_text, *(example.answers or ())])
    return {
        "id": example.id,
        "query": build_prompt(questions.workload, example, questions.shots),
        "answers": list(accepted),
    }


_ACC: Config = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
_CHOICE: Config = {
    "output_type": "multiple_choice", "doc_to_text": "query", "doc_to_choice": "choices",
    "doc_to_target": "gold", "target_delimiter": " ",
    "metric_list": [_ACC, {**_ACC, "metric": "acc_norm"}],
}  # fmt: skip

#: Task of lm-eval's winogrande: options end the context, and the sentence's rest is scored.
_BLANK: Config = {
    "output_type": "multiple_choice", "doc_to_text": "gold", "doc_to_choice": "choices",
    "doc_to_target": "rest", "target_delimiter": "", "metric_list": [_ACC],
}  # fmt: skip


def _options(questions: Questions, example: Example) -> Record:
    asked = continuations(questions.workload, example, questions.shots)
    pairs = list(zip(asked.texts, asked.uncounted, strict=True))
    record: Record = {"id": example.id, "gold": example.answer}
    if any(asked.uncounted):
        (rest,) = {text[first:] for text, first in pairs}
        contexts = [asked.prompt + text[:first] for text, first in pairs]
        return {**record, "choices": contexts, "rest": rest}
    return {**record, "query": asked.prompt, "choices": [text[1:] for text, _ in pairs]}
