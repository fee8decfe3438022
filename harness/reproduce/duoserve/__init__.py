"""DuoServe-MoE's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import paper_claims
from moebench.harness.reproduce.duoserve.claims_of_predictor import CLAIMS_OF_PREDICTOR
from moebench.harness.reproduce.duoserve.claims_of_times import CLAIMS_OF_TIMES
from moebench.harness.reproduce.duoserve.exhibits import EXHIBITS
from moebench.harness.reproduce.duoserve.explained import EXPLANATIONS, HEADLINES
from moebench.harness.reproduce.duoserve.tags import TAGS

CLAIMS = [
    claim.tagged(*TAGS[claim.id]) if claim.id in TAGS else claim
    for claim in sorted((*CLAIMS_OF_TIMES, *CLAIMS_OF_PREDICTOR), key=lambda claim: claim.id[:3])
]

PAPER = paper_claims("duoserve", "DuoServe-MoE", CLAIMS, EXHIBITS, EXPLANATIONS, HEADLINES)
