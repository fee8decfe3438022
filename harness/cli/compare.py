"""``moebench compare``: stored runs in tables of equal conditions, or two runs as a pair."""

from typing import TYPE_CHECKING, Annotated

from moebench.harness import console
from moebench.harness.cli.parameters import DEFAULT_STORE, JSON, STORE, argument, option
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.harness.api.compare import Compared, Pairs


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
    from moebench.harness.api.compare import chosen, paired
    from moebench.results.store import Store

    given = {"system": systems, "setting": settings, "workload": workloads, "batch": batches}
    wanted = {name: _split(text) if text else None for name, text in given.items()}
    kept, differ = Store(store), _split(mixed)
    if not runs:
        try:
            compared = chosen(kept, wanted, differ)
        finally:
            console.say_left_out(kept)
        _show_tables(compared, json, markdown)
    elif len(runs) == 2:
        _show_pairs(paired(kept, (runs[0], runs[1]), wanted, differ), json, markdown)
    else:
        raise UsageError(f"compare {' '.join(runs)}: give two runs or two systems, or neither")


def _show_tables(compared: "Compared", json: bool, markdown: bool) -> None:
    """Print one table for each group of equal conditions."""
    from moebench.reports.compare.text import text_table
    from moebench.reports.text import markdown as as_markdown

    for line in compared.left_out:
        console.say(line)
    if json:
        console.print_json(compared.documents())
        return
    for table in compared.tables:
        if markdown:
            print(as_markdown(text_table(table)))
        else:
            console.text_table(text_table(table))


def _show_pairs(found: "Pairs", json: bool, markdown: bool) -> None:
    """Print the comparison of each pair of runs."""
    from moebench.reports.compare import pair

    if json:
        console.print_json(found.documents())
        return
    for each in found.pairs:
        if markdown:
            print(pair.markdown(each))
            continue
        headers = ["figure", *map(pair.title_of, (each.first, each.second)), *pair.HEADERS[3:]]
        console.table(pair.place_of(each), headers, pair.lines(each))
        print(pair.sentence(each))
        console.say(pair.over(each))
        for name, values in each.differing.items():
            console.say(f"differs: {name} {' and '.join(values)}")


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []
