"""DuoServe-MoE's claims, tables and figures."""

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.duoserve.claims import CLAIMS
from moebench.harness.reproduce.duoserve.exhibits import EXHIBITS

PAPER = PaperClaims(
    "duoserve", "DuoServe-MoE", tuple(sorted(CLAIMS, key=lambda claim: claim.id[:3])), EXHIBITS
)
