"""``moebench compare``: stored runs in tables of equal conditions, or two runs as a pair."""

import json as json_text
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from moebench.harness import console
from moebench.harness.cli.parameters import DEFAULT_STORE, JSON, STORE, argument, option
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.results.document import Document
    from moebench.results.store import Store

#: Values that runs must have, by the spec's field, separated by commas.
Wanted = Mapping[str, str | None]


def compare(
    runs: Annotated[
        list[str] | None, argument("Two run ids or two systems, to compare pairwise.")
    ] = None,
    systems: Annotated[str | None, option("Systems, separated by commas [all].")] = None,
    settings: Annotated[
        str | None, option("Settings, separated by commas; see moebench list settings.")
    ] = None,
    workloads: Annotated[
        str | None, option("Workloads to average over, separated by commas [all].")
    ] = None,
    batches: Annotated[
        str | None, option("Batch sizes, one table for each, separated by commas [all].")
    ] = None,
    mixed: Annotated[
        str | None,
        option("Conditions that may differ within a table and are marked: software, prompts, ..."),
    ] = None,
    store: STORE = DEFAULT_STORE,
    markdown: Annotated[bool, option("Print Markdown.", "--markdown")] = False,
    json: JSON = False,
) -> None:
    """Compare stored systems under equal conditions: bytes, precision, prompts, software."""
    from moebench.results.store import Store

    wanted = {"system": systems, "setting": settings, "workload": workloads, "batch": batches}
    if runs:
        _show_pairs(Store(store), runs, wanted, _split(mixed), json, markdown)
    else:
        _show_tables(Store(store), wanted, _split(mixed), json, markdown)


def _show_tables(
    store: "Store", wanted: Wanted, mixed: list[str], json: bool, markdown: bool
) -> None:
    """Print all wanted runs, in one table for each group of equal conditions."""
    from moebench.reports.compare import tables
    from moebench.reports.compare.conditions import title_of
    from moebench.reports.compare.text import document, text_table
    from moebench.reports.text import markdown as as_markdown
    from moebench.results.store_hints import in_store

    runs = [run for run in _runs(store) if _is_wanted(run, wanted)]
    console.say_left_out(store)
    if not runs:
        where = store.directory
        hint = f"moebench sweep --systems smoe,moe-ondemand --settings S3{in_store(where)}"
        raise UsageError(f"no such runs in {where}; run: {hint}")
    specs = {title_of(run): run["spec"] for run in runs}
    found, left_out = tables.comparisons(
        runs, stated(), mixed, lambda run, title: _why_not(specs[title], run["spec"])
    )
    tables.refuse_mixtures(found, mixed)
    for line in left_out:
        console.say(line)
    if json:
        console.print_json([document(table) for table in found])
        return
    for table in found:
        if markdown:
            print(as_markdown(text_table(table)))
        else:
            console.text_table(text_table(table))


def stated() -> dict[str, dict[str, Any]]:
    """Return the options that each setting states and that a run can change, by setting."""
    from moebench.harness.settings import settings

    names = {"software", "cache_ratio", "slots", "new_tokens", "device_memory_gib", "free_host_gb"}
    return {
        name: one.model_dump(include=names, exclude_none=True) for name, one in settings().items()
    }


def _why_not(spec: Mapping[str, Any], place: Mapping[str, Any]) -> str | None:
    """Return why a spec's system does not exist for the model and batch of another spec."""
    from moebench.substrate.errors import MoeBenchError
    from moebench.substrate.models.catalogue import model_names, model_shape
    from moebench.systems.options import build_any
    from moebench.systems.registry import needs_import

    overrides = spec.get("overrides") or {}
    if place["model"] not in model_names() or needs_import(spec["system"], overrides):
        return None
    try:
        system = build_any(spec["system"], overrides, spec.get("variant") or "published")
    except MoeBenchError:  # it has an option that earlier versions had
        return None
    return system.why_not(model_shape(place["model"]), place["batch"])


def _show_pairs(
    store: "Store", names: Sequence[str], wanted: Wanted, mixed: list[str], json: bool,
    markdown: bool,
) -> None:  # fmt: skip
    """Print the comparison of two runs, or of two systems' runs under equal conditions."""
    from moebench.reports.compare import pair
    from moebench.results.samples import read_samples

    if len(names) != 2:
        raise UsageError(f"compare {' '.join(names)}: give two runs or two systems, or neither")

    def times(run: "Document") -> pair.Samples:
        return read_samples(store.directory, run["run_id"])

    def whole(run: "Document") -> "Document":
        return store.get(run["run_id"]) or run

    runs = _runs(store)
    one, other = (_chosen(store, runs, name, wanted) for name in names)
    pairs = [(whole(a), whole(b)) for a, b in _pairs(one, other, mixed)]
    found = [pair.compare(a, b, (times(a), times(b)), mixed) for a, b in pairs]
    if json:
        console.print_json([pair.document(each) for each in found])
        return
    for each in found:
        if markdown:
            print(pair.markdown(each))
            continue
        headers = ["figure", *map(pair.title_of, (each.first, each.second)), *pair.HEADERS[3:]]
        console.table(pair.place_of(each), headers, pair.lines(each))
        print(pair.sentence(each))
        console.say(pair.over(each))
        for name, values in each.differing.items():
            console.say(f"differs: {name} {' and '.join(values)}")


class _Chosen(NamedTuple):
    """Runs selected by one of the two arguments: a system's runs, or one run."""

    name: str
    runs: Sequence["Document"]
    system: bool


def _chosen(store: "Store", runs: Sequence["Document"], name: str, wanted: Wanted) -> _Chosen:
    """Return a system's runs, the oldest first, or the run whose id begins with ``name``."""
    from moebench.reports.compare.conditions import title_of
    from moebench.results.document import system_of

    named = [run for run in runs if name in (title_of(run), system_of(run["spec"]))]
    if not named:
        return _Chosen(name, [store.find(name)], False)
    kept = [run for run in named if _is_wanted(run, wanted)]
    if not kept:
        raise UsageError(
            f"{name}: none of its {len(named)} runs has these settings, workloads, ..."
        )
    return _Chosen(name, kept, True)


def _pairs(
    one: _Chosen, other: _Chosen, mixed: Sequence[str]
) -> list[tuple["Document", "Document"]]:
    """Return pairs of runs under equal conditions, or the two given runs.

    Raises UsageError: no two runs have equal conditions.
    """
    from moebench.reports.compare import pair
    from moebench.reports.compare.conditions import title_of

    if not (one.system or other.system):
        return [(one.runs[0], other.runs[0])]
    fixed = [name for name in pair.NAMES if name not in mixed]
    texts = {run["run_id"]: pair.texts(run) for run in (*one.runs, *other.runs)}

    def alike(run: "Document") -> tuple[str, ...]:
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
                found[json_text.dumps([*map(title_of, both), *where])] = both
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


def _runs(store: "Store") -> list["Document"]:
    """Return the stored runs, without those whose prompts an evaluator chose, and in brief."""
    return [run for run in store.runs(brief=True) if "evaluation" not in run]


def _is_wanted(run: "Document", wanted: Wanted) -> bool:
    """Return whether a run has one of the wanted values of each option."""
    from moebench.results.document import dig, system_of

    def value(key: str) -> str:
        return system_of(run["spec"]) if key == "system" else str(dig(run, f"spec.{key}"))

    return all(text is None or value(key) in _split(text) for key, text in wanted.items())


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []
