"""Machines of parts as text: the YAML of a composed profile, and a list of all parts."""

import json
from collections.abc import Mapping
from typing import Any

from moebench.substrate.machines.compose import composed
from moebench.substrate.machines.parts import KINDS, parts_of


def as_yaml(text: str) -> str:
    """Return the hardware profile of a list of parts as YAML, in the catalogue's form.

    Raises UsageError: parts that do not exist or do not fit.
    """
    data = composed(text)
    lines = [f"# Made by: moebench machines compose {json.dumps(data['name'])}"]
    for name, said in data.items():
        if isinstance(said, Mapping):
            lines += ["", f"{name}:"]
            for field, value in said.items():
                lines += _field(field, value)
        else:
            lines.append(f"{name}: {_scalar(said)}")
    return "\n".join(lines) + "\n"


def _field(field: str, value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"  {field}: {_scalar(value)}"]
    *inner, (_, source) = value.items()
    said = ", ".join(f"{key}: {_scalar(one)}" for key, one in inner)
    return [f"  {field}:", f"    {{{said},", f"     source: {_scalar(source)}}}"]


def _scalar(value: Any) -> str:
    """Return a value in JSON, which is YAML too; badges and such words without quotes."""
    if isinstance(value, str) and value.isalpha():
        return value
    return json.dumps(value, ensure_ascii=False)


def part_rows(kind: str | None = None) -> list[dict[str, Any]]:
    """Return a row for every part, or for those of one kind: a key of `parts.KINDS`."""
    return [
        {
            "part": part.key, "kind": part.group, "name": part.name, "what": part.summary(),
            "badge": part.badge, "estimated": list(part.estimated),
            "aliases": list(part.aliases), "source": part.source, "note": part.note,
        }
        for group in KINDS
        if kind in (None, group)
        for part in parts_of(group)
    ]  # fmt: skip
