"""Compares two folders of measured claims: do two reproductions of one commit agree exactly?

    python -m benchmarks.claims results/claims OTHER

prints what differs, one line each, and exits with 1 if anything does.  Times of this computer
(*no verdict*) and the provenance are left out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebench.results.claims import EQUAL_MEMORY, PaperResult, Verdict, read, read_exhibit


def differences(first: Path, second: Path) -> list[str]:
    """Return the differences of two folders' results, one line each.

    Raises InputError: a file is damaged.
    """
    one, other = read(first), read(second)
    found = [f"{first} has {[r.paper for r in one]}, {second} has {[r.paper for r in other]}"]
    if [r.paper for r in one] == [r.paper for r in other]:
        found = [
            f"{a.paper}: {line}"
            for a, b in zip(one, other, strict=True)
            for line in _differing(_plain(a), _plain(b))
        ]
    tables = [read_exhibit(EQUAL_MEMORY, folder) for folder in (first, second)]
    plain = [table and table.model_dump(mode="json") for table in tables]
    return found + [f"{EQUAL_MEMORY}: {line}" for line in _differing(*plain)]


def _plain(result: PaperResult) -> dict[str, Any]:
    """Return the figures of a result by claim and exhibit, without times of this computer."""
    claims = {one.id: one.model_dump(mode="json") for one in result.claims}
    for one in result.claims:
        if one.verdict is Verdict.NO_VERDICT:
            claims[one.id] |= {"measured": None, "counters": []}
    exhibits = {one.id: one.model_dump(mode="json") for one in result.exhibits}
    return {"quick": result.quick, "claims": claims, "exhibits": exhibits}


def _differing(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield the places at which two values differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from _differing(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from _differing(*pair, f"{where}.{at}")
    elif one != other:
        yield f"{where}: {_short(one)}, {_short(other)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(found) or "equal")
    sys.exit(1 if found else 0)
