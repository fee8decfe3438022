"""FlashMoE's claims F-1, F-5 and F-7 about hits, evictions and used experts, without a machine.

Bands were fixed before measuring.
"""

from collections.abc import Callable

from moebench.harness.reproduce.bands import Bands, at_most, change, every, half, near
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe import experiments as e
from moebench.harness.reproduce.flashmoe.claims_of_times import COUNTERS, gain
from moebench.harness.reproduce.read import Measure, curried
from moebench.results.claims import Band, Measured, Tag

CACHE = "one cache a layer, sizes of a quarter to three quarters of its experts"

# ----------------------------------------------------------------------------- F-1


def over_cache_sizes(setting: str, figure: Callable[[counts.Routing], float]) -> Measure:
    """Return a function that measures a figure over all cache sizes of Fig. 6."""
    return lambda evidence: counts.measured(evidence, setting, figure, CACHE)


def over_policy(
    name: str, statement: str, paper: float, figure: Callable[[counts.Routing, str], float],
    other: str,
) -> Claim:  # fmt: skip
    """Return the claim of a gain over another policy on OLMoE, at its best cache size."""

    def over(policy: str) -> Measure:
        return over_cache_sizes("F1", lambda routing: figure(routing, policy))

    lasting = CounterExperiment(
        "LFU whose counts outlive an eviction", measure=over("lfu-kept"), always=True, reading=True
    )
    return Claim(
        f"F-1 {name}", "Fig. 6, §4.3", f"OLMoE: {statement}", paper, "%", gain(paper), over(other),
        (e.EVICTIONS,), (*COUNTERS["F1"], *((lasting,) if other == "lfu" else ())),
    )  # fmt: skip


def more_hits(said: str, paper: float) -> Claim:
    """Return the claim of a gain in hit rate over another policy."""
    statement = f"greatest relative gain in hit rate over {said}"
    return over_policy(f"hits over {said}", statement, paper, counts.gain, said.lower())


def fewer_loads(said: str, paper: float) -> Claim:
    """Return the claim of a saving of loads against another policy."""
    statement = f"greatest saving of loads against {said}"
    return over_policy(
        f"loads against {said}", statement, paper, counts.fewer_loads, said.lower()
    ).tagged(Tag.SAME_ROW, f"misses in place of hits, of the same hit rates: F-1 hits over {said}")


