"""``moebench machines``: profiles beside what is published, and what runs owe to their numbers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE
from moebench.results.spec import OPTIONS

if TYPE_CHECKING:
    from moebench.harness.run.interval import Effect

app = typer.Typer(
    help="Hardware profiles: one of your own, components, sensitivity.", no_args_is_help=True
)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Of the machine; its file is NAME.yaml.")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file of before.")] = False,
) -> None:
    """Write a commented profile of this computer: what can be read, the rest as estimates."""
    from moebench.harness.cli.profiles import init_command

    init_command(name, force)


@app.command()
def show(
    machine: Annotated[str, typer.Argument(help="Profile, or file.yaml.")],
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    json_: JSON = False,
) -> None:
    """Show a profile: every number with its unit, range, badge, source, and what it moves."""
    from moebench.harness.cli.profiles import show_command

    show_command(machine, software, json_)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(help="Profile, or file.yaml.")],
    second: Annotated[str, typer.Argument(help="Profile, or file.yaml.")],
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    json_: JSON = False,
) -> None:
    """Show in which numbers two profiles differ, and by how much."""
    from moebench.harness.cli.profiles import diff_command

    diff_command(first, second, software, json_)


@app.command()
def components(
    json_: JSON = False,
) -> None:
    """Show every published time of a component beside what the cost model charges for it."""
    from moebench.harness import console
    from moebench.reports.sections.components import HEADERS, table
    from moebench.substrate.analysis.components import documents

    found = documents()
    if json_:
        typer.echo(json.dumps(found, sort_keys=True))
        return
    shown = table(found)
    console.table("components", HEADERS, shown.rows)
    console.stderr().print(shown.summary)


@app.command()
@takes(
    *(name for name, option in OPTIONS.items() if "simulated" in option.on),
    machine=Changed("Profile, or file.yaml."),
)
def sensitivity(
    given: dict[str, Any],
    tokens: Annotated[
        int, typer.Option(min=2, help="Of the first batch, that are replayed for each end.")
    ] = 17,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json_: JSON = False,
) -> None:
    """Which numbers of the profile move TPOT and TTFT most, each from end to end of its range."""
    from moebench.harness.arguments import find_data_dir

    _show(*_effects(given, tokens, find_data_dir(data_dir), store), as_json=json_)


def _effects(
    given: dict[str, Any], tokens: int, data_dir: Path | None, store: Path
) -> tuple[str, "list[Effect]"]:
    """The machine's name, and what each of its uncertain numbers does."""
    from moebench.harness.arguments import require_writable
    from moebench.harness.run.execute import on_engine
    from moebench.harness.run.interval import effects_on
    from moebench.harness.run.rules import resolve
    from moebench.substrate.errors import UsageError

    if given.get("machine") == "local":
        raise UsageError(
            "--machine local: this computer is measured and has no profile; give a name from "
            "`moebench list machines`, or leave --machine out"
        )
    require_writable(store)
    spec = resolve(data_dir, **given)
    return spec.machine, effects_on(on_engine(spec, data_dir), store, tokens)


def _show(machine: str, effects: "list[Effect]", as_json: bool) -> None:
    from moebench.harness import console
    from moebench.harness.run.interval import MOVED, combined
    from moebench.substrate.machines.profile_ranges import ASSUMED

    def size(one: "Effect") -> float:
        return max(one.size(latency) for latency in MOVED)

    effects = sorted(effects, key=lambda one: (one.size("tpot_ms"), size(one)), reverse=True)
    together = {latency: combined(effects, latency) for latency in MOVED}
    if as_json:
        rows = [
            {
                "field": one.number.field, "value": one.number.number.value,
                "low": one.number.low, "high": one.number.high, "unit": one.number.number.unit,
                "badge": one.number.number.badge, "stated": one.number.stated, **one.changes,
            }
            for one in effects
        ]  # fmt: skip
        document = {"machine": machine, "assumed": ASSUMED, "fields": rows, "together": together}
        print(json.dumps(document, sort_keys=True))
        return
    headers = ["field", "value", "unit", "low", "high", "badge", "range"]
    headers += [f"{name} at {end}" for name in ("TPOT", "TTFT") for end in ("low", "high")]
    lines = [_line(one, MOVED) for one in effects if size(one) >= 0.0005]
    console.table(f"sensitivity on {machine}", headers, lines)
    for name, (down, up) in zip(("TPOT", "TTFT"), together.values(), strict=True):
        console.stderr().print(f"all together: {name} −{100 * down:.1f} % to +{100 * up:.1f} %")
    console.stderr().print(
        f"{len(effects) - len(lines)} further numbers move neither by 0.05 %; assumed: the source "
        f"names no range, taken as ±{ASSUMED:.0%}"
    )


def _line(one: "Effect", latencies: tuple[str, ...]) -> list[str]:
    number = one.number.number
    changes = [one.changes.get(latency) for latency in latencies]
    return [
        one.number.field, f"{number.value:g}", number.unit, f"{one.number.low:g}",
        f"{one.number.high:g}", number.badge, "stated" if one.number.stated else "assumed",
        *(f"{100 * c:+.1f} %" for both in changes for c in both or ()),
        *("-" for both in changes if both is None for _ in range(2)),
    ]  # fmt: skip
