"""The page of predicted against measured rates: its points, and that it is self-contained."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from moebench.harness.published import page as module
from moebench.harness.published.laws import Law, Line
from moebench.harness.published.page import _curves, _figures, _line, _short, page
from moebench.harness.published.prediction import Prediction
from moebench.reports.figures.style import PALETTE
from tests.harness.published.made import predicted, row

SVG = re.compile(r"<svg role.*?</svg>", re.DOTALL)


def charts(text: str) -> list[ElementTree.Element]:
    """Return the charts of decode and prefill."""
    return [ElementTree.fromstring(found) for found in SVG.findall(text)]


def points(chart: ElementTree.Element) -> list[tuple[float, float, ElementTree.Element]]:
    """Return the points of a chart, with their place in pixels."""
    found = []
    for one in chart.findall("path"):
        if "point" in one.attrib["class"].split():
            x, y = re.findall(r"[\d.]+", one.attrib["transform"])
            found.append((float(x), float(y), one))
    return found


def test_each_phase_has_its_points_with_row_source_and_ratio() -> None:
    rows = [
        row("a", 10, prefill_tok_s=100, gpu="A", source="a post"),
        row("b", 40, gpu="B", abs_class="weak"),
    ]
    decode, prefill = charts(page(rows, predicted(rows, 0.5)))
    assert (len(points(decode)), len(points(prefill))) == (2, 1)
    faint, solid = points(decode)
    assert [one[2].attrib["class"] for one in (faint, solid)] == ["point faint", "point"]
    title = solid[2].find("title")
    assert title is not None
    assert title.text == (
        "a: measured 10, predicted 5 tokens/s, ratio 0.50\nA (someone)\na post: someone/repo"
    )
    assert {one[2].attrib["fill"] for one in points(decode)} == set(PALETTE[:2])
    (same,) = points(prefill)
    assert same[2].attrib["fill"] == solid[2].attrib["fill"]


def test_axes_are_equal_and_logarithmic() -> None:
    rows = [row("a", 1), row("b", 10), row("c", 100)]
    right = points(charts(page(rows, predicted(rows)))[0])
    steps = [b[0] - a[0] for a, b in pairwise(right)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)
    assert steps[0] > 0
    rises = [a[1] - b[1] for a, b in pairwise(right)]
    assert rises == pytest.approx(steps, abs=0.2)


@pytest.mark.parametrize("factor", [1, 1000, 1e-3])
def test_everything_is_drawn_within_the_chart(factor) -> None:
    rows = [row("a", 0.02), row("b", 10), row("c", 4000)]
    chart = charts(page(rows, predicted(rows, factor)))[0]
    width, height = float(chart.attrib["width"]), float(chart.attrib["height"])
    for x, y, _ in points(chart):
        assert 0 < x < width
        assert 0 < y < height
    for line in chart.findall("line"):
        assert all(-1 <= float(line.attrib[name]) <= width for name in ("x1", "x2"))
        assert all(-1 <= float(line.attrib[name]) <= height for name in ("y1", "y2"))
    labels = [text.text for text in chart.findall("text")]
    assert len(labels) == len([*filter(None, labels)])


def test_one_colour_and_shape_for_each_of_many_machines() -> None:
    rows = [row(f"{at}", at + 1, gpu=f"GPU {at}") for at in range(50)]
    text = page(rows, predicted(rows))
    looks = {(p.attrib["fill"], p.attrib["d"]) for *_, p in points(charts(text)[0])}
    assert len(looks) == 50
    assert text.count("<li>") == 50


def test_page_is_self_contained_and_escapes_texts() -> None:
    bad = '<script>alert("x")</script>\x1b[31m\u202e'
    rows = [row("a", 10, gpu=bad, source=bad, where=bad)]
    text = page(rows, predicted(rows))
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    assert "light-dark" in text


def test_page_without_predictions_states_it() -> None:
    rows = [row("a", 10)]
    text = page(rows, [Prediction("a", "decode", 10, reason="no rule")])
    assert text.count("no predicted figure") == 2


def test_curves_are_drawn_over_each_other() -> None:
    """Measured and predicted, from the same zero: twice as fast is half as high."""
    rows = [row(f"n{n}", 1e3 / (10 + n), n_cpu_moe=n) for n in (0, 10, 20)]
    (curve,) = charts(page(rows, predicted(rows, 2)))[2:]
    measured, guess = (
        [[float(x) for x in place.split()] for place in path.attrib["d"][1:].split("L")]
        for path in curve.findall("path") if path.attrib.get("class", "").startswith("curve")
    )  # fmt: skip
    assert [x for x, _ in measured] == [x for x, _ in guess]
    bottom = 8 + 110
    for (_, high), (_, low) in zip(measured, guess, strict=True):
        assert (bottom - high) / (bottom - low) == pytest.approx(2, rel=0.02)
    titles = [title.text for title in curve.iter("title")]
    assert titles[0] == "s: x = 0, measured 10 ms, predicted 5"
    assert len(titles) == 3


# ------------------------------------------------------------------------------ by hand


def law(system: str = "s") -> Law:
    """A curve from 2 to 10 layers whose longest time is 20 ms."""
    points = ((2.0, 5.0, 10.0), (10.0, 15.0, 20.0))
    return Law("g", "decode", system, "layers & more", points, Line(0, 1), Line(0, 2))


def test_a_curve_is_placed_in_its_frame() -> None:
    (svg,) = charts(_curves([law()], {"s": "red"}))
    assert (svg.attrib["width"], svg.attrib["height"]) == ("222", "140")
    assert svg.attrib["viewBox"] == "0 0 222 140"
    frame, measured, guess, *points_ = svg.findall("path")
    assert frame.attrib["d"] == "M44 8v110h170"
    # The top is a twentieth above 20 ms: 5 ms are 110 * 5 / 21 above the bottom at 118.
    heights = [118 - 110 * ms / 21 for ms in (5, 15, 10, 20)]
    assert measured.attrib["d"] == f"M44.0 {heights[0]:.1f}L214.0 {heights[1]:.1f}"
    assert guess.attrib["d"] == f"M44.0 {heights[2]:.1f}L214.0 {heights[3]:.1f}"
    assert [one.attrib["class"] for one in (measured, guess)] == [
        "curve measured", "curve predicted"
    ]  # fmt: skip
    assert {one.attrib["stroke"] for one in (measured, guess)} == {"red"}
    assert [one.attrib["transform"] for one in points_] == [
        f"translate(44.0 {heights[0]:.1f}) scale(.7)",
        f"translate(214.0 {heights[1]:.1f}) scale(.7)",
    ]
    assert [one.text for one in svg.findall("text")] == ["20", "0", "2", "10"]
    places = [(one.attrib["x"], one.attrib["y"]) for one in svg.findall("text")]
    assert places == [("40", "16"), ("40", "118"), ("44", "136"), ("214", "136")]


def test_each_group_and_variable_has_a_figure_with_its_systems() -> None:
    other = law("<t>")._replace(variable="tokens")
    first, second = _figures([law(), law("b"), other])
    assert first.startswith("<figure><svg")
    assert first.endswith("</span></figcaption></figure>")
    assert "<figcaption>g, decode, over layers &amp; more: <span style=" in first
    assert ">s</span>, <span" in first
    assert first.count('class="curve measured"') == 2
    assert "over tokens: " in second
    assert "&lt;t&gt;" in second
    assert "<t>" not in second


def test_numbers_have_three_digits() -> None:
    assert [_short(value) for value in (1234.5, 0.012345, 20.0, 1e6)] == [
        "1230", "0.0123", "20", "1e+06"
    ]  # fmt: skip


def test_lines_are_cut_at_the_frame() -> None:
    def ends(shift: float) -> list[float]:
        (line,) = [ElementTree.fromstring(_line("ratio", shift, 0.0, 2.0))]
        assert line.attrib["class"] == "ratio"
        return [float(line.attrib[name]) for name in ("x1", "x2", "y1", "y2")]

    side, left, above = module.SIDE, module.LEFT, module.ABOVE
    assert ends(0.0) == [left, left + side, above + side, above]
    # Predictions ten times as large leave the frame at its top, half way.
    assert ends(1.0) == [left, left + side / 2, above + side / 2, above]
    assert ends(-1.0) == [left + side / 2, left + side, above + side, above + side / 2]
    assert _line("ratio", 2.0, 0.0, 2.0) == _line("ratio", -2.5, 0.0, 2.0) == ""
