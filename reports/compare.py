"""Systems beside each other: one table for each place and batch, under equal conditions.

A figure is a mean over the workloads that were run.  Systems are comparable where the device and
host bytes that they were offered, the precision of experts, prompts, lengths and software are the
same (`CONDITIONS`).  A table that would mix them is refused; where that is asked for by name, every
value that differs from most is marked.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from moebench.reports.conditions import CONDITIONS, conditions_of
from moebench.reports.tables import (
    MISSING,
    Document,
    basis,
    dig,
    model_of,
    routing_of,
    system_of,
)
from moebench.substrate.errors import UsageError

#: Behind a value that differs from most of its table's.
MARK = " ≠"


#: What a table may be asked to mix.
NAMES = (*(condition.name for condition in CONDITIONS), "workloads")


class Place(NamedTuple):
    """What a table is about: runs of other places stand in other tables."""

    where: str
    batch: int
    routing: str
    model: str
    simulated: bool

    @property
    def title(self) -> str:
        """In words."""
        kind = "" if self.routing == "model" else f", routing {self.routing}"
        return f"{self.where}, batch {self.batch}{kind}"


class Figure(NamedTuple):
    """A column: its title with its unit, how it is read from a run, and written."""

    title: str
    of: Callable[[Document], float | None]
    form: str


def _decode_stall_share(run: Document) -> float | None:
    """Of the time line of the device in decode, the part in which it stood idle."""
    idle = sum((dig(run, "metrics.decode.stall_ms") or {}).values())
    busy = dig(run, "metrics.decode.lanes.device")
    return None if not busy else idle / (busy + idle)


def _gigabytes_a_token(run: Document) -> float | None:
    """Weights that crossed the link to the device in decode, over decoded tokens."""
    moved, tokens = dig(run, "metrics.decode.bytes_h2d"), dig(run, "metrics.decoded_tokens")
    return None if moved is None or not tokens else moved / 1e9 / tokens


def _slot_gigabytes(run: Document) -> float | None:
    """What its experts' slots take; a package that runs by itself has none that are known."""
    taken = dig(run, "memory.slot_bytes")
    known = dig(run, "metrics.process") is None
    return (taken or 0) / 1e9 if known else None


FIGURES = (
    Figure("TPOT (ms)", lambda run: dig(run, "metrics.tpot_ms.mean"), ".1f"),
    Figure("TTFT (ms)", lambda run: dig(run, "metrics.ttft_ms.mean"), ".0f"),
    Figure("cache ratio, complete (%)", lambda run: dig(run, "metrics.cache_ratio"), ".1%"),
    Figure("or under way (%)", lambda run: dig(run, "metrics.cache_ratio_begun"), ".1%"),
    Figure("moved (GB/token)", _gigabytes_a_token, ".3f"),
    Figure("device idle (%)", _decode_stall_share, ".1%"),
    Figure("TPOT / bound", lambda run: dig(run, "bound.ratio"), ".2f"),
    Figure("slots (GB)", _slot_gigabytes, ".2f"),
)


class Line(NamedTuple):
    """A system in a table.

    Attributes:
        figures: one for each of `FIGURES`; None where no run has it.
        conditions: by name, the text of each that differs from most of the table's.
        missing: why there is no run, for a system that does not exist here.
    """

    system: str
    basis: str
    figures: tuple[float | None, ...]
    conditions: Mapping[str, str]
    missing: str = ""


class Table(NamedTuple):
    """A comparison: what its systems have in common, and a line for each, fastest first."""

    place: Place
    common: Mapping[str, str]
    lines: Sequence[Line]


def place_of(run: Document) -> Place:
    """The table that a run belongs to."""
    spec = run["spec"]
    where = spec.get("setting") or f"{spec['model']} on {spec['machine']}"
    # A trace's name holds its workload, which is averaged over.
    routing = "replayed" if spec.get("trace") else routing_of(spec)
    return Place(where, spec["batch"], routing, str(model_of(run)), bool(run["simulated"]))


def title_of(run: Document) -> str:
    """How a run's system is called in a comparison: with what was changed in it."""
    spec = run["spec"]
    changed = [f"{key}={value}" for key, value in sorted((spec.get("overrides") or {}).items())]
    oracle = ["(oracle)"] if run.get("oracle") else []
    return " ".join([system_of(spec), *oracle, *changed])


