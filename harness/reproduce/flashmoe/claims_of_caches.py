"""FlashMoE's claims of hits, evictions and experts used, counted without a machine: F-1, F-5, F-7.

Bands were written before measuring.
"""

from collections.abc import Callable

from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.claims_of_times import gain
from moebench.harness.reproduce.flashmoe.experiments import (
    EVICTIONS,
    MODELS,
    MORE_TEXTS,
    PROMPTS_RECORDED,
    RECORDED,
)
from moebench.results.claims import Band, Measured

CACHE = "one cache a layer, sizes of a quarter to three quarters of its experts"

# ----------------------------------------------------------------------------- F-1


#: Recordings are of OLMoE alone; of Qwen3 more can be drawn.
COUNTERS = {"F1": (RECORDED,), "F2": (MORE_TEXTS,)}


def first(setting: str) -> Claim:
    """The order of Fig. 6."""
    return Claim(
        id=f"F-1 {MODELS[setting]} order",
        place="Fig. 6",
        statement=f"{MODELS[setting]}: share of cache sizes at which FlashMoE hits most often",
        paper=1,
        unit="1",
        reproduced=Band(low=1),
        direction=Band(low=0.5),
        why='"across all cache sizes"; direction: at half of them or more',
        measure=lambda evidence: counts.measured(evidence, setting, counts.first_at, CACHE),
        needs=(EVICTIONS,),
        counters=COUNTERS[setting],
    )


def over_policy(
    name: str, statement: str, paper: float, figure: Callable[[counts.Routing], float]
) -> Claim:
    """A gain over another policy on OLMoE, at the cache size where it is greatest."""

    def measure(evidence: Evidence) -> Measured:
        return counts.measured(evidence, "F1", figure, CACHE)

    return gain(
        f"F-1 {name}", "Fig. 6, §4.3", f"OLMoE: {statement}", paper, measure, EVICTIONS,
        counters=(RECORDED,),
    )  # fmt: skip


def more_hits(name: str, said: str, paper: float) -> Claim:
    """Over another policy's hit rate."""
    return over_policy(
        f"hits over {said}", f"greatest relative gain in hit rate over {said}", paper,
        lambda routing: counts.gain(routing, name),
    )  # fmt: skip


def fewer_loads(name: str, said: str, paper: float) -> Claim:
    """Than with another policy."""
    return over_policy(
        f"loads against {said}", f"greatest saving of loads against {said}", paper,
        lambda routing: counts.fewer_loads(routing, name),
    )  # fmt: skip


HITS = (
    first("F1"),
    first("F2"),
    more_hits("lru", "LRU", 21),
    more_hits("lfu", "LFU", 51),
    more_hits("lfu-kept", "LFU whose counts outlive an eviction", 51),
    fewer_loads("lru", "LRU", 22),
    fewer_loads("lfu", "LFU", 35),
    fewer_loads("lfu-kept", "LFU whose counts outlive an eviction", 35),
    more_hits("arc", "ARC", 28),
    more_hits("lecar", "LeCaR", 21),
)

# ----------------------------------------------------------------------------- F-5


def where_belady_hits(
    setting: str, figure: Callable[[counts.Routing, int], float]
) -> Callable[[Evidence], Measured]:
    """A figure at the cache size with which Belady hits most nearly 86 %."""

    def measure(evidence: Evidence) -> Measured:
        (routing, *_) = counts.routings(evidence, setting)
        slots = counts.size_for(routing, 0.86)
        said = f"{MODELS[setting]}, {slots} slots a layer, where Belady's hit rate is nearest 86 %"
        return counts.measured(
            evidence, setting, lambda one: figure(one, counts.size_for(one, 0.86)), said
        )

    return measure


def section_2_3(
    name: str, statement: str, paper: float, unit: str, reproduced: Band, direction: Band,
    why: str, figure: Callable[[counts.Routing, int], float],
    counters: tuple[CounterExperiment, ...] = (),
) -> Claim:  # fmt: skip
    """A figure of §2.3, at the cache size with which Belady hits most nearly 86 %."""
    return Claim(
        id=f"F-5 {name}", place="§2.3", statement=statement, paper=paper, unit=unit,
        reproduced=reproduced, direction=direction, why=why,
        measure=where_belady_hits("F2", figure), needs=(EVICTIONS,), counters=counters,
    )  # fmt: skip


