"""FlashMoE's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import Claim, paper_claims
from moebench.harness.reproduce.flashmoe import claims_of_caches, claims_of_models, claims_of_times
from moebench.harness.reproduce.flashmoe.exhibits import EXHIBITS
from moebench.harness.reproduce.flashmoe.explained import EXPLANATIONS, HEADLINES


def _number(claim: Claim) -> int:
    """Return a claim's number: 10 for "F-10 OLMoE non-experts"."""
    return int(claim.id.split()[0].removeprefix("F-"))


CLAIMS = sorted(
    (*claims_of_caches.CLAIMS, *claims_of_times.CLAIMS, *claims_of_models.CLAIMS), key=_number
)

PAPER = paper_claims("flashmoe", "FlashMoE", CLAIMS, EXHIBITS, EXPLANATIONS, HEADLINES)
