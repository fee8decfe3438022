"""Claims on which the field disagrees, from engines, papers' abstracts, threads and measured rows.

They are measured as the papers' claims are: bands that were fixed before, verdicts, ranges of the
machines' numbers.  Each claim names who reported it, and on which condition it turns.
"""

from moebench.harness.reproduce.claim import paper_claims
from moebench.harness.reproduce.field.claims import CLAIMS
from moebench.harness.reproduce.field.exhibits import EXHIBITS
from moebench.harness.reproduce.field.explained import EXPLANATIONS, HEADLINES

PAPER = paper_claims("field", "Field reports", CLAIMS, EXHIBITS, EXPLANATIONS, HEADLINES)
