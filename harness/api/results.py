"""What the Python interface returns: stored runs and comparisons, and both as data frames."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from moebench.harness.api.frames import frame_of
from moebench.results.document import Document, basis, is_lossless
from moebench.results.metrics import METRICS
from moebench.results.samples import read_samples
from moebench.results.spec import RunSpec

if TYPE_CHECKING:
    import pandas

    from moebench.harness.api.compare import Compared


class Failure(NamedTuple):
    """A cell of a sweep without a run.

    Attributes:
        error: the reason in one line.
        impossible: the system cannot run there; False if something broke.
    """

    spec: Mapping[str, Any]
    error: str
    impossible: bool


@dataclass(frozen=True, slots=True)
class Runs(Sequence[Document]):
    """Stored runs, a sequence of their documents (`docs/store.md`).

    Attributes:
        store: the folder in which they are stored.
        failures: cells that have no run, of a sweep.
    """

    documents: tuple[Document, ...]
    store: Path
    failures: tuple[Failure, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Document | Runs":
        if isinstance(index, slice):
            return Runs(self.documents[index], self.store)
        return self.documents[index]

    def __len__(self) -> int:
        return len(self.documents)

    def frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each run, in their order.

        Columns: ``run_id``; the fields of the run's spec; ``badge``, ``simulated``, ``lossless``
        and the ``commit`` of moebench; then the figures of `docs/store.md` by their keys, as they
        are stored: times in ms, sizes in bytes, shares from 0 to 1, scores in percent; NaN where a
        run has no such figure.

        Raises UsageError: pandas is not installed.
        """
        return frame_of([_row(run) for run in self.documents])

    def samples(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each token step of a batch.

        Columns: ``run_id``, ``batch``, ``step`` (0 ends the prefill) and ``ms``.

        Raises UsageError: pandas is not installed.
        """
        rows = [
            {"run_id": run["run_id"], "batch": one.batch, "step": one.step, "ms": one.ns / 1e6}
            for run in self.documents
            for one in read_samples(self.store, run["run_id"]) or ()
        ]
        return frame_of(rows, ("run_id", "batch", "step", "ms"))

    def compare(self, mixed: Collection[str] = ()) -> "Compared":
        """Return these runs in tables of equal conditions; see `moebench.compare`.

        Raises UsageError: runs of one place are under different conditions.
        """
        from moebench.harness.api.compare import tabulated

        return tabulated(self.documents, mixed)

    def _repr_html_(self) -> str:
        shown = self.frame().dropna(axis="columns", how="all")
        names = ["run_id", "system", "setting", "model", "machine", "workload", "batch", "badge",
                 "tpot_ms", "ttft_ms", "hit_ratio", "score", "kl"]  # fmt: skip
        return str(shown[[name for name in names if name in shown]].to_html())


def _row(run: Document) -> dict[str, Any]:
    """Return a run's facts and figures as stored."""
    facts = {name: run["spec"].get(name) for name in RunSpec.model_fields}
    about = {
        "badge": basis(run), "simulated": run.get("simulated"), "lossless": is_lossless(run),
        "commit": run.get("provenance", {}).get("commit"),
    }  # fmt: skip
    figures = {
        metric.key: metric.read(run) for metric in METRICS if metric.path or metric.of is not None
    }
    return {"run_id": run["run_id"], **facts, **about, **figures}


def documents_of(store: Any, run_ids: Iterable[str]) -> Iterator[Document]:
    """Yield the documents of runs that the store has."""
    for run_id in run_ids:
        document = store.get(run_id)
        if document is not None:
            yield document
