"""Learned eviction, LRU and the page cache with the same memory: seeds, shares and words."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import MissingEvidenceError, Runs
from moebench.harness.reproduce.field import pages
from tests.harness.reproduce.test_field import evidence, paged


def test_gains_have_a_sample_for_each_seed(tmp_path: Path) -> None:
    later = paged(100, 120, 200, 0.5)
    for one in later:
        one["spec"]["seed"] = 1
    of = evidence(tmp_path, *paged(100, 120, 150, 0.25), *paged(100, 110, 110), *later)
    found = pages.faster(pages.LEARNED, pages.PAGED)(of)
    assert found.samples == pytest.approx((30, 100), rel=1e-5)
    assert found.badge == "estimate"
    assert found.conditions == "OLMoE on F1, 0.25, 0.375, 0.5 of the experts in memory"
    assert pages.faster(pages.LRU, pages.LEARNED)(of).samples == pytest.approx(
        ((100 / 120 + 100 / 110) * 50 - 100, 100 * (100 / 120 - 1)), rel=1e-4
    )


def test_times_are_means_over_seeds_by_share() -> None:
    runs = Runs([*paged(10, 30, 50, 0.5), *paged(20, 40, 60, 0.5), *paged(1, 2, 3, 0.25)])
    assert pages.by_share(runs) == {
        0.25: {pages.LEARNED: 1, pages.LRU: 2, pages.PAGED: 3},
        0.5: {pages.LEARNED: 15, pages.LRU: 35, pages.PAGED: 55},
    }
    assert list(pages.by_share(runs)) == [0.25, 0.5]
    for some in (Runs([]), Runs([*runs, *paged(1, 2, 3)[1:]])):
        with pytest.raises(MissingEvidenceError, match="a way to use the memory lacks its run"):
            pages.by_share(some)


def test_the_words_say_what_decides(tmp_path: Path) -> None:
    """Learned against LRU +10 %, LRU against the page cache +50 %; then +50 and +10 %."""
    place = pages.turns(evidence(tmp_path, *paged(100, 110, 165, 0.25)))
    assert place == (
        "A page that hits still crosses the link; a slot that hits does not. Tokens/s over the "
        "page cache with as many bytes: 0.25 of the experts: learned +65 %, LRU +50 %. What is "
        "learned adds +10.0 % to LRU on the device, and the device +50.0 % to the page cache: the "
        "cache's place, not its rule, decides."
    )
    rule = pages.turns(evidence(tmp_path, *paged(100, 150, 165, 0.25)))
    assert rule.endswith("and the device +10.0 % to the page cache: the cache's rule decides.")
    lost = pages.turns(evidence(tmp_path, *paged(100, 110, 55, 0.25)))
    assert lost.endswith("the device -50.0 % to the page cache: the cache's place, not its rule, "
                         "decides.")  # fmt: skip
