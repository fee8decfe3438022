"""The page in a real browser without a network: everything is drawn, nobody complains."""

import re
from pathlib import Path
from typing import Any

import pytest

from moebench.reports.compare.history import Commit, histories
from moebench.reports.page.page import Contents, render
from moebench.reports.sections.accuracy import views
from moebench.reports.sections.history import Since
from moebench.reports.sections.throughput import Point
from moebench.results.claims import Axis, Exhibit
from moebench.results.metrics import metric_of
from moebench.results.searches import Searched
from tests.browser import open_page, texts
from tests.reports.alpha import ITEMS, ROWS
from tests.reports.compare.test_history import made
from tests.reports.samples import HOSTILE, compared, hostile_run, run, spans
from tests.reports.sections.claims_fixture import DAOP, EQUAL, SMOE
from tests.reports.sections.test_claims import DIFFERS, UNMEASURED, result
from tests.results.test_searches import SEARCH


def draw_all(tab: Any) -> list[str]:
    """Bring every chart to the screen; their figures' names."""
    charts = tab.locator(".chart")
    for at in range(charts.count()):
        charts.nth(at).scroll_into_view_if_needed()
    tab.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every((c) => c.dataset.state === 'drawn')",
        timeout=30_000,
    )
    return [str(chart.get_attribute("data-figure")) for chart in charts.all()]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with something in every section but claims."""
    runs = compared()
    curves = {one["run_id"]: [Point(10, 0), Point(20, 0.5), Point(30, 1)] for one in runs}
    commands = {one["run_id"]: f"moebench run --id {one['run_id']}" for one in runs}
    pictures = {one["run_id"]: spans(3) for one in runs}
    out = tmp_path_factory.mktemp("browser") / "report.html"
    searches = [Searched.model_validate(SEARCH)]
    render(Contents(runs, commands, pictures, views(ROWS, ITEMS), curves=curves,
                    searches=searches), out)  # fmt: skip
    return out


@pytest.mark.slow
def test_every_figure_is_drawn_without_a_network(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    for button in tab.locator(".more button:visible").all():
        button.click()
    names = draw_all(tab)
    assert tab.locator("#searches svg.marks").count() == 2
    assert {"trade-kl", "over-batch", "time-share", "ablation", "throughput", "bound",
            "timeline"} <= {*names}  # fmt: skip
    assert tab.locator(".chart svg.marks").count() == len(names)
    tab.locator("#time input[value=ms]").click()
    assert "time-ms" in draw_all(tab)
    assert complaints == []


def test_histories_are_drawn_and_commits_are_text(browser: Any, tmp_path: Path) -> None:
    commits = [Commit("a" * 40, 1, HOSTILE), Commit("b" * 40, 2, "Second")]
    placed = [made(0, effect=(5.0, -5.0)), made(1, 75.0), made(1, 90.0, torch="3")]
    found = Since("v1", histories(placed, commits, metric_of("tpot_ms")), ["a note"])
    render(Contents([one.run for one in placed], history=found), tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    assert texts(tab, "#history tbody tr:first-child td")[2] == HOSTILE
    verdicts = texts(tab, "#history tbody td:last-child")
    assert verdicts[:2] == ["first", "step: slower"]
    assert tab.locator("#history svg.marks").count() == 1
    axis = texts(tab, "#history .role-axis-label text")
    assert [name for name in axis if name[0] in "ab"] == ["a" * 10, "b" * 10, "b" * 10 + " (2)"]
    assert "History over commits" in texts(tab, "#contents a")
    assert complaints == []


@pytest.mark.slow
def test_the_first_screen_says_who_is_fastest(browser: Any, store: Path) -> None:
    tab, _ = open_page(browser, store)
    assert texts(tab, "#verdict p") == [
        "Fastest system (lowest TPOT) in 4 comparisons: smoe (lossy) in 4, 1.00× the lowest "
        "(geometric mean).",
        "Fastest lossless system (lowest TPOT) in 4 comparisons: lru in 4, 1.00× the lowest "
        "(geometric mean).",
    ]
    rows = tab.locator(".heat tbody tr")
    assert rows.count() == 4
    assert tab.locator(".heat tbody tr:first-child td").all_inner_texts() == [
        "11.0",
        "1.00",
        "1.91",
        "36.45",
    ]
    assert texts(tab, ".heat thead th")[-3:] == ["smoe≈", "lru", "slow"]
    # Logarithmic: 1.91 is nearer to 1 in colour than its share of the way to 36.45.
    colours = (
        tab.locator(".heat tbody tr")
        .first.locator("td[data-ratio]")
        .evaluate_all("cells => cells.map((cell) => getComputedStyle(cell).backgroundColor)")
    )
    assert len(set(colours)) == 3


@pytest.mark.slow
def test_filters_act_on_tables_charts_and_runs(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    everything = tab.locator("#counted").inner_text()
    tab.locator("summary", has_text="setting:").click()
    tab.get_by_label("S1", exact=True).uncheck()
    assert texts(tab, ".heat tbody th") == ["S3, batch 1", "S3, batch 3"]
    assert all("S3" in title for title in texts(tab, "#bound h3"))
    assert tab.locator("#ablation").count() == 0, "its runs are all in S1"
    tab.keyboard.press("Escape")
    tab.locator("summary", has_text="system:").click()
    tab.get_by_label("smoe", exact=True).uncheck()
    assert tab.locator(".heat tbody tr:first-child td").all_inner_texts() == [
        "21.0",
        "1.00",
        "19.10",
    ]
    assert "1 system hidden by the filters" in tab.locator("#tables").inner_text()
    tab.keyboard.press("Escape")
    tab.locator("#workload").select_option("facts")
    assert texts(tab, ".heat tbody tr:first-child td")[0] == "22.0"
    tab.locator("#runs-fold > summary").click()
    assert tab.locator(".run").count() == 4
    assert all("facts" in line and "S3" in line for line in texts(tab, ".run > summary"))
    tab.locator(".reset").click()
    assert tab.locator("#counted").inner_text() == everything
    assert tab.locator(".heat tbody tr").count() == 4
    assert complaints == []


CROWD = [f"sys{n}" for n in range(8)]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of eight systems in two batches, sys0 the fastest and sys7 the slowest."""
    runs = []
    for n, system in enumerate(CROWD):
        for batch in (1, 3):
            one = run(f"{system}-{batch}", system=system, batch=batch, overrides={}, alpha=None)
            one["metrics"]["tpot_ms"]["mean"] = 10.0 * (n + 1) * batch
            one["accuracy"]["kl"] = 0.01 * (n + 1)
            runs.append(one)
    out = tmp_path_factory.mktemp("crowd") / "report.html"
    render(Contents(runs), out)
    return out


