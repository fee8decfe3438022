"""SMoE's figures of instrumented runs, on counts by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.reproduce.smoe import importance
from moebench.harness.reproduce.smoe.experiments import ABLATION, STEPS, TABLE_I
from moebench.harness.reproduce.smoe.importance import off_device
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched
from tests.harness.reproduce.given import with_runs


def seen(setting: str, seed: int, top: tuple[int, int], low: tuple[int, int]) -> Watched:
    """Return an instrumented run: of each kind, all experts and those off the device."""
    counts = Importance(top=top[0], low=low[0], top_absent=top[1], low_absent=low[1])
    return Watched(
        f"{setting}-{seed}", setting, {}, seed, 2, counts, [1.0, 0.6, 0.4, 0.1], [0.9, 0.5, 0.6, 0]
    )


def watching(
    monkeypatch: pytest.MonkeyPatch, experiment: Experiment, steps: dict[str, Sequence[Watched]]
) -> None:
    """Give each step of the ablation its instrumented runs."""

    def watch(evidence: Evidence, asked: Experiment, **options: str) -> Sequence[Watched]:
        assert asked is experiment
        (name,) = (name for name, given in STEPS.items() if given == options)
        return steps[name]

    monkeypatch.setattr(importance, "watch", watch)


def run(setting: str, seed: int, step: str = "+CE", **metrics: Any) -> Any:
    return {
        "run_id": f"{setting}{seed}{step}", "badge": "estimate",
        "spec": {
            "setting": setting, "seed": seed, "overrides": STEPS[step] | {"alpha": "0.3"},
            "system": "smoe", "variant": "published", "prompts": 2, "new_tokens": 16,
            "workload": "passages", "routing": "model", "software": "measured",
            "model": f"model of {setting}",
        },
        "metrics": metrics,
    }  # fmt: skip


def test_shares_off_the_device_by_kind() -> None:
    counts = Importance(top=10, low=8, top_absent=4, low_absent=2, top_in_flight=1, low_in_flight=3)
    assert (off_device(counts, "top"), off_device(counts, "low")) == (0.4, 0.25)
    assert importance.low_share(counts) == pytest.approx(8 / 18)


def test_a_step_lowers_shares_by_seed(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top: from 50 to 25 and from 40 to 30 % in seed 0, from 50 to 50 % in seed 1.

    Low: from 20 to 10 and from 80 to 20 % in seed 0, from 10 to 20 % in seed 1.
    """
    before = [seen("S1", 0, (10, 5), (10, 2)), seen("S2", 0, (10, 4), (10, 8)),
              seen("S1", 1, (10, 5), (10, 1))]  # fmt: skip
    after = [seen("S1", 0, (20, 5), (10, 1)), seen("S2", 0, (10, 3), (10, 2)),
             seen("S1", 1, (10, 5), (10, 2))]  # fmt: skip
    watching(monkeypatch, ABLATION, {"+CE": before, "+CR": after})
    top = importance.lowered("top", "+CR", "+CE")(evidence)
    low = importance.lowered("low", "+CR", "+CE")(evidence)
    assert top == pytest.approx({0: -37.5, 1: 0})
    assert low == pytest.approx({0: -62.5, 1: 100})
    more = importance.more_lowered("+CR", "+CE")
    assert more(evidence) == pytest.approx({0: 25, 1: -100})
    asked = with_runs(monkeypatch, run("S1", 0))
    found = importance.of_steps(more)(evidence)
    assert asked == [ABLATION]
    assert (found.samples, found.badge) == (pytest.approx((25, -100)), "counted")
    assert found.conditions.startswith("2 prompts of 16 new tokens")


