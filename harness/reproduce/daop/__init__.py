"""DAOP's claims, tables and figures."""

from moebench.harness.reproduce.claim import Claim, PaperClaims
from moebench.harness.reproduce.daop.claims import CLAIMS
from moebench.harness.reproduce.daop.exhibits import EXHIBITS


def _number(claim: Claim) -> int:
    return int(claim.id.split()[0].removeprefix("D-"))


PAPER = PaperClaims("daop", "DAOP", tuple(sorted(CLAIMS, key=_number)), EXHIBITS)
