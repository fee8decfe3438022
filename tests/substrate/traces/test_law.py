"""The law of drawn routing: against draws, against simulated normal logits, and its bounds."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.statistics import lag_overlap, used_share
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces import law
from moebench.substrate.traces.law import ENDS, LAW, Law
from moebench.substrate.traces.recipes import RECALL
from moebench.substrate.traces.synthesis import Synthesis, Topology

COUNTS = st.integers(1, 300)


@pytest.mark.parametrize(("experts", "top_k"), [(128, 4), (64, 8), (32, 4)])
@pytest.mark.parametrize("one", [LAW, *ENDS])
def test_drawn_traces_repeat_and_use_as_many_experts_as_the_law(
    one: Law, experts: int, top_k: int
) -> None:
    synthesis = Synthesis(Topology(12, experts, top_k), one.recipe, 0)
    texts = [RoutedSequence(synthesis.draw(256, 1).ids_TLK, 0) for _ in range(6)]
    overlap = float(lag_overlap(texts, 1).mean())
    assert overlap == pytest.approx(law.overlap(top_k, experts, one.next), abs=0.04)
    far = float(lag_overlap(texts, 32).mean())
    assert far == pytest.approx(law.overlap(top_k, experts, one.lasting), abs=0.05)
    for rows in (64, 256):
        drawn = used_share(texts, experts, rows)
        assert drawn == pytest.approx(law.used_share(rows, top_k, experts, one.lasting), abs=0.05)


def test_used_share_is_that_of_independent_rows_with_common_popularity() -> None:
    """Logits of variance one, of which a share is common to all rows, drawn here by hand."""
    random, (experts, top_k, rows) = np.random.default_rng(1), (4096, 128, 32)
    common = 0.4**0.5 * random.standard_normal(experts)
    logits = common + 0.6**0.5 * random.standard_normal((rows, experts))
    used = np.unique(np.argpartition(-logits, top_k - 1, axis=1)[:, :top_k])
    assert law.used_share(rows, top_k, experts, 0.4) == pytest.approx(len(used) / experts, abs=0.02)


@settings(max_examples=80, deadline=None)
@given(COUNTS, COUNTS, st.integers(1, 5000), st.sampled_from([LAW, *ENDS]))
def test_used_experts_are_bounded_and_rise_with_rows(k: int, e: int, rows: int, one: Law) -> None:
    top_k, experts = sorted((k, e))
    used = law.used_experts(rows, top_k, experts, one)
    assert top_k <= used <= min(experts, max(top_k, rows * top_k))
    assert used <= law.used_experts(rows + 1, top_k, experts, one)
    assert law.used_share(1, top_k, experts, one.lasting) == pytest.approx(top_k / experts, 1e-3)


def test_more_lasting_popularity_uses_fewer_experts() -> None:
    many, few = (law.used_experts(512, 4, 128, one) for one in ENDS)
    assert few < law.used_experts(512, 4, 128) < many
    assert law.overlap(4, 128, 0.0) == pytest.approx(4 / 128)
    assert {one.recipe.recall for one in (LAW, *ENDS)} == {RECALL}


def test_the_law_is_the_median_and_the_ends_of_the_documented_families() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "traces.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.endswith("| next | lasting |"))
    families = [line.strip("|").split("|") for line in lines[start + 2 : start + 10]]
    following, lasting = ([float(row[at]) for row in families] for at in (-2, -1))
    lowest, highest = (Law(end(lasting), end(following)) for end in (min, max))
    assert (lowest, highest) == ENDS
    # The mean of the two in the middle; the digits that the table leaves out may round it up.
    assert LAW.lasting == pytest.approx(median(lasting), abs=0.0011)
    assert LAW.next == pytest.approx(median(following), abs=0.0011)
