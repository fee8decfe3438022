"""DAOP's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import Claim, paper_claims
from moebench.harness.reproduce.daop.claims_of_routing import CLAIMS_OF_ROUTING
from moebench.harness.reproduce.daop.claims_of_times import CLAIMS_OF_TIMES
from moebench.harness.reproduce.daop.exhibits import EXHIBITS
from moebench.harness.reproduce.daop.explained import EXPLANATIONS, HEADLINES
from moebench.harness.reproduce.daop.tags import TAGS


def _number(claim: Claim) -> int:
    return int(claim.id.split()[0].removeprefix("D-"))


CLAIMS = [
    claim.tagged(*TAGS[claim.id]) if claim.id in TAGS else claim
    for claim in sorted((*CLAIMS_OF_ROUTING, *CLAIMS_OF_TIMES), key=_number)
]

PAPER = paper_claims("daop", "DAOP", CLAIMS, EXHIBITS, EXPLANATIONS, HEADLINES)
