"""Compares accuracy cells with their references, example by example.

On the arithmetic of the reference results are deterministic: any difference is due to the code.
The arithmetic is the same if torch's own operations round alike (`harness.guard.arithmetic`) and
the program adds in the same order (`harness.guard.golden.fingerprint`).

On other arithmetic sums round differently.  That leaves an example's answer unchanged, and its KL
divergence up to a few millionths; but occasionally a score is so close to a threshold that a
decision flips: its example changes, and with it a few later ones, through the cache.  So a cell
fails only if more of its examples changed than rounding changes, by a binomial test.  The same test
is applied to all these cells together, which finds damage that is too small in each cell.

Other weights change every example.  Exact sign tests decide then, on right and wrong answers and on
KL, for each cell and together.

However many cells there are, an unchanged program regresses in at most one of a hundred checks
(Bonferroni).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal, NamedTuple

UPDATE = "moebench check --update"

#: The probability of a false alarm of all tests together.
FALSE_ALARM = 0.01
#: Largest change by rounding of an example's KL, summed over its tokens: in nats, or as a share.
#: 4 044 examples were recomputed under a dozen other arithmetics (fp64, dimensions in another
#: order, kernels for other processors, two threads).  All but five kept their answer, and their KL
#: within 5e-6 nats or 0.01 %; in those five a decision flipped, and KL changed by 6 or 10 %.
KL_ROUNDING, KL_ROUNDING_SHARE = 2e-5, 1e-3
#: Largest share of examples that rounding changes by more than that.  0.1 % were observed; the
#: margin is for later examples of the same cell, of which a slightly larger α changed two.
MOVED_BY_ROUNDING = 0.02

#: A cell's ``accuracy`` as `moebench run` documents it.
Accuracy = Mapping[str, Any]
#: What of a cell is compared.
Check = Literal["answers", "latency", "model"]
#: The same cell now, and when it was last accepted.
Pair = tuple[Accuracy, Accuracy]


class Verdict(StrEnum):
    """Verdicts on a cell, in ascending order of seriousness."""

    PASS = "pass"
    IMPROVED = "improved"
    NOT_MEASURED = "not measured"
    REGRESSED = "regressed"


@dataclass(frozen=True, slots=True)
class Finding:
    """A cell's verdict with its reason.

    Attributes:
        cell: the cell's name; for a latency or a scale model, `check` follows it.
    """

    cell: str
    verdict: Verdict
    reason: str
    check: Check = "answers"

    @property
    def name(self) -> str:
        """Name of the cell or scale model alone."""
        return self.cell if self.check == "answers" else self.cell.removesuffix(f": {self.check}")


def compare(
    now: Mapping[str, Mapping[str, Any]], references: Mapping[str, Mapping[str, Any]],
    update: str = UPDATE,
) -> list[Finding]:  # fmt: skip
    """Return the verdict on each cell, and on all cells with other arithmetic or weights together.

    Args:
        now: cells as `harness.guard.check.measure` returns them.
        references: the accepted cells in the same format.
    """
    findings: list[Finding] = []
    other_arithmetic: list[Pair] = []
    other_weights: list[Pair] = []
    # At most two tests of each cell and two of all cells together can raise an alarm.
    threshold = FALSE_ALARM / (2 * (len(now) + 1))
    for name, cell in now.items():
        reference = references.get(name)
        if reference is None or reference["data_hash"] != cell["data_hash"]:
            why = "no reference" if reference is None else "the reference has other questions"
            findings.append(Finding(name, Verdict.NOT_MEASURED, f"{why}; {update}"))
            continue
        pair = (cell["accuracy"], reference["accuracy"])
        if not any(accuracy["items"]["answer"] for accuracy in pair):  # replayed: nothing to answer
            continue
        if reference["weights_hash"] != cell["weights_hash"]:
            other_weights.append(pair)
            findings.append(_by_sign(name, [pair], threshold))
        elif reference["arithmetic"] != cell["arithmetic"]:
            other_arithmetic.append(pair)
            findings.append(_beyond_rounding(name, [pair], MOVED_BY_ROUNDING, threshold))
        else:
            findings.append(_beyond_rounding(name, [pair], 0.0, threshold))
    if len(other_arithmetic) > 1:
        name = "all on other arithmetic"
        findings.append(_beyond_rounding(name, other_arithmetic, MOVED_BY_ROUNDING, threshold))
    if len(other_weights) > 1:
        findings.append(_by_sign("all of other weights", other_weights, threshold))
    return findings


# ----------------------------------------------------------------------------- the same weights


def _beyond_rounding(name: str, pairs: Sequence[Pair], share: float, threshold: float) -> Finding:
    """Judge cells of the same weights: changes beyond rounding are due to the code.

    Args:
        share: largest share of examples that rounding changes; 0 on the same arithmetic.
    """
    if all(now == reference for now, reference in pairs):
        return Finding(name, Verdict.PASS, "equal to the last bit")
    found = _changes(pairs)
    if not found["moved"]:
        return Finding(name, Verdict.PASS, "equal within rounding")
    moved = f"{found['moved']} of {found['questions']} questions moved"
    if at_least(found["moved"], found["questions"], share) >= threshold:
        return Finding(name, Verdict.PASS, f"{moved}, as rounding may; {difference(pairs)}")
    reason = (
        f"{moved}: {found['answers']} answers changed, {found['farther']} farther from the "
        f"lossless model, {found['closer']} closer; {difference(pairs)}"
    )
    return Finding(name, _direction(pairs, found), reason)


def _direction(pairs: Sequence[Pair], found: Mapping[str, int]) -> Verdict:
    """Return whether a change is for the better: a gain in one figure does not offset a loss.

    KL counts by its mean and by the number of examples, because one example can change the mean.
    """
    (score, agreement, kl), (old_score, old_agreement, old_kl) = _figures(pairs)
    gains = (
        score - old_score, agreement - old_agreement, old_kl - kl,
        found["closer"] - found["farther"],
    )  # fmt: skip
    if any(gain < 0 or math.isnan(gain) for gain in gains):
        return Verdict.REGRESSED
    return Verdict.IMPROVED if any(gain > 0 for gain in gains) else Verdict.PASS


# ----------------------------------------------------------------------------- other weights


def _by_sign(name: str, pairs: Sequence[Pair], threshold: float) -> Finding:
    """Judge cells of other weights: whether their examples changed in one direction."""
    found = _changes(pairs)
    better, worse = found["better"], found["worse"]
    closer, farther = found["closer"], found["farther"]
    verdict = Verdict.PASS
    if min(sign_test(better, worse), sign_test(closer, farther)) < threshold:
        verdict = Verdict.IMPROVED
    if min(sign_test(worse, better), sign_test(farther, closer)) < threshold:
        verdict = Verdict.REGRESSED
    reason = (
        f"other weights; answers: {better} better, {worse} worse; KL: {closer} closer, {farther} "
        "farther from the lossless model"
    )
    return Finding(name, verdict, reason)


def sign_test(more: int, fewer: int) -> float:
    """Return the one-sided sign test's p-value for ``more`` against ``fewer`` differing pairs."""
    return at_least(more, more + fewer, 0.5)


