"""Figures of SMoE on invented runs, beside a second computation."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import exhibits
from moebench.harness.reproduce.smoe.experiments import ABLATION, MAIN, PREDICTION, STEPS
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched
from moebench.results.claims import Exhibit
from moebench.results.store import Store
from tests.harness.reproduce import test_measures as measures
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.smoe.test_own_parts import PARTS, runs
from tests.harness.reproduce.test_smoe import document

both = measures.both


def test_the_fit_over_alpha_is_the_parabola_of_least_squares(
    both: tuple[Evidence, Evidence],
) -> None:
    made = exhibits._fig_10(both[0])
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in made.rows:
        found[row["setting"], row["what"]].append((row["alpha"], row["ms"]))
    settings = {setting for setting, _ in found}
    assert settings == {"S1", "S2", "S3"}
    for setting in settings:
        alphas, times = map(np.array, zip(*found[setting, "TPOT"], strict=True))
        assert len(alphas) > 3
        powers = np.stack([np.ones_like(alphas), alphas, alphas**2], axis=1)
        chosen, *_ = np.linalg.lstsq(powers, times, rcond=None)
        fitted = np.array([ms for _, ms in found[setting, "fit of degree 2"]])
        np.testing.assert_allclose(fitted, powers @ chosen, rtol=1e-6)
        assert [alpha for alpha, _ in found[setting, "fit of degree 2"]] == alphas.tolist()


# ----------------------------------------------------------------------------- by hand


@pytest.fixture
def made(tmp_path: Path) -> Evidence:
    """Evidence of a store without runs: tests give them."""
    return Evidence(Store(tmp_path), None, tmp_path, True)


def rows_of(found: Exhibit, *fields: str) -> list[tuple[Any, ...]]:
    assert all(row.keys() == set(fields) for row in found.rows)
    return [tuple(row[field] for field in fields) for row in found.rows]


LABELS = {"base, misses on the host": "host", "base, misses loaded": "load",
          "base, first in, first out": "FIFO"}  # fmt: skip


def test_steps_have_a_row_for_each_setting(made: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """TPOT of S3 is twice that of S1; shares are the same."""
    asked = with_runs(monkeypatch, *runs())
    found = exhibits._fig_14_tpot(made)
    assert rows_of(found, "setting", "step", "ms") == [
        (setting, LABELS.get(name, name), tpot * times)
        for setting, times in (("S1", 1), ("S3", 2))
        for name, (tpot, *_) in PARTS.items()
    ]
    assert found.badge == "estimate"
    ratios = exhibits._fig_14_ratio(made)
    assert rows_of(ratios, "setting", "step", "ratio")[:7] == [
        ("S1", LABELS.get(name, name), ratio) for name, (_, ratio, *_) in PARTS.items()
    ]
    assert asked == [ABLATION, ABLATION]


def test_lanes_are_of_a_token(made: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of four decoded tokens: of 6 ms on the link 1.5 ms are of a token."""
    asked = with_runs(monkeypatch, *runs())
    found = exhibits._fig_16(made)
    assert rows_of(found, "setting", "step", "time", "ms") == [
        ("S1", "+CR", "PCIe", 1.5), ("S1", "+Pre", "PCIe", 2.25), ("S3", "+CR", "PCIe", 3),
        ("S3", "+Pre", "PCIe", 4.5), ("S1", "+CR", "TPOT", 4), ("S1", "+Pre", "TPOT", 3),
        ("S3", "+CR", "TPOT", 8), ("S3", "+Pre", "TPOT", 6),
    ]  # fmt: skip
    balance = exhibits._fig_18(made)
    assert rows_of(balance, "setting", "step", "time", "ms") == [
        ("S1", "+Pre", "PCIe", 2.25), ("S1", "+Pre", "CPU", 0.75), ("S1", "+BA", "PCIe", 1),
        ("S1", "+BA", "CPU", 0.75), ("S3", "+Pre", "PCIe", 4.5), ("S3", "+Pre", "CPU", 1.5),
        ("S3", "+BA", "PCIe", 2), ("S3", "+BA", "CPU", 0.5),
    ]  # fmt: skip
    assert asked == [ABLATION, ABLATION]


