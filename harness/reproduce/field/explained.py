"""Short names of the field's claims, and explanations written after measuring."""

from moebench.harness.reproduce.claim import Headline

#: Explanations by the leading words of a claim's id.
EXPLANATIONS: dict[str, str] = {}

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
