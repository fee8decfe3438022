"""Short names of the field's claims, and explanations written after measuring."""

from moebench.harness.reproduce.claim import Headline

#: Explanations by the leading words of a claim's id.
EXPLANATIONS: dict[str, str] = {
    "R-2 saturated": (
        "A saturated link alone does not make prefetching lose. At a low hit rate nearly every "
        "predicted expert that is absent is used, and copies that are right only move forward. "
        "Losses grow with the hit rate, where absent experts are predicted wrongly."
    ),
    "R-3 carries over": (
        "Models differ more than texts: profiles carry over on gpt-oss-20b, granite and Gemma, "
        "hardly on OLMoE and DeepSeek-V2-Lite, so that both sides report what they saw."
    ),
    "R-5 Least-Stale": (
        "On demand and without prefetching, a pool of 5 % of OLMoE's experts is smaller than what "
        "one token uses, so that every rule evicts what the next token needs. The abstract's "
        "collisions are of a cache that is also prefetched into; it does not define them."
    ),
    "R-6": (
        "A drive of a few GB/s is slower than the link, so that a page that hits costs little "
        "more than a slot; and what the device holds has been read through host memory, whose 1 "
        "GB keeps copies of it. With few training texts the network does not beat LRU."
    ),
    "R-7 front": (
        "λ adds to all residents, however low their scores, and soon decides most of a token's "
        "experts; α replaces only experts whose scores are near."
    ),
    "R-8 ratio": (
        "The simulated host computes its share beside the copies, so that dividing misses by φ "
        "never takes longer than copying them all; lost hits, of experts that are not copied, "
        "cost less. The factor of 2 is near where computing all misses on the host becomes faster "
        "than copying them (counter-experiment). What users report, a host that is slower in the "
        "engine than in the benchmark, is not in the model."
    ),
}

#: Claims that stand for each of the eight disagreements, with the cause of a difference.
HEADLINES = {
    "R-1 pairs": Headline("a higher hit rate can be slower"),
    "R-2 saturated": Headline("prefetching loses on a saturated link"),
    "R-3 carries over": Headline("a profile's pinned experts carry over to other texts"),
    "R-4 swaps few": Headline("placing again for each prompt beats frequency"),
    "R-5 LFRU": Headline("LFRU is the best causal eviction"),
    "R-6 learned": Headline("learned eviction beats the page cache"),
    "R-7 front": Headline("λ is faster than α at the same KL"),
    "R-8 ratio": Headline("hybrid pays from twice the link's bandwidth on"),
}
