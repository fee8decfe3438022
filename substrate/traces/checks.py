"""Checks of the values in a trace's arrays, used when a trace is opened or imported.

Error messages name the array, the position of the first bad value, the value, and allowed values.
"""

from typing import NoReturn

import numpy as np

from moebench.substrate.errors import InputError

#: The largest number that a column of a trace can hold (int32).
MOST = 2**31 - 1

#: Number of rows that are checked at once: a trace's scores may be larger than memory.
_BLOCK = 4096


#: Allowed range of an array's values, by its name.
_RANGES = {"sequence": (0, MOST), "position": (0, MOST), "phase": (0, 1), "chosen": (-1, MOST)}


def check_array(where: str, name: str, values: np.ndarray, experts: int) -> None:
    """Check that an array of a trace has the right kind of numbers and only allowed values.

    Args:
        name: an array's name from `substrate.traces.file`.

    Raises InputError: a value is not allowed, or the array has another kind of numbers.
    """
    kind = np.integer if name in _RANGES or name in ("ids", "candidates") else np.floating
    if not np.issubdtype(values.dtype, kind):
        raise InputError(f"{where}: {name} is {values.dtype}; allowed: {kind.__name__} numbers")
    if name in _RANGES:
        check_range(where, name, values, *_RANGES[name])
    elif kind is np.integer:
        check_experts(where, name, values, experts)
    else:
        # Predictions that were not made are NaN.
        check_scores(where, name, values, nan=name.startswith("predicted"))


def check_range(where: str, name: str, values: np.ndarray, low: int, high: int) -> None:
    """Check that all whole numbers of an array are in a range.

    Raises InputError: a number is outside; the message names the first one.
    """
    wrong = (values < low) | (values > high)
    if wrong.any():
        _refuse(where, name, values, wrong, f"{low} to {high}")


def check_experts(where: str, name: str, ids: np.ndarray, experts: int) -> None:
    """Check that expert ids ``[T, L, K]`` are below ``experts`` and unique for a token and layer.

    Raises InputError: an id is not; the message names the first one.
    """
    if not ids.size:
        return
    wrong = (ids < 0) | (ids >= experts)
    if wrong.any():
        at = _first(wrong)
        raise InputError(
            f"{where}: {name} names expert {ids[at]} of {experts} at {_place(at)}; allowed: 0 to "
            f"{experts - 1}"
        )
    ordered = np.sort(ids, axis=2)
    twice = ordered[..., 1:] == ordered[..., :-1]
    if twice.any():
        at = _first(twice)
        raise InputError(
            f"{where}: {name} has the same expert twice, {ordered[at]}, at {_place(at[:2])}; "
            "allowed: each expert once"
        )


def check_scores(
    where: str, name: str, values: np.ndarray, negative: bool = True, nan: bool = False
) -> None:
    """Check that all scores are finite numbers.

    Args:
        negative: allow scores below 0.
        nan: allow NaN, which marks a prediction that was not made.

    Raises InputError: a score is not allowed; the message names the first one.
    """
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        wrong = np.isinf(block) if nan else ~np.isfinite(block)
        allowed = "finite numbers" + (", or NaN for those that were not made" if nan else "")
        if not negative and not wrong.any():
            wrong, allowed = block < 0, "numbers from 0"
        if wrong.any():
            _refuse(where, name, block, wrong, allowed, start)


def _refuse(
    where: str, name: str, values: np.ndarray, wrong: np.ndarray, allowed: str, start: int = 0
) -> NoReturn:
    at = _first(wrong)
    place = _place((at[0] + start, *at[1:]))
    raise InputError(f"{where}: {name} is {values[at]} at {place}; allowed: {allowed}")


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _place(at: tuple[int, ...]) -> str:
    names = ("token", "layer", "column")
    return ", ".join(f"{name} {i}" for name, i in zip(names, at, strict=False))
