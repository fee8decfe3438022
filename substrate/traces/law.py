"""The law of drawn routing: popularity and repetition of models whose routing was not recorded.

A row chooses the k experts with the highest of E normal logits.  In rows of one text that are far
apart, an expert's logits have the correlation `Law.lasting`: it makes some experts popular and lets
rows agree.  In neighbouring rows the correlation is `Law.next`.  Two numbers thus give popularity,
repetition and the number of distinct experts that n rows use, for any E and k.

The numbers were measured in recordings of eight families by ``python -m benchmarks.law DATA_DIR``
(`docs/traces.md` has the table): `LAW` is the median of the families, `ENDS` the lowest and
highest.  With its best number, this form fits the distinct experts of every family better than
1 - exp(-c √x), x = n k / E, and their popularity better than Zipf's.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from moebench.substrate.traces.recipes import RECALL, SynthesisRecipe

#: Correlation of neighbouring rows that fades from one row to the next: the median, over families,
#: of what remains at distance 2.
FADING = 0.4

#: Medians over the catalogue's recipes: the share of popularity that all texts have in common, the
#: correlation of prefill with decode, and the spread of logits.
COMMON, PREFILL, SPREAD = 0.3, 0.88, 1.1

_NORMAL = NormalDist()
_NODES, _RAW = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _RAW / _RAW.sum()


class Law(NamedTuple):
    """Correlations of an expert's logits in two rows of a text.

    Attributes:
        lasting: of rows far apart, 0 to 1.
        next: of neighbouring rows, at least ``lasting``.
    """

    lasting: float
    next: float

    @property
    def recipe(self) -> SynthesisRecipe:
        """The recipe that draws such routing, and predictions with the default recall."""
        return SynthesisRecipe(
            static=self.lasting, ar1=(self.next - self.lasting) / FADING, rho=FADING,
            common=COMMON, prefill=PREFILL, recall=RECALL, spread=SPREAD,
        )  # fmt: skip


#: Median, and lowest and highest, of eight recorded families.
LAW = Law(0.385, 0.527)
ENDS = (Law(0.109, 0.275), Law(0.497, 0.683))


@lru_cache(maxsize=4096)
def used_share(rows: int, top_k: int, experts: int, lasting: float = LAW.lasting) -> float:
    """Return the mean share of a layer's experts that ``rows`` rows of a text use."""
    return float((_WEIGHTS * (1 - (1 - _chosen(top_k, experts, lasting)) ** rows)).sum())


def used_experts(rows: int, top_k: int, experts: int, law: Law = LAW) -> int:
    """Return how many experts of a layer ``rows`` rows of a text use: ``top_k`` to ``experts``."""
    share = used_share(rows, top_k, experts, law.lasting)
    return min(experts, max(top_k, round(share * experts)))


def overlap(top_k: int, experts: int, correlation: float) -> float:
    """Return the share of experts that two rows have in common if their logits correlate so."""
    return float((_WEIGHTS * _chosen(top_k, experts, correlation) ** 2).sum()) * experts / top_k


@lru_cache(maxsize=256)
def _chosen(top_k: int, experts: int, correlation: float) -> np.ndarray:
    """Return the probability that a row chooses an expert, at each node of its popularity."""
    if top_k >= experts:
        return np.ones_like(_NODES)
    least = _NORMAL.inv_cdf(1 - top_k / experts)
    above = (math.sqrt(correlation) * _NODES - least) / math.sqrt(1 - correlation)
    return np.array([_NORMAL.cdf(float(one)) for one in above])
