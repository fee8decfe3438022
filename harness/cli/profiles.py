"""``moebench machines init``, ``show`` and ``diff``, once their options are parsed."""

import json
import os
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, HardwareProfile, load_profile
from moebench.substrate.machines.profile_fields import FIELDS
from moebench.substrate.machines.quantity import Quantity


def init_command(name: str, force: bool) -> None:
    """Write a draft and say how much of it was read here."""
    from moebench.harness.machines.survey import draft, survey

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
    own = [number for field, number in load_profile(str(file)).quantities() if _own(field)]
    known = sum(number.badge != "estimate" for number in own)
    console.stderr().print(
        f"{file}: {known} of {len(own)} numbers are known, the others are estimates, to be "
        f"replaced (docs/machines.md); then: moebench run --system smoe --model qwen2-57b-a14b "
        f"--machine {file}",
        markup=False,
    )


def _own(field: str) -> bool:
    """Whether a number is of the box, and not of the kind of software."""
    return not field.startswith("software.")


def show_command(machine: str, software: str | None, as_json: bool) -> None:
    """Every number of a profile."""
    profile = load_profile(machine, software or DEFAULT_SOFTWARE)
    rows = [
        {
            "field": field, "value": n.value, "unit": n.unit,
            "range": None if n.range is None else list(n.range), "badge": n.badge,
            "moves": FIELDS[field].moves if field in FIELDS else None, "source": n.source,
        }
        for field, n in profile.quantities()
    ]  # fmt: skip
    if as_json:
        about = {
            "machine": profile.name, "description": profile.description, "badge": profile.badge,
            "hash": profile.content_hash(), "fields": rows,
        }  # fmt: skip
        print(json.dumps(about, sort_keys=True))
        return
    lines = [[_text(value) for value in row.values()] for row in rows]
    console.table(f"{profile.name}: {profile.description}", list(rows[0]), lines)
    console.stderr().print(
        f"{profile.name} [{profile.badge}]: {profile.estimates} of {profile.numbers} numbers are "
        f"estimates; software {profile.software.name}",
        markup=False,
    )


def diff_command(first: str, second: str, software: str | None, as_json: bool) -> None:
    """The numbers, names and switches in which two profiles differ."""
    kind = software or DEFAULT_SOFTWARE
    sides = [dict(_stated(load_profile(name, kind))) for name in (first, second)]
    fields = list(dict.fromkeys([*sides[0], *sides[1]]))
    rows = []
    for field in fields:
        one, other = (side.get(field) for side in sides)
        if _alike(one) != _alike(other):
            ratio = _ratio(one, other)
            rows.append({"field": field, first: _said(one), second: _said(other), "ratio": ratio})
    if as_json:
        print(json.dumps(rows))
        return
    if rows:
        lines = [[_text(value) for value in row.values()] for row in rows]
        console.table(f"{first} and {second}", ["field", first, second, "ratio"], lines)
    console.stderr().print(f"{len(rows)} of {len(fields)} fields differ")


def _stated(profile: HardwareProfile) -> "list[tuple[str, Any]]":
    """Names, switches and numbers; what was measured of operations is left out."""
    found: list[tuple[str, Any]] = [
        (f"{part}.name", getattr(profile, part).name) for part in ("gpu", "link", "host", "disk")
    ]
    found.append(("link.pinned", profile.link.pinned))
    found.append(("software.waits_each_layer", profile.software.waits_each_layer))
    return found + [(f, n) for f, n in profile.quantities() if not f.startswith("measured.")]


def _base(number: Quantity) -> float:
    return number.value * number.UNITS[number.unit]


def _alike(value: Any) -> Any:
    """Equal for equal amounts, in whatever unit."""
    return _base(value) if isinstance(value, Quantity) else value


def _said(value: Any) -> str | None:
    if isinstance(value, Quantity):
        unit = "" if value.unit == "1" else f" {value.unit}"
        return f"{value.value:g}{unit} [{value.badge}]"
    return None if value is None else _text(value)


def _ratio(one: Any, other: Any) -> float | None:
    """The second over the first."""
    if not (isinstance(one, Quantity) and isinstance(other, Quantity)) or not one.value:
        return None
    return float(f"{_base(other) / _base(one):.4g}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:g} to {value[1]:g}"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