def at_least(k: int, n: int, share: float) -> float:
    """Return the probability of ``k`` or more of ``n`` independent events with chance ``share``."""
    return math.fsum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1))


# ----------------------------------------------------------------------------- questions, figures


class Question(NamedTuple):
    """Figures of one example of a cell; see `harness.run.accuracy.Item`."""

    value: float
    answer: str
    agreed: int
    kl: float


def questions(accuracy: Accuracy) -> list[Question]:
    """Return the examples of a cell; without reference answer each has value 0, without KL inf."""
    columns = [accuracy["items"][name] for name in Question._fields]
    return [
        Question(value or 0.0, answer, agreed, math.inf if kl is None else kl)
        for value, answer, agreed, kl in zip(*columns, strict=True)
    ]


def _changes(pairs: Sequence[Pair]) -> Counter[str]:
    """Count the examples, and how many of them changed in each way."""
    found: Counter[str] = Counter()
    for now, reference in pairs:
        for new, old in zip(questions(now), questions(reference), strict=True):
            near = math.isclose(new.kl, old.kl, rel_tol=KL_ROUNDING_SHARE, abs_tol=KL_ROUNDING)
            found["questions"] += 1
            found["moved"] += not near or new[:-1] != old[:-1]
            found["answers"] += new.answer != old.answer
            found["better"] += new.value > old.value
            found["worse"] += new.value < old.value
            found["closer"] += not near and new.kl < old.kl
            found["farther"] += not (near or new.kl < old.kl)  # true for a KL of NaN
    return found


#: Figures of a cell's accuracy that are printed, and compared if its examples changed.
FIGURES = ("score", "agreement", "kl")


def _figures(pairs: Sequence[Pair]) -> list[list[float]]:
    """Return `FIGURES` now and before, as means of the cells; a missing figure counts as 0."""
    return [
        [fmean(accuracy[name] or 0.0 for accuracy in side) for name in FIGURES]
        for side in zip(*pairs, strict=True)
    ]


def difference(pairs: Sequence[Pair]) -> str:
    """Return the `FIGURES` that differ as text, with their old and new values."""
    now, before = _figures(pairs)
    differing = [
        f"{name} {old:.6g} -> {new:.6g}"
        for name, old, new in zip(FIGURES, before, now, strict=True)
        if old != new
    ]
    return ", ".join(differing) or "score, agreement and KL equal"
