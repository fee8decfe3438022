"""A small α table by hand: one setting, a real dataset and two generated families."""

from moebench.results.accuracy_table import AccuracyRow
from tests.results.tables import row

ALPHAS = (0.0, 0.25, 0.35, 0.6)

# gsm8k: 200 questions, 90 right, then 2, 6 and 30 of those lost and none gained.
# The change's paired standard error is 100 sqrt(d (1 - d) / n) for a share d of lost questions.
LOST = {0.0: 0, 0.25: 2, 0.35: 6, 0.6: 30}
AGREEMENT = {0.0: 1.0, 0.25: 0.985, 0.35: 0.96, 0.6: 0.81}
KL = {0.0: 0.0, 0.25: 0.0101, 0.35: 0.0202, 0.6: 0.1303}

ITEMS = {f"gsm8k-{a:g}": "1" * (90 - lost) + "0" * (110 + lost) for a, lost in LOST.items()}


def gsm8k() -> list[AccuracyRow]:
    return [
        row(alpha=a, run_id=f"gsm8k-{a:g}", score=(90 - LOST[a]) / 2, stderr=3.5,
            agreement=AGREEMENT[a], kl=KL[a])
        for a in ALPHAS
    ]  # fmt: skip


def generated() -> list[AccuracyRow]:
    """Two families: one falls at once, one is at chance and never moves."""
    facts = [
        row(workload="facts", generated=True, category="knowledge", alpha=a, run_id=f"facts-{a:g}",
            score=60.0 if a == 0 else 40.0, stderr=3.0, chance=25.0)
        for a in ALPHAS
    ]  # fmt: skip
    passages = [
        row(workload="passages", generated=True, category="understanding", alpha=a, score=26.0,
            stderr=3.0, chance=25.0, run_id=f"passages-{a:g}", agreement=None, kl=None)
        for a in ALPHAS
    ]  # fmt: skip
    return facts + passages


ROWS = gsm8k() + generated()
