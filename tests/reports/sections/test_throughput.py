"""Distributions of decode throughput: from samples to points, to the page."""

from pathlib import Path

import pytest

from moebench.reports.page.runs import POINTS, speeds
from moebench.reports.sections.throughput import STEPS, Point, curve, load
from moebench.results.samples import TokenSample, samples_path, write_samples
from moebench.substrate.errors import InputError
from tests.reports.samples import run

MS = 1_000_000


def samples(*decoded_ms: int, batch: int = 0) -> list[TokenSample]:
    """A batch of prompts: a second of prefill, then steps of these times."""
    steps = [TokenSample(batch, step, ms * MS, [2, 2]) for step, ms in enumerate(decoded_ms, 1)]
    return [TokenSample(batch, 0, 1000 * MS, None), *steps]


# ---------------------------------------------------------------------- points


def test_a_curve_by_hand() -> None:
    # Two sequences at once: steps of 100, 50, 100 and 200 ms are 20, 40, 20 and 10 tokens/s.
    found = curve([*samples(100, 50), *samples(100, 200, batch=1)], batch=2)
    assert found == [(10, 0), (10, 0.25), (20, 0.5), (20, 0.75), (40, 1)]


def test_many_tokens_become_a_hundred_steps() -> None:
    # Speeds of 1, 2, ... 250 tokens/s, slowest last: step i of 100 ends at the ⌈2.5 i⌉th.
    speeds = range(250, 0, -1)
    found = curve(
        [TokenSample(0, i, round(1e9 / s), [2]) for i, s in enumerate(speeds, 1)], batch=1
    )
    assert len(found) == STEPS + 1
    assert [round(point.tokens_per_s) for point in found[:4]] == [1, 3, 5, 8]
    assert found[50].share == 0.5
    assert round(found[50].tokens_per_s) == 125
    assert (round(found[-1].tokens_per_s), found[-1].share) == (250, 1)


@pytest.mark.parametrize("nothing", [[], samples()])
def test_without_decoded_tokens_there_is_no_curve(nothing: list[TokenSample]) -> None:
    assert curve(nothing, batch=1) == []


def test_only_runs_with_samples_have_curves(tmp_path: Path) -> None:
    write_samples(tmp_path, "aaa", samples(100, 200))
    write_samples(tmp_path, "bbb", samples())  # one new token: prefill alone
    runs = [run("aaa", batch=3), run("bbb"), run("ccc")]
    assert load(tmp_path, runs) == {"aaa": [Point(15, 0), Point(15, 0.5), Point(30, 1)]}
    assert load(tmp_path / "none", runs) == {}
    samples_path(tmp_path, "ccc").write_bytes(b"PAR1 half")
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path, runs)


# ---------------------------------------------------------------------- the page


def test_the_page_holds_speeds_at_equal_shares() -> None:
    found = curve([TokenSample(0, i, 10 * MS + 7919 * i, [2]) for i in range(1, 5000)], batch=1)
    (kept, nothing) = speeds([run("aaa"), run("bbb")], {"aaa": found})
    assert nothing is None
    assert kept is not None
    assert len(kept) == POINTS + 1
    assert kept == sorted(kept)
    assert kept[0] == pytest.approx(found[0].tokens_per_s, rel=1e-3)
    assert kept[POINTS // 2] == pytest.approx(found[STEPS // 2].tokens_per_s, rel=1e-3)
    assert kept[-1] == pytest.approx(found[-1].tokens_per_s, rel=1e-3)


def test_a_short_curve_keeps_every_point() -> None:
    found = curve(samples(100, 50, 25), batch=1)
    assert speeds([run("aaa")], {"aaa": found}) == [[10, 10, 20, 40]]