HITS = (
    *(
        Claim(
            f"F-1 {e.MODELS[setting]} order", "Fig. 6",
            f"{e.MODELS[setting]}: share of cache sizes at which FlashMoE hits most often", 1, "1",
            every('"across all cache sizes"; direction: at half of them or more'),
            over_cache_sizes(setting, counts.first_at), (e.EVICTIONS,), COUNTERS[setting],
        )
        for setting in e.MODELS
    ),
    more_hits("LRU", 21),
    more_hits("LFU", 51),
    fewer_loads("LRU", 22),
    fewer_loads("LFU", 35),
    more_hits("ARC", 28),
    more_hits("LeCaR", 21),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-5


@curried
def where_belady_hits(
    evidence: Evidence, setting: str, figure: Callable[[counts.Routing, int], float]
) -> Measured:
    """Measure a figure at the cache size with which Belady's hit rate is nearest 86 %."""
    (routing, *_) = counts.routings(evidence, setting)
    slots = counts.size_for(routing, 0.86)
    said = f"{e.MODELS[setting]}, {slots} slots a layer, where Belady's hit rate is nearest 86 %"
    return counts.measured(
        evidence, setting, lambda one: figure(one, counts.size_for(one, 0.86)), said
    )


def section_2_3(
    name: str, statement: str, paper: float, unit: str, bands: Bands,
    figure: Callable[[counts.Routing, int], float], counters: tuple[CounterExperiment, ...] = (),
) -> Claim:  # fmt: skip
    """Return a claim of §2.3, at the cache size with which Belady's hit rate is nearest 86 %."""
    return Claim(
        f"F-5 {name}", "§2.3", statement, paper, unit, bands, where_belady_hits("F2", figure),
        (e.EVICTIONS,), counters,
    )  # fmt: skip


def against_lfu(lfu: str) -> Callable[[counts.Routing, int], float]:
    """Return a function that counts evictions where LRU's victim beats LFU's, in percent."""
    return lambda routing, slots: 100 * counts.lru_against(lfu, routing, slots).share


MOTIVATION = (
    section_2_3(
        "LRU hits", "hit rate of LRU where Belady's is 86 %", 73, "%",
        near(73, 5, Band(high=84), "five points either way; direction: clearly below Belady's"),
        lambda routing, slots: 100 * counts.rates_at(routing, slots)["lru"],
    ),
    section_2_3(
        "loads", "loads of LRU over Belady's", 1.9, "×",
        half(1.9, "×", "within half of what is more than once; direction: more"),
        lambda routing, slots: (
            (1 - counts.rates_at(routing, slots)["lru"])
            / (1 - counts.rates_at(routing, slots)["belady"])
        ),
    ).tagged(Tag.SAME_ROW, "misses in place of hits, of the same hit rates: F-5 LRU hits"),
    section_2_3(
        "LRU wanted again", "LRU's victims that are wanted again within 5 steps", 34.2, "%",
        Bands(Band(low=24, high=44), Band(low=5), "ten points either way; direction: often"),
        lambda routing, slots: 100 * counts.regret_of(routing, "lru", slots).refetched,
    ),
    section_2_3(
        "Belady wanted again", "Belady's victims that are wanted again within 5 steps", 0.1, "%",
        at_most(1, 17, "one in a hundred; direction: half as often as LRU's or less"),
        lambda routing, slots: 100 * counts.regret_of(routing, "belady", slots).refetched,
    ).tagged(
        Tag.CANNOT_FAIL,
        "Belady's rule evicts what is used last: with any routing it is rarely wanted again soon",
    ),
    section_2_3(
        "LRU against LFU", "evictions at which LRU's choice is better than LFU's", 56, "%",
        change(56, 5, "five points either way; direction: more than half", none=50),
        against_lfu("lfu"),
        (
            CounterExperiment(
                "LFU whose counts outlive an eviction",
                measure=where_belady_hits("F2", against_lfu("lfu-kept")), reading=True,
            ),
            CounterExperiment(
                e.RECORDED.name, e.RECORDED.changes, where_belady_hits("F1", against_lfu("lfu"))
            ),
        ),
    ),
    section_2_3(
        "delay", "how many steps later than Belady LRU evicts an idle expert", 4.5, "steps",
        Bands(Band(low=3, high=6), None, "4 to 5 and one more either way; direction: later")
        .effect(4.5),
        lambda routing, slots: (
            counts.regret_of(routing, "lru", slots).idle
            - counts.regret_of(routing, "belady", slots).idle
        ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-7

ROUTED = {32: 47, 64: 58, 128: 64, 256: 67}


def routed(setting: str, tokens: int) -> Claim:
    """Return the claim of the share of experts that a prompt of some length uses."""
    said, model, paper = e.MODELS[setting], counts.MODEL_OF[setting], ROUTED[tokens]
    return Claim(
        f"F-7 {said} {tokens}", "§4.2",
        f"{said}: share of a layer's experts that a prompt of {tokens} tokens uses", paper, "%",
        near(paper, 7, Band(high=90),
             "seven points either way: which model is meant is not said; direction: far from all"),
        lambda evidence: Measured.of(
            counts.used(evidence, model, tokens), "counted", "mean of layers", "texts"
        ),
        counters=(e.PROMPTS_RECORDED,),
    )  # fmt: skip


def growth(setting: str) -> Claim:
    """Return the claim that the number of used experts grows more slowly than the prompt."""

    def measure(evidence: Evidence) -> Measured:
        model = counts.MODEL_OF[setting]
        short, long = (counts.used(evidence, model, tokens) for tokens in (32, 256))
        ratios = [b / a for a, b in zip(short, long, strict=False)]
        return Measured.of(ratios, "counted", "256 tokens over 32", "texts")

    return Claim(
        f"F-7 {e.MODELS[setting]} growth", "§4.2",
        f"{e.MODELS[setting]}: experts used by 256 tokens over those used by 32", 1.43, "×",
        Bands(Band(low=1.2, high=1.65), Band(low=1.11, high=4),
              "67 over 47, within half of the growth; direction: far below eight times",
              no_effect=Band(low=0.89, high=1.11)),
        measure, counters=(e.PROMPTS_RECORDED,),
    ).tagged(
        Tag.SAME_ROW, f"the ratio of F-7 {e.MODELS[setting]} 256 to F-7 {e.MODELS[setting]} 32"
    )  # fmt: skip


USED = tuple(
    claim
    for setting in e.MODELS
    for claim in (*(routed(setting, tokens) for tokens in ROUTED), growth(setting))
)

CLAIMS = (*HITS, *MOTIVATION, *USED)
