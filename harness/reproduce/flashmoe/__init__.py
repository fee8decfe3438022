"""FlashMoE's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import paper_claims
from moebench.harness.reproduce.flashmoe import claims_of_caches, claims_of_times
from moebench.harness.reproduce.flashmoe.exhibits import EXHIBITS
from moebench.harness.reproduce.flashmoe.explained import EXPLANATIONS, HEADLINES

CLAIMS = sorted((*claims_of_caches.CLAIMS, *claims_of_times.CLAIMS), key=lambda claim: claim.id[:3])

PAPER = paper_claims("flashmoe", "FlashMoE", CLAIMS, EXHIBITS, EXPLANATIONS, HEADLINES)
