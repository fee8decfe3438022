"""Per-token samples of a run, from which its means are computed: one Parquet file per run.

    .moebench/samples/RUN_ID.parquet

| column | type | what |
|---|---|---|
| `run_id` | string | the run, equal in all rows |
| `batch` | int32 | which batch of prompts, from 0 |
| `step` | int32 | which token: 0 ends prefill (its time is TTFT), 1 is the first decoded one |
| `ns` | int64 | time of this token, of the whole batch, in ns |
| `active` | list of int32 | active experts of each MoE layer, in order; null at step 0 |
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from moebench.results.document import is_run_id
from moebench.substrate.errors import InputError
from moebench.substrate.files import brief

FOLDER = "samples"


class TokenSample(NamedTuple):
    """Time and active experts of one token step of one batch: a row without its ``run_id``."""

    batch: int
    step: int
    ns: int
    active: list[int] | None


class Runs(Protocol):
    """Interface of the run store that `samples_of_run` uses: its folder and its documents."""

    directory: Path

    def get(self, run_id: str) -> dict[str, Any] | None:
        """Return the document of a run, or None if the store has no such run."""


def samples_path(directory: Path, run_id: str) -> Path:
    """Return the path of a run's samples in the store in ``directory``.

    Raises InputError: the id could name a file outside the store.
    """
    if not is_run_id(run_id):
        raise InputError(
            f"run {brief(run_id)} is not an id of moebench; its samples are left alone"
        )
    return directory / FOLDER / f"{run_id}.parquet"


def write_samples(directory: Path, run_id: str, samples: Sequence[TokenSample]) -> Path:
    """Write a run's samples to their Parquet file, atomically.

    Raises InputError: the file cannot be written; what was there is left as it was.
    """
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    kinds = (pyarrow.int32(), pyarrow.int32(), pyarrow.int64(), pyarrow.list_(pyarrow.int32()))
    columns = zip(*samples, strict=True) if samples else [()] * len(kinds)
    arrays = [pyarrow.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    run = pyarrow.array([run_id] * len(samples), pyarrow.string())
    table = pyarrow.table([run, *arrays], names=["run_id", *TokenSample._fields])
    file = samples_path(directory, run_id)
    # Two processes may write the same run; each writes a file of its own name, and either is right.
    # Readers of the whole folder skip names that begin with a dot.
    half_written = file.with_name(f".{run_id}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, half_written, compression="zstd")
        os.replace(half_written, file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{file} cannot be written: {reason}; give another --store") from error
    finally:
        _discard(half_written)
    return file


@contextmanager
def samples_of_run(store: Runs, run_id: str, samples: Sequence[TokenSample]) -> Iterator[None]:
    """Context manager that writes a run's samples, if any, before its body stores the run.

    If the body fails, the file is deleted: no samples remain without a run.  If Ctrl-C arrives
    after the run was stored, they remain.

    Raises InputError: the file cannot be written.
    """
    file = samples_path(store.directory, run_id)
    known = file.exists()
    if samples:
        write_samples(store.directory, run_id, samples)
    try:
        yield
    except BaseException:
        if not known and store.get(run_id) is None:
            _discard(file)
        raise


def read_samples(directory: Path, run_id: str) -> list[TokenSample] | None:
    """Return a run's samples, or None if none were kept.

    Raises InputError: the file is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    file = samples_path(directory, run_id)
    if not file.exists():
        return None
    try:
        table = parquet.read_table(file, columns=list(TokenSample._fields))
        return [TokenSample(**row) for row in table.to_pylist()]
    except (OSError, pyarrow.ArrowException, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} is damaged ({reason}); delete it and run with --force") from error


def _discard(file: Path) -> None:
    with suppress(OSError):  # the write's own error is the one to show
        file.unlink(missing_ok=True)
