"""The page in a real browser without a network: every figure is drawn, nobody complains."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.reports import figures
from moebench.reports.accuracy import views
from moebench.reports.html import render
from moebench.reports.throughput import Point
from tests.reports.alpha import ITEMS, ROWS
from tests.reports.pages import Page
from tests.reports.samples import HOSTILE, hostile_run, run, spans


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


def open_page(browser: Any, file: Path) -> tuple[Any, list[str]]:
    """The page without a network, and everything that it complains about from now on."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_offline(True)
    tab = context.new_page()
    complaints: list[str] = []

    def dismiss(dialog: Any) -> None:
        complaints.append("dialog")
        dialog.dismiss()

    tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    tab.on("dialog", dismiss)
    tab.on(
        "console",
        lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None,
    )
    tab.on(
        "request",
        lambda r: (
            None
            if r.url.startswith(("file:", "data:", "blob:"))
            else complaints.append(f"fetched {r.url}")
        ),
    )
    tab.goto(file.as_uri())
    return tab, complaints


def draw_all(tab: Any) -> list[Any]:
    charts = tab.locator(".chart").all()
    for chart in charts:
        chart.scroll_into_view_if_needed()
        tab.wait_for_selector(f"#{chart.get_attribute('id')}[data-state=drawn]", timeout=15_000)
    return list(charts)


def test_every_figure_is_drawn_without_a_network(browser: Any, file: Path, page: Page) -> None:
    tab, complaints = open_page(browser, file)
    charts = draw_all(tab)
    assert len(charts) == len(page.specs) == 5
    for chart in charts:
        name = f"{chart.get_attribute('id')}-spec"
        (values,) = page.specs[name]["datasets"].values()
        assert chart.locator("svg .mark-rect.role-mark path").count() >= len(values)
    assert complaints == []


def test_a_bar_tells_its_layer_and_experts(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    draw_all(tab)
    bar = tab.locator("#run-1-timeline svg .mark-rect.role-mark path").nth(3)  # the first load
    bar.scroll_into_view_if_needed()
    bar.hover()
    shown = tab.locator("#vg-tooltip-element.visible").inner_text(timeout=5000)
    assert re.search(r"kind:?\s+load", shown)
    assert re.search(r"layer:?\s+0", shown)
    assert re.search(r"experts:?\s+8", shown)
    assert re.search(r"duration \(µs\):?\s+410\.0", shown)
    assert complaints == []


def test_the_accuracy_curves_are_drawn(browser: Any, tmp_path: Path) -> None:
    render([run()], {}, tmp_path / "r.html", accuracy=views(ROWS, ITEMS))
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    for name, marks in (("score-real", 4), ("score-generated", 8), ("kl-generated", 4)):
        chart = tab.locator(f"#accuracy-1-{name} svg")
        assert chart.locator(".mark-symbol.role-mark path").count() == marks
    assert tab.locator("#accuracy-1-score-real svg .mark-rule.role-mark line").count() == 4
    assert complaints == []


def test_the_throughput_curves_are_drawn(browser: Any, tmp_path: Path) -> None:
    # The second run's name is markup; the first one's tokens are all of one speed.
    curves = {
        run()["run_id"]: [Point(20, 0), Point(20, 0.5), Point(20, 1)],
        HOSTILE: [Point(10, 0), Point(10, 0.5), Point(30, 1)],
    }
    other = hostile_run()
    other["spec"]["model"] = run()["spec"]["model"]
    render([run(), other], {}, tmp_path / "r.html", curves=curves)
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    chart = tab.locator("#throughput-1 svg")
    paths = [path.get_attribute("d") for path in chart.locator(".mark-line.role-mark path").all()]
    assert len(paths) == 2
    ends = [re.findall(r"[\d.]+", path) for path in paths]
    assert [len(set(numbers[::2])) for numbers in ends] == [1, 2]  # x: one speed; two
    # Both rise from the axis, at 0 %, to the top, at 100 %.
    assert {(numbers[1], numbers[-1]) for numbers in ends} == {("260", "0")}
    point = chart.locator(".mark-symbol.role-mark path").nth(5)
    point.hover()
    shown = tab.locator("#vg-tooltip-element.visible").inner_text(timeout=5000)
    assert re.search(r"tokens/s, at most:?\s+30", shown)
    assert re.search(r"share of tokens:?\s+100%", shown)
    assert complaints == []


def test_many_spans_are_drawn_on_a_canvas(browser: Any, tmp_path: Path) -> None:
    records = spans(300)
    assert len(records) > figures.SVG_LIMIT
    render([run()], {run()["run_id"]: records}, tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    colours = tab.evaluate(
        """() => {
          const c = document.querySelector("#run-1-timeline canvas");
          const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
          return new Set(new Uint32Array(d.buffer)).size;
        }"""
    )
    assert colours > 20
    assert complaints == []


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    records = [{**span, "kind": HOSTILE} for span in spans(1)]
    render([hostile_run()], {HOSTILE: records}, tmp_path / "r.html", source=HOSTILE)
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    tab.locator("#run-1-timeline svg .mark-rect.role-mark path").first.hover()
    tab.wait_for_selector("#vg-tooltip-element.visible", timeout=5000)
    assert complaints == []
