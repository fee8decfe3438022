"""``moebench compare A B``: two runs, or two systems workload by workload."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from moebench.harness import console
from moebench.reports.compare import pair
from moebench.reports.compare.conditions import title_of
from moebench.reports.tables import Document, dig, system_of
from moebench.results.samples import read_samples
from moebench.results.store import Store
from moebench.substrate.errors import UsageError


class _Chosen(NamedTuple):
    """What one of the two names stands for; a system's runs, or the one run."""

    name: str
    runs: Sequence[Document]
    system: bool


def pair_command(
    directory: Path, names: Sequence[str], wanted: Mapping[str, str | None], mixed: str | None,
    form: str,
) -> None:  # fmt: skip
    """Print the comparison of two runs, or of two systems' runs under equal conditions.

    Args:
        wanted: values that systems' runs must have, by the spec's field, separated by commas.
        mixed: conditions that may differ, separated by commas.
        form: ``text``, ``markdown`` or ``json``.
    """
    if len(names) != 2:
        raise UsageError(f"compare {' '.join(names)}: give two runs or two systems, or neither")
    store, allowed = Store(directory), _split(mixed)
    one, other = (_chosen(store, name, wanted) for name in names)
    found = [
        pair.compare(a, b, (_samples(directory, a), _samples(directory, b)), allowed)
        for a, b in _pairs(one, other, allowed)
    ]
    if form == "json":
        print(json.dumps([pair.document(each) for each in found], sort_keys=True))
        return
    for each in found:
        if form == "markdown":
            print(pair.markdown(each))
            continue
        console.table(pair.place_of(each), _headers(each), pair.lines(each))
        print(pair.sentence(each))
        out = console.stderr()
        out.print(pair.over(each), markup=False)
        for name, values in each.differing.items():
            out.print(f"differs: {name} {' and '.join(values)}", markup=False)


def _headers(found: pair.Comparison) -> list[str]:
    runs = (found.first, found.second)
    return ["figure", *map(pair.title_of, runs), *pair.HEADERS[3:]]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _samples(directory: Path, run: Document) -> pair.Samples:
    return read_samples(directory, run["run_id"])


def _chosen(store: Store, name: str, wanted: Mapping[str, str | None]) -> _Chosen:
    """A system's runs, the oldest first, or the run whose id begins so."""
    runs = [run for run in store.runs() if "evaluation" not in run]
    named = [run for run in runs if name in (title_of(run), system_of(run["spec"]))]
    if not named:
        return _Chosen(name, [store.find(name)], False)
    kept = [run for run in named if _is_wanted(run, wanted)]
    if not kept:
        raise UsageError(
            f"{name}: none of its {len(named)} runs has these settings, workloads, ..."
        )
    return _Chosen(name, kept, True)


def _is_wanted(run: Document, wanted: Mapping[str, str | None]) -> bool:
    return all(
        text is None or str(dig(run, f"spec.{key}")) in _split(text)
        for key, text in wanted.items()
    )  # fmt: skip


def _pairs(one: _Chosen, other: _Chosen, mixed: Sequence[str]) -> list[tuple[Document, Document]]:
    """Runs of both under equal conditions, the newest of equal ones; two single runs are a pair."""
    if not (one.system or other.system):
        return [(one.runs[0], other.runs[0])]
    found: dict[str, tuple[Document, Document]] = {}
    nearest: dict[str, tuple[str, str]] | None = None
    for first in one.runs:
        for second in other.runs:
            if first["run_id"] == second["run_id"]:
                continue
            apart = pair.differing(first, second)
            refused = {name: values for name, values in apart.items() if name not in mixed}
            if not refused:
                where = [c.text(c.of(run)) for run in (first, second) for c in pair.EVERY]
                found[json.dumps([title_of(first), title_of(second), *where])] = (first, second)
            elif nearest is None or len(refused) < len(nearest):
                nearest = refused
    if not found:
        said = "; ".join(f"{name} {a} and {b}" for name, (a, b) in (nearest or {}).items())
        raise UsageError(
            f"no runs of {one.name} and {other.name} under equal conditions; the nearest differ "
            f"in {said or 'nothing: they are one run'}; allow it with --mixed "
            f"{','.join([*mixed, *(nearest or {})])}"
        )
    return [found[conditions] for conditions in sorted(found)]
