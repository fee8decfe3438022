"""Reading of user files with one-line errors, and writing of files in one atomic step.

A parser can raise any exception for a broken file.  The readers in this module convert it into one
`InputError`, or into the subclass in ``error``.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from moebench.substrate.errors import InputError, MoeBenchError

if TYPE_CHECKING:
    import numpy as np
    from pydantic import ValidationError

Kind = type[InputError]


def read_text(path: Path, error: Kind = InputError, hint: str = "") -> str:
    """Read a UTF-8 text file.

    Args:
        hint: text about allowed files, which the message has after the reason.

    Raises InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or problem}){hint}") from problem
    except ValueError as problem:  # The file is not UTF-8, or the path is invalid.
        raise error(f"{path}: not UTF-8 text ({problem}){hint}") from problem


def require_file(path: Path, error: Kind = InputError) -> None:
    """Check that a path is not a pipe, device or folder: reading a pipe may never end.

    Raises InputError: it exists and is no regular file.
    """
    if path.exists() and not path.is_file():
        raise error(f"{path}: not a regular file; give a file")


def read_json(path: Path, error: Kind = InputError) -> Any:
    """Read a JSON file; NaN and infinities as Python writes them are allowed.

    Raises InputError: the file cannot be read, is no JSON, or has a key twice.
    """
    text = read_text(path, error)
    with _as(error, f"{path}: not valid JSON"):
        return json.loads(text, object_pairs_hook=_each_once)


def read_mapping(path: Path, error: Kind = InputError) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises InputError: as `read_json`, or the file does not hold an object.
    """
    found = read_json(path, error)
    if not isinstance(found, dict):
        raise error(f"{path}: expected a JSON object, found {brief(found)}")
    return found


def read_yaml(path: Path, error: Kind = InputError, hint: str = "") -> Any:
    """Read a YAML file.

    Raises InputError: the file cannot be read, is no YAML, or has a key twice.
    """
    return parse_yaml(read_text(path, error, hint), f"{path}: not valid YAML", error, hint)


def parse_yaml(text: str, what: str, error: Kind = InputError, hint: str = "") -> Any:
    """Parse a text in YAML.

    Args:
        what: beginning of the error message.

    Raises InputError: the text is no YAML, or has a key twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe YAML loader (no Python objects) that rejects duplicate keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen = set()
            for key_node, _ in node.value:
                if key_node.tag != "tag:yaml.org,2002:merge":
                    key = self.construct_object(key_node, deep=True)
                    if not isinstance(key, Hashable):
                        raise ValueError(f"{brief(key)} cannot be a key{_line(key_node)}")
                    if key in seen:
                        raise ValueError(f"key {key} is there twice{_line(key_node)}")
                    seen.add(key)
            return super().construct_mapping(node, deep)

    with _as(error, what, hint):
        return _loaded(Loader, text)


def _loaded(loader: Any, text: str) -> Any:
    """Parse a YAML text with a loader class, as `yaml.load` does."""
    open_ = loader(text)
    try:
        return open_.get_single_data()
    finally:
        open_.dispose()


def _line(node: Any) -> str:
    return f" (line {node.start_mark.line + 1})"


def read_array(
    path: Path, sha256: str | None = None, mapped: bool = False, error: Kind = InputError
) -> "np.ndarray":
    """Read the array of an ``.npy`` file, without unpickling.

    Args:
        sha256: expected hash of the file.
        mapped: map the file into memory instead of reading it.

    Raises InputError: the file cannot be read, holds no plain array, or has another hash.
    """
    import numpy as np

    with _as(error, f"{path}: cannot be read as an array"):
        if sha256 is not None:
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                    raise error(f"{path} is not what was written; record or import it again")
        found = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("an archive")
        return found


def read_arrays(path: Path, names: tuple[str, ...], error: Kind = InputError) -> dict[str, Any]:
    """Read the arrays of an ``.npz`` file that have one of the given names.

    Raises InputError: the file cannot be read, or holds no plain arrays.
    """
    import numpy as np

    found = {}
    with _as(error, f"{path}: cannot be read as arrays"), np.load(path, allow_pickle=False) as npz:
        found = {name: np.asarray(npz[name]) for name in names if name in npz}
    return found


@contextmanager
def _as(error: Kind, what: str, hint: str = "") -> Iterator[None]:
    """Context manager that converts a parser's exceptions into one-line errors."""
    try:
        yield
    except MoeBenchError:
        raise
    except OSError as problem:
        raise error(f"{what} ({problem.strerror or problem}){hint}") from problem
    except RecursionError as problem:
        raise error(f"{what} (nested too deeply){hint}") from problem
    except MemoryError as problem:
        raise error(f"{what} (it asks for more memory than there is){hint}") from problem
    except Exception as problem:  # Parsers can raise any exception for a broken file.
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if "pickle" in reason:  # NumPy's message advises to allow pickles.
            reason = "it holds Python objects, not numbers"
        raise error(f"{what} ({reason[:200]}){hint}") from problem


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice} is there twice")
    return found


def brief(value: object) -> str:
    """Return a value's `repr` for an error message, in at most 60 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # `repr` fails for cycles and for very long integers.
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def brief_word(value: object) -> str:
    """Return a typed value for an error message, in at most 60 characters, without quotes."""
    return brief(value)[1:-1] if isinstance(value, str) and len(value) < 50 else brief(value)


def first_wrong(error: "ValidationError") -> str:
    """Return the first invalid field of a file, its value, and what is wrong, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} is {brief(first['input'])}: {first['msg']}"


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8 in one atomic step (`write_bytes`)."""
    write_bytes(path, text.encode(errors="backslashreplace"))  # half of a surrogate pair


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` in one atomic step, and create its folder.

    Raises InputError: the file cannot be written; an existing file is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o644)  # Only the owner can read a temporary file.
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def whole(value: object, what: str, low: int, high: int, error: Kind = InputError) -> int:
    """Return a value after the check that it is an integer (no bool) in a range.

    Args:
        what: the file and the field, for the message.

    Raises InputError: the value is not; the message has the field, the value and the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(error, what, value, f"a whole number from {low} to {high}")
    return value


def _refuse(error: Kind, what: str, value: object, allowed: str) -> NoReturn:
    raise error(f"{what} is {brief(value)}; allowed: {allowed}")
