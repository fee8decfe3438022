"""Hybrid against offload by the ratio of bandwidths: crossings, seeds and words."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import Runs
from moebench.harness.reproduce.field import splits
from tests.harness.reproduce.test_field import evidence, split


def test_a_crossing_is_where_hybrid_begins_to_be_faster() -> None:
    assert splits.crossing({1: 1.0, 2: 0.5}) == 1
    assert splits.crossing({4: 0.7, 1: 1.3, 2: 1.1}) == pytest.approx(2.5)
    # It is slower again at 3; an equal time is not faster.
    assert splits.crossing({1: 0.9, 2: 1.1, 3: 0.9}) == pytest.approx(2.5)
    assert splits.crossing({1: 0.9, 2: 1.1}) == 1
    assert splits.crossing({1: 1.5, 3: 1.0}) == 3


def test_ratios_of_the_bandwidths_of_a_machine() -> None:
    """The host reads 40.96 GB/s."""
    for link in (10.24, 81.92):
        machine = f"rtx-3090+ryzen-5950x+link.pinned_h2d={link:g}"
        assert splits.bandwidth_ratio(machine, "lean") == pytest.approx(40.96 / link)


def test_times_are_means_over_models_and_seeds() -> None:
    other = split(40.96, 18, 10)
    for one in other:
        one["spec"]["model"] = "qwen3-30b-a3b"
    runs = Runs([*split(20.48, 4, 10), *split(40.96, 12, 10), *other])
    assert splits.by_ratio(runs) == pytest.approx({1: 1.5, 2: 0.4})
    assert list(splits.by_ratio(runs)) == [1, 2]


def test_a_crossing_of_each_seed_and_the_words(tmp_path: Path) -> None:
    """Seed 0 falls from 1.2 to 0.8; seed 1 is faster at both; their mean from 1.05 to 0.75."""
    later = [*split(40.96, 9, 10), *split(20.48, 7, 10)]
    for one in later:
        one["spec"]["seed"] = 1
    of = evidence(tmp_path, *split(40.96, 12, 10), *split(20.48, 8, 10), *later)
    found = splits.measured(of)
    assert found.samples == pytest.approx((1.5, 1))
    assert found.badge == "estimate"
    assert found.conditions == (
        "host over link 1 to 2, a quarter of the experts on the device; at an end of these, there "
        "is no crossing between them"
    )
    assert splits.turns(of) == (
        "Hybrid is faster from a ratio of host to link of 1.17 on. TPOT of hybrid over offload: "
        "1.05 at 1, 0.75 at 2."
    )
    equal = evidence(tmp_path, *split(40.96, 10, 10), *split(20.48, 12, 10))
    assert splits.turns(equal).startswith(
        "Offload is faster at every ratio of host to link up to 2. "
    )
    equal = evidence(tmp_path, *split(40.96, 9, 10), *split(20.48, 10, 10))
    assert splits.turns(equal).startswith("Hybrid is faster from a ratio of host to link of 1.00")
