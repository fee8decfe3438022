"""DAOP's claims, tables and figures, sorted by claim number."""

from moebench.harness.reproduce.claim import Claim, paper_claims
from moebench.harness.reproduce.daop.claims import CLAIMS
from moebench.harness.reproduce.daop.exhibits import EXHIBITS
from moebench.harness.reproduce.daop.explained import EXPLANATIONS, HEADLINES


def _number(claim: Claim) -> int:
    return int(claim.id.split()[0].removeprefix("D-"))


PAPER = paper_claims("daop", "DAOP", sorted(CLAIMS, key=_number), EXHIBITS, EXPLANATIONS, HEADLINES)
