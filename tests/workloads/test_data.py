"""The strict reader of data files, and its one-line error for every broken file."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.errors import InputError
from moebench.workloads.data import _kind, read_examples

FREE: dict[str, Any] = {
    "id": "a/1", "prompt": "How many?", "choices": None, "answer": "7", "answers": None,
    "split": "test",
}  # fmt: skip
OPTIONS: dict[str, Any] = FREE | {"id": "a/2", "choices": ["yes", "no"], "answer": 1}


def write(tmp_path: Path, *lines: str | dict[str, Any]) -> Path:
    path = tmp_path / "test.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_examples(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_keeps_every_field_in_file_order(tmp_path: Path) -> None:
    full = FREE | {"answers": ["7", "seven"], "solution": "3 + 4 = 7."}
    first, second = read_examples(write(tmp_path, full, OPTIONS))
    assert (first.id, first.prompt, first.choices, first.answer) == ("a/1", "How many?", None, "7")
    assert (first.answers, first.solution) == (("7", "seven"), "3 + 4 = 7.")
    assert (second.choices, second.answer, second.answer_text) == (("yes", "no"), 1, "B")


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    record = FREE | {"prompt": "one\u2028two\x85three"}
    line = json.dumps(record, ensure_ascii=False)
    assert [e.prompt for e in read_examples(write(tmp_path, line))] == [record["prompt"]]


def test_a_missing_final_newline_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(f"{json.dumps(FREE)}\r\n{json.dumps(OPTIONS)}".encode())
    assert len(read_examples(path)) == 2


def test_an_empty_reference_is_allowed_in_chat_sets_only(tmp_path: Path) -> None:
    empty = FREE | {"answer": ""}
    chat = empty | {"turns": [{"role": "user", "content": "How many?"}]}
    assert read_examples(write(tmp_path, chat))[0].answer == ""
    assert "answer is empty; allowed: a non-empty string" in refusal(write(tmp_path, empty))


TURN = {"role": "user", "content": "hello"}
BROKEN: list[tuple[str | dict[str, Any], str]] = [
    ("{", "is not JSON (Expecting property name enclosed in double quotes at column 2)"),
    ("", "is not JSON"),
    ("[" * 100_000, "is not JSON (maximum recursion depth exceeded"),
    ('{"id": ' + "9" * 5000 + "}", "is not JSON"),
    ("[1]", "is a list, not a JSON object; allowed: one JSON object per line"),
    ("null", "is null, not a JSON object"),
    ('{"id": "a", "id": "b"}', 'key "id" is given more than once'),
    ('{"id": "a", "prompt": "p", "prompt": "q"}', 'key "prompt" is given more than once'),
    (FREE | {"hint": 1}, 'unknown key "hint"; allowed: id, prompt, choices, answer, answers'),
    ({"id": "a/1"}, "missing key prompt, choices, answer, answers, split; allowed: all of id"),
    (FREE | {"id": 3}, "id is a number (3); allowed: a non-empty string"),
    (FREE | {"id": ""}, "id is empty"),
    (FREE | {"prompt": " \n"}, "prompt is empty"),
    (FREE | {"prompt": None}, "prompt is null"),
    (FREE | {"prompt": "\ud800"}, "holds an unpaired surrogate escape"),
    (FREE | {"answer": 7}, "answer is a number (7); allowed: a string, because choices is null"),
    (FREE | {"answer": None}, "answer is null"),
    (FREE | {"answers": "7"}, 'answers is a string ("7"); allowed: a list of strings or null'),
    (FREE | {"answers": [7]}, "answers[0] is a number (7)"),
    (FREE | {"answers": []}, 'answer "7" is not among answers'),
    (FREE | {"answers": ["8"]}, 'answer "7" is not among answers'),
    (FREE | {"split": "dev"}, 'split is "dev"; allowed: "test"'),
    (FREE | {"split": "train"}, 'split is "train"; allowed: "test"'),
    (FREE | {"solution": None}, "solution is null"),
    (FREE | {"turns": []}, "turns is an empty list"),
    (FREE | {"turns": [TURN | {"name": "x"}]}, "turns[0] is {"),
    (FREE | {"turns": [TURN, TURN | {"role": "tool"}]}, 'turns[1] has role "tool"'),
    (FREE | {"turns": [TURN | {"content": ""}]}, 'turns[0] has content ""'),
    (OPTIONS | {"choices": ["yes", " "]}, "choices[1] is empty; allowed: options that are non-em"),
    (OPTIONS | {"choices": "ab"}, 'choices is a string ("ab")'),
    (OPTIONS | {"choices": ["yes", None]}, "choices[1] is null"),
    (OPTIONS | {"choices": ["yes"]}, "choices holds 1 options; allowed: 2 to 26, or null"),
    (OPTIONS | {"choices": [str(i) for i in range(27)]}, "choices holds 27 options"),
    (OPTIONS | {"choices": ["no", "no"]}, 'choices holds "no" more than once'),
    (OPTIONS | {"answer": 2}, "answer is 2, out of range; allowed: a 0-based index into choices"),
    (OPTIONS | {"answer": -1}, "answer is -1, out of range"),
    (OPTIONS | {"answer": True}, "answer is true"),
    (OPTIONS | {"answer": 1.0}, "answer is a number (1.0)"),
    (OPTIONS | {"answer": "B"}, 'answer is a string ("B")'),
]


@pytest.mark.parametrize(("line", "expected"), BROKEN, ids=[text[:40] for _, text in BROKEN])
def test_a_broken_line_is_named_with_what_is_allowed(
    tmp_path: Path, line: str | dict[str, Any], expected: str
) -> None:
    path = write(tmp_path, OPTIONS | {"id": "fine"}, line)
    message = refusal(path)
    assert message.startswith(f"{path}:2: {expected}")
    assert message.count("; allowed: ") == 1
    if "is not JSON (" in expected:
        assert message.endswith("; allowed: one JSON object per line")


def test_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, FREE, OPTIONS, FREE)
    assert refusal(path).startswith(f'{path}:3: id "a/1" was already used in line 1')


def test_a_split_is_free_where_the_file_name_does_not_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(FREE | {"split": "train"}) + "\n")
    assert len(read_examples(path)) == 1
    path.write_text(json.dumps(FREE | {"split": "dev"}) + "\n")
    assert 'allowed: "test" or "train"' in refusal(path)


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\n"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: is empty; allowed: one JSON object per line")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "test.jsonl")
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(json.dumps(FREE).encode() + b"\n\xff\n")
    assert refusal(path) == f"{path}:2: byte 0xff is not UTF-8; allowed: UTF-8"


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    assert len(refusal(write(tmp_path, FREE | {"x" * 5000: 1}))) < 400


def test_reads_every_file_of_the_evaluation_data(data_dir: Path) -> None:
    files = [*data_dir.glob("*/test.jsonl"), *data_dir.glob("*/train.jsonl")]
    assert len(files) >= 23
    for path in files:
        assert len(read_examples(path)) == path.read_bytes().count(b"\n")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"), (True, "true"), (False, "false"), ([], "an empty list"), ([1], "a list"),
        ({}, "an object"), ("x", 'a string ("x")'), (3, "a number (3)"), (0.5, "a number (0.5)"),
    ],
)  # fmt: skip
def test_values_are_named_as_json_names_them(value: object, said: str) -> None:
    assert _kind(value) == said
