"""SMoE's claims, tables and figures, with the figure numbers of the paper's second version.

`against_others` has S-1 to S-4 (four baselines), `own_parts` S-5 to S-10 (ablation, prefetching,
link and host), `analysis` S-11 to S-15 (α, gates, times of one expert), `batches` S-16.
"""

from moebench.harness.reproduce.claim import paper_claims
from moebench.harness.reproduce.smoe import against_others, analysis, batches, exhibits, own_parts
from moebench.harness.reproduce.smoe.explained import EXPLANATIONS, HEADLINES

CLAIMS = (*against_others.CLAIMS, *own_parts.CLAIMS, *analysis.CLAIMS, *batches.CLAIMS)

PAPER = paper_claims("smoe", "SMoE", CLAIMS, exhibits.EXHIBITS, EXPLANATIONS, HEADLINES)
