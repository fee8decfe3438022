"""The claims on which the field disagrees, with their bands and sources.

Bands were fixed before measuring.  A claim without a figure of its own must show the smallest
effect that its words can mean.  What is reported on both sides is in `sources`.
"""

from moebench.harness.reproduce.bands import Bands, at_least, at_most, half, sign
from moebench.harness.reproduce.claim import Claim
from moebench.harness.reproduce.field import (
    evictions,
    fronts,
    hits,
    pages,
    placement,
    prefetch_law,
    profiles,
    sources,
    splits,
)
from moebench.harness.reproduce.field import experiments as e
from moebench.results.claims import Band

_HITS = "1. A higher hit rate can be slower"
_PREFETCH = "2. Prefetching on a saturated link"
_PROFILE = "3. Experts pinned by a profile"
_PLACEMENT = "4. Placement for each prompt"
_EVICTION = "5. The best causal eviction"
_PAGES = "6. The page cache against learned eviction"
_ROUTING = "7. α against λ"
_SPLIT = "8. Hybrid or offload"

HITS = (
    Claim(
        "R-1 pairs", _HITS,
        "share of pairs of systems at equal memory of which the one with more hits is slower",
        None, "%", at_least(10, 2.5, "one pair in ten; direction: one in forty"),
        hits.reversals, (e.SPEED,), sources=sources.HITS, turns=hits.turns,
    ),
    Claim(
        "R-1 greatest", _HITS, "greatest TPOT of a system with more hits over one with fewer",
        2.95, "×", half(2.95, "×", "within half of colibri's pair; direction: slower"),
        hits.greatest, (e.SPEED,), sources=sources.HITS,
    ),
)  # fmt: skip

PREFETCH = (
    Claim(
        "R-2 saturated", _PREFETCH,
        "change of TPOT by prefetching where the link is busy for three quarters of decode "
        "without it",
        4.3, "%", sign(2, "2 % slower, half of colibri's loss; direction: slower"),
        prefetch_law.saturated, (e.PREFETCH,), sources=sources.PREFETCH, turns=prefetch_law.turns,
    ),
    Claim(
        "R-2 law", _PREFETCH, "share of cells whose gain or loss the law tells", None, "1",
        at_least(0.9, 0.75, "nine cells of ten that change by half a percent; direction: three "
                            "of four"),
        prefetch_law.of_fit(lambda law: law.signs), (e.PREFETCH,), sources=sources.PREFETCH,
    ),
    Claim(
        "R-2 error", _PREFETCH, "error of the law on link rates that it was not fitted to", None,
        "points", at_most(2, 4, "two points of TPOT; direction: four"),
        prefetch_law.of_fit(lambda law: law.held_out), (e.PREFETCH,), sources=sources.PREFETCH,
    ),
)  # fmt: skip

PROFILE = (
    Claim(
        "R-3 helps", _PROFILE, "hits of a quarter of the experts, chosen by other texts, over "
        "their share of all experts", None, "×",
        sign(0.25, "a quarter more hits than by chance; direction: more", none=1),
        profiles.measured(profiles.over_chance), sources=sources.PROFILE, turns=profiles.turns,
    ),
    Claim(
        "R-3 carries over", _PROFILE, "share of the gain of a profile of its own texts that one "
        "of other texts keeps", None, "%",
        at_least(profiles.CARRIES, 50, "three quarters of the gain; direction: half"),
        profiles.measured(profiles.keeps), sources=sources.PROFILE,
    ),
    Claim(
        "R-3 against LRU", _PROFILE, "hits of a profile of other texts less those of LRU with as "
        "many slots", None, "points",
        sign(-5, "five points fewer, as llama.cpp's PR 27861 reports far more; direction: fewer"),
        profiles.measured(profiles.against_lru), sources=sources.PROFILE,
    ),
)  # fmt: skip


