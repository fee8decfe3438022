"""The advice page in a real browser without a network."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from moebench.harness.advise.grid import read_grid
from moebench.harness.advise.interpolation import between
from moebench.harness.advise.page import page
from tests.browser import open_page, texts
from tests.harness.advise.grids import grid
from tests.reports.samples import HOSTILE

#: Milliseconds in which a change is shown, on a slow and busy computer.
AT_ONCE_MS = 500

#: A folder for pictures of the page; none are taken without it.
PICTURES = os.environ.get("MOEBENCH_PICTURES")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("advice") / "advice.html"
    out.write_text(page(grid()), encoding="utf-8")
    return out


def rates(tab: Any) -> dict[str, float]:
    """The shown decode rates, by engine."""
    rows = tab.locator(".answers tbody tr").all()
    return {row.locator("b").inner_text(): float(row.locator("td").first.get_attribute("data-v"))
            for row in rows}  # fmt: skip


def shown(tab: Any) -> tuple[str, str, str]:
    """What changes with a choice: the table, the bars, and the commands."""
    bars = tab.locator("#chart svg").get_attribute("aria-label")
    return tab.locator("#table").inner_text(), bars, tab.locator("#command").inner_text()


def hash_of(tab: Any) -> dict[str, str]:
    return {name: value[0] for name, value in parse_qs(tab.url.partition("#")[2]).items()}


def picture(tab: Any, name: str) -> None:
    if PICTURES:
        tab.screenshot(path=f"{PICTURES}/advice-{name}.png", full_page=True)


@pytest.mark.slow
def test_the_first_answer_is_the_grids(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    assert texts(tab, "#verdict") == ["Fits: 25 of 24 GB."]
    assert texts(tab, "#largest") == ["Largest context that fits: 50,000 tokens."]
    assert rates(tab) == {"llama.cpp": 24.0, "ik_llama.cpp": 22.4, "vllm": 1.6}
    first = tab.locator(".answers tbody tr").first.inner_text()
    for part in (
        "19.2 to 30",
        "300 to 520",
        "19.2 s",
        "40.5 s",
        "device 21.5, host 48.2",
        "checked",
    ):
        assert part in first
    assert texts(tab, "tr:nth-child(2) .chip") == ["tied", "checked"]
    assert HOSTILE in tab.locator(".answers").inner_text(), "a text, and no markup"
    assert tab.locator("#chart .bar").count() == tab.locator("#chart .whisker").count() == 3
    assert "llama.cpp: 24, 19.2 to 30" in tab.locator("#chart svg[role=img]").get_attribute(
        "aria-label"
    )
    assert "-c 8192 --n-cpu-moe 28" in tab.locator("#command pre").inner_text()
    assert tab.locator("#between").count() == 0
    picture(tab, "small")
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("card", "no card"), ("memory", "128 GB DDR5-5600"), ("model", "qwen3-30b-a3b"),
     ("context", "2048")],
)  # fmt: skip
def test_a_choice_changes_table_bars_and_commands_at_once(
    browser: Any, file: Path, name: str, value: str
) -> None:
    tab, complaints = open_page(browser, file)
    before = shown(tab)
    tab.locator(f"#{name}").select_option(value)
    table, bars, commands = shown(tab)
    assert table != before[0]
    assert bars != before[1]
    assert commands != before[2]
    assert hash_of(tab)[name] == value
    assert float(tab.locator("html").get_attribute("data-ms")) < AT_ONCE_MS
    assert complaints == []


def test_a_format_is_one_of_the_models(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    assert texts(tab, "#quant option") == ["mxfp4"]
    tab.locator("#model").select_option("qwen3-30b-a3b")
    assert texts(tab, "#quant option") == ["q4_k_m", "q8_0"]
    before = rates(tab)
    tab.locator("#quant").select_option("q8_0")
    assert rates(tab)["llama.cpp"] == pytest.approx(before["llama.cpp"] / 2, rel=0.01)
    tab.locator("#card").select_option("no card")
    assert hash_of(tab)["quant"] == "q8_0", "kept, as the other card has it, too"
    assert texts(tab, "#memory option") == ["64 GB DDR4-3200"]
    assert complaints == []


@pytest.mark.slow
def test_interpolated_rates_are_between_their_neighbours_and_marked(
    browser: Any, file: Path
) -> None:
    tab, complaints = open_page(browser, file)
    assert texts(tab, "#context option") == [
        "2,048", "4,096 (interpolated)", "8,192", "16,384 (interpolated)", "32,768"
    ]  # fmt: skip
    found = {}
    for context in (2048, 4096, 8192, 16384, 32768):
        tab.locator("#context").select_option(str(context))
        found[context] = rates(tab)
        marked = context in (4096, 16384)
        assert tab.locator("#between").count() == marked
        assert tab.locator("#chart .between").count() == 3 * marked
        assert all(("≈" in text) == marked for text in texts(tab, ".answers td:nth-child(2)"))
        assert f"-c {context} " in tab.locator("#command pre").inner_text()
    for engine in found[2048]:
        assert found[2048][engine] > found[4096][engine] > found[8192][engine]
        assert found[8192][engine] > found[16384][engine] > found[32768][engine]
    points = [one for one in grid().points if one.machine == 0 and one.model == "gpt-oss-120b"]
    for context in (4096, 16384):
        for engine, ours in between(points, context).items():
            assert found[context][engine] == pytest.approx(ours.decode, rel=0.01), "as in Python"
    tab.locator("#context").select_option("4096")
    assert tab.locator("#verdict").inner_text() == "Fits: 25 of 24 GB."
    assert "verdict, configuration, memory and commands are those of 8,192." in (
        tab.locator("#between").inner_text()
    )
    picture(tab, "between")
    assert complaints == []


def test_what_does_not_fit_at_the_larger_context_is_left_out(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file, part="#card=no+card&context=4096")
    assert [*rates(tab)] == ["llama.cpp"]
    assert "Left out: 2 engines" in tab.locator("#between").inner_text()
    tab.locator("#context").select_option("16384")
    assert "No engine has a predicted rate here." in tab.locator("#table").inner_text()
    assert tab.locator("#verdict").inner_text() == (
        "At 32,768 tokens: Does not fit: 71 GB of 64 GB. At 8,192 tokens: Fits: 50 of 24 GB."
    )
    assert texts(tab, "#largest") == ["Largest context that fits: 9,000 tokens."]
    tab.locator("#context").select_option("32768")
    assert tab.locator("#verdict").inner_text() == "Does not fit: 71 GB of 64 GB."
    assert tab.locator("#largest").count() == 0
    assert tab.locator("#chart .bar").count() == 0
    assert "No commands." in tab.locator("#command").inner_text()
    assert texts(tab, "#without-row[open] li") == [
        "vllm: does not run with no card", "llama.cpp: needs 71 GiB"
    ]  # fmt: skip
    assert complaints == []


def test_rows_are_in_the_order_of_the_request_and_tied_within_the_error(
    browser: Any, file: Path
) -> None:
    tab, complaints = open_page(browser, file)
    tied = ".answers tr:has(.chip:text-is('tied')) b"
    assert [*rates(tab)] == ["llama.cpp", "ik_llama.cpp", "vllm"]
    assert texts(tab, tied) == ["ik_llama.cpp"]
    tab.locator("#answer").fill("1")
    assert [*rates(tab)] == ["vllm", "llama.cpp", "ik_llama.cpp"], "its prefill is the fastest"
    # 7680 / 608 and 0.6 s against 7680 / 400: a ratio of 1.45, below 1.5.
    assert texts(tab, tied) == ["llama.cpp", "ik_llama.cpp"]
    tab.locator("#prompt").fill("1")
    assert texts(tab, tied) == ["ik_llama.cpp"]
    assert [*rates(tab)] == ["llama.cpp", "ik_llama.cpp", "vllm"]
    assert complaints == []


@pytest.mark.slow
def test_lengths_move_the_times(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    times = ".answers tbody tr:first-child td:is(:nth-child(4), :nth-child(5))"
    # A prompt that fills the context: 7680 / 400, and 512 / 24 more.
    assert texts(tab, times) == ["19.2 s", "40.5 s"]
    assert tab.locator("#prompt").get_attribute("placeholder") == "7,680"
    assert {"prompt", "answer"} & {*hash_of(tab)} == set()
    tab.locator("#prompt").fill("4000")
    assert texts(tab, times) == ["10 s", "31.3 s"]
    tab.locator("#answer").fill("2400")
    assert texts(tab, times) == ["10 s", "110 s"]
    assert tab.locator("#too-long").count() == 0
    tab.locator("#answer").fill("24000")
    assert "28,000 tokens, more than the context of 8,192" in tab.locator("#too-long").inner_text()
    assert texts(tab, times)[1] == "16.8 min"
    tab.locator("#answer").fill("0")
    assert hash_of(tab)["answer"] == "24000", "what is no length changes nothing"
    for name in ("prompt", "answer"):
        tab.locator(f"#{name}").fill("")
    assert texts(tab, times) == ["19.2 s", "40.5 s"]
    assert complaints == []


@pytest.mark.slow
def test_filters_hide_rows(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    tab.get_by_label("lossless only").check()
    assert [*rates(tab)] == ["llama.cpp", "vllm"]
    assert texts(tab, "#hidden-rows") == ["1 row hidden by the filters."]
    tab.locator("#context").select_option("4096")
    assert [*rates(tab)] == ["llama.cpp", "vllm"]
    assert texts(tab, "#hidden-rows") == ["1 row hidden by the filters."]
    tab.locator("#context").select_option("8192")
    tab.get_by_label("llama.cpp", exact=True).uncheck()
    assert [*rates(tab)] == ["vllm"]
    assert "No commands are known for this engine." in tab.locator("#command").inner_text()
    tab.get_by_label("vllm", exact=True).uncheck()
    assert "All rows are hidden by the filters." in tab.locator("#table").inner_text()
    assert hash_of(tab)["without"] == "llama.cpp,vllm"
    assert complaints == []


def test_a_row_shows_its_commands_and_the_copy_button_copies_them(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file, permissions=["clipboard-read", "clipboard-write"])
    tab.get_by_label("show the commands of ik_llama.cpp").check()
    block = tab.locator("#command pre").inner_text()
    assert block == "ik_llama.cpp-server -m model.gguf \\\n  -c 8192 --n-cpu-moe 28"
    assert tab.locator("#chart .chosen text").text_content() == "ik_llama.cpp: 22.4"
    tab.locator("#copy").click()
    tab.wait_for_selector("#copied button")
    assert tab.evaluate("navigator.clipboard.readText()") == block
    tab.keyboard.press("Escape")
    assert texts(tab, "#copied") == [""]
    tab.locator("#command summary").click()
    assert "threads not said: 8" in tab.locator("#command").inner_text()
    tab.locator("#context").select_option("2048")
    assert "ik_llama.cpp-server" in tab.locator("#command pre").inner_text(), "the row is kept"
    assert complaints == []


def test_without_a_clipboard_the_commands_are_selected(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    tab.locator("#copy").click()
    tab.wait_for_selector("#copied button")
    assert "copy them by Ctrl+C" in tab.locator("#copied").inner_text()
    assert tab.evaluate("getSelection().toString()") == tab.locator("#command pre").inner_text()
    assert complaints == []


@pytest.mark.slow
def test_the_address_restores_the_choices(browser: Any, file: Path) -> None:
    tab, _ = open_page(browser, file)
    tab.locator("#memory").select_option("128 GB DDR5-5600")
    tab.locator("#model").select_option("qwen3-30b-a3b")
    tab.locator("#quant").select_option("q8_0")
    tab.locator("#context").select_option("16384")
    tab.locator("#prompt").fill("3000")
    tab.get_by_label("lossless only").check()
    tab.get_by_label("show the commands of vllm").check()
    again, complaints = open_page(browser, file, part="#" + tab.url.partition("#")[2])
    assert shown(again) == shown(tab)
    assert again.locator("#prompt").input_value() == "3000"
    assert again.get_by_label("lossless only").is_checked()
    assert hash_of(again) == hash_of(tab)
    again.evaluate("location.hash = '#context=2048&without=vllm'")
    again.wait_for_function("document.querySelector('#context').value === '2048'")
    assert again.locator("#model").input_value() == "gpt-oss-120b"
    assert not again.get_by_label("vllm", exact=True).is_checked()
    assert complaints == []


@pytest.mark.parametrize(
    "part",
    [
        "#card=none&context=-1&prompt=x&without=a,b&row=z",
        "#%00",
        f"#card={HOSTILE}",
        "#context=9e9",
    ],
)
def test_an_address_that_names_nothing_shows_the_first_choices(
    browser: Any, file: Path, part: str
) -> None:
    tab, complaints = open_page(browser, file, part=part)
    assert rates(tab)["llama.cpp"] == 24
    assert complaints == []


@pytest.mark.slow
def test_everything_is_reached_by_keyboard(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    visited = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        visited.append(tab.evaluate("document.activeElement.id || document.activeElement.name"))
    for name in ("theme", "card", "memory", "model", "quant", "context", "prompt", "lossless",
                 "row", "copy"):  # fmt: skip
        assert name in visited
    tab.locator("#context").focus()
    tab.keyboard.press("ArrowDown")
    assert hash_of(tab)["context"] == "16384"
    tab.locator("input[name=row]:checked").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.value") == "ik_llama.cpp"
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.value") == "vllm"
    assert complaints == []


def test_a_sorted_column_stays_sorted(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    tab.get_by_role("button", name="prefill, tokens/s").click()
    assert [*rates(tab)][-1] == "vllm"
    tab.get_by_role("button", name="prefill, tokens/s").click()
    assert next(iter(rates(tab))) == "vllm"
    tab.locator("#context").select_option("2048")
    assert next(iter(rates(tab))) == "vllm"
    assert complaints == []


#: The least contrast of text with the first opaque background below it.
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const below = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = [...document.querySelectorAll("main *, header *")]
    .filter((e) => e.checkVisibility())
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => {
      const style = getComputedStyle(e), svg = e.namespaceURI.endsWith("svg");
      const both = [parse(svg ? style.fill : style.color), below(e)];
      const [a, b] = both.map(light).sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    });
  return Math.min(...ratios);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_contrast_with_their_background(browser: Any, file: Path, scheme: str) -> None:
    tab, complaints = open_page(browser, file, part="#context=4096", color_scheme=scheme)
    assert tab.evaluate(CONTRAST) >= 4.5
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
    tab.locator("#theme").click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    assert tab.evaluate(CONTRAST) >= 4.5
    assert complaints == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_is_as_wide_as_the_screen(browser: Any, file: Path, width: int) -> None:
    tab, complaints = open_page(browser, file, width)
    for context in ("8192", "16384"):
        tab.locator("#context").select_option(context)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    chart = tab.locator("#chart svg").bounding_box()
    assert chart["x"] >= 0
    assert chart["x"] + chart["width"] <= width
    assert complaints == []


def test_the_chart_follows_the_window(browser: Any, file: Path) -> None:
    tab, complaints = open_page(browser, file)
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.wait_for_function("document.querySelector('#chart svg').viewBox.baseVal.width < 390")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_grid_that_ships_is_shown_at_once(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    out = tmp_path / "advice.html"
    out.write_text(page(read_grid()), encoding="utf-8")
    tab, complaints = open_page(browser, out, width, color_scheme=scheme)
    picture(tab, f"{width}-{scheme}")
    for name in ("card", "memory", "model", "quant", "context"):
        values = [
            re.sub(r"^\s+|\s+$", "", one)
            for one in tab.locator(f"#{name} option").evaluate_all("all => all.map((o) => o.value)")
        ]
        for value in values:
            tab.locator(f"#{name}").select_option(value)
            assert float(tab.locator("html").get_attribute("data-ms")) < AT_ONCE_MS
            assert tab.locator("#verdict").inner_text()
            assert tab.evaluate("document.documentElement.scrollWidth") == width
        tab.locator(f"#{name}").select_option(values[0])
    assert complaints == []