#: The texts of a chart that can be seen, from top to bottom.
SEEN = """chart => [...chart.querySelectorAll(".mark-text.role-mark text")]
  .filter((text) => getComputedStyle(text).opacity !== "0" && text.textContent)
  .sort((a, b) => a.getBoundingClientRect().y - b.getBoundingClientRect().y)
  .map((text) => text.textContent)"""


#: The colours of the lines that are drawn thick because the pointer is near.
COLOURS = """chart => [...new Set([...chart.querySelectorAll(".mark-symbol path")]
  .filter(one => one.getAttribute("opacity") !== "0")
  .map(one => one.getAttribute("fill")))].filter(fill => fill?.startsWith("#"))"""
THICK = """chart => [...chart.querySelectorAll(".mark-line path[stroke-width='3']")]
  .filter((path) => path.getAttribute("opacity") !== "0")
  .map((path) => path.getAttribute("stroke"))"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_of_many_lines_six_are_named_and_the_others_when_pointed_at(
    browser: Any, crowd: Path, width: int, scheme: str
) -> None:
    tab, complaints = open_page(browser, crowd, width, color_scheme=scheme)
    chart = tab.locator("#over .chart")
    chart.scroll_into_view_if_needed()
    tab.wait_for_selector("#over .chart[data-state=drawn]")
    assert chart.evaluate(SEEN) == CROWD[5::-1]
    assert "grey: 2 others" in texts(tab, "#over .chart svg text")
    rest = chart.locator("path[fill='var(--rest)']")
    assert rest.count() == 4
    assert chart.evaluate(THICK) == []
    assert len(chart.evaluate(COLOURS)) == 6, "no two leaders share a colour"
    rest.last.hover(force=True)
    tab.wait_for_function("count => document.querySelector('#vg-tooltip-element.visible')", arg=0)
    assert chart.evaluate(SEEN)[0] == "sys7"
    (colour,) = chart.evaluate(THICK)
    assert colour not in ("var(--rest)", "transparent")
    tab.locator("h1").hover()
    assert chart.evaluate(SEEN) == CROWD[5::-1]
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert complaints == []


def test_a_scatter_has_a_legend_of_its_leaders(browser: Any, crowd: Path) -> None:
    tab, _ = open_page(browser, crowd)
    tab.wait_for_selector("html[data-charts=drawn]")
    legend = tab.locator("#trade .chart").first.locator(".role-legend-label text")
    assert legend.all_text_contents() == CROWD[:6]


@pytest.mark.slow
def test_a_capture_of_the_whole_page_has_every_chart(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    tab.wait_for_selector("html[data-charts=drawn]", timeout=30_000)
    assert tab.evaluate("scrollY") == 0
    charts = tab.locator(".chart:visible")
    assert charts.count() > 5
    assert all(chart.locator("svg.marks path").count() for chart in charts.all())
    assert complaints == []


#: A browser that is never idle and in which nothing comes near the screen.
BUSY = """window.requestIdleCallback = () => 0;
  window.IntersectionObserver = class { observe() {} unobserve() {} };"""


@pytest.mark.slow
def test_charts_are_drawn_before_a_print_and_what_is_folded_stays_so(
    browser: Any, store: Path
) -> None:
    context = browser.new_context()
    context.add_init_script(BUSY)
    tab = context.new_page()
    tab.goto(store.as_uri())
    tab.wait_for_selector("html[data-state=ready]", timeout=15_000)
    shown = tab.locator(".chart:visible").count()
    open_before = tab.locator("details[open]").count()
    assert tab.locator(".chart[data-state]").count() == 0
    tab.pdf()
    assert tab.locator(".chart[data-state=drawn]").count() == shown > 5
    assert tab.locator("details[open]").count() == open_before


@pytest.mark.slow
@pytest.mark.parametrize("shipped", [True, False])
def test_what_ships_is_a_folded_appendix(browser: Any, tmp_path: Path, shipped: bool) -> None:
    contents = Contents(
        [run()], accuracy=views(ROWS, ITEMS), claims=[result(DIFFERS)],
        shipped=("accuracy", "claims") if shipped else (),
    )  # fmt: skip
    render(contents, tmp_path / "r.html", "the store")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    assert tab.locator("#appendix > details:not([open])").count() == 1
    assert "Nothing in this appendix is from the store" in tab.locator("#appendix").inner_text()
    for name in ("accuracy", "claims"):
        assert tab.locator(f"#appendix #{name}").count() == shipped
        assert tab.locator(f"main > #{name}").count() == (not shipped)
    assert tab.locator("#appendix #fidelity").count() == 1, "always of the package"
    tab.wait_for_selector("html[data-charts=drawn]")
    assert tab.locator("#accuracy .chart[data-state=drawn]").count() == (0 if shipped else 6)
    links = tab.locator("nav a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    assert links[-1] == "#appendix"
    assert ("#accuracy" in links) is not shipped
    tab.goto(f"{(tmp_path / 'r.html').as_uri()}#accuracy")
    assert tab.locator("#appendix > details[open]").count() == shipped
    tab.wait_for_selector("#accuracy .chart[data-state=drawn]")
    assert complaints == []


@pytest.fixture(scope="module")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two systems with three device memories; in one they cannot be told apart."""
    runs = []
    for gb, ours in ((10.63, 10.0), (2.24, 30.0), (44.0, 19.6)):
        for system, ms in (("smoe", ours), ("daop", 20.0)):
            one = run(f"{system}-{gb}", system=system, overrides={}, alpha=None)
            one["metrics"]["tpot_ms"]["mean"] = ms
            one["interval"]["tpot_ms"] = {"low": 0.86 * ms, "high": 1.22 * ms}
            one["interval"]["fields"][0]["tpot_ms"] = [20.0, -12.0] if system == "smoe" else [0, 0]
            one["memory"] = {"offered_device_bytes": int(gb * 1e9), "offered_host_bytes": 10**11,
                             "expert_bytes": 10**6, "slot_bytes": 10**9}  # fmt: skip
            one["lossless"] = system == "daop"
            runs.append(one)
    out = tmp_path_factory.mktemp("budgets") / "report.html"
    settings = {"S3": {"device_memory_gib": 10}}
    render(Contents(runs, settings=settings), out)
    return out


