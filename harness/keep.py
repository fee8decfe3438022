"""Stores a finished run: its samples and its document."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moebench.results.samples import TokenSample, samples_of_run
from moebench.results.store import Store

if TYPE_CHECKING:
    from moebench.substrate.engine.records import Generation


def keep(
    store: Store, document: dict[str, Any], picture: list[dict[str, Any]] | None,
    samples: Sequence[TokenSample] = (), cell: tuple[str, dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Store a run's samples, then its document.

    Args:
        picture: spans of the report's excerpt, if they were kept.
        samples: the time of every token.
        cell: the id and spec for which the run was asked, if the store must know these.

    Raises MoeBenchError: the store cannot be written.
    """
    with samples_of_run(store, document["run_id"], samples):
        store.put(document, picture, cell)


def samples_of(generations: "Sequence[Generation]") -> list[TokenSample]:
    """Return the time and the numbers of active experts of every token of a run."""
    found = []
    for batch, generation in enumerate(generations):
        times = [generation.ttft_ns, *generation.steps_ns]
        active: list[list[int] | None] = [[*map(len, step)] for step in generation.used]
        # A package that runs by itself does not say what it used; no prefill does.
        active = [None, *(active or [None] * len(generation.steps_ns))]
        for step, (ns, experts) in enumerate(zip(times, active, strict=True)):
            found.append(TokenSample(batch, step, ns, experts))
    return found
