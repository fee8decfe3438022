"""``moebench machines``: creates, composes, shows, compares and checks hardware profiles."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness import console
from moebench.harness.cli.list import Listing
from moebench.harness.cli.list import list_ as list_catalogue
from moebench.harness.cli.machines_roofline import roofline
from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, argument, option
from moebench.results.spec import OPTIONS
from moebench.substrate.errors import InputError, UsageError

if TYPE_CHECKING:
    from moebench.harness.run.interval import Effect
    from moebench.substrate.machines.profile import HardwareProfile

app = typer.Typer(
    help="Hardware profiles: create, compose, show, compare, check against published times.",
    no_args_is_help=True,
)


@app.command()
def init(
    name: Annotated[str, argument("Name of the machine; the file is NAME.yaml.")],
    force: Annotated[bool, option("Overwrite an existing file.", "--force")] = False,
) -> None:
    """Write a commented profile of this computer; numbers that cannot be read are estimates."""
    from moebench.harness.machines.survey import draft, survey
    from moebench.substrate.machines.profile import load_profile

    file = Path(f"{name}.yaml")
    if file.exists() and not force:
        raise UsageError(f"{file}: is there already; --force writes over it")
    text = draft(name, survey())
    half_written = file.with_suffix(".yaml.partial")
    try:
        half_written.write_text(text, encoding="utf-8")
        os.replace(half_written, file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from error
    own = [
        number
        for field, number in load_profile(str(file)).quantities()
        if not field.startswith("software.")
    ]
    known = sum(number.badge != "estimate" for number in own)
    console.say(
        f"{file}: {known} of {len(own)} numbers are known, the others are estimates, to be "
        f"replaced (docs/machines.md); then: moebench run --system smoe --model qwen2-57b-a14b "
        f"--machine {file}"
    )


PartKind = StrEnum("PartKind", "gpus pools processors links disks")


@app.command()
def compose(
    parts: Annotated[str, argument("Parts of the machine, such as rtx-3090+ryzen-5950x.")],
    out: Annotated[Path | None, option("File to write, .yaml [print the profile].")] = None,
    force: Annotated[bool, option("Overwrite an existing file.", "--force")] = False,
) -> None:
    """Print or write the profile of a machine made of parts, with the source of every number."""
    from moebench.harness.machines.composed import as_yaml
    from moebench.substrate.files import write_text
    from moebench.substrate.machines.profile import is_file, load_profile

    text = as_yaml(parts)
    if out is None:
        print(text, end="")
        return
    if not is_file(out.name):
        raise UsageError(f"--out {out}: allowed: a name that ends in .yaml or .yml")
    if out.exists() and not force:
        raise UsageError(f"{out}: is there already; --force writes over it")
    write_text(out, text)
    profile = load_profile(str(out))
    console.say(f"{out}: {profile.description}; then: moebench machines show {out}")


@app.command("list")
def list_(
    parts: Annotated[bool, option("List parts instead of machines.", "--parts")] = False,
    kind: Annotated[PartKind | None, option("With --parts: one kind of parts [all].")] = None,
    json_: JSON = False,
) -> None:
    """List the machines of the catalogue, or the parts that machines are made of."""
    if not parts:
        if kind is not None:
            raise UsageError(f"--kind {kind}: a kind of parts; add --parts")
        list_catalogue(Listing.machines, json=json_)
        return
    from moebench.harness.machines.composed import part_rows

    rows = part_rows(kind)
    if json_:
        console.print_json(rows)
        return
    shown = ["part", "kind", "name", "what", "badge"]
    console.table("parts", shown, [[str(row[header]) for header in shown] for row in rows])


@app.command()
def show(
    machine: Annotated[str, argument("Profile's name, a .yaml file, or parts.")],
    software: Annotated[str | None, option("Kind of software; see moebench list software.")] = None,
    json_: JSON = False,
) -> None:
    """Show every number of a profile with its unit, range, badge, source and effect."""
    from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, load_profile
    from moebench.substrate.machines.profile_fields import FIELDS

    profile = load_profile(machine, software or DEFAULT_SOFTWARE)
    rows = [
        {
            "field": field, "value": n.value, "unit": n.unit,
            "range": None if n.range is None else list(n.range), "badge": n.badge,
            "moves": FIELDS[field].moves if field in FIELDS else None, "source": n.source,
        }
        for field, n in profile.quantities()
    ]  # fmt: skip
    if json_:
        about = {
            "machine": profile.name, "description": profile.description, "badge": profile.badge,
            "hash": profile.content_hash(), "fields": rows,
        }  # fmt: skip
        console.print_json(about)
        return
    lines = [[_text(value) for value in row.values()] for row in rows]
    console.table(f"{profile.name}: {profile.description}", list(rows[0]), lines)
    if profile.badge == "calibrated":
        origin = "fitted to measurements on it"
    else:
        origin = (
            f"{profile.estimates} of {profile.numbers} numbers are estimates, the others are "
            "published or fitted; a run is marked datasheet if the estimates together move none "
            "of its latencies by more than 5 %, else estimate"
        )
    console.say(f"{profile.name}: {origin}; software {profile.software.name}")


@app.command()
def diff(
    first: Annotated[str, argument("Profile's name, a .yaml file, or parts.")],
    second: Annotated[str, argument("Profile's name, a .yaml file, or parts.")],
    software: Annotated[str | None, option("Kind of software; see moebench list software.")] = None,
    json_: JSON = False,
) -> None:
    """Show the numbers that differ between two profiles."""
    from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, load_profile

    kind = software or DEFAULT_SOFTWARE
    sides = [_stated(load_profile(name, kind)) for name in (first, second)]
    fields = list(dict.fromkeys([*sides[0], *sides[1]]))
    rows = []
    for field in fields:
        (one, said), (other, also) = (side.get(field, (None, None)) for side in sides)
        if one != other:
            ratio = _ratio(one, other)
            rows.append({"field": field, first: said, second: also, "ratio": ratio})
    if json_:
        console.print_json(rows, sort_keys=False)
        return
    if rows:
        lines = [[_text(value) for value in row.values()] for row in rows]
        console.table(f"{first} and {second}", ["field", first, second, "ratio"], lines)
    console.say(f"{len(rows)} of {len(fields)} fields differ")


def _stated(profile: "HardwareProfile") -> dict[str, tuple[Any, str]]:
    """Return each name, switch and number of a profile, in base units, and as text with its unit.

    Times that were measured of single operations are left out.
    """
    names = {
        f"{part}.name": getattr(profile, part).name for part in ("gpu", "link", "host", "disk")
    }
    switches = {
        "pool": profile.pool,
        "link.pinned": profile.link.pinned,
        "software.waits_each_layer": profile.software.waits_each_layer,
    }
    found = {field: (value, _text(value)) for field, value in (names | switches).items()}
    for field, number in profile.quantities():
        if not field.startswith("measured."):
            unit = "" if number.unit == "1" else f" {number.unit}"
            said = f"{number.value:g}{unit} [{number.badge}]"
            found[field] = (float(number.value * number.UNITS[number.unit]), said)
    return found


def _ratio(one: Any, other: Any) -> float | None:
    """Return the ratio of two numbers, or None if one is not a number."""
    if not (isinstance(one, float) and isinstance(other, float)) or not one:
        return None
    return float(f"{other / one:.4g}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:g} to {value[1]:g}"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


app.command()(roofline)


@app.command()
def components(json_: JSON = False) -> None:
    """Compare published component times with the cost model's times."""
    from moebench.reports.sections.components import HEADERS, table
    from moebench.substrate.analysis.components import documents

    found = documents()
    if json_:
        console.print_json(found)
        return
    shown = table(found)
    console.table("components", HEADERS, shown.rows)
    console.say(shown.summary)


