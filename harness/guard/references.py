"""Reads the accepted cells that `moebench check --update` wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from moebench.substrate.errors import InputError
from moebench.substrate.files import first_wrong, read_mapping

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(min_length=1)]


class Items(BaseModel):
    """Figures of each example of a cell; all columns have the same length.

    Attributes:
        value: 0 to 1; None without a reference answer.
        kl: nats over the example's tokens; None where the lossless model computed nothing.
    """

    value: list[FiniteFloat | None]
    answer: list[str]
    agreed: list[Count]
    kl: list[FiniteFloat | None]

    @model_validator(mode="after")
    def _of_one_length(self) -> "Items":
        if len({len(self.value), len(self.answer), len(self.agreed), len(self.kl)}) > 1:
            raise ValueError("its columns have different lengths")
        return self


class Accuracy(BaseModel):
    """Accuracy of a cell, as in a run's document; a figure is None where nothing was scored."""

    score: FiniteFloat | None
    agreement: FiniteFloat | None
    kl: FiniteFloat | None
    items: Items


class Latency(BaseModel):
    """Latencies of the simulated machine in ms, and the hash of its profile."""

    tpot_ms: FiniteFloat | None
    ttft_ms: FiniteFloat | None
    e2e_ms: FiniteFloat | None
    profile_hash: Hash


class Reference(BaseModel):
    """An accepted cell.

    Attributes:
        arithmetic: hashes by kind of operation, or `harness.guard.latency.NOTHING_COMPUTED`; one
            hash in files of earlier versions.
        subject: see `harness.guard.check.SUBJECT`; None in files of earlier versions.
    """

    accuracy: Accuracy
    alpha: FiniteFloat | None
    data_hash: Hash | None
    weights_hash: Hash | None
    arithmetic: Hash | dict[str, Hash]
    latency: Latency | None = None
    subject: dict[str, Any] | None = None


_CELLS = TypeAdapter(dict[str, Reference])


def read_references(path: Path, update: str) -> dict[str, dict[str, Any]]:
    """Return the accepted cells by name; none if the file does not exist.

    Args:
        update: the command that writes the file.

    Raises InputError: the file was not written by `moebench check --update`.
    """
    if not path.exists():
        return {}
    found: Mapping[str, Any] = {}
    try:
        found = read_mapping(path)
        _CELLS.validate_python(found, strict=True)
    except InputError as error:
        raise InputError(f"{path}: not a reference ({error}); make it again: {update}") from error
    except ValidationError as error:
        raise InputError(
            f"{path}: not a reference ({first_wrong(error)}); make it again: {update}"
        ) from error
    return dict(found)