def test_all_budgets_are_ranked_and_the_paper_s_is_the_main_table(
    browser: Any, budgets: Path
) -> None:
    tab, complaints = open_page(browser, budgets)
    (said, lossless) = texts(tab, "#verdict p")
    # Ratios 1, 1.5 and 1 of smoe, whose geometric mean is 1.145; 2, 1 and 1.0204 of daop.
    assert said == (
        "Fastest system (lowest TPOT) in 3 comparisons: smoe (lossy) in 1, tied in 1, 1.14× the "
        "lowest (geometric mean); daop in 1, tied in 1, 1.27× the lowest (geometric mean)."
    )
    assert lossless.startswith("Fastest lossless system (lowest TPOT) in 3 comparisons: daop in 3")
    assert texts(tab, ".heat tbody th") == [
        f"S3, batch 1, device-memory {gb} GB" for gb in ("10.63", "44.00", "2.24")
    ]
    tied = tab.locator(".heat td.tied")
    assert tied.count() == 2
    assert "tied: smoe, daop" in str(tied.first.get_attribute("title"))
    assert re.search(r"1\.02 times the lowest, 95 % interval 0\.\d\d–1\.\d\d; tied",
                     str(tied.last.get_attribute("title")))  # fmt: skip
    assert tab.locator(".heat td.best").count() == 2
    assert (
        "S3, batch 1, qwen2-57b-a14b on a6000: fastest smoe" in tab.locator(".place").inner_text()
    )
    shown = tab.locator(".heat small.interval:visible")
    assert shown.count() == 0
    tab.get_by_label("show intervals of all figures").check()
    assert shown.count() == 3
    assert complaints == []


