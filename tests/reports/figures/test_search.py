"""Charts of a search: named fields, scales and colours of kinds."""

import pytest

from moebench.reports.figures.search import KINDS, candidates, trials
from tests.reports.figures.specs import channels, fields, layers, shown


def test_trials_are_points_above_the_line_of_the_best_so_far() -> None:
    spec = trials()
    line, points = spec["layer"]
    assert (line["mark"]["type"], line["mark"]["interpolate"]) == ("line", "step-after")
    assert (points["mark"]["type"], points["mark"]["filled"]) == ("point", True)
    assert line["encoding"]["y"]["field"] == "best"
    assert points["encoding"]["y"]["field"] == "drawn"
    title = "TPOT over the best published TPOT"
    for layer in (line, points):
        assert layer["encoding"]["y"]["axis"]["title"] == title
        assert layer["encoding"]["y"]["scale"] == {"zero": False}
    x = spec["encoding"]["x"]
    assert (x["field"], x["axis"]["title"], x["axis"]["format"]) == ("trial", "trial", "d")
    assert x["scale"] == {"nice": False}
    assert "color" not in line["encoding"], "the line is of no kind"
    assert line["mark"]["color"] == KINDS["composition"]


def test_a_trials_tooltip_has_its_true_ratio() -> None:
    points = layers(trials(), "point")[0]
    assert shown(points) == [
        ("name", "candidate", None),
        ("ratio", "× best published", ".3f"),
        ("kind", "kind", None),
    ]
    assert fields(trials()) == {"trial", "drawn", "best", "kind", "name", "ratio"}


@pytest.mark.parametrize(
    ("across", "title"), [("kl", "KL (nats/token)"), ("memory", "peak device memory (GB)")]
)
def test_candidates_are_drawn_over_either_figure(across: str, title: str) -> None:
    spec = candidates(across)
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["axis"]["title"]) == (across, title)
    assert (y["field"], y["axis"]["title"]) == ("tpot", "TPOT (ms)")
    assert x["scale"] == y["scale"] == {"zero": False}
    assert shown(spec) == [
        ("name", "candidate", None),
        ("tpot", "TPOT (ms)", ".2f"),
        (across, title, ".3g"),
    ]
    assert (spec["mark"]["type"], spec["mark"]["filled"]) == ("point", True)


def test_kinds_have_one_colour_each_in_both_charts() -> None:
    assert len(set(KINDS.values())) == len(KINDS) == 3
    for spec in (trials(), candidates("kl")):
        (kind,) = [one for name, one in channels(spec) if name == "color"]
        assert kind["field"] == "kind"
        assert dict(zip(kind["scale"]["domain"], kind["scale"]["range"], strict=True)) == KINDS
        assert kind["legend"] == {"title": None, "orient": "top"}
