"""Files of users: what is read, what is refused in one line, and writing in one step."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from moebench.substrate.errors import CheckpointError, InputError
from moebench.substrate.files import (
    _as,
    brief,
    brief_word,
    first_wrong,
    parse_yaml,
    read_array,
    read_arrays,
    read_json,
    read_mapping,
    read_text,
    read_yaml,
    require_file,
    whole,
    write_bytes,
    write_text,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.file"


def refused(call, *args, **more) -> str:
    """Return the one line with which a call refuses a file, as an error of the given class."""
    with pytest.raises(CheckpointError) as caught:
        call(*args, error=CheckpointError, **more)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_text_is_utf_8(file: Path) -> None:
    assert refused(read_text, file, hint="; hint") == (
        f"{file}: cannot be read (No such file or directory); hint"
    )
    file.write_bytes("ä\n".encode())
    assert read_text(file) == "ä\n"
    file.write_bytes(b"\xff")
    said = refused(read_text, file, hint="; hint")
    assert said.startswith(f"{file}: not UTF-8 text ('utf-8' codec can't")
    assert said.endswith("; hint")
    with pytest.raises(InputError):
        read_text(file)


def test_pipes_and_folders_are_no_files(file: Path) -> None:
    require_file(file)  # absent: opening it says so
    os.mkfifo(file)
    for path in (file, file.parent):
        assert refused(require_file, path) == f"{path}: not a regular file; give a file"
    file.unlink()
    file.write_text("")
    require_file(file)


@pytest.mark.parametrize(
    ("text", "found"),
    [('{"a": [1, NaN], "b": null}', "{'a': [1, nan], 'b': None}"), ("3", "3"), ('"x"', "'x'")],
)
def test_json_is_read(text: str, found: str, file: Path) -> None:
    file.write_text(text)
    assert repr(read_json(file)) == found
    if text[0] == "{":
        assert repr(read_mapping(file)) == found
    else:
        assert refused(read_mapping, file) == f"{file}: expected a JSON object, found {found}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name enclosed in double quotes"),
        ('{"a": 1, "b": 2, "b": 3, "a": 4}', "key a is there twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_json_is_refused(text: str, reason: str, file: Path) -> None:
    file.write_text(text)
    assert refused(read_json, file).startswith(f"{file}: not valid JSON ({reason}")


def test_yaml_is_read(file: Path) -> None:
    file.write_text("a: &x {b: 1}\nc:\n  <<: *x\n  d: [2, {e: 3}]\n")
    assert read_yaml(file) == {"a": {"b": 1}, "c": {"b": 1, "d": [2, {"e": 3}]}}
    assert parse_yaml("- 1\n- x", "here") == [1, "x"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "key a is there twice (line 3)"),
        ("x:\n  a: 1\n  a: 1", "key a is there twice (line 3)"),
        ("? [1]\n: 2", "[1] cannot be a key (line 1)"),
        ("!!python/object:os.system {}", "could not determine a constructor for the tag"),
    ],
)
def test_broken_yaml_is_refused(text: str, reason: str, file: Path) -> None:
    file.write_text(text)
    said = refused(read_yaml, file, hint="; hint")
    assert said.startswith(f"{file}: not valid YAML ({reason}")
    assert said.endswith("); hint")
    assert refused(parse_yaml, text, "here", hint="!").startswith(f"here ({reason}")


def test_arrays_are_read_and_their_hash_is_checked(file: Path) -> None:
    wanted = np.arange(6).reshape(2, 3)
    with file.open("wb") as stream:
        np.save(stream, wanted)
    own = hashlib.sha256(file.read_bytes()).hexdigest()
    for mapped in (False, True):
        found = read_array(file, own, mapped)
        np.testing.assert_array_equal(found, wanted)
        assert isinstance(found, np.memmap) == mapped
    assert not isinstance(read_array(file), np.memmap)
    assert refused(read_array, file, own[::-1]) == (
        f"{file} is not what was written; record or import it again"
    )
    np.savez(file.with_suffix(".npz"), one=wanted, two=wanted * 2, three=wanted)
    both = read_arrays(file.with_suffix(".npz"), ("two", "one", "four"))
    assert [(name, array.sum()) for name, array in both.items()] == [("two", 30), ("one", 15)]
    assert "(an archive)" in refused(read_array, file.with_suffix(".npz"))
    with file.open("wb") as stream:
        np.save(stream, np.array([{}]), allow_pickle=True)
    assert refused(read_array, file) == (
        f"{file}: cannot be read as an array (it holds Python objects, not numbers)"
    )
    absent = file.with_name("absent")
    assert refused(read_arrays, absent, ("a",)) == (
        f"{absent}: cannot be read as arrays (No such file or directory)"
    )


def test_values_in_messages_are_short() -> None:
    assert brief("a" * 58) == repr("a" * 58)  # 60 characters with its quotes
    assert brief("a" * 59) == "'" + "a" * 56 + "..."
    assert len(brief("a" * 59)) == 60
    assert brief(10**5000) == "a int"
    assert brief_word("it's") == "it's"
    assert brief_word("a" * 49) == "a" * 49
    assert brief_word("a" * 70) == brief("a" * 70)
    assert brief_word(3) == "3"


def test_the_first_wrong_field_is_named() -> None:
    class Two(BaseModel):
        a: list[int]
        b: int

    with pytest.raises(ValidationError) as caught:
        Two(a=[1, "x"], b="y")  # type: ignore[list-item, arg-type]
    assert first_wrong(caught.value).startswith("a.1 is 'x': Input should be a valid integer")


def test_files_are_written_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "deep" / "a.txt"
    write_text(file, "ä\ud800")
    assert file.read_bytes() == "ä\\ud800".encode()
    assert file.stat().st_mode & 0o777 == 0o644
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    write_bytes(file, b"other")
    assert sizes == [5]  # all of it is on the disk before the file has its name
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"other", ["a.txt"])

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a\.txt cannot be written: No space left on device"):
        write_bytes(file, b"third")
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"other", ["a.txt"])


@pytest.mark.parametrize("value", [2, 5, 3])
def test_whole_numbers_in_their_range(value: int) -> None:
    assert whole(value, "field", 2, 5) == value


@pytest.mark.parametrize("value", [1, 6, 2.0, True, "3", None])
def test_other_values_are_refused(value: object) -> None:
    assert refused(whole, value, "field", 1 if value is True else 2, 5) == (
        f"field is {value!r}; allowed: a whole number from {1 if value is True else 2} to 5"
    )


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (OSError(5, "Input/output error"), "Input/output error"), (OSError("odd"), "odd"),
        (RecursionError(), "nested too deeply"),
        (MemoryError(), "it asks for more memory than there is"),
        (ValueError("two\n  lines"), "two lines"), (KeyError(), "KeyError"),
        (ValueError("pass allow_pickle=True"), "it holds Python objects, not numbers"),
        (ValueError("x" * 300), "x" * 200),
    ],
)  # fmt: skip
def test_whatever_a_parser_raises_is_one_line(problem: Exception, said: str) -> None:
    with pytest.raises(CheckpointError) as caught, _as(CheckpointError, "a: broken", "; mend it"):
        raise problem
    assert str(caught.value) == f"a: broken ({said}); mend it"
    assert caught.value.__cause__ is problem


def test_errors_of_moebench_itself_are_left_as_they_are() -> None:
    own = InputError("mine")
    with pytest.raises(InputError, match=r"^mine$") as caught, _as(CheckpointError, "a: broken"):
        raise own
    assert caught.value is own