def test_lossy_systems_can_be_left_out(browser: Any, budgets: Path) -> None:
    tab, complaints = open_page(browser, budgets)
    assert tab.locator(".heat .lossy").count() == 1
    tab.locator("#loss").select_option("lossless only")
    assert "Nothing to compare" in tab.locator("#heat").inner_text()
    assert tab.locator("#counted").inner_text() == "3 tables, 3 of 6 runs"
    tab.locator("#loss").select_option("KL up to 0.01")  # smoe's is 0.0213
    assert tab.locator("#counted").inner_text() == "3 tables, 3 of 6 runs"
    tab.locator("#loss").select_option("KL up to 0.1")
    assert tab.locator("#counted").inner_text() == "3 tables, 6 of 6 runs"
    assert complaints == []


@pytest.mark.slow
def test_the_address_names_the_view(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    assert "#" not in tab.url
    tab.locator("summary", has_text="setting:").click()
    tab.get_by_label("S1", exact=True).uncheck()
    tab.keyboard.press("Escape")
    tab.locator("#workload").select_option("facts")
    tab.locator("#loss").select_option("lossless only")
    tab.locator(".systems thead button", has_text="system").first.click()
    tab.locator(".systems thead button", has_text="system").first.click()
    counted, order = tab.locator("#counted").inner_text(), ".systems >> nth=0 >> tbody th"
    assert texts(tab, order) == ["slow", "lru"]
    other, _ = open_page(browser, store)
    other.goto("about:blank")
    other.goto(tab.url)
    other.wait_for_selector("html[data-state=ready]")
    assert other.locator("#counted").inner_text() == counted
    assert other.locator("#workload").input_value() == "facts"
    assert other.locator("#loss").input_value() == "0"
    assert texts(other, order) == ["slow", "lru"]
    assert texts(other, ".heat tbody th") == texts(tab, ".heat tbody th")
    other.locator(".reset").click()
    assert other.url.split("#")[1] == ""
    other.goto("about:blank")
    other.goto(f"{store.as_uri()}#?out.nothing=1&workload=none&loss=x&sort=99.99.1")
    other.wait_for_selector("html[data-state=ready]")
    assert other.locator("#counted").inner_text() == "4 tables, 28 of 28 runs"
    assert complaints == []


@pytest.mark.slow
def test_each_table_says_what_the_first_two_spend_a_token_on(browser: Any, store: Path) -> None:
    tab, _ = open_page(browser, store)
    # 1000 ms of work, 2500 ms of waiting for loads and 500 ms for the control thread: of 11 ms.
    assert texts(tab, ".why")[0] == (
        "Largest parts of a token. smoe: 6.88 ms waiting for the link (63 %), 2.75 ms computing "
        "(25 %); lru: 13.1 ms waiting for the link (63 %), 5.25 ms computing (25 %)."
    )


@pytest.mark.slow
def test_tables_are_sorted_by_their_headers(browser: Any, store: Path) -> None:
    tab, _ = open_page(browser, store)
    table = tab.locator(".systems").first
    names = ".systems >> nth=0 >> tbody th"
    before = texts(tab, names)
    assert before[0] == "smoe≈"
    tpot = table.locator("thead button", has_text="TPOT").first
    tpot.click()
    assert texts(tab, names) == before
    tpot.press("Enter")
    assert texts(tab, names) == before[::-1]
    assert table.locator("th[aria-sort=descending]").count() == 1
    table.locator("thead button", has_text="system").click()
    assert texts(tab, names) == sorted(before)


def test_best_and_second_best_are_marked_and_the_badge_said_once(browser: Any, store: Path) -> None:
    tab, _ = open_page(browser, store)
    last = tab.locator(".comparison").last  # S3, batch 3
    tpot = last.locator("tbody tr")
    assert re.match(r"31\.0", tpot.nth(0).locator("td.best").first.inner_text())
    assert re.match(r"61\.0", tpot.nth(1).locator("td.second").first.inner_text())
    assert last.locator(".chip").count() == 1


@pytest.mark.slow
def test_a_number_leads_to_its_runs_and_commands(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    cell = tab.locator(".systems td.number").first
    assert "TPOT 11.00 ms" in str(cell.get_attribute("title"))
    tab.locator(".systems tbody button").first.press("Enter")  # without a mouse
    shown = tab.locator("dialog").inner_text()
    assert "moebench run --id S1-1-smoe-gsm8k" in shown
    assert "moebench run --id S1-1-smoe-facts" in shown
    tab.locator("dialog a").first.click()
    tab.wait_for_selector(".run[open][data-state=filled]")
    body = tab.locator(".run[open]").inner_text()
    for part in ("Command that repeats the run", "versions.torch", "2.13.0", "profile_hash"):
        assert part in body
    assert "null" not in tab.locator("dialog").inner_text()
    assert complaints == []


LINE = (
    "TPOT 11.00 ms (no interval), smoe (lossy), qwen2-57b-a14b, S1, capacity 25 % of experts, "
    "batch 1, workload facts and gsm8k, machine a6000, simulated (estimate), "
    "run S1-1-smoe-facts S1-1-smoe-gsm8k, moebench commit 0123456789ab"
)


@pytest.mark.slow
def test_a_click_copies_a_number_with_its_conditions(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store, permissions=["clipboard-read", "clipboard-write"])
    said = tab.locator("#copied")
    assert (said.get_attribute("aria-live"), said.get_attribute("role")) == ("polite", "status")
    assert said.inner_text() == ""
    tab.locator(".systems td.number").first.click()
    said.locator(".line").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == LINE
    assert f"Copied: {LINE}" in said.inner_text()
    assert said.is_visible()
    said.get_by_text("runs and commands").click()
    assert "moebench run --id S1-1-smoe-gsm8k" in tab.locator("dialog").inner_text()
    tab.locator("dialog td[data-copy]").nth(1).click()  # the first run's own TPOT
    tab.locator("dialog .copied .line").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == (
        "TPOT 12.00 ms, smoe (lossy), qwen2-57b-a14b, S1, capacity 25 % of experts, batch 1, "
        "workload facts, machine a6000, simulated (estimate), run S1-1-smoe-facts, "
        "moebench commit 0123456789ab"
    )
    tab.keyboard.press("Escape")
    tab.locator(".heat td[data-ratio]").nth(1).click()
    said.locator(".line").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()").startswith(
        "1.91 times the lowest TPOT, smoe's (95 % interval 1.60–2.26), TPOT 21.00 ms"
    )
    tab.keyboard.press("Escape")
    assert said.inner_text() == ""
    assert complaints == []


@pytest.mark.slow
def test_a_number_is_copied_by_keyboard(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store, permissions=["clipboard-read", "clipboard-write"])
    table = tab.locator(".systems").first
    assert table.locator("td[tabindex='0']").count() == 1, "one stop for a table"
    table.locator("td[tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowUp"):
        tab.keyboard.press(key)
    tab.keyboard.press("Enter")
    tab.locator("#copied .line").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == LINE
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Space")
    tab.wait_for_function("() => document.querySelector('#copied').textContent.includes('lru')")
    assert tab.evaluate("navigator.clipboard.readText()").startswith("TPOT 21.00 ms")
    assert table.locator("td[tabindex='0']").count() == 1
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writeText = () => Promise.reject(new Error('refused'))", "gone"])
def test_without_a_clipboard_the_text_is_shown_and_selected(
    browser: Any, store: Path, how: str
) -> None:
    context = browser.new_context()
    context.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
        if how == "gone"
        else f"navigator.clipboard.{how}"
    )
    tab = context.new_page()
    tab.goto(store.as_uri())
    tab.wait_for_selector("html[data-state=ready]", timeout=15_000)
    tab.locator(".systems td.number").first.click()
    tab.locator("#copied textarea").wait_for()
    assert "does not let the page copy" in tab.locator("#copied").inner_text()
    assert tab.evaluate("getSelection().toString()") == LINE
    tab.locator("#copied .close").click()
    assert tab.evaluate("document.activeElement.matches('.systems td.number')")


