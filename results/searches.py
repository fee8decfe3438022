"""Stored searches for compositions: one JSON file for each, in a store's folder ``search``.

`moebench search` writes them (`harness.search`); the report reads them.
"""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.substrate.errors import InputError
from moebench.substrate.files import brief

#: The folder of searches in a store.
FOLDER = "search"


class _Read(BaseModel):
    """Fields that a file must have, of these types; others are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Trial(_Read):
    """An evaluated trial: its objectives; a published system's name; whether it was stopped."""

    trial: int
    values: list[float] = Field(min_length=1, max_length=2)
    system: str | None = None
    stopped: bool = False


class Candidate(_Read):
    """A candidate in validation: TPOT in ms, KL in nats a token, device memory in GB."""

    name: str
    published: bool
    tpot_ms: float | None = None
    kl: float | None = None
    memory_gb: float | None = None
    refused: str | None = None


class Compared(_Read):
    """The composition and the best published system in one place, in ms."""

    place: str
    found_ms: float | None = None
    best: str | None = None
    best_ms: float | None = None
    ratio: float | None = None
    clear: bool | None = None
    refused: str | None = None


class Composition(_Read):
    """A composition: its trial, and its decisions and options as ``--set`` takes them."""

    name: str
    set: dict[str, str]


class Bounds(_Read):
    """Lower bounds of a decoded token of the composition, in ms."""

    clairvoyant_ms: float | None = None
    information_ms: float | None = None


class SearchedPlace(_Read):
    """The outcome in one place."""

    place: str
    verdict: str
    better: bool
    best_published: str
    ratio: float | None = None
    probability_faster: float | None = None
    found: Composition | None = None
    validation: list[Candidate]
    held_out: list[Compared]
    bound: Bounds = Bounds()


class Searched(_Read):
    """A search: its trials and its outcomes."""

    search: str
    limit_kl: float | None = None
    trials: dict[str, int]
    history: list[Trial]
    places: list[SearchedPlace]


def read_searches(store: Path) -> tuple[list[Searched], list[str]]:
    """Return the searches of a store by file name, and a line for each file that is damaged."""
    found, damaged = [], []
    for file in sorted((store / FOLDER).glob("*.json")):
        try:
            found.append(_read(file))
        except InputError as error:
            damaged.append(str(error))
    return found, damaged


def _read(file: Path) -> Searched:
    try:
        return Searched.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{file}: {brief(where)}: {first['msg']}; search again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a stored search ({type(error).__name__})") from error
