"""Parsing of option values that several commands share, and checks before any work."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moebench.results.spec import OPTIONS
from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.hub import is_hub


def find_data_dir(given: Path | None) -> Path | None:
    """Return the given folder of evaluation sets, or fail if it does not exist.

    There is no default folder: results must not depend on which folders happen to exist.
    """
    if given is not None and not (is_hub(given) or given.is_dir()):
        raise InputError(f"--data-dir {given}: no such folder")
    return given


def listed(text: str, option: str = "") -> list[str]:
    """Return the values of a text that are separated by commas.

    Args:
        option: names it in the message.

    Raises UsageError: a value is empty.
    """
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        named = f"{option} " if option else ""
        raise UsageError(f"{named}{text!r}: allowed: values separated by single commas")
    return values


def given_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed run options, parsed, as keyword arguments of `harness.run.rules.resolve`.

    Raises UsageError: a value does not match its option's unit or kind.
    """
    parsers = {"GiB": parse_gib, "GB/s": parse_rate}
    given = {}
    for name, value in typed.items():
        option = OPTIONS[name]
        if value is None or value is False or value == []:
            continue
        if option.unit:
            value = parsers[option.unit](option.flag, value)
        elif option.plain is dict:
            value = parse_overrides(value)
        elif option.path:
            value = str(value)
        given[name] = value
    return given


def parse_overrides(pairs: list[str]) -> dict[str, str]:
    """Return the ``key=value`` pairs of ``--set`` as a dictionary."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--set {pair}: expected key=value, for example --set evict=lru")
        overrides[key] = value
    return overrides


def parse_rate(option: str, text: str | None) -> float | None:
    """Return a rate such as ``4GB/s`` or ``800MB/s`` in GB/s, or None if none is given."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([GM]B/s)\s*", text)
    try:
        rate = float(found[1]) * {"GB/s": 1.0, "MB/s": 1e-3}[found[2]] if found else 0.0
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise UsageError(f"{option} {text}: expected a rate, for example 4GB/s or 800MB/s")
    return rate


def parse_gib(option: str, text: str | None) -> float | None:
    """Return a size such as ``12GB``, ``11.5GiB`` or ``11.5`` in GiB, or None if none is given."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*(GB|GiB|)\s*", text)
    try:
        size = float(found[1]) * (1e9 / 2**30 if found[2] == "GB" else 1.0) if found else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        raise UsageError(f"{option} {text}: expected a size, for example 12GB or 11.5GiB")
    return size


def require_file(option: str, file: Path, folder_exists: bool = False) -> None:
    """Refuse a file that cannot be written, before time is spent on computing its content.

    Args:
        folder_exists: also refuse a file whose folder does not exist.

    Raises InputError: ``file`` is a folder, or its folder cannot be written.
    """
    if file.is_dir():
        raise InputError(f"{option} {file}: this is a folder; give a file in it")
    if file.exists() and not file.is_file():
        raise InputError(f"{option} {file}: no plain file; give another name")
    if folder_exists and not file.absolute().parent.is_dir():
        raise InputError(f"{option} {file}: no such folder {file.parent}")
    require_folder(option, file.absolute().parent, str(file))


def require_folder(option: str, folder: Path, typed: str = "") -> None:
    """Refuse a folder that cannot be created or written.

    Raises InputError: the path or a parent is a file, or permission is missing.
    """
    typed = typed or str(folder)
    nearest = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir():
        raise InputError(f"{option} {typed}: {nearest} is not a folder; give another place")
    if not os.access(nearest, os.W_OK | os.X_OK) or nearest.is_relative_to("/proc"):
        raise InputError(f"{option} {typed}: {nearest} is not writable; give another place")


def require_new(option: str, folder: Path) -> None:
    """Refuse an output folder that already exists or cannot be created.

    Raises:
        UsageError: the folder exists.
        InputError: the folder cannot be created.
    """
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder}: exists; give another {option}, or remove it first")
    require_folder(option, folder)


def require_writable(store: Path, option: str = "--store") -> None:
    """Refuse a store folder that cannot be written, before a run spends time on it."""
    nearest = next(p for p in (store, *store.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir():
        raise InputError(f"{option} {store}: {nearest} is not a folder; give another {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} {store}: {nearest} is not writable; give another {option}")