@pytest.mark.slow
def test_other_tables_copy_their_row_and_where_it_is_from(browser: Any, tmp_path: Path) -> None:
    contents = Contents([run()], accuracy=views(ROWS, ITEMS), shipped=["accuracy"])
    render(contents, tmp_path / "r.html")
    tab, complaints = open_page(
        browser, tmp_path / "r.html", permissions=["clipboard-read", "clipboard-write"]
    )
    tab.locator("#appendix > details > summary").click()

    def copied(selector: str) -> str:
        tab.locator("#copied").evaluate("place => place.replaceChildren()")
        tab.locator(selector).first.click()
        tab.locator("#copied .line").wait_for()
        return str(tab.evaluate("navigator.clipboard.readText()"))

    value = copied("table.alpha data")
    assert value.startswith("45.0 ± 3.5 at α = 0, workload gsm8k, n 200, score (%)")
    assert "real datasets" in value
    assert "computed by code code" in value
    assert value.endswith("shipped with moebench, not of this store")
    row = copied("#fidelity tbody td:nth-child(2)")
    assert re.match(r"TPOT measured \(ms\) [\d.]+, system ", row)
    assert "Simulated and measured times" in row
    tab.locator("#fidelity thead button").nth(1).click()
    assert tab.locator("#fidelity th[aria-sort=ascending]").count() == 1
    assert complaints == []


