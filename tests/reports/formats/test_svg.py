"""Figures as files: which are drawn, of which rows, and that they are pictures."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from moebench.reports.compare.tables import comparisons, matrix
from moebench.reports.figures.comparison import lines as over
from moebench.reports.figures.style import PALETTE, axis, coloured, finished
from moebench.reports.formats import svg
from moebench.reports.formats.svg import WIDTH, fitted, write_figures
from moebench.reports.page.ablation import ablations
from moebench.reports.page.static_figures import StaticFigure, static_figures
from moebench.reports.sections.accuracy import views
from moebench.reports.sections.throughput import Point
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text
from tests.reports.alpha import ITEMS, ROWS
from tests.reports.samples import HOSTILE, run, spans


def ran(system: str, tpot_ms: float, **spec: Any) -> dict[str, Any]:
    one = run(f"{system}-{sorted(spec.items(), key=str)}", system=system, **spec)
    one["metrics"]["tpot_ms"] = {"mean": tpot_ms}
    one["metrics"]["decode"] = {"lanes": {"device": 3.0}, "stall_ms": {"load": 1.0}}
    one["accuracy"]["kl"] = 1 / tpot_ms
    return one


def drawn(runs: list[dict[str, Any]], **more: Any) -> dict[str, StaticFigure]:
    found = static_figures(runs, matrix(comparisons(runs).tables), **more)
    return {one.title: one for one in found}


RUNS = [
    ran("smoe", 10.0), ran("lru", 30.0), ran("bound", 200.0),
    ran("smoe", 12.0, batch=3), ran("lru", 50.0, batch=3),
]  # fmt: skip


def test_every_kind_of_figure_that_has_rows() -> None:
    ids = [one["run_id"] for one in RUNS]
    curve = [Point(1.0, 0.0), Point(2.0, 0.5), Point(4.0, 1.0)]
    found = drawn(
        RUNS, accuracy=views(ROWS, ITEMS), curves=dict.fromkeys(ids, curve),
        timelines=dict.fromkeys(ids, spans(2)),
    )  # fmt: skip
    model = "qwen2-57b-a14b"
    assert {name for name in found if "batch 1" in name or "map" in name or model in name} == {
        "heat map", "kl S3, batch 1", "time S3, batch 1", "bound S3, batch 1",
        "throughput S3, batch 1", "timeline S3, batch 1", f"batch S3 {model}",
    }  # fmt: skip
    assert sum("against α" in name for name in found) == 6
    assert all(one.rows for one in found.values())


def test_what_has_nothing_to_compare_has_no_figure() -> None:
    assert drawn([ran("smoe", 10.0)]) == {}
    assert drawn([]) == {}


def test_the_front_is_who_is_beaten_by_nobody() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("c", 3.0), ran("o", 0.5) | {"oracle": True}]
    for one, kl in zip(runs, (0.3, 0.4, 0.1, 0.0), strict=True):
        one["accuracy"]["kl"] = kl
    rows = drawn(runs)["kl S3, batch 1"].rows
    # b is slower and further off than a; the oracle is a bound.
    assert {row["base"] for row in rows if row["front"]} == {"a", "c"}


def test_lines_over_batches_have_a_point_for_each() -> None:
    rows = drawn(RUNS)["batch S3 qwen2-57b-a14b"].rows
    assert {(row["line"], row["batch"], row["tpot_ms"]) for row in rows} == {
        ("smoe", 1, 10.0), ("smoe", 3, 12.0), ("lru", 1, 30.0), ("lru", 3, 50.0),
    }  # fmt: skip


def test_lines_have_no_system_with_changed_decisions() -> None:
    changed = [
        ran("lru", 1.0, batch=batch, overrides={"alpha": "0.25", "evict": "random"})
        for batch in (1, 3)
    ]
    found = drawn([*RUNS, *changed])["batch S3 qwen2-57b-a14b"]
    assert {row["system"] for row in found.rows} == {"smoe", "lru"}


def test_shares_of_a_token_add_up() -> None:
    rows = drawn(RUNS)["time S3, batch 1"].rows
    for system in {row["system"] for row in rows}:
        parts = [row for row in rows if row["system"] == system]
        assert sum(row["share"] for row in parts) == pytest.approx(1)
        assert [row["ms"] for row in parts if row["part"] == "waits for load"] == [
            pytest.approx(sum(row["ms"] for row in parts) / 4)
        ]


def test_an_ablation_goes_down_to_the_whole_system() -> None:
    changes = {"a": "1", "b": "2", "c": "3"}
    runs = [
        ran("smoe", tpot, overrides={k: changes[k] for k in keys})
        for tpot, keys in ((10.0, ""), (20.0, "a"), (40.0, "ab"), (30.0, "c"))
    ]
    (title,) = [name for name in drawn(runs) if name.startswith("ablation")]
    assert title == "ablation smoe S3, batch 1"
    steps = [(row["step"], row["tpot"], row["kind"]) for row in drawn(runs)[title].rows]
    assert steps == [
        ("other base: c=3", 30.0, "base"), ("a=1 b=2", 40.0, "base"),
        ("+ its own b", 20.0, "faster"), ("+ its own a", 10.0, "faster"),
    ]  # fmt: skip
    assert drawn(runs)[title].rows[2]["text"] == "20.00 ms, −50.0 %"
    assert list(ablations([])) == []


def test_scales_fit_the_rows() -> None:
    found = drawn(RUNS)
    bound = fitted(found["bound S3, batch 1"])["encoding"]
    assert bound["x"]["scale"]["type"] == "log"  # 10 to 200 ms
    assert bound["x"]["axis"]["title"].endswith("logarithmic")
    assert bound["y"]["sort"][0].startswith("smoe")
    batch = fitted(found["batch S3 qwen2-57b-a14b"])
    assert "type" not in batch["encoding"]["y"]["scale"]  # 10 to 50 ms
    assert len({*batch["encoding"]["color"]["scale"]["range"]}) == 2
    assert batch["width"] == WIDTH
    assert "var(--" not in str(batch)
    assert "usermeta" not in batch


def test_files_are_pictures(tmp_path: Path) -> None:
    figures = [one for name, one in drawn(RUNS).items() if name in ("heat map", "kl S3, batch 1")]
    written = write_figures(figures, tmp_path / "new")
    assert [path.name for path in written] == [
        "heat-map.svg", "heat-map.pdf", "kl-S3-batch-1.svg", "kl-S3-batch-1.pdf",
    ]  # fmt: skip
    for path in written:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
        else:
            texts = [e.text for e in ElementTree.parse(path).iter() if e.tag.endswith("text")]
            assert "lru" in texts


def test_a_file_of_many_lines_names_the_leaders_alone(tmp_path: Path) -> None:
    runs = [
        ran(f"sys{n}", 10.0 * (n + 1) * batch, batch=batch) for n in range(8) for batch in (1, 3)
    ]
    one = drawn(runs)["batch S3 qwen2-57b-a14b"]
    (file, _) = write_figures([one], tmp_path)
    texts = {e.text for e in ElementTree.parse(file).iter() if e.tag.endswith("text")}
    assert {f"sys{n}" for n in range(6)} <= texts
    assert not {"sys6", "sys7"} & texts
    assert "grey: 2 others" in texts
    grey = [
        e for e in ElementTree.parse(file).iter() if e.get("stroke") == svg._COLOURS["var(--rest)"]
    ]
    assert len(grey) == 2, "a line each"


def test_text_is_escaped_and_names_are_safe(tmp_path: Path) -> None:
    runs = [ran(HOSTILE, 10.0, setting="../S3/<b>"), ran("lru", 30.0, setting="../S3/<b>")]
    written = write_figures([*drawn(runs).values()][:1], tmp_path)
    assert {path.parent for path in written} == {tmp_path}
    texts = [e.text for e in ElementTree.parse(written[0]).iter() if e.tag.endswith("text")]
    assert any(text and text.startswith("<script>") for text in texts)


def test_figures_of_one_name_are_files_of_their_own(tmp_path: Path) -> None:
    one = drawn(RUNS)["heat map"]
    written = write_figures([one, one._replace(title="heat: map")], tmp_path)
    assert len({*written}) == 4
    assert all(path.exists() for path in written)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "")
    with pytest.raises(InputError, match="cannot be written"):
        write_figures([drawn(RUNS)["heat map"]], tmp_path / "file")


def test_page_and_files_colour_the_same_parts_of_a_chart() -> None:
    """What neither names is black, which a dark page does not show: titles of panels, say."""
    script = Path(svg.__file__).parents[1] / "templates" / "js" / "charts.js"
    (config,) = re.findall(r"const CONFIG = \{(.*?)\n\};", script.read_text(), re.DOTALL)
    named = set(re.findall(r"^  (\w+):", config, re.MULTILINE))
    assert named == set(svg._CONFIG) == {"background", "axis", "legend", "header", "title"}


# ----------------------------------------------------------------------------- scales by hand


def plain(meta: dict[str, Any], rows: list[dict[str, Any]], **of: Any) -> Any:
    """A fitted chart of points over x and y by name."""
    encoding = {
        "x": {"field": "x", "type": "quantitative", "scale": {"zero": False}, "axis": axis("x")},
        "y": {"field": "y", "type": "quantitative", "axis": axis("y")},
        "color": {"field": "name", "type": "nominal"},
    }
    spec = finished({"mark": "point", "encoding": encoding} | of, 100, meta)
    return fitted(StaticFigure("a title", spec, rows, {"a": "square"}))


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([1.0, 9.9], False), ([1.0, 10.0], True), ([0.0, 5.0, 60.0], True), ([0.0, -5.0], False),
     ([0.0, 7.0], False)],
)  # fmt: skip
def test_an_axis_is_logarithmic_if_its_positive_values_span_a_decade(
    values: list[float], logarithmic: bool
) -> None:
    rows = [{"name": "a", "x": value, "y": value} for value in values]
    encoding = plain({"log": {"x": ["x"], "y": ["y"]}}, rows)["encoding"]
    for name in ("x", "y"):
        shown = encoding[name]
        assert (shown.get("scale", {}).get("type") == "log") is logarithmic
        assert shown["axis"]["title"] == (f"{name}, logarithmic" if logarithmic else name)
        if logarithmic:
            assert shown["axis"]["format"] == "~g"
            assert shown["axis"]["tickCount"] == axis("x")["tickCount"], "as on the other axes"
            assert shown["scale"]["nice"] is False
            assert "zero" not in shown["scale"]


def test_all_fields_of_an_axis_count_for_its_scale() -> None:
    rows = [{"name": "a", "x": 20.0, "y": 1.0, "least": 2.0}, {"name": "b", "x": 15.0, "y": 1.0}]
    assert "type" not in plain({"log": {"x": ["x"]}}, rows)["encoding"]["x"]["scale"]
    assert plain({"log": {"x": ["x", "least"]}}, rows)["encoding"]["x"]["scale"]["type"] == "log"


def test_text_after_the_largest_value_has_room() -> None:
    rows = [{"name": "a", "x": 20.0, "y": 1.0}, {"name": "b", "x": 10.0, "y": 1.0}]
    scale = plain({"room": {"x": "x"}}, rows)["encoding"]["x"]["scale"]
    assert scale == {"zero": False, "domainMax": pytest.approx(26)}
    assert plain({"room": {"y": "y"}}, rows)["encoding"]["y"]["scale"]["domainMax"] == 1.3


def test_names_are_sorted_by_their_rank() -> None:
    rows = [{"name": n, "x": 1.0, "y": 1.0, "rank": r} for n, r in (("b", 2), ("a", 1), ("b", 0))]
    assert plain({"sort": {"y": "name"}}, rows)["encoding"]["y"]["sort"] == ["b", "a"]


def test_known_names_come_first_and_others_get_spare_colours_in_turn() -> None:
    rows = [{"name": name, "x": 1.0, "y": 1.0} for name in ("new", "b", "a", "x", "y")]
    known = {"a": "#0000aa", "unused": "#000000", "b": "#0000bb"}
    meta = coloured("name", known, ["#111111", "#222222"])
    scale = plain(meta, rows)["encoding"]["color"]["scale"]
    assert scale["domain"] == ["a", "b", "new", "x", "y"]
    assert scale["range"] == ["#0000aa", "#0000bb", "#111111", "#222222", "#111111"]


def test_points_have_their_shapes_and_those_without_one_are_circles() -> None:
    rows = [{"name": name, "x": 1.0, "y": 1.0} for name in ("a", "b")]
    layer = {"mark": "point", "encoding": {"shape": {"field": "name"}, "y": {"field": "y"}}}
    found = plain(coloured("name", {}), rows, layer=[layer])["layer"][0]["encoding"]["shape"]
    assert found["scale"] == {"domain": ["a", "b"], "range": ["square", "circle"]}
    meta = coloured("name", {}, shapes={"b": "cross"})
    found = plain(meta, rows, layer=[layer])["layer"][0]["encoding"]["shape"]
    assert found["scale"]["range"] == ["circle", "cross"]


def test_layers_of_values_that_no_row_has_and_of_the_pointer_are_left_out() -> None:
    rows = [{"name": "a", "x": 1.0, "y": 1.0, "low": None}]
    layers = [
        {"name": "own", "mark": "point"},
        {"name": "low", "mark": "rule", "encoding": {"y": {"field": "low"}}},
        {"name": "none", "mark": "rule", "encoding": {"y": {"field": "none"}}},
        {"name": "pointed line", "mark": "line"},
    ]
    assert [one["name"] for one in plain({}, rows, layer=layers)["layer"]] == ["own"]


def test_two_leaders_of_one_colour_are_told_apart() -> None:
    rows = [
        {"line": name, "batch": batch, "tpot_ms": 10.0 + at}
        for at, name in enumerate("abc") for batch in (1, 4)
    ]  # fmt: skip
    spec = over("batch", {"a": PALETTE[0], "b": PALETTE[0], "c": PALETTE[2]})
    found = fitted(StaticFigure("t", spec, rows, {}))
    scale = found["encoding"]["color"]["scale"]
    assert scale["domain"] == ["a", "b", "c"]
    assert scale["range"] == [PALETTE[0], PALETTE[1], PALETTE[2]]
    assert all(row["leads"] for row in found["data"]["values"])


def test_a_figure_has_its_title_and_rows_and_colours_of_paper() -> None:
    rows = [{"name": "a", "x": 1.0, "y": 1.0}]
    found = plain({}, rows, title={"text": "t", "color": "var(--muted)"})
    assert (found["description"], found["data"]["values"]) == ("a title", rows)
    assert found["config"]["background"] == "white"
    assert found["config"]["axis"]["labelFontSize"] == 12, "the report's own style is kept"
    assert found["config"]["axis"]["labelColor"].startswith("#")
    assert found["title"]["color"].startswith("#")
    assert found["config"]["autosize"]["type"] == "fit-x"
    assert plain({}, rows, layer=[{"mark": "point"}])["config"]["autosize"] == {"type": "pad"}


def test_names_of_files_are_short_and_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vl_convert = pytest.importorskip(
        "vl_convert", reason="not installed: pip install vl-convert-python"
    )
    monkeypatch.setattr(vl_convert, "vegalite_to_svg", lambda spec: spec["description"])
    monkeypatch.setattr(vl_convert, "vegalite_to_pdf", lambda spec: b"pdf")
    titles = ["kl against α, é", "..a_b 1.5..", "x" * 99, "same", "same?", "same!"]
    rows = [{"name": "a", "x": 1.0, "y": 1.0}]
    spec = finished({"mark": "point", "encoding": {}}, 100)
    figures = [StaticFigure(title, spec, rows, {}) for title in titles]
    written = write_figures(figures, tmp_path / "new")
    assert [file.name for file in written[::2]] == [
        "kl-against.svg", "a_b-1.5.svg", "x" * 80 + ".svg", "same.svg", "same-4.svg", "same-5.svg",
    ]  # fmt: skip
    assert [file.suffix for file in written] == [".svg", ".pdf"] * 6
    assert written[0].read_text(encoding="utf-8") == "kl against α, é"
    assert written[1].read_bytes() == b"pdf"
