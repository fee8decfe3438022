"""Compares stored runs: what `moebench compare` and `moebench.compare` do."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moebench.harness.api.frames import frame_of
from moebench.harness.settings import settings
from moebench.reports.compare import pair, tables
from moebench.reports.compare.conditions import title_of
from moebench.reports.compare.tables import Comparison
from moebench.reports.compare.text import document, records
from moebench.results.document import Document, dig, system_of
from moebench.results.samples import TokenSample, read_samples
from moebench.results.store import Store
from moebench.results.store_hints import DEFAULT_STORE, in_store
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.models.catalogue import model_shape, shape_names
from moebench.systems.options import build_any
from moebench.systems.registry import needs_import

if TYPE_CHECKING:
    import pandas

#: Values that runs must have, by the spec's field; None admits all.
Wanted = Mapping[str, Collection[str] | None]

#: What a setting states and a run can change.
STATED = {"software", "cache_ratio", "slots", "new_tokens", "device_memory_gib", "free_host_gb"}


@dataclass(frozen=True, slots=True)
class Compared:
    """Stored runs in tables of equal conditions.

    Attributes:
        tables: each table's place, common conditions and systems, the fastest first.
        left_out: sentences about runs that no table holds.
    """

    tables: tuple[Comparison, ...]
    left_out: tuple[str, ...]

    def frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each system of each table.

        Columns: the table's title and conditions; ``system``, ``badge``, ``remarks``, ``runs``;
        each figure as it is displayed (in percent, GB, ...), with ``.low`` and ``.high`` ends of
        its interval, the number ``.n`` of cells that it is a mean of, and its ``.place``: 1 for the
        best and all that are tied with it, 2 for the next, else NaN.

        Raises UsageError: pandas is not installed.
        """
        return frame_of([line for table in self.tables for line in records(table)])

    def documents(self) -> list[dict[str, Any]]:
        """Return the tables as plain values, as ``moebench compare --json`` prints them."""
        return [document(table) for table in self.tables]

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of runs under equal conditions, compared prompt by prompt."""

    pairs: tuple[pair.Comparison, ...]

    def frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each figure of each pair.

        Columns: ``runs`` and ``workload`` of the pair, ``figure`` with its unit, ``first``,
        ``second``, and the change ``value`` from the first to the second with the ends of its
        95 % interval, ``low`` and ``high``, over ``n`` questions or batches.

        Raises UsageError: pandas is not installed.
        """
        rows = []
        for found in self.documents():
            for figure in found["figures"]:
                values = {key: value for key, value in figure.items() if key != "title"}
                rows.append({
                    "runs": f"{found['first']} {found['second']}", "workload": found["workload"],
                    "figure": figure["title"], **values,
                })  # fmt: skip
        return frame_of(rows)

    def documents(self) -> list[dict[str, Any]]:
        """Return the pairs as plain values, as ``moebench compare A B --json`` prints them."""
        return [pair.document(one) for one in self.pairs]

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())


def compare(
    first: str | None = None, second: str | None = None, *, store: Path | str = DEFAULT_STORE,
    system: str | Sequence[str] | None = None, setting: str | Sequence[str] | None = None,
    workload: str | Sequence[str] | None = None, batch: int | Sequence[int] | None = None,
    mixed: Sequence[str] = (),
) -> Compared | Pairs:  # fmt: skip
    """Compare stored runs in tables of equal conditions, or two systems or runs as a pair.

        moebench.compare().frame()
        moebench.compare("smoe", "daop").frame()

    Args:
        first, second: two systems or two run ids; None compares all systems.
        store: the folder of stored runs.
        system, setting, workload, batch: values that runs must have; None admits all.
        mixed: conditions that may differ within a table.

    Raises UsageError: no such runs, or they are under different conditions.
    """
    given = {"system": system, "setting": setting, "workload": workload, "batch": batch}
    wanted = {name: None if value is None else _texts(value) for name, value in given.items()}
    kept = Store(Path(store))
    if first is None and second is None:
        return chosen(kept, wanted, mixed)
    if first is None or second is None:
        raise UsageError("compare: give two runs or two systems, or neither")
    return paired(kept, (first, second), wanted, mixed)


def _texts(value: object) -> list[str]:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return [str(one) for one in value] if several else [str(value)]  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------- tables


def chosen(store: Store, wanted: Wanted, mixed: Collection[str]) -> Compared:
    """Return the wanted runs of a store in tables.

    Raises UsageError: there are no such runs, or one place's are under different conditions.
    """
    runs = [run for run in runs_of(store) if _is_wanted(run, wanted)]
    if not runs:
        where = store.directory
        hint = f"moebench sweep --systems smoe,moe-ondemand --settings S3{in_store(where)}"
        raise UsageError(f"no such runs in {where}; run: {hint}")
    return tabulated(runs, mixed)


def tabulated(runs: Iterable[Document], mixed: Collection[str]) -> Compared:
    """Return runs in tables of equal conditions.

    Raises UsageError: runs of one place are under different conditions.
    """
    runs = list(runs)
    specs = {title_of(run): run["spec"] for run in runs}
    found, left_out = tables.comparisons(
        runs, stated(), mixed, lambda run, title: _why_not(specs[title], run["spec"])
    )
    tables.refuse_mixtures(found, mixed)
    return Compared(found, left_out)