@pytest.mark.slow
def test_two_timelines_share_an_axis(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store)
    tab.locator("#timelines").scroll_into_view_if_needed()
    chart = "#timelines .chart[data-state=drawn]"
    tab.wait_for_selector(chart)
    assert tab.locator(f"{chart} .mark-rect.role-mark path").count() == 2 * len(spans(3))
    labels = [text for text in texts(tab, f"{chart} .role-axis-label text") if " " in text]
    assert labels == [f"{one} {lane}" for one in "AB" for lane in ("device", "h2d", "d2h", "host")]
    bar = tab.locator(f"{chart} .mark-rect.role-mark path").nth(3)  # the first load
    bar.hover()
    shown = tab.locator("#vg-tooltip-element.visible").inner_text(timeout=5000)
    assert re.search(r"kind:?\s+load", shown)
    assert re.search(r"experts:?\s+8", shown)
    assert re.search(r"duration \(µs\):?\s+410\.0", shown)
    assert complaints == []


@pytest.mark.slow
def test_the_ablation_goes_step_by_step(browser: Any, store: Path) -> None:
    tab, _ = open_page(browser, store)
    tab.locator("#ablation").scroll_into_view_if_needed()
    tab.wait_for_selector("#ablation .chart[data-state=drawn]")
    shown = tab.locator("#ablation svg.marks").text_content()
    steps = ["evict=static prefetch=none", "+ its own evict", "+ its own prefetch"]
    places = [shown.index(step) for step in steps]
    assert places == sorted(places)
    # 41, 31 and 11 ms in the mean over both workloads.
    assert "31.00 ms, −24.4 %" in shown
    assert "11.00 ms, −64.5 %" in shown


