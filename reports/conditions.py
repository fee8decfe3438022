"""What must be equal where systems are compared: memory, precision, prompts, lengths, software."""

from collections.abc import Callable
from typing import Any, NamedTuple

from moebench.reports.tables import Document, dig, software_of


class Condition(NamedTuple):
    """What must be equal in a comparison: how it is called, read from a run, and written."""

    name: str
    of: Callable[[Document], Any]
    text: Callable[[Any], str] = str


def _gigabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e9:.2f} GB"


def _expert_precision(run: Document) -> str:
    quantised = dig(run, "spec.expert_dtype")
    if quantised is not None:
        return str(quantised)
    own = dig(run, "spec.options.expert_precision")
    return str(run["spec"].get("precision") if own in (None, "null") else own)


#: In the order in which they are shown.
CONDITIONS = (
    Condition("device-memory", lambda run: dig(run, "memory.offered_device_bytes"), _gigabytes),
    Condition("host-memory", lambda run: dig(run, "memory.offered_host_bytes"), _gigabytes),
    Condition("expert-precision", _expert_precision),
    Condition("prompts", lambda run: run["spec"].get("prompts")),
    Condition("new-tokens", lambda run: run["spec"].get("new_tokens")),
    Condition("few-shot", lambda run: run["spec"].get("few_shot", 0)),
    Condition("plain-prompts", lambda run: run["spec"].get("plain_prompts", False)),
    Condition("scoring", lambda run: run["spec"].get("scoring", "fixed-length")),
    Condition("seed", lambda run: run["spec"].get("seed")),
    Condition("software", lambda run: software_of(run["spec"])),
)  # fmt: skip


def conditions_of(run: Document) -> dict[str, str]:
    """A run's conditions by name, as text."""
    return {condition.name: condition.text(condition.of(run)) for condition in CONDITIONS}
