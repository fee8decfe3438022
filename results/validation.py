"""Validation of stored documents: the type of each field that readers rely on.

Files may be edited or written by other versions: a report leaves out a damaged document only.
"""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from moebench.results.document import dig, is_run_id
from moebench.results.metrics import METRICS
from moebench.results.spec import OPTIONS
from moebench.substrate.files import brief
from moebench.substrate.text import visible_in

_TEXT, _NUMBER, _WHOLE, _FLAG = "text", "a number", "a whole number", "true or false"
_PART, _NUMBERS, _TEXTS = "an object", "an object of numbers", "an object of texts"
_LIST = "a list of texts"

#: How an option is stored, by the type of its values.
_OF_TYPE = {str: _TEXT, int: _WHOLE, float: _NUMBER, bool: _FLAG, dict: _TEXTS}

#: Type of each field that is read unchecked; null means unknown.  A figure with a path of two steps
#: is a number; one with three steps is in an object of numbers.
_KINDS = {
    **dict.fromkeys(("badge", "run_id"), _TEXT),
    **dict.fromkeys(("simulated", "lossless", "oracle"), _FLAG),
    **dict.fromkeys(
        ("spec", "provenance", "metrics", "accuracy", "bound", "interval", "measured", "evaluation",
         "memory",
         "metrics.decode", "metrics.experts", "provenance.versions", "spec.options"), _PART),
    **{f"spec.{option.name}": _OF_TYPE[option.plain] for option in OPTIONS.values()},
    **{
        path if path.count(".") == 1 else path.rpartition(".")[0]:
            _NUMBER if path.count(".") == 1 else _NUMBERS
        for path in (metric.path for metric in METRICS) if path
    },
    **dict.fromkeys(("accuracy.n", "accuracy.cut"), _WHOLE),
    "measured.noisy": _FLAG,
    "notes": _LIST,
    **dict.fromkeys(("provenance.created", "provenance.commit", "measured.model"), _TEXT),
    **dict.fromkeys(
        (f"metrics.{name}" for name in (
            "lanes", "stall_ms", "decode.lanes", "decode.stall_ms", "experts.decode",
            "experts.prefill", "prefetch", "routed_ahead")), _NUMBERS),
    **dict.fromkeys(
        (f"memory.{name}" for name in (
            "offered_device_bytes", "offered_host_bytes", "room_bytes", "slot_bytes")), _NUMBER),
    "accuracy.chance": _NUMBER,
    "accuracy.metric": _TEXT,
    "accuracy.items": _PART,
}  # fmt: skip

#: Lanes of a timeline's spans.
LANES = frozenset(("device", "predict", "h2d", "d2h", "host", "disk"))

#: Fields that are never null.
_NEEDED = {"spec", "provenance", "spec.system", "provenance.created", "run_id"}
#: Fields that are not null either in a document with figures.
_WITH_FIGURES = {"simulated", "badge", "spec.model", "spec.batch", "spec.workload"}


def problem(document: object, run_id: str) -> str | None:
    """Return the first invalid field of a document with its value, or None if all are valid.

    Args:
        run_id: id under which the document is stored.
    """
    if not isinstance(document, Mapping):
        return f"expected an object, found {brief(document)}"
    if document.get("run_id") != run_id or not is_run_id(run_id):
        return f"run_id is {brief(document.get('run_id'))}"
    needed = _NEEDED | (_WITH_FIGURES if "metrics" in document else set())
    for field, kind in _KINDS.items():
        value = dig(document, field)
        if value is None:
            if field in needed:
                return f"{field} is missing"
        elif not _is(value, kind):
            return f"{field} is {brief(value)}, expected {kind}"
    return None


def spec_problem(spec: object) -> str | None:
    """Return the first invalid field of a sweep cell's spec, or None if all are valid."""
    if not isinstance(spec, Mapping):
        return f"expected an object, found {brief(spec)}"
    for field, kind in _KINDS.items():
        value = dig({"spec": spec}, field)
        if field.startswith("spec.") and value is not None and not _is(value, kind):
            return f"{field} is {brief(value)}, expected {kind}"
    return None


def picture(kept: str | bytes | None) -> list[dict[str, Any]] | None:
    """Return a run's stored spans (its timeline excerpt), or None if absent or damaged.

    Args:
        kept: compressed JSON, or plain JSON from earlier versions.
    """
    if kept is None:
        return None
    try:
        found = json.loads(zlib.decompress(kept) if isinstance(kept, bytes) else kept)
    except (zlib.error, ValueError, TypeError, RecursionError):
        return None
    return visible_in(found) if isinstance(found, list) and all(map(_is_record, found)) else None


def _is_record(span: object) -> bool:
    if not isinstance(span, dict) or span.get("lane") not in LANES:
        return False
    experts = span.get("experts")
    if not isinstance(experts, list) or not all(_is(expert, _WHOLE) for expert in experts):
        return False
    named = experts or not (span.get("instant") or span.get("kind") in ("load", "read"))
    times = all(_is(span.get(name), _NUMBER) for name in ("layer", "start_us", "end_us"))
    return bool(named) and times and isinstance(span.get("kind"), str)


def _is(value: object, kind: str) -> bool:
    if kind in (_NUMBERS, _TEXTS):
        one = _NUMBER if kind == _NUMBERS else _TEXT
        return isinstance(value, dict) and all(v is None or _is(v, one) for v in value.values())
    if kind == _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == _NUMBER:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value)  # type: ignore[arg-type]
    if kind == _LIST:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    kinds = {_TEXT: str, _FLAG: bool, _PART: dict}
    return isinstance(value, kinds[kind])