def tables(
    runs: Iterable[Document],
    mixed: Collection[str] = (),
    why_not: Callable[[Document, str], str | None] = lambda run, system: None,
) -> list[Table]:
    """One table for each place, in the order of their titles.

    Args:
        mixed: conditions that may differ within a table.
        why_not: why a system, by its title, does not exist in the place of a run; None if it does.

    Raises:
        UsageError: a table would mix other conditions, or ``mixed`` names none of `NAMES`.
    """
    for name in mixed:
        if name not in NAMES:
            raise UsageError(f"--mixed {name}: allowed: {', '.join(NAMES)}")
    places: dict[Place, list[Document]] = {}
    for run in runs:
        places.setdefault(place_of(run), []).append(run)
    every = dict.fromkeys(title_of(run) for rows in places.values() for run in rows)
    return [
        _table(place, rows, mixed, [(s, r) for s in every if (r := why_not(rows[0], s))])
        for place, rows in sorted(places.items())
    ]


def _table(
    place: Place, runs: Sequence[Document], mixed: Collection[str], absent: list[tuple[str, str]]
) -> Table:
    systems: dict[str, list[Document]] = {}
    for run in runs:
        systems.setdefault(title_of(run), []).append(run)
    found = {name: _conditions(ones) for name, ones in systems.items()}
    usual = {
        name: Counter(values[name] for values in found.values()).most_common(1)[0][0]
        for name in NAMES
    }
    differing = {
        system: {name: text for name, text in values.items() if text != usual[name]}
        for system, values in found.items()
    }
    _refuse(place, differing, usual, mixed)
    lines = [
        Line(name, ", ".join(sorted(set(map(basis, ones)))), _figures(ones), differing[name])
        for name, ones in systems.items()
    ]
    lines.sort(key=lambda line: (line.figures[0] is None, line.figures[0] or 0, line.system))
    lines += [
        Line(name, "", (None,) * len(FIGURES), {}, reason)
        for name, reason in absent
        if name not in systems
    ]
    return Table(place, usual, lines)


def _conditions(runs: Sequence[Document]) -> dict[str, str]:
    """By name, as text; more than one where a system's own runs differ."""
    each = [conditions_of(run) for run in runs]
    found = {c.name: ", ".join(sorted({one[c.name] for one in each})) for c in CONDITIONS}
    return found | {"workloads": ", ".join(sorted(str(run["spec"]["workload"]) for run in runs))}


def _refuse(
    place: Place,
    differing: Mapping[str, Mapping[str, str]],
    usual: Mapping[str, str],
    mixed: Collection[str],
) -> None:
    for system, values in differing.items():
        for name, text in values.items():
            if name not in mixed:
                raise UsageError(
                    f"{place.title}: {system} has {name} {text}, the others {usual[name]}: not a "
                    f"fair comparison; leave it out (--systems), or allow it and see it "
                    f"marked: --mixed {','.join(sorted({*mixed, name}))}"
                )


def _figures(runs: Sequence[Document]) -> tuple[float | None, ...]:
    """Means over a system's workloads; None where one of them lacks the figure."""
    return tuple(_mean([figure.of(run) for run in runs]) for figure in FIGURES)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


# ----------------------------------------------------------------------------- as text

HEADERS = ("system", *(figure.title for figure in FIGURES), "badge", "differs in")


def text_lines(table: Table) -> list[list[str]]:
    """A table's lines as text, each value that differs from most marked and named."""
    return [_text(line) for line in table.lines]


def _text(line: Line) -> list[str]:
    if line.missing:
        return [line.system, "n/a", *[""] * (len(FIGURES) - 1), "", line.missing]
    figures = [
        MISSING if value is None else format(value, figure.form).removesuffix("%")
        for figure, value in zip(FIGURES, line.figures, strict=True)
    ]
    differs = "; ".join(f"{name} {text}{MARK}" for name, text in line.conditions.items())
    name = line.system + (MARK if line.conditions else "")
    return [name, *figures, line.basis, differs]


def shared_by(table: Table) -> str:
    """What its systems have in common, as a line under the title."""
    return ", ".join(f"{name} {text}" for name, text in table.common.items())


def markdown(table: Table) -> str:
    """The table for a document."""
    rows = [HEADERS, ["---"] * len(HEADERS), *text_lines(table)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([f"### {table.place.title}", "", shared_by(table), "", *lines, ""])


def document(table: Table) -> dict[str, Any]:
    """The table as plain values, for JSON."""
    return {
        "place": table.place._asdict(),
        "conditions": dict(table.common),
        "systems": [
            {
                "system": line.system,
                "badge": line.basis,
                **{f.title: value for f, value in zip(FIGURES, line.figures, strict=True)},
                "differs": dict(line.conditions),
                "not_applicable": line.missing or None,
            }
            for line in table.lines
        ],
    }
