"""The shared style: pairs of colours and shapes, tooltips, formats, and what a spec states."""

import pytest

from moebench.reports.figures.style import (
    PALETTE,
    SHAPES,
    axis,
    coloured,
    finished,
    library,
    system_colours,
    tooltip,
    trimmed,
)


def test_56_systems_have_different_pairs_of_colour_and_shape() -> None:
    names = [f"s{at}" for at in range(57)]
    found = system_colours(names)
    assert [*found] == names
    assert found["s0"] == (PALETTE[0], SHAPES[0])
    assert found["s9"] == (PALETTE[1], SHAPES[2])  # 9 is 8 + 1 and 7 + 2
    assert len({found[name] for name in names[:56]}) == 56
    assert found["s56"] == found["s0"]


def test_colours_differ_and_so_do_shapes() -> None:
    assert len(set(PALETTE)) == len(PALETTE) == 8
    assert len(set(SHAPES)) == len(SHAPES) == 7


def test_a_scale_states_its_field_its_known_names_and_its_spare_colours() -> None:
    assert coloured("kind", {"a": "#111111"}, ["#222222"]) == {
        "colours": {"field": "kind", "known": {"a": "#111111"}, "spare": ["#222222"]}
    }
    assert coloured("kind", {})["colours"]["spare"] == [*PALETTE]
    assert coloured("kind", {}, shapes={"a": "circle"})["colours"]["shapes"] == {"a": "circle"}
    assert "shapes" not in coloured("kind", {}, shapes={})["colours"]


def test_a_tooltip_formats_numbers_and_shows_names_as_they_are() -> None:
    assert tooltip(("ms", "time (ms)", ".2f"), ("who", "system")) == [
        {"field": "ms", "title": "time (ms)", "type": "quantitative", "format": ".2f"},
        {"field": "who", "title": "system", "type": "nominal"},
    ]


def test_an_axis_has_a_format_only_if_it_is_given_one() -> None:
    assert axis("time")["title"] == "time"
    assert "format" not in axis("time")
    assert axis("time", "~g")["format"] == "~g"
    assert axis(None)["title"] is None
    assert (axis("time")["grid"], axis("time", grid=False)["grid"]) == (True, False)


@pytest.mark.parametrize(("form", "short"), [(".2f", ".2~f"), (".1%", ".1~%"), (".3g", ".3~g")])
def test_a_trimmed_format_leaves_out_zeros_at_the_end(form: str, short: str) -> None:
    assert trimmed(form) == short


def test_a_finished_spec_is_as_wide_as_its_container_and_keeps_its_parts() -> None:
    meta = {"sort": {"y": "system"}}
    spec = finished({"mark": "bar"}, {"step": 24}, meta)
    assert (spec["mark"], spec["width"], spec["height"]) == ("bar", "container", {"step": 24})
    assert spec["usermeta"] == meta
    assert finished({}, 200)["usermeta"] == {}
    config = spec["config"]
    assert config["view"]["stroke"] is None, "no frame"
    assert config["autosize"] == {"type": "fit-x", "contains": "padding"}
    assert (config["axisY"]["ticks"], config["axisY"]["domain"]) == (False, False)
    # Grey lines are drawn faintly: the legend's symbols stay opaque, and none is left out.
    assert config["legend"]["symbolOpacity"] == 1
    assert config["legend"]["symbolLimit"] >= len(PALETTE) * len(SHAPES)


def test_the_library_is_one_script_that_defines_its_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vl_convert = pytest.importorskip(
        "vl_convert", reason="not installed: pip install vl-convert-python"
    )
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda script: f"all; {script}")
    assert library.__wrapped__() == "all; window.vegaEmbed = vegaEmbed;"