@pytest.mark.slow
def test_dark_is_dark_by_preference_and_by_switch(browser: Any, store: Path) -> None:
    def luminance(tab: Any) -> float:
        numbers = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", numbers)[:3])) / 3

    def ink(tab: Any) -> float:
        tab.locator("#bound").scroll_into_view_if_needed()
        tab.wait_for_selector("#bound .chart[data-state=drawn]")
        label = tab.locator("#bound .role-axis-label text").first
        numbers = label.evaluate("(text) => getComputedStyle(text).fill")
        return sum(map(int, re.findall(r"\d+", numbers)[:3])) / 3

    dark, complaints = open_page(browser, store, color_scheme="dark")
    assert luminance(dark) < 40
    assert ink(dark) > 180, "a chart's labels follow"
    dark.locator("#theme").click()
    assert luminance(dark) > 240
    assert ink(dark) < 80
    light, _ = open_page(browser, store)
    assert luminance(light) > 240
    assert complaints == []


@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Any, store: Path) -> None:
    tab, complaints = open_page(browser, store, width=375)
    for fold in tab.locator("details:not(.filters details) > summary").all()[:12]:
        if fold.is_visible():
            fold.click()
    draw_all(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    assert complaints == []


@pytest.mark.slow
def test_many_spans_are_drawn_on_a_canvas(browser: Any, tmp_path: Path) -> None:
    records = spans(300)
    render(Contents([run()], {}, {run()["run_id"]: records}), tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    colours = tab.evaluate(
        """() => {
          const c = document.querySelector("#timelines canvas");
          const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
          return new Set(new Uint32Array(d.buffer)).size;
        }"""
    )
    assert colours > 20
    assert complaints == []


def test_a_run_without_anything_is_a_page_too(browser: Any, tmp_path: Path) -> None:
    bare = run("bare")
    bare["metrics"] = {"tpot_ms": None}
    bare |= {"accuracy": None, "bound": None, "interval": None}
    render(Contents([bare]), tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    assert "Nothing to compare" in tab.locator("#heat").inner_text()
    assert tab.locator(".chart").count() == 0
    tab.locator("#runs-fold > summary").click()
    tab.locator(".run > summary").click()
    tab.wait_for_selector(".run[data-state=filled]")
    assert "No timeline was kept" in tab.locator(".run").inner_text()
    assert complaints == []


def test_a_run_without_its_document_says_where_it_is(browser: Any, tmp_path: Path) -> None:
    render(Contents([run("left")], documents={}), tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    tab.locator("#runs-fold > summary").click()
    tab.locator(".run > summary").click()
    tab.wait_for_selector(".run[data-state=filled]")
    said = tab.locator(".run").inner_text()
    assert "moebench show left prints it, with the command that repeats the run" in said
    assert "TPOT" in said
    assert complaints == []


@pytest.mark.slow
def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    records = [{**span, "kind": HOSTILE, "lane": HOSTILE} for span in spans(1)]
    other = hostile_run()
    other["run_id"] += "2"
    other["spec"]["system"] += "2"
    contents = Contents([hostile_run(), other], {HOSTILE: HOSTILE}, {HOSTILE: records})
    render(contents, tmp_path / "r.html", source=HOSTILE)
    tab, complaints = open_page(browser, tmp_path / "r.html")
    draw_all(tab)
    tab.locator(".systems tbody button").first.click()
    assert HOSTILE in tab.locator("dialog").inner_text()
    tab.keyboard.press("Escape")
    tab.locator("#runs-fold > summary").click()
    tab.locator(".run > summary").first.click()
    tab.wait_for_selector(".run[data-state=filled]")
    draw_all(tab)
    tab.locator(".run svg .mark-rect.role-mark path").first.hover()
    tab.wait_for_selector("#vg-tooltip-element.visible", timeout=5000)
    assert complaints == []


@pytest.mark.slow
def test_claims_and_the_papers_figures_are_shown(browser: Any, tmp_path: Path) -> None:
    shown = Exhibit(
        id="smoe-fig-11", place="Fig. 11", title=HOSTILE, form="bars", badge="estimate",
        x=Axis(field="system", title="system"), y=Axis(field="ms", title="TPOT", unit="ms"),
        rows=({"system": "smoe", "ms": 10.0}, {"system": "lru", "ms": 20.0}),
        paper_rows=({"system": "smoe", "ms": 12.0},),
    )  # fmt: skip
    table = shown.model_copy(update={
        "id": "smoe-table-1", "form": "table",
        "columns": (Axis(field="system", title="system"), Axis(field="ms", title="TPOT")),
    })  # fmt: skip
    found = result(DIFFERS, UNMEASURED).model_copy(update={"exhibits": (shown, table)})
    render(Contents([run()], claims=[found]), tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    chips = ["direction only", "not measurable here", "reproduced"]  # the last of a counter
    assert texts(tab, "#claims .chip") == chips
    tab.locator("#papers > details > summary").click()
    assert "smoe-fig-11" in [one.get_attribute("id") for one in tab.locator(".chart").all()]
    draw_all(tab)
    assert tab.locator("#smoe-fig-11 svg .role-mark path").count() >= 3
    assert HOSTILE in tab.locator("#papers h3").first.inner_text()
    assert tab.locator("#papers > details > .scroll td", has_text="smoe").count() == 1
    assert complaints == []


def test_claims_begin_with_a_front_page_and_full_tables_are_folded(
    browser: Any, tmp_path: Path
) -> None:
    contents = Contents([run()], claims=[SMOE, DAOP], equal_memory=EQUAL)
    render(contents, tmp_path / "r.html")
    tab, complaints = open_page(browser, tmp_path / "r.html")
    titles = texts(tab, "#claims > h3")
    assert titles == ["SMoE: headlines", "DAOP: headlines", "The fastest systems at equal memory"]
    said = tab.locator("#claims > .caption").first.inner_text()
    assert "2 reproduced with evidence, 1 reproduced with little evidence" in said
    shown = tab.locator("#claims > .scroll").nth(1).inner_text()
    assert "reproduced below 31 GB/s" in shown
    assert "smoe = hybrimoe" in tab.locator("#claims > .scroll").nth(3).inner_text()
    folds = tab.locator("#claims > details.fold")
    assert folds.count() == 2
    assert tab.locator("#claims > details.fold[open]").count() == 0
    assert not folds.first.locator("td").first.is_visible()
    folds.first.locator("summary").first.click()
    assert "Baselines are as published." in folds.first.inner_text()
    assert complaints == []
