"""Observes a run from outside the engine: slots, repeated copies, and deferred experts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Span
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.protocol import Model


class Claim(NamedTuple):
    """An expert got a slot ``before`` the span with this index; ``placed`` if before all spans."""

    before: int
    key: int
    slot: int
    victim: int | None
    placed: bool


class LetGo(NamedTuple):
    """An expert that is not kept lost its slot ``before`` the span with this index."""

    before: int
    key: int


class Again(NamedTuple):
    """The span with this index copied a record once more (`Plan.again`), and claimed no slot."""

    at: int


def watch_again(transfers: Transfers, timeline: Timeline, events: list[Any]) -> None:
    """Append an `Again` to the events of `watch_slots` for each later repeated copy."""
    again = transfers.again

    def copied(layer: int, expert: int, form: int = 0) -> Span:
        span = again(layer, expert, form)
        index = len(timeline.spans) - 1
        while timeline.spans[index] is not span:
            index -= 1
        events.append(Again(index))
        return span

    transfers.again = copied  # type: ignore[method-assign]


def watch_slots(cache: ExpertCache, timeline: Timeline) -> list[Any]:
    """Record all later slot events in a list, as `Claim` and `LetGo`, in order.

    Args:
        timeline: keeps every span.
    """
    events: list[Any] = []
    claim, let_go = cache.claim, cache.let_go

    def claimed(key: int, victim: int | None) -> int:
        slot = claim(key, victim)
        events.append(Claim(len(timeline.spans), key, slot, victim, placed=False))
        return slot

    def gone(key: int, last_use: Span) -> None:
        let_go(key, last_use)
        events.append(LetGo(len(timeline.spans), key))

    cache.claim, cache.let_go = claimed, gone  # type: ignore[method-assign]
    return events


class WatchedModel:
    """Wrapper of a model that records, in ``deferred``, the experts that each sum omits."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._later: tuple[int, ...] = ()
        self.deferred: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Record the deferred experts and pass them on."""
        self._later = tuple(experts)
        self._model.defer(layer, experts)

    def combine(self, layer: int) -> None:
        """Append the deferred experts of this sum, and compute it."""
        self.deferred.append(self._later)
        self._later = ()
        self._model.combine(layer)
