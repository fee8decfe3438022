"""Compares the documents of two stores figure by figure: has a change of the code changed a figure?

    moebench sweep benchmarks/documents.yaml --store before        # with the code before
    moebench sweep benchmarks/documents.yaml --store after         # with the code after
    python -m benchmarks.documents before after

Runs are paired by what was asked of them, not by their ids, which hold the code's hash.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebench.results.store import Store

#: The parts of a document that hold figures; the rest says where they come from.
FIGURES = ("metrics", "accuracy", "bound", "lossless", "badge", "simulated")
#: What tells two runs of a store apart.
ASKED = (
    "system", "overrides", "setting", "machine", "workload", "batch", "prompts", "new_tokens",
    "scoring", "alpha", "seed",
)  # fmt: skip

Document = dict[str, Any]


def figures(document: Document) -> dict[str, object]:
    """Every figure of a document by its path: ``metrics.tpot_ms``."""
    return {path: value for part in FIGURES for path, value in _leaves(document[part], part)}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, f"{path}.{name}")
    elif isinstance(value, list):
        for i, below in enumerate(value):
            yield from _leaves(below, f"{path}[{i}]")
    else:
        yield path, value


def asked(document: Document) -> str:
    """What was asked for; a trace by its folder's name, wherever that is."""
    spec = document["spec"]
    told = {
        "trace": Path(spec["trace"]).name if spec["trace"] else None,
        "routing": spec.get("routing", "model"),  # earlier versions had no other
        "variant": spec.get("variant", "published"),
    }
    return json.dumps({name: spec[name] for name in ASKED} | told, sort_keys=True)


def compare(before: list[Document], after: list[Document]) -> tuple[list[str], bool]:
    """Lines that say what differs, and whether every document is in both stores and equal."""
    old, new = ({asked(d): figures(d) for d in documents} for documents in (before, after))
    lines = [f"only before: {run}" for run in sorted(old.keys() - new.keys())]
    lines += [f"only after: {run}" for run in sorted(new.keys() - old.keys())]
    both = sorted(old.keys() & new.keys())
    compared = equal = 0
    for run in both:
        a, b = old[run], new[run]
        names = sorted(a.keys() | b.keys())
        moved = [name for name in names if (name in a, a.get(name)) != (name in b, b.get(name))]
        compared, equal = compared + len(names), equal + (not moved)
        if moved:
            lines.append(f"differs: {run}")
            lines += [f"    {name}: {a.get(name)} -> {b.get(name)}" for name in moved]
    lines.append(f"{equal} of {len(both)} documents equal, {compared} figures compared")
    return lines, old.keys() == new.keys() and equal == len(both) > 0


def main(before: str, after: str) -> int:
    """Print what differs; the exit code is 0 where nothing does."""
    lines, clean = compare(Store(Path(before)).runs(), Store(Path(after)).runs())
    print("\n".join(lines))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