@app.command()
@takes(
    *(name for name, option in OPTIONS.items() if "simulated" in option.on),
    machine=Changed("Profile's name, a .yaml file, or parts."),
)
def sensitivity(
    given: dict[str, Any],
    tokens: Annotated[
        int, option("Tokens of the first batch to replay at each end of a range.", min=2)
    ] = 17,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json_: JSON = False,
) -> None:
    """Rank the profile's numbers by the change in TPOT and TTFT over each number's range."""
    from moebench.harness.arguments import find_data_dir

    _show_effects(*_effects(given, tokens, find_data_dir(data_dir), store), as_json=json_)


def _effects(
    given: dict[str, Any], tokens: int, data_dir: Path | None, store: Path
) -> tuple[str, "list[Effect]"]:
    """Return the machine's name and the effect of each uncertain number of its profile."""
    from moebench.harness.arguments import require_writable
    from moebench.harness.run.execute import prepare
    from moebench.harness.run.interval import effects_on
    from moebench.harness.run.rules import resolve

    if given.get("machine") == "local":
        raise UsageError(
            "--machine local: this computer is measured and has no profile; give a name from "
            "`moebench list machines`, or leave --machine out"
        )
    require_writable(store)
    spec = resolve(data_dir, **given)
    return spec.machine, effects_on(prepare(spec, data_dir), store, tokens)


def _show_effects(machine: str, effects: "list[Effect]", as_json: bool) -> None:
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
        console.print_json(document)
        return
    headers = ["field", "value", "unit", "low", "high", "badge", "range"]
    headers += [f"{name} at {end}" for name in ("TPOT", "TTFT") for end in ("low", "high")]
    lines = [_line(one, MOVED) for one in effects if size(one) >= 0.0005]
    console.table(f"sensitivity on {machine}", headers, lines)
    for name, (down, up) in zip(("TPOT", "TTFT"), together.values(), strict=True):
        console.say(f"all together: {name} −{100 * down:.1f} % to +{100 * up:.1f} %")
    console.say(
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
