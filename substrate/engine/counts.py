"""What the engine counts beside time."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What became of active experts and prefetches, summed over layers and passes of one phase."""

    active: int = 0
    hits: int = 0
    in_flight: int = 0
    loads: int = 0
    host: int = 0
    replaced: int = 0
    prefetched: int = 0
    prefetched_top_score: int = 0
    prefetched_active: int = 0
    prefetched_used: int = 0
    #: Places (row, rank) that were routed one layer ahead, those of them whose expert was really
    #: chosen, and those whose expert the system replaced.
    foreseen: int = 0
    foreseen_right: int = 0
    degraded: int = 0
    #: Decoded rows of layers for which experts were asked ahead; those of them whose own experts
    #: were all among the asked ones, and those of which at least one was.
    asked: int = 0
    asked_all: int = 0
    asked_any: int = 0
