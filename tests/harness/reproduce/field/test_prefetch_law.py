"""The law of prefetching: pairs of cells, its fit, thresholds, measures and words."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import MissingEvidenceError, Runs
from moebench.harness.reproduce.field import prefetch_law
from moebench.harness.reproduce.field.prefetch_law import Fit
from moebench.harness.reproduce.read import DECODED
from tests.harness.reproduce.test_field import evidence, pair, run

AHEAD = {"overrides": {"prefetch": "next-gate"}}


def at(link: float, **of: Any) -> list[dict[str, Any]]:
    """Return two runs on demand and two with prefetching, a half and all experts on the device."""
    place = {"machine": f"rtx-3090+ryzen-5950x+link.pinned_h2d={link:g}", **of}
    return [
        run(100, loads=320, h2d=950.0, stalls={"load": 800.0}, hits=0.5, **place),
        run(120, loads=300, issued=60, used=20, **place, **AHEAD),
        run(8, cache_ratio=1.0, **place), run(9, cache_ratio=1.0, **place, **AHEAD),
    ]  # fmt: skip


def test_terms_of_a_pair_by_hand() -> None:
    """O = 0.2 ms: the law is P (1 - w) + x W - u min(E, O), of TPOT."""
    # Without wrong copies, and none delayed: 2 (1 - 0.25) - 10 · 0.2 = -0.5 ms of 50 ms.
    one = pair(predict=2.0, waits=0.25, more=0.0, used=10.0, exposed=3.0, layer=0.4, before=50.0)
    assert one.law(0.5) == pytest.approx(-1)
    # A copy is waited for 0.1 ms, less than O: 1.5 - 1 = 0.5 ms.
    assert one._replace(exposed=0.1).law(0.5) == pytest.approx(1)
    # O = 0.4 ms of the whole layer: a copy of that time delays none.
    assert one._replace(more=9.0, copy=0.4, exposed=0.15).law(1) == pytest.approx(0)
    assert one._replace(after=45.0).change == pytest.approx(-10)


def test_pairs_are_of_one_seed_model_and_machine() -> None:
    later = at(6.0, seed=1)
    later[1]["metrics"]["tpot_ms"]["mean"] = 90
    # Of a half, a quarter and all of the experts, the quarter copies nothing.
    idle = [
        run(50, cache_ratio=0.25, loads=0, machine=later[0]["spec"]["machine"], seed=1),
        run(50, cache_ratio=0.25, machine=later[0]["spec"]["machine"], seed=1, **AHEAD),
    ]
    found = prefetch_law.pairs(Runs([*at(3.0), *later, *idle]))
    assert [(one.link, one.hit_rate, one.after) for one in found] == [(3, 0.5, 120), (6, 0.5, 90)]
    assert found[0].busy == pytest.approx(0.95)
    # Sixty issued and 300 loads are 40 more than 320, in ten tokens.
    assert [(one.more, one.used) for one in found] == [(4, 2)] * 2
    fewer = at(3.0)
    fewer[1]["metrics"]["prefetch"]["issued"] = 5
    assert prefetch_law.pairs(Runs(fewer))[0].more == 0
    with pytest.raises(MissingEvidenceError, match="no cell copies an expert"):
        prefetch_law.pairs(Runs([*idle, *later[2:]]))
    assert DECODED == "metrics.decoded_tokens"


def test_a_fit_of_cells_of_one_rate_has_no_held_out_cells() -> None:
    """Changes below half a percent tell nothing of signs."""
    one = pair(link=3.0)
    made = one._replace(after=one.before * (1 + one.law(0.25) / 100))
    law = prefetch_law.fit([made])
    assert (law.overlap, law.signs) == (pytest.approx(0.25), 1)
    assert law.held_out == law.error == pytest.approx(0, abs=1e-9)
    still = [one._replace(after=one.before * 1.004), one._replace(after=one.before * 0.9)]
    # The law says a loss; the first cell changes too little, the second gains.
    assert prefetch_law.fit(still).signs == 0
    assert prefetch_law.fit(still[:1]).signs == 1


def test_the_error_is_a_root_mean_square() -> None:
    one = pair()
    law = one.law(0.5)
    apart = [one._replace(after=one.before * (1 + (law + by) / 100)) for by in (3, -4)]
    assert prefetch_law.error(apart, 0.5) == pytest.approx(12.5**0.5)


def test_held_out_rates_are_every_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Any] = []

    def overlap(found: Any) -> float:
        fitted.append(sorted({one.link for one in found}))
        return 0.5 if len(fitted) == 1 else 0.1

    tested: list[Any] = []

    def error(found: Any, at: float) -> float:
        tested.append((sorted({one.link for one in found}), at))
        return float(len(tested))

    monkeypatch.setattr(prefetch_law, "_overlap", overlap)
    monkeypatch.setattr(prefetch_law, "error", error)
    law = prefetch_law.fit([pair(link=rate) for rate in (55.0, 3.0, 12.0, 6.0, 3.0)])
    assert fitted == [[3, 6, 12, 55], [6, 55], [3, 12]]
    assert tested == [([3, 12], 0.1), ([6, 55], 0.1), ([3, 6, 12, 55], 0.5)]
    assert (law.overlap, law.error, law.held_out) == (0.5, 3, 1.5)


def test_thresholds_between_hit_rates() -> None:
    # A change of 0 is no loss yet.
    assert prefetch_law.threshold([(0.4, 0.0), (0.8, 2.0)]) == 0.4
    assert prefetch_law.threshold([(0.8, 3.0), (0.4, -1.0), (0.9, -5.0)]) == pytest.approx(0.5)
    assert prefetch_law.threshold([(0.4, 0.0)]) is None
    assert prefetch_law.threshold([(0.4, -2.0), (0.8, 0.0)]) is None


def test_cells_whose_hit_rates_are_near_are_one_point() -> None:
    points = [(0.5, 1.0), (0.9, 7.0), (0.52, 3.0), (0.54, 4.0)]
    found = prefetch_law._mean_by_hits(points)
    assert found == [pytest.approx((0.51, 2)), pytest.approx((0.54, 4)), pytest.approx((0.9, 7))]
    assert (prefetch_law._place(None), prefetch_law._place(0.456)) == (
        "no measured hit rate", "0.46",
    )  # fmt: skip


def test_the_change_on_saturated_links_by_seed(tmp_path: Path) -> None:
    """Seed 0 has +20 and +30 % at 95 % busy; seed 1 has no busy link."""
    slower, idle = at(6.0), at(3.0, seed=1)
    slower[1]["metrics"]["tpot_ms"]["mean"] = 130
    idle[0]["metrics"]["decode"]["lanes"]["h2d"] = 500.0
    found = prefetch_law.saturated(evidence(tmp_path, *at(3.0), *slower, *idle))
    assert (found.samples, found.badge) == ((pytest.approx(25),), "estimate")
    share = f"{prefetch_law.SATURATED:.0%}"
    assert (
        found.conditions == f"2 cells whose link is busy for {share} of decode or more without it"
    )


def test_figures_and_words_of_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    law = Fit(overlap=0.25, error=1.23, held_out=4.56, signs=0.75)
    monkeypatch.setattr(prefetch_law, "fit", lambda found: law)
    cells = [
        pair(link=6.0, hit_rate=0.5, after=90.0, busy=0.5), pair(link=3.0, hit_rate=0.8),
        pair(link=6.0, hit_rate=0.9, after=110.0, busy=0.7),
    ]  # fmt: skip
    monkeypatch.setattr(prefetch_law, "pairs", lambda runs: [
        *cells, cells[1]._replace(model="other", after=50.0),
    ])  # fmt: skip
    monkeypatch.setattr(
        prefetch_law.Pair, "law", lambda self, overlap: 8 * (self.hit_rate - 0.6) + overlap - 0.25
    )
    of = evidence(tmp_path, run(1))
    found = prefetch_law.of_fit(lambda law: law.held_out)(of)
    assert (found.value, found.badge) == (4.56, "estimate")
    assert found.conditions == (
        "4 cells; O = 0.25 of a layer's time, fitted; error of all cells 1.2 points of TPOT, of "
        "held-out link rates 4.6"
    )
    said = prefetch_law.turns(of)
    assert said.endswith(
        "In the hit rate, with O = 0.25 C, it loses above m: 0.80 at 3 GB/s (cells: 0.80; link "
        "busy up to 95%), 0.60 at 6 GB/s (cells: 0.70; link busy up to 70%); other: 0.80 at 3 GB/s "
        "(cells: no measured hit rate; link busy up to 95%). The law's error is 1.2 points of "
        "TPOT, on held-out link rates 4.6; it tells gain from loss in 75% of the cells."
    )