def test_prefetched_experts_are_those_of_one_way_of_predicting(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten, SMoE's eight and the residual's five are top-score; 1 of 2 and 1 of 5 are active."""
    asked = with_runs(monkeypatch, *runs())
    found = exhibits._fig_17(made)
    kinds = ("top-score", "active, of the others")
    assert rows_of(found, "way", "setting", "kind", "share") == [
        (way, setting, kind, share)
        for way, shares in (("SMoE", (80, 50)), ("residual alone", (50, 20)))
        for setting in ("S1", "S3")
        for kind, share in zip(kinds, shares, strict=True)
    ]
    assert asked == [PREDICTION]
    with_runs(monkeypatch, document(prefetch=(10, 10, 10)))
    only = exhibits._fig_17(made)
    assert rows_of(only, "way", "setting", "kind", "share") == [("SMoE", "S1", "top-score", 100)]


def test_systems_are_compared_by_setting_batch_and_workload(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(
        monkeypatch, document("smoe", tpot=2, ratio=0.5), document("smoe", tpot=4, ratio=0.7),
        document("deepspeed", tpot=9, ratio=0.0), document("smoe", tpot=5, batch=3),
        document("smoe", "S3", tpot=7, workload="facts", ratio=0.1),
    )  # fmt: skip
    times = exhibits._fig_11(made)
    assert rows_of(times, "setting", "workload", "system", "ms") == [
        ("S1, batch 1", "passages", "smoe", 3), ("S1, batch 1", "passages", "deepspeed", 9),
        ("S1, batch 3", "passages", "smoe", 5), ("S3, batch 1", "facts", "smoe", 7),
    ]  # fmt: skip
    ratios = exhibits._fig_12(made)
    complete, begun = "complete when the gate is known", "copies that have begun count"
    assert rows_of(ratios, "count", "setting", "system", "ratio") == [
        (count, setting, system, pytest.approx(ratio + more))
        for count, more in ((complete, 0), (begun, 0.1))
        for setting, system, ratio in (("S1", "smoe", 0.6), ("S1", "deepspeed", 0),
                                       ("S3", "smoe", 0.1))
    ]  # fmt: skip
    first = exhibits._fig_13(made)
    assert rows_of(first, "setting", "system", "ms") == [
        ("S1", "smoe", 30), ("S1", "deepspeed", 90), ("S3", "smoe", 70),
    ]  # fmt: skip
    assert asked == [MAIN] * 3


def test_experts_off_the_device_are_means_over_the_runs_of_a_setting(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half and all of the top-score experts of S1's two runs; one of eight low-score ones."""
    asked: list[Any] = []
    counts = [Importance(top=4, top_absent=2, low=8, low_absent=1),
              Importance(top=5, top_absent=5, low=16, low_absent=2)]  # fmt: skip
    other = Importance(top=10, top_absent=1, low=10, low_absent=9)
    seen = [Watched("", "S1", {}, 0, 2, counts[0]), Watched("", "S3", {}, 0, 2, other),
            Watched("", "S1", {}, 1, 2, counts[1]), Watched("", "S2", {}, 0, 2, other)]  # fmt: skip

    def watch(evidence: Evidence, experiment: Any, **options: str) -> list[Watched]:
        asked.append((experiment, options))
        return seen

    monkeypatch.setattr(exhibits, "watch", watch)
    with_runs(monkeypatch, document())
    found = exhibits._fig_15(made)
    assert asked == [(ABLATION, STEPS[name]) for name in
                     ("base, misses on the host", "+CE", "+CR", "+Pre")]  # fmt: skip
    shares = {"S1": (0.75, 0.125), "S2": (0.1, 0.9), "S3": (0.1, 0.9)}
    assert rows_of(found, "setting", "step", "experts", "share") == [
        (setting, step, f"{kind}-score", pytest.approx(share))
        for step in ("host", "+CE", "+CR", "+Pre")
        for setting, both_ in shares.items()
        for kind, share in zip(("top", "low"), both_, strict=True)
    ]


def test_fates_of_low_score_experts_add_up_to_all(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are means over runs, whatever the runs' numbers of experts are."""
    names = [*exhibits._FATES]
    one, other = ({name: n + 1 for n, name in enumerate(names)} for _ in range(2))
    other[names[0]] = 0
    given = {("S1", 0): SimpleNamespace(absent=100, **one),
             ("S1", 1): SimpleNamespace(absent=50, **other),
             ("S0", 0): SimpleNamespace(absent=10, **other)}  # fmt: skip
    monkeypatch.setattr(exhibits, "substitutes", lambda evidence: given)
    with_runs(monkeypatch, document(batch=3))
    found = exhibits._batches(made)
    assert [(row["setting"], row["absent"]) for row in found.rows] == [("S0", 10), ("S1", 150)]
    shares = [found.rows[1][name] for name in names]
    expected = [0.5] + [(n + 1) * (1 + 2) / 2 for n in range(1, len(names))]
    assert shares == pytest.approx(expected)
    assert found.rows[1]["rest"] == pytest.approx(100 - sum(expected))
