"""Strict reader of the evaluation data's JSONL format.

An example that is silently repaired or skipped changes a reported accuracy unnoticed, so every line
that is not exactly in the format is refused, with its position, what is wrong and what is allowed.

====================  ========================================================================
``id``                non-empty string, unique within the file
``prompt``            non-empty string
``choices``           2 to 26 different, non-empty strings (a model answers with a letter), or null
``answer``            0-based index into ``choices``; the reference text when ``choices`` is null
``answers``           list of accepted strings, holding ``answer`` when ``choices`` is null; or null
``split``             "test" or "train"; the file's name if that is one of the two
``turns``             optional, chat sets: ``[{"role": "user" | "assistant", "content": ...}, ...]``
``solution``          optional, non-empty string: the worked solution
====================  ========================================================================

A free ``answer`` may be empty only in a record with ``turns``: about half of MT-Bench's
conversations have no reference, and no metric reads that of a chat set.  In other records an empty
reference would count every answer as wrong.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from moebench.substrate.errors import InputError
from moebench.workloads.example import LETTERS, Example

REQUIRED_KEYS = ("id", "prompt", "choices", "answer", "answers", "split")
OPTIONAL_KEYS = ("turns", "solution")
SPLITS = ("test", "train")
MOST_CHOICES = len(LETTERS)
T = TypeVar("T")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Refused(Exception):
    """Raised with the reason why a line is not in the format; the caller adds the position."""


def read_examples(path: Path) -> list[Example]:
    """Return every example of a JSONL file, in the file's order.

    Raises:
        InputError: the file cannot be read, is not UTF-8 or is empty, or one of its lines is not
            in the format; one line of text that starts with ``file:line`` where there is a line.
    """
    # Split at ``\n`` only: ``splitlines`` also splits at characters within the data's texts.
    lines = _text_of(path, "one JSON object per line").removesuffix("\n").split("\n")
    places = (f"{path}:{number}" for number in range(1, len(lines) + 1))
    return _read(zip(places, lines, strict=False), _record, path.stem)


def read_records(records: Iterable[tuple[str, Mapping[str, object]]], split: str) -> list[Example]:
    """Return the examples of records from elsewhere, each with its position for errors."""
    return _read(records, _with_all_keys, split)


def _read(
    items: Iterable[tuple[str, T]], parse: Callable[[T], Mapping[str, object]], stem: str
) -> list[Example]:
    examples: list[Example] = []
    first_place: dict[str, str] = {}
    for place, item in items:
        try:
            example = _example(parse(item), stem)
            if example.id in first_place:
                first = first_place[example.id].removeprefix(place.rpartition(":")[0] + ":")
                _refuse(f"id {_shown(example.id)} was already used in line {first}", "each id once")
        except _Refused as refused:
            raise InputError(f"{place}: {refused}") from None
        first_place[example.id] = place
        examples.append(example)
    return examples


def read_passages(path: Path, words: int) -> list[Example]:
    """Return passages of ``words`` words from a plain-text file; a shorter last one is dropped.

    A passage is a prompt without an answer: the model predicts the passage's own tokens.

    Raises InputError: the file cannot be read, is not UTF-8 or has fewer words.
    """
    text = _text_of(path, "a file of plain text")
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    if len(spans) < words:
        raise InputError(f"{path}: has {len(spans)} words; allowed: {words} or more, one passage")
    found = []
    for number in range(len(spans) // words):
        (begin, _), (_, end) = spans[number * words], spans[(number + 1) * words - 1]
        passage = text[begin:end]
        found.append(Example(id=f"{path.stem}/{number}", prompt=passage, choices=None, answer=""))
    return found


def _text_of(path: Path, wanted: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give {wanted}") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        byte = f"0x{raw[error.start]:02x}"
        raise InputError(f"{path}:{line}: byte {byte} is not UTF-8; allowed: UTF-8") from error
    if not text.strip():
        raise InputError(f"{path}: is empty; allowed: {wanted}")
    return text


def _record(line: str) -> Mapping[str, object]:
    try:
        record = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        _refuse(f"is not JSON ({error.msg} at column {error.colno})", "one JSON object per line")
    except (ValueError, RecursionError) as error:  # beyond the parser's limits for numbers, nesting
        _refuse(f"is not JSON ({error})", "one JSON object per line")
    if not isinstance(record, dict):
        _refuse(f"is {_kind(record)}, not a JSON object", "one JSON object per line")
    if _ESCAPED_SURROGATE.search(line):
        _check_characters(record)
    return _with_all_keys(record)


def _with_all_keys(record: Mapping[str, object]) -> Mapping[str, object]:
    unknown = [key for key in record if key not in REQUIRED_KEYS + OPTIONAL_KEYS]
    if unknown:
        keys = ", ".join(REQUIRED_KEYS + OPTIONAL_KEYS)
        _refuse(f"unknown key {', '.join(map(_shown, unknown))}", keys)
    missing = [key for key in REQUIRED_KEYS if key not in record]
    if missing:
        _refuse(f"missing key {', '.join(missing)}", f"all of {', '.join(REQUIRED_KEYS)}")
    return record


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        _refuse(f"key {_shown(twice)} is given more than once", "each key once")
    return record


def _check_characters(record: Mapping[str, object]) -> None:
    """Refuse half of a surrogate pair: it parses but cannot be encoded for a tokenizer."""
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _refuse("holds an unpaired surrogate escape", "\\ud800-\\udfff only in pairs")


def _example(record: Mapping[str, object], stem: str) -> Example:
    """Return the record as an example; check and drop ``turns``, which begin with the prompt."""
    split = record["split"]
    if split not in SPLITS or (stem in SPLITS and split != stem):
        allowed = f'"{stem}"' if stem in SPLITS else '"test" or "train"'
        _refuse(f"split is {_shown(split)}", allowed)
    if "turns" in record:
        _check_turns(record["turns"])
    choices = None if record["choices"] is None else _choices(record["choices"])
    answers = None if record["answers"] is None else _strings("answers", record["answers"])
    if choices is None:
        answer: str | int = _free_answer(record["answer"], answers, "turns" in record)
    else:
        answer = _index(record["answer"], len(choices))
    return Example(
        id=_text("id", record["id"]), prompt=_text("prompt", record["prompt"]),
        choices=choices, answer=answer, answers=answers,
        solution=_text("solution", record["solution"]) if "solution" in record else None,
    )  # fmt: skip


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(f"{key} is {_kind(value)}", "a non-empty string")
    if not value.strip():
        _refuse(f"{key} is empty", "a non-empty string")
    return value


def _strings(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        _refuse(f"{key} is {_kind(value)}", "a list of strings or null")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            _refuse(f"{key}[{index}] is {_kind(item)}", "a list of strings or null")
    return tuple(value)


def _choices(value: object) -> tuple[str, ...]:
    choices = _strings("choices", value)
    for index, choice in enumerate(choices):
        if not choice.strip():
            _refuse(f"choices[{index}] is empty", "options that are non-empty strings")
    if not 2 <= len(choices) <= MOST_CHOICES:
        _refuse(f"choices holds {len(choices)} options", f"2 to {MOST_CHOICES}, or null")
    if len(set(choices)) != len(choices):
        twice = next(choice for choice in choices if choices.count(choice) > 1)
        _refuse(f"choices holds {_shown(twice)} more than once", "options that all differ")
    return choices


def _index(value: object, options: int) -> int:
    allowed = f"a 0-based index into choices, 0 to {options - 1}"
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(f"answer is {_kind(value)}", allowed)
    if not 0 <= value < options:
        _refuse(f"answer is {value}, out of range", allowed)
    return value


def _free_answer(value: object, answers: tuple[str, ...] | None, chat: bool) -> str:
    if not isinstance(value, str):
        _refuse(f"answer is {_kind(value)}", "a string, because choices is null")
    if not value.strip() and not chat:
        _refuse("answer is empty", "a non-empty string (may be empty beside turns only)")
    if answers is not None and value not in answers:
        _refuse(f"answer {_shown(value)} is not among answers", "answers that hold the answer")
    return value


def _check_turns(value: object) -> None:
    allowed = 'a non-empty list of {"role": "user" or "assistant", "content": non-empty string}'
    if not isinstance(value, list) or not value:
        _refuse(f"turns is {_kind(value)}", allowed)
    for index, turn in enumerate(value):
        if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
            _refuse(f"turns[{index}] is {_shown(turn)}", allowed)
        if turn["role"] not in ("user", "assistant"):
            _refuse(f"turns[{index}] has role {_shown(turn['role'])}", allowed)
        if not isinstance(turn["content"], str) or not turn["content"].strip():
            _refuse(f"turns[{index}] has content {_shown(turn['content'])}", allowed)


def _refuse(wrong: str, allowed: str) -> NoReturn:
    raise _Refused(f"{wrong}; allowed: {allowed}")


def _kind(value: object) -> str:
    """Return the JSON name of a value's type, with the value if it is short."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    return f"{'a string' if isinstance(value, str) else 'a number'} ({_shown(value)})"


def _shown(value: object, longest: int = 60) -> str:
    """Return a value as JSON on one line, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
