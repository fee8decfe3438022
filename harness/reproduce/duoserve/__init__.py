"""DuoServe-MoE's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import paper_claims
from moebench.harness.reproduce.duoserve.claims import CLAIMS
from moebench.harness.reproduce.duoserve.exhibits import EXHIBITS
from moebench.harness.reproduce.duoserve.explained import EXPLANATIONS, HEADLINES

PAPER = paper_claims(
    "duoserve", "DuoServe-MoE", sorted(CLAIMS, key=lambda claim: claim.id[:3]), EXHIBITS,
    EXPLANATIONS, HEADLINES,
)  # fmt: skip