def stated() -> dict[str, dict[str, Any]]:
    """Return the options that each setting states and that a run can change, by setting."""
    return {
        name: one.model_dump(include=STATED, exclude_none=True) for name, one in settings().items()
    }


def _why_not(spec: Mapping[str, Any], place: Mapping[str, Any]) -> str | None:
    """Return why a spec's system does not exist for the model and batch of another spec."""
    overrides = spec.get("overrides") or {}
    if place["model"] not in shape_names() or needs_import(spec["system"], overrides):
        return None
    try:
        system = build_any(spec["system"], overrides, spec.get("variant") or "published")
    except MoeBenchError:  # it has an option that earlier versions had
        return None
    return system.why_not(model_shape(place["model"]), place["batch"])


def runs_of(store: Store) -> list[Document]:
    """Return the stored runs, without those whose prompts an evaluator chose, and in brief."""
    return [run for run in store.runs(brief=True) if "evaluation" not in run]


def _is_wanted(run: Document, wanted: Wanted) -> bool:
    """Return whether a run has one of the wanted values of each option."""

    def value(key: str) -> str:
        return system_of(run["spec"]) if key == "system" else str(dig(run, f"spec.{key}"))

    return all(values is None or value(key) in values for key, values in wanted.items())


# ----------------------------------------------------------------------------- pairs


def paired(store: Store, names: tuple[str, str], wanted: Wanted, mixed: Collection[str]) -> Pairs:
    """Return the comparison of two runs, or of two systems' runs under equal conditions.

    Raises UsageError: no two runs have equal conditions.
    """

    def times(run: Document) -> list[TokenSample] | None:
        return read_samples(store.directory, run["run_id"])

    def whole(run: Document) -> Document:
        return store.get(run["run_id"]) or run

    runs = runs_of(store)
    one, other = (_selected(store, runs, name, wanted) for name in names)
    pairs = [(whole(a), whole(b)) for a, b in _pairs(one, other, mixed)]
    return Pairs(tuple(pair.compare(a, b, (times(a), times(b)), mixed) for a, b in pairs))


class _Selected(NamedTuple):
    """Runs selected by one of two names: a system's runs, or one run."""

    name: str
    runs: Sequence[Document]
    system: bool


def _selected(store: Store, runs: Sequence[Document], name: str, wanted: Wanted) -> _Selected:
    """Return a system's runs, the oldest first, or the run whose id begins with ``name``."""
    named = [run for run in runs if name in (title_of(run), system_of(run["spec"]))]
    if not named:
        return _Selected(name, [store.find(name)], False)
    kept = [run for run in named if _is_wanted(run, wanted)]
    if not kept:
        raise UsageError(
            f"{name}: none of its {len(named)} runs has these settings, workloads, ..."
        )
    return _Selected(name, kept, True)


def _pairs(
    one: _Selected, other: _Selected, mixed: Collection[str]
) -> list[tuple[Document, Document]]:
    """Return pairs of runs under equal conditions, or the two given runs.

    Raises UsageError: no two runs have equal conditions.
    """
    if not (one.system or other.system):
        return [(one.runs[0], other.runs[0])]
    fixed = [name for name in pair.NAMES if name not in mixed]
    texts = {run["run_id"]: pair.texts(run) for run in (*one.runs, *other.runs)}

    def alike(run: Document) -> tuple[str, ...]:
        return tuple(texts[run["run_id"]][name] for name in fixed)

    seconds: dict[tuple[str, ...], list[Document]] = {}
    for run in other.runs:
        seconds.setdefault(alike(run), []).append(run)
    found: dict[str, tuple[Document, Document]] = {}
    for first in one.runs:
        for second in seconds.get(alike(first), ()):
            if first["run_id"] != second["run_id"]:
                both = (first, second)
                where = [texts[run["run_id"]][name] for run in both for name in pair.NAMES]
                found[json.dumps([*map(title_of, both), *where])] = both
    if not found:
        apart = _nearest({*map(alike, one.runs)}, {*seconds}, fixed)
        said = "; ".join(f"{name} {a} and {b}" for name, (a, b) in apart.items())
        raise UsageError(
            f"no runs of {one.name} and {other.name} under equal conditions; the nearest differ "
            f"in {said or 'nothing: they are one run'}; allow it with --mixed "
            f"{','.join([*mixed, *apart])}"
        )
    return [found[conditions] for conditions in sorted(found)]


def _nearest(
    first: set[tuple[str, ...]], second: set[tuple[str, ...]], names: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return the fewest conditions in which two runs differ, with both values."""
    found: dict[str, tuple[str, str]] | None = None
    for one, other in product(sorted(first), sorted(second)):
        if one != other and (found is None or len(found) > 1):
            both = zip(names, one, other, strict=True)
            apart = {name: (a, b) for name, a, b in both if a != b}
            if found is None or len(apart) < len(found):
                found = apart
    return found or {}
