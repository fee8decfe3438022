"""FlashMoE's claims, tables and figures."""

from dataclasses import replace

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.flashmoe import claims_of_caches, claims_of_times
from moebench.harness.reproduce.flashmoe.exhibits import EXHIBITS
from moebench.harness.reproduce.flashmoe.explained import explanation

CLAIMS = tuple(
    replace(claim, explanation=explanation(claim.id))
    for claim in sorted(
        (*claims_of_caches.CLAIMS, *claims_of_times.CLAIMS), key=lambda claim: claim.id[:3]
    )
)

PAPER = PaperClaims("flashmoe", "FlashMoE", CLAIMS, EXHIBITS)
