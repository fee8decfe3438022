"""DAOP's claims, tables and figures."""

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.daop.claims import CLAIMS

PAPER = PaperClaims("daop", "DAOP", tuple(sorted(CLAIMS, key=lambda c: int(c.id.split()[0][2:]))))
