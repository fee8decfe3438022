"""Reads parts of Vega-Lite specs."""

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]


def layers(spec: Spec, mark: str | None = None, **of: Any) -> list[Spec]:
    """The layers with a type of mark and with further values, in their order."""
    found = []
    for layer in spec["layer"]:
        kind = layer["mark"]["type"]
        if mark in (None, kind) and all(layer.get(key) == value for key, value in of.items()):
            found.append(layer)
    return found


def filters(layer: Spec) -> list[str]:
    """The conditions of a layer's rows."""
    return [one["filter"] for one in layer.get("transform", []) if "filter" in one]


def channels(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Every channel of a spec and its layers with its definition."""
    for part in (spec, *spec.get("layer", [])):
        yield from part.get("encoding", {}).items()


def fields(spec: Spec) -> set[str]:
    """Every field that a channel or a tooltip names."""
    found = set()
    for _, one in channels(spec):
        found |= {part["field"] for part in (one if isinstance(one, list) else [one])
                  if "field" in part}  # fmt: skip
    return found


def shown(spec: Spec) -> list[tuple[str, str, str | None]]:
    """The tooltip's fields, their titles and their number formats."""
    return [(one["field"], one["title"], one.get("format")) for one in spec["encoding"]["tooltip"]]
