"""Distributions of decode throughput: from samples to points, to figures, to the page."""

from pathlib import Path

import pytest

from moebench.reports import figures
from moebench.reports.html import render
from moebench.reports.throughput import STEPS, Point, curve, groups, load
from moebench.results.samples import TokenSample, samples_path, write_samples
from moebench.substrate.errors import InputError
from tests.reports.pages import Page
from tests.reports.samples import RUNS, measured_run, run

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


# ---------------------------------------------------------------------- figures


def test_a_figure_holds_what_is_comparable() -> None:
    runs = [
        run("aaa"),
        run("bbb", system="lru", setting=None, options={}),
        run("ccc", batch=3),
        run("ddd", workload="facts"),
        run("drw", routing="drawn"),
        measured_run(),
        run("eee") | {"badge": "calibrated"},
        run("fff"),
    ]
    curves = {one["run_id"]: curve(samples(100), 1) for one in runs if one["run_id"] != "fff"}
    found = groups(runs, curves)
    assert [[one["run_id"] for one in ones] for ones in found.values()] == [
        ["aaa", "bbb"], ["ccc"], ["ddd"], ["drw"], ["b0b1b2b3b4b5"], ["eee"]
    ]  # fmt: skip
    title = "qwen2-57b-a14b · bf16 · a6000 · lean · gsm8k · routing: model · batch 1 · estimate"
    assert next(iter(found)).title == title


def test_the_figure_says_what_it_shows() -> None:
    runs = [run("aaaaaaaaaa"), run("bbb", system="lru", setting=None)]
    curves = {"aaaaaaaaaa": [Point(100 / 3, 0), Point(100 / 3, 1)], "bbb": [Point(2, 0)]}
    spec = figures.throughput(runs, curves)
    (values,) = spec["datasets"].values()
    assert values == [
        {"run": "smoe · S3 · lean · aaaaaa", "tokens_per_s": 33.33, "share": 0},
        {"run": "smoe · S3 · lean · aaaaaa", "tokens_per_s": 33.33, "share": 1},
        {"run": "lru · lean · bbb", "tokens_per_s": 2, "share": 0},
    ]
    assert spec["encoding"]["x"]["axis"]["title"] == "decode throughput (tokens/s, simulated)"
    (measured,) = (figures.throughput([m], {m["run_id"]: curves["bbb"]}) for m in [measured_run()])
    assert "(tokens/s, measured)" in measured["encoding"]["x"]["axis"]["title"]


def test_no_two_of_many_runs_look_alike() -> None:
    runs = [run(f"{number:06}") for number in range(28)]
    spec = figures.throughput(runs, {one["run_id"]: [Point(1, 1)] for one in runs})
    looks = [spec["encoding"][channel]["scale"]["range"] for channel in ("color", "strokeDash")]
    assert len({str(look) for look in zip(*looks, strict=True)}) == 28
    assert spec["encoding"]["color"]["legend"]["symbolLimit"] == 28


# ---------------------------------------------------------------------- the page


def test_the_page_has_a_figure_for_each_set_of_runs(tmp_path: Path) -> None:
    curves = {one["run_id"]: curve(samples(100, 50, 25), 1) for one in RUNS[:2]}
    render(RUNS, {}, tmp_path / "r.html", curves=curves)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [name for name in page.specs if name.startswith("throughput")] == [
        "throughput-1-spec", "throughput-2-spec"
    ]  # fmt: skip
    assert (
        "gsm8k · routing: model · batch 1 · estimate; simulated times are predictions." in page.text
    )
    assert "local · lean · gsm8k · routing: model · batch 1 · measured." in page.text


def test_without_samples_there_is_no_figure(text: str, page: Page) -> None:
    assert "Decode throughput" not in text
    assert not any(name.startswith("throughput") for name in page.specs)


def test_a_curve_of_any_length_is_about_ten_kilobytes(tmp_path: Path) -> None:
    points = curve([TokenSample(0, i, 10 * MS + 7919 * i, [2]) for i in range(1, 5000)], batch=1)
    render([run()], {}, tmp_path / "with.html", curves={run()["run_id"]: points})
    render([run()], {}, tmp_path / "without.html")
    sizes = [(tmp_path / f"{name}.html").stat().st_size for name in ("with", "without")]
    assert sizes[0] - sizes[1] < 12_000
