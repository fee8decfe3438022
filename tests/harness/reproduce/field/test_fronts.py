"""Fronts of KL and TPOT: fewer misses, KL that both reach, and the words about them."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import MissingEvidenceError, Runs
from moebench.harness.reproduce.field import fronts
from tests.harness.reproduce.test_field import evidence, routed

ALPHA = ((0.0, 0.0, 100), (0.3, 1e-3, 80), (0.6, 1e-1, 60))


def test_both_routings_reach_nine_kl_that_are_equally_far_apart() -> None:
    runs = Runs(
        [
            *routed("expert-cache", *ALPHA),
            *routed("cache-prior", (0.0, 0.0, 90), (0.5, 1e-4, 70), (1.0, 1e-2, 50)),
        ]
    )
    at = fronts.shared(*(fronts.points(runs, one) for one in (fronts.ALPHA, fronts.PRIOR)))
    assert len(at) == 9
    assert at == pytest.approx([10 ** (-3 + n / 8) for n in range(9)])
    # At 1e-3 60 against 80, at 1e-2 50 against 70, and lines in log KL between: mean of nine.
    alpha, prior = ([first - 10 * n / 8 for n in range(9)] for first in (80, 60))
    ratios = [b / a for a, b in zip(alpha, prior, strict=True)]
    assert fronts.ratio(runs) == pytest.approx(sum(ratios) / 9)


def test_a_kl_that_only_the_ends_share_is_compared() -> None:
    runs = Runs([*routed("expert-cache", (0.0, 0.0, 100), (0.3, 1e-2, 80)),
                 *routed("cache-prior", (0.0, 0.0, 100), (0.5, 1e-2, 60))])  # fmt: skip
    assert fronts.ratio(runs) == pytest.approx(0.75)


def test_points_are_means_over_seeds_by_their_value() -> None:
    runs = Runs(
        [
            *routed("expert-cache", (0.6, 0.1, 60), (0.0, 0.0, 100)),
            *routed("expert-cache", (0.6, 0.3, 80)),
            *routed("other", (0.1, 0.2, 1)),
        ]
    )
    first, second = fronts.points(runs, fronts.ALPHA)
    assert first == fronts.Point(0.0, 0.0, 100, 0.5)
    assert second == pytest.approx((0.6, 0.2, 70, 0.65))


def test_of_cells_with_one_kl_the_faster_is_on_the_front() -> None:
    cells = [
        fronts.Point(n, kl, tpot, 0.5)
        for n, (kl, tpot) in enumerate([(0.1, 50), (0.1, 40), (0.2, 40), (0.3, 30)])
    ]
    assert [point.value for point in fronts.pareto(cells)] == [1, 3]
    # Below the least and above the greatest KL the nearest cell counts.
    assert [fronts.tpot_at(cells, kl) for kl in (0.01, 0.1, 0.9)] == [40, 40, 30]


def test_misses_at_the_largest_prior_by_cache_size(tmp_path: Path) -> None:
    """Hits are 0.5 + λ / 4: misses of 0.25 against 0.5, and of 0.3 against 0.4."""
    half = routed("cache-prior", (0.0, 0.0, 1), (1.0, 0.1, 1))
    quarter = routed("cache-prior", (0.4, 0.0, 1), (0.8, 0.1, 1))
    for one in quarter:
        one["spec"]["cache_ratio"] = 0.25
    found = fronts.halved(evidence(tmp_path, *half, *quarter))
    assert found.samples == pytest.approx((50, 25))
    assert (found.badge, found.over) == ("counted", "cache sizes")
    assert found.conditions == "λ = 1 against λ = 0"


def test_the_words_say_where_the_prior_is_faster(tmp_path: Path) -> None:
    """From 1e-3 to 1e-1 the prior's TPOT falls from 90 to 50, α's from 80 to 60: at 70 equal."""
    mixed = [
        *routed("expert-cache", *ALPHA),
        *routed("cache-prior", (0.0, 0.0, 100), (0.5, 1e-3, 90), (1.0, 1e-1, 50)),
    ]
    slower = [
        *routed("expert-cache", *ALPHA),
        *routed("cache-prior", (0.0, 0.0, 110), (0.5, 1e-3, 85), (1.0, 1e-1, 65)),
    ]
    for one in slower:
        one["spec"]["cache_ratio"] = 0.25
    of = evidence(tmp_path, *mixed, *slower)
    assert fronts.turns(of) == (
        "At equal KL in nats a token. 50% of the experts: λ is faster at 4 of 9 KL from 1.0e-03 to "
        "1.0e-01, from 1.8e-02 to 1.0e-01; 25% of the experts: α is faster at every KL from "
        "1.0e-03 to 1.0e-01."
    )
    found = fronts.measured(of)
    assert len(found.samples) == 2
    assert (found.badge, found.over) == ("estimate", "cache sizes")
    assert found.conditions.startswith("OLMoE's scale model on passages; a quarter and a half")


def test_two_cells_are_needed_and_one_is_not_enough() -> None:
    one = routed("expert-cache", (0.0, 0.0, 100))
    with pytest.raises(MissingEvidenceError, match="expert-cache: fewer than two cells"):
        fronts.points(Runs(one), fronts.ALPHA)