def against_lfu(lfu: str) -> Callable[[counts.Routing, int], float]:
    """Evictions at which LRU's choice is better than an LFU's, in percent."""
    return lambda routing, slots: 100 * counts.lru_against(lfu, routing, slots).share


MOTIVATION = (
    section_2_3(
        "LRU hits", "hit rate of LRU where Belady's is 86 %", 73, "%", Band(low=68, high=78),
        Band(high=84), "five points either way; direction: clearly below Belady's",
        lambda routing, slots: 100 * counts.rates_at(routing, slots)["lru"],
    ),
    section_2_3(
        "loads", "loads of LRU over Belady's", 1.9, "×", Band(low=1.45, high=2.35), Band(low=1),
        "within half of what is more than once; direction: more",
        lambda routing, slots: (
            (1 - counts.rates_at(routing, slots)["lru"])
            / (1 - counts.rates_at(routing, slots)["belady"])
        ),
    ),
    section_2_3(
        "LRU wanted again", "LRU's victims that are wanted again within 5 steps", 34.2, "%",
        Band(low=24, high=44), Band(low=5), "ten points either way; direction: often",
        lambda routing, slots: 100 * counts.regret_of(routing, "lru", slots).refetched,
    ),
    section_2_3(
        "Belady wanted again", "Belady's victims that are wanted again within 5 steps", 0.1, "%",
        Band(high=1), Band(high=17), "one in a hundred; direction: half as often as LRU's or less",
        lambda routing, slots: 100 * counts.regret_of(routing, "belady", slots).refetched,
    ),
    section_2_3(
        "LRU against LFU", "evictions at which LRU's choice is better than LFU's", 56, "%",
        Band(low=51, high=61), Band(low=50), "five points either way; direction: more than half",
        against_lfu("lfu"),
        (
            CounterExperiment(
                "LFU whose counts outlive an eviction",
                measure=where_belady_hits("F2", against_lfu("lfu-kept")),
            ),
            CounterExperiment(
                RECORDED.name, RECORDED.changes, where_belady_hits("F1", against_lfu("lfu"))
            ),
        ),
    ),
    section_2_3(
        "delay", "how many steps later than Belady LRU evicts an idle expert", 4.5, "steps",
        Band(low=3, high=6), Band(low=0), "4 to 5 and one more either way; direction: later",
        lambda routing, slots: (
            counts.regret_of(routing, "lru", slots).idle
            - counts.regret_of(routing, "belady", slots).idle
        ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-7

ROUTED = {32: 47, 64: 58, 128: 64, 256: 67}


def routed(model: str, tokens: int) -> Claim:
    """Experts that a prompt uses."""
    said = MODELS[model]
    return Claim(
        id=f"F-7 {said} {tokens}",
        place="§4.2",
        statement=f"{said}: share of a layer's experts that a prompt of {tokens} tokens uses",
        paper=ROUTED[tokens],
        unit="%",
        reproduced=Band(low=ROUTED[tokens] - 7, high=ROUTED[tokens] + 7),
        direction=Band(high=90),
        why="seven points either way: which model is meant is not said; direction: far from all",
        measure=lambda evidence: Measured.of(
            counts.used(evidence, counts.MODEL_OF[model], tokens), "counted", "mean of layers",
            "texts",
        ),
        counters=(PROMPTS_RECORDED,),
    )  # fmt: skip


def growth(model: str) -> Claim:
    """It grows more slowly than the prompt."""

    def measure(evidence: Evidence) -> Measured:
        short, long = (
            counts.used(evidence, counts.MODEL_OF[model], tokens) for tokens in (32, 256)
        )
        ratios = [b / a for a, b in zip(short, long, strict=False)]
        return Measured.of(ratios, "counted", "256 tokens over 32", "texts")

    return Claim(
        id=f"F-7 {MODELS[model]} growth",
        place="§4.2",
        statement=f"{MODELS[model]}: experts used by 256 tokens over those used by 32",
        paper=1.43,
        unit="×",
        reproduced=Band(low=1.2, high=1.65),
        direction=Band(low=1, high=4),
        why="67 over 47, within half of the growth; direction: far below eight times",
        measure=measure,
        counters=(PROMPTS_RECORDED,),
    )


USED = tuple(
    claim
    for model in MODELS
    for claim in (*(routed(model, tokens) for tokens in ROUTED), growth(model))
)

CLAIMS = (*HITS, *MOTIVATION, *USED)