def placed_again(again: str, few: bool, whole: bool = False) -> Claim:
    """Return the claim that placing again for each prompt is faster than by frequency."""
    low, high = (0.0, 0.25) if few else (0.5, 1.0)
    name = f"R-4 {again} {'few' if few else 'many'}" + (" whole" if whole else "")
    what = f"time of a prompt and {placement.TOKENS} tokens" if whole else "TPOT"
    share = "a quarter of the experts or fewer" if few else "half of the experts or more"
    turning = again == "swaps" and few and not whole
    return Claim(
        name, _PLACEMENT, f"change of the {what} by {_AGAIN[again]}, {share} resident", None, "%",
        sign(-3, "3 % faster; direction: faster"), placement.over(again, low, high, whole),
        (e.PLACEMENT,), (e.RECORDED,), sources=sources.PLACEMENT,
        turns=placement.turns if turning else None,
    )  # fmt: skip


_AGAIN = {"swaps": "DAOP's swaps in prefill", "updates": "kTransformers' update of residents"}

PLACEMENT = (
    *(placed_again(again, few) for again in _AGAIN for few in (True, False)),
    *(placed_again(again, True, whole=True) for again in _AGAIN),
)

EVICTION = (
    Claim(
        "R-5 LFRU", _EVICTION, "share of recorded streams in which LFRU has most hits", 12 / 13,
        "1", at_least(0.75, 0.5, "three streams of four; direction: half"),
        evictions.first("lfru"), sources=sources.EVICTION, turns=evictions.turns,
    ),
    *(
        Claim(
            f"R-5 Least-Stale {reading}", _EVICTION,
            f"collisions of LRU over those of Least-Stale as in reading {reading}, OLMoE", 85, "×",
            half(85, "×", "within half of the abstract's figure; direction: fewer"),
            evictions.fewer_collisions(reading), sources=sources.LEAST_STALE,
        )
        for reading in evictions.READINGS
    ),
)  # fmt: skip

PAGES = (
    Claim(
        "R-6 learned", _PAGES, "gain in tokens/s of learned eviction on the device over the page "
        "cache with as many bytes", None, "%", sign(5, "5 % faster; direction: faster"),
        pages.faster(pages.LEARNED, pages.PAGED), (e.PAGES,), sources=sources.PAGE_CACHE,
        turns=pages.turns,
    ),
    Claim(
        "R-6 rule", _PAGES, "gain in tokens/s of learned eviction over LRU, both on the device",
        22, "%", half(22, "%", "within half of FlashMoE's figure; direction: faster"),
        pages.faster(pages.LEARNED, pages.LRU), (e.PAGES,), sources=sources.PAGE_CACHE,
    ),
    Claim(
        "R-6 LRU", _PAGES, "gain in tokens/s of LRU on the device over the page cache with as "
        "many bytes", None, "%", sign(5, "5 % faster; direction: faster"),
        pages.faster(pages.LRU, pages.PAGED), (e.PAGES,), sources=sources.PAGE_CACHE,
    ),
)  # fmt: skip

ROUTING = (
    Claim(
        "R-7 front", _ROUTING, "TPOT with cache-prior's λ over that with SMoE's α at the same KL",
        None, "×", sign(-0.03, "3 % faster; direction: faster", none=1), fronts.measured,
        (e.FRONT,), sources=sources.ROUTING, turns=fronts.turns,
    ),
    Claim(
        "R-7 misses", _ROUTING, "misses that λ = 1 saves", 50, "%",
        half(50, "%", "within half of the abstract's figure; direction: fewer misses"),
        fronts.halved, (e.FRONT,), sources=sources.ROUTING,
    ),
)  # fmt: skip

SPLIT = (
    Claim(
        "R-8 ratio", _SPLIT, "host's bandwidth over the link's from which on hybrid is faster",
        2.0, "×", Bands(Band(low=1.5, high=2.5), Band(low=1.1, high=4),
                        "a quarter either way; direction: a host that is faster, up to 4 times"),
        splits.measured, (e.SPLIT,), (e.ALL_ON_HOST, e.IN_PYTHON), sources=sources.SPLIT,
        turns=splits.turns,
    ),
)  # fmt: skip

CLAIMS = (
    *HITS, *PREFETCH, *PROFILE, *PLACEMENT, *EVICTION, *PAGES, *ROUTING, *SPLIT,
)  # fmt: skip
