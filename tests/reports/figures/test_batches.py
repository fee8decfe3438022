"""The chart of throughput over the batch: two logarithmic axes and a line per system."""

from moebench.reports.figures.batches import over_batches
from tests.reports.figures.specs import shown


def test_both_axes_are_logarithmic_and_fit_their_values() -> None:
    spec = over_batches({"static": "#0072b2"})
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["axis"]["title"]) == ("batch", "batch (sequences decoded together)")
    assert (y["field"], y["axis"]["title"]) == ("speed", "decoded tokens/s")
    assert (x["axis"]["format"], y["axis"]["format"]) == ("d", "~g")
    assert x["type"] == y["type"] == "quantitative"
    assert x["scale"] == y["scale"] == {"type": "log", "nice": False}


def test_a_line_with_points_for_each_system() -> None:
    spec = over_batches({"static": "#0072b2"})
    assert (spec["mark"]["type"], spec["mark"]["point"]) == ("line", True)
    assert spec["encoding"]["color"]["field"] == "system"
    assert spec["encoding"]["color"]["legend"]["title"] is None
    assert spec["encoding"]["color"]["legend"]["orient"] == "top"
    assert shown(spec) == [
        ("system", "system", None),
        ("batch", "batch", "d"),
        ("speed", "tokens/s", ".4"),
    ]
    assert spec["usermeta"]["colours"]["field"] == "system"
    assert spec["usermeta"]["colours"]["known"] == {"static": "#0072b2"}