def test_the_effect_rises_with_the_share_of_low_scores(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 0: falls of 20, 50 and 80 % at shares of 1/5, 1/3 and 1/2; seed 1 the other way."""
    shares = {"S1": 10, "S2": 20, "S3": 40}
    falls = {0: {"S1": 9, "S2": 5, "S3": 2}, 1: {"S1": 2, "S2": 5, "S3": 9}}
    before, after = [], []
    # Settings in an order that is not that of their shares.
    for seed in falls:
        for setting in ("S3", "S1", "S2"):
            low = shares[setting]
            before.append(seen(setting, seed, (40, 4), (low, low // 2)))
            left = low // 2 * falls[seed][setting] // 10
            after.append(seen(setting, seed, (40, 4), (low, left)))
    watching(monkeypatch, ABLATION, {"+CE": before, "+Pre": after})
    found = importance.falls_with_low_share("+Pre", "+CE")(evidence)
    assert found == pytest.approx({0: 1, 1: -1})


def test_the_effect_of_a_step_is_relative_to_what_was_off_the_device(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 20 to 10 % is a fall of a half, from 80 to 20 % one of three quarters, 60 to 27 % .55.

    Shares of low-score experts among the active ones: 1/5, 1/2 and 1/3.
    """
    before = [seen("S1", 0, (40, 4), (10, 2)), seen("S2", 0, (10, 4), (10, 8)),
              seen("S3", 0, (200, 4), (100, 60))]  # fmt: skip
    after = [seen("S1", 0, (9, 4), (10, 1)), seen("S2", 0, (90, 4), (10, 2)),
             seen("S3", 0, (9, 4), (100, 27))]  # fmt: skip
    watching(monkeypatch, ABLATION, {"+CE": before, "+Pre": after})
    found = importance.falls_with_low_share("+Pre", "+CE")(evidence)
    assert found == pytest.approx({0: 1})


def test_table_1_is_of_one_setting_and_its_seeds(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1000 ms 400 are waited: for 1 low-score and 3 top-score loads, or 2 and 2."""
    timed = {"decoded_tokens": 10, "tpot_ms": {"mean": 100.0},
             "decode": {"stall_ms": {"load": 400.0}}}  # fmt: skip
    asked = with_runs(monkeypatch, run("S3", 0, **timed), run("S3", 1, **timed),
                      run("S3", 1, "+BA", **timed), run("S1", 1, **timed))  # fmt: skip
    watching(monkeypatch, TABLE_I, {"+CE": [
        seen("S3", 0, (9, 3), (9, 1)), seen("S3", 1, (9, 2), (9, 2)), seen("S1", 1, (9, 9), (9, 0)),
    ]})  # fmt: skip
    found = importance.table_1(evidence)
    assert asked == [TABLE_I]
    assert list(found) == [0, 1]
    assert found[0] == pytest.approx(
        {"low-score loading": 10, "top-score loading": 30, "GPU computing": 60}
    )
    assert found[1]["low-score loading"] == pytest.approx(20)
    measured = importance.of_table_1(lambda row: row["top-score loading"])(evidence)
    assert (measured.samples, measured.badge) == (pytest.approx((30, 20)), "estimate")
    assert measured.conditions.endswith(
        "; every miss loaded, no substitution, no prefetching; top-score by S3's α"
    )


def test_gate_scores_are_of_one_setting(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = [seen("S1", 0, (1, 1), (1, 1)), seen("S2", 0, (1, 1), (1, 1)),
            seen("S2", 1, (1, 1), (1, 1))]  # fmt: skip
    ones[2].score_by_rank = [1.0, 0.3, 0.2, 0.1]
    watching(monkeypatch, ABLATION, {"+CE": ones})
    with_runs(monkeypatch, run("S1", 0), run("S2", 0), run("S2", 1))
    found = importance.of_gates(importance.first_over_rival, "S2")(evidence)
    assert (found.samples, found.badge) == (pytest.approx((2.5, 5)), "counted")
    assert found.conditions.endswith("; model of S2, decoded tokens")
    assert importance.last_over_rival(ones[2]) == pytest.approx(1.5)
    assert importance.inactive_reuse_falls(ones[0]) == pytest.approx(1)
    assert importance.reuse_falls(ones[0]) == pytest.approx(0.8)


def test_rank_correlation_by_spearmans_formula() -> None:
    """1 - 6 Σ d² / (n (n² - 1)) with differences of ranks from those of a falling order."""
    for values, differences in (([4, 3, 2, 1], [0] * 4), ([3, 4, 1, 2], [1] * 4),
                                ([1, 4, 3, 2], [3, 1, 1, 1])):  # fmt: skip
        expected = 1 - 6 * sum(d * d for d in differences) / (4 * 15)
        assert importance.rank_correlation(values) == pytest.approx(expected)
