"""What each component of the predictions is worth, and each field of a row: ``make ablation``.

Each component is taken away by values of constants with which it costs nothing, and each field by
an empty cell, all else as it is and left out by machine and author.  The errors without it stand
beside those with all.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.published.case import Case, Unpredictable, case_of
from moebench.harness.published.constants import COMPONENTS, Values, fitted, values_for
from moebench.harness.published.predict import tokens
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row, read_rows, shipped
from moebench.harness.published.score import summary
from moebench.harness.published.simulate import milliseconds

#: A factor that makes a rate no limit, and a time nothing.
MUCH, NOTHING = 1e4, 1e-6


def _scaled(factor: float, *names: str) -> Callable[[Values], Values]:
    return lambda values: {**values, **{name: factor * values[name] for name in names}}


def _set(**to: float) -> Callable[[Values], Values]:
    return lambda values: {**values, **{name.replace("_", " "): x for name, x in to.items()}}


def _nominal(values: Values) -> Values:
    """Let the host reach its nominal bandwidth."""
    shares = {"server reads": 1 / 0.62, "desktop reads": 1 / 0.80, "measured reads": 1.0}
    return {**values, **shares}


#: By component: what takes it away from the values of the constants.
COMPONENTS_WITHOUT: dict[str, Callable[[Values], Values]] = {
    "share of the nominal bandwidth": _nominal,
    "sockets": _set(bound_sockets=2.0, unbound_sockets=2.0, sockets_products=1.0),
    "threads and arithmetic of one row": _scaled(MUCH, "core AVX2", "core AVX-512"),
    "formats' own rates": _set(codebook_formats=1.0, few_bits=1.0, fp4_formats=1.0, repacked=1.0),
    "hand-over of each host layer": _scaled(NOTHING, "handoff us", "cached layer us"),
    "virtual processors' hand-over": _set(virtual_handoff=1.0),
    "launches": _scaled(NOTHING, "launch ggml", "launch python"),
    "attention over the context": _scaled(
        MUCH, "attention reads", "python attention reads", "latent reads", "host attention"
    ),
    "products of many rows on the host": _scaled(
        MUCH, *(name for name in COMPONENTS if name.startswith("rows "))
    ),
    "share of the device's compute": _set(device_products=1.0, other_products=1.0),
    "unpacking on the device": _set(unpacking_rows=1.0),
    "unpinned copies": _set(unpinned_copies=1.0),
    "rows that choose alike": _set(alike=NOTHING),
    "hits of caches": _scaled(MUCH, "cache hits", "static hits"),
}  # fmt: skip


def _one_batch(case: Case) -> Case:
    return replace(case, micro_batch=max(1, case.lengths.prompt))


def _of_the_end(case: Case) -> Case:
    """Read a sweep's prompt as one of an empty cache."""
    lengths = case.lengths
    whole = lengths._replace(prompt=max(lengths.prompt, lengths.cached), cached=0)
    return replace(case, lengths=whole)


#: By rule: what takes it away from a row's inputs.
RULES_WITHOUT: dict[str, Callable[[Case], Case]] = {
    "micro-batches": _one_batch,
    "llama-sweep-bench's convention": _of_the_end,
}

#: Fields whose absence is tried, with the cells that say them.
FIELDS: dict[str, dict[str, Any]] = {
    "processor": {"cpu": "", "sockets": None, "ram_channels": "", "ram_type": "",
                  "ram_gb_s": None},
    "rate of the memory": {"ram_type": "", "ram_gb_s": None},
    "channels": {"ram_channels": "", "ram_gb_s": None},
    "threads": {"threads": None},
    "bits of the experts": {"bits_per_weight": None},
    "format": {"quant": "", "bits_per_weight": None},
    "placement": {"n_cpu_moe": None},
    "micro-batch": {"ubatch": None},
    "rate of the link": {"h2d_gb_s": None, "pcie_gen": None, "pcie_lanes": None},
    "flags": {"other_flags": ""},
}  # fmt: skip


def _predicted(
    row: Row, change: str = "", cells: Mapping[str, Any] | None = None
) -> list[Prediction]:
    """Return a row's predictions without a component or rule, or without cells."""
    values = values_for(row, fitted())
    seen = row if cells is None else row.model_copy(update=dict(cells))
    measured = [(phase, rate) for phase in row.phases if (rate := row.measured(phase)) is not None]
    try:
        case = case_of(seen)
    except Unpredictable as why:
        return [Prediction(row.id, phase, rate, reason=str(why)) for phase, rate in measured]
    if change in RULES_WITHOUT:
        case = RULES_WITHOUT[change](case)
    elif change:
        values = COMPONENTS_WITHOUT[change](values)
    return [Prediction(row.id, phase, rate, _rate(case, values, phase)) for phase, rate in measured]


def _rate(case: Case, values: Values, phase: Phase) -> float:
    return tokens(case, phase) * 1e3 / milliseconds(case, values, phase)


def table(rows: Sequence[Row]) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Yield kind, name and summary: with all, without each component and rule, and each field.

    Without a field only rows that say it are scored, with it and without.
    """
    with ProcessPoolExecutor() as pool:

        def scored(some: Sequence[Row], one: Callable[[Row], list[Prediction]]) -> dict[str, Any]:
            found = pool.map(one, some, chunksize=4)
            return summary(some, [prediction for each in found for prediction in each])

        yield "all", "with all", scored(rows, _predicted)
        for name in COMPONENTS_WITHOUT:
            one = partial(_predicted, change=name)
            yield "component", name, scored(rows, one)
        for name in RULES_WITHOUT:
            yield "rule", name, scored(rows, partial(_predicted, change=name))
        for name, cells in FIELDS.items():
            named = [row for row in rows if row.absolute and _says(row, cells)]
            yield "with field", name, scored(named, _predicted)
            without = partial(_predicted, cells=cells)
            yield "without field", name, scored(named, without)


def _says(row: Row, cells: Mapping[str, Any]) -> bool:
    """Return whether a row says what would be taken away."""
    return any(getattr(row, name) not in (None, "") for name in cells)


#: Figures of the printed table.
SHOWN = ("median_error", "p90_ratio", "prefill_median_error", "prefill_p90_ratio",
         "pairs_in_order", "slopes_within_30")  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Print the table of the rows that ship, or of those of a path, as Markdown."""
    rows = read_rows(Path(arguments[0]) if arguments else shipped())
    console.say("| | | figures | " + " | ".join(SHOWN) + " |")
    console.say("|---|---|---" + "|---" * len(SHOWN) + "|")
    for kind, name, scores in table(rows):
        count = f"{scores['absolute_rows']}, {scores['prefill_absolute_rows']}"
        cells = ["–" if scores[key] is None else f"{scores[key]:.3g}" for key in SHOWN]
        console.say(f"| {kind} | {name} | {count} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
