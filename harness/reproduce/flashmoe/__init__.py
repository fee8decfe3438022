"""FlashMoE's claims, tables and figures."""

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.flashmoe import claims_of_caches, claims_of_times
from moebench.harness.reproduce.flashmoe.exhibits import EXHIBITS

CLAIMS = tuple(
    sorted((*claims_of_caches.CLAIMS, *claims_of_times.CLAIMS), key=lambda claim: claim.id[:3])
)

PAPER = PaperClaims("flashmoe", "FlashMoE", CLAIMS, EXHIBITS)
