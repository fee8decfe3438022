"""DuoServe-MoE's claims, tables and figures."""

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.duoserve.claims import CLAIMS

PAPER = PaperClaims("duoserve", "DuoServe-MoE", tuple(sorted(CLAIMS, key=lambda c: c.id[:3])))
