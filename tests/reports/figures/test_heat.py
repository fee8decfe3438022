"""The heat map: a cell for each ratio, and a scale that ends at four or above."""

import pytest

from moebench.reports.compare.tables import Matrix
from moebench.reports.figures.heat import RAMP, heat

BESIDE = Matrix(("S1, batch 1", "S3, batch 1"), ("smoe", "lru"), ((1.0, 7.5), (None, 1.0)))


def test_a_row_for_each_ratio_that_a_table_has() -> None:
    _, rows = heat(BESIDE)
    assert rows == [
        {"table": "S1, batch 1", "system": "smoe", "ratio": 1.0, "worst": 7.5},
        {"table": "S1, batch 1", "system": "lru", "ratio": 7.5, "worst": 7.5},
        {"table": "S3, batch 1", "system": "lru", "ratio": 1.0, "worst": 7.5},
    ]


@pytest.mark.parametrize(("largest", "end"), [(1.5, 4.0), (4.0, 4.0), (4.5, 4.5), (30.0, 30.0)])
def test_the_scale_goes_from_the_best_to_the_worst_or_to_four(largest: float, end: float) -> None:
    spec, rows = heat(Matrix(("S1",), ("a", "b"), ((1.0, largest),)))
    assert {row["worst"] for row in rows} == {end}
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale == {"type": "log", "domain": [1, end], "range": RAMP, "clamp": True}


def test_tables_and_systems_keep_their_order() -> None:
    spec, _ = heat(BESIDE)
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["sort"]) == ("system", ["smoe", "lru"])
    assert (y["field"], y["sort"]) == ("table", ["S1, batch 1", "S3, batch 1"])
    assert x["axis"]["title"] == "TPOT relative to the fastest system"
    assert (x["axis"]["orient"], y["axis"]["title"]) == ("top", None)
    assert (x["axis"]["grid"], y["axis"]["grid"]) == (False, False)


def test_ratios_are_written_in_white_on_the_dark_end_alone() -> None:
    rect, text = heat(BESIDE)[0]["layer"]
    assert (rect["mark"]["type"], text["mark"]["type"]) == ("rect", "text")
    assert rect["encoding"]["color"]["field"] == text["encoding"]["text"]["field"] == "ratio"
    assert rect["encoding"]["color"]["legend"] is None
    assert text["encoding"]["text"]["format"] == ".3~r"
    colour = text["encoding"]["color"]
    test, share = colour["condition"]["test"].split(" > ")
    assert test == "log(datum.ratio) / log(datum.worst)"
    assert (colour["condition"]["value"], colour["value"] < "#333333") == ("#ffffff", True)
    # White is easier to read than black from the ramp's colours on that are less than half bright.
    first_dark = min(at for at, one in enumerate(RAMP) if brightness(one) < 0.5) / (len(RAMP) - 1)
    assert float(share) == pytest.approx(first_dark, abs=0.15)


def test_the_ramp_gets_darker() -> None:
    found = [brightness(one) for one in RAMP]
    assert found == sorted(found, reverse=True)


def brightness(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255
