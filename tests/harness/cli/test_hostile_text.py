"""Texts from anybody in a store: no writer lets them act in a terminal, a file format or a page."""

import copy
import csv
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import Store
from moebench.substrate.text import may_act, visible
from tests.harness.acting import acts
from tests.harness.commands import Called, call, run
from tests.reports.pages import Page

pytestmark = pytest.mark.usefixtures("tiny_models")

ROOT = Path(__file__).parents[3]

#: Texts that do something in a format that they reach unescaped.
HOSTILE = [
    # a terminal
    "\x1b[2J", "\x1b]0;title\x07", "\x1b[31mred\x1b[0m", "\x1bP0;1|17/ab\x1b\\", "a\x08\x08b",
    "\x07", "\x9b31m", "\x90q", "a\rb", "\x00", "a\x00b", "\x7f", "\x0c", "\x0b", "\x85",
    # lines and direction
    "a\nb", "a\r\nb", "a\u2028b", "a\u2029b", "\u202eabc", "\u2066a\u2069", "\u200fa", "\ufeffa",
    "\u061ca", "\u200ba", "\xada", "\u2060a", "a\U000e0041", "\u200b=1+1", "\u2060=1+1",
    # what no encoding can write
    "\ud800", "a\udfffb", "\udc80", "\ud83d", "\ude00\ud83d",
    # LaTeX
    "\n\\input{/etc/passwd}", "\\write18{id}", "%\n\\write18{id}", "$x$", "{", "}", "\\", "a&b",
    "~^_#", "\\end{tabular}", "\n%", "\\catcode`\\%=12",
    # spreadsheets
    "=1+1", "+1+1", "-1+1", "@SUM(1)", " =1+1", "\t=1+1", "\r=1+1", "＝1+1", "＋1", "－1+1", "＠A1",
    "\u3000=1+1", "\u00a0=1+1", "=cmd|' /C calc'!A0", '"=1+1"', "'=1+1", "a,b;c\"d",
    # Markdown
    "[x](javascript:alert(1))", "![x](http://x)", "|", "a|b", "`", "```\n", "# head", "<b>",
    "**b**",
    # HTML
    "</script><script>alert(1)</script>", "<!--", "-->", "<img src=x onerror=alert(1)>", "&lt;",
    "]]>",
    "\" onload=\"alert(1)", "{{7*7}}", "{% raw %}", "javascript:alert(1)",
    # long
    "x" * 5000,
]  # fmt: skip
#: Texts that are shown as they are.
SOUND = ["π-é-日本語", "naïve", "🧮👩‍💻", "שלום", "αβγ ± ×", "a-b_c.d", "moe ondemand"]

#: Fields of a document into which a text is put.
FIELDS = [
    ("spec", "system"), ("spec", "setting"), ("spec", "model"), ("spec", "machine"),
    ("spec", "workload"), ("spec", "software"), ("provenance", "commit"), ("badge",),
]  # fmt: skip


def test_what_acts_is_escaped_and_what_is_seen_is_not() -> None:
    """By Unicode's categories: of the format characters (Cf), those that some scripts show stay."""
    shown = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    shown |= {0x200C, 0x200D, *range(0x13430, 0x13440)}
    for code in range(0x110000):
        text, category = chr(code), unicodedata.category(chr(code))
        if category == "Cn":  # unassigned: newer versions of Unicode may make it a mark
            continue
        acting = category in ("Cc", "Cf", "Cs", "Zl", "Zp") and code not in shown
        assert (visible(text) != text) == acting, hex(code)
        if acting:
            assert visible(text).encode("ascii").decode("unicode_escape") == text
            assert may_act(json.dumps(text, ensure_ascii=False)), hex(code)
            assert may_act(json.dumps(text)), hex(code)


def documents(base: dict[str, Any], texts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a document for each text, which all of its fields and notes hold."""
    for n, text in enumerate(texts):
        one = copy.deepcopy(base) | {"run_id": f"{n:012x}", "notes": [text, f"note {text}"]}
        for *above, last in FIELDS:
            place = one
            for key in above:
                place = place[key]
            place[last] = text
        one["spec"]["overrides"] = {text or "x": text}
        yield one


@pytest.fixture
def store(here: Path) -> Store:
    """Return a store with a run for each hostile text, and a failed cell."""
    base = run("moe-ondemand")
    found = Store(Path("hostile"))
    for one in documents(base, HOSTILE):
        found.put(one, [{"lane": "h2d", "kind": text, "experts": [1], "layer": 0, "start_us": 0.0,
                         "end_us": 1.0} for text in one["notes"]])  # fmt: skip
    for n, text in enumerate(HOSTILE):
        spec = base["spec"] | {"system": text, "setting": text}
        found.fail(f"{n:012x}"[::-1], spec, text, "its traceback")
    return found


def on(store: Store, *arguments: str) -> Called:
    said = call(*arguments, "--store", store.directory)
    assert "Traceback" not in said.err
    assert said.code == 0, said.err
    assert not acts(said.out + said.err)
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("report",), ("report", "--json"), ("report", "--markdown"), ("compare",),
     ("compare", "--json"), ("compare", "--markdown"), ("gc", "--dry-run")],
    ids=" ".join,
)  # fmt: skip
def test_a_terminal_and_a_pipe_get_nothing_that_acts(
    store: Store, command: tuple[str, ...]
) -> None:
    on(store, *command)


@pytest.mark.slow
def test_every_run_is_shown_and_drawn_without_anything_that_acts(store: Store) -> None:
    for n in range(len(HOSTILE)):
        on(store, "show", f"{n:012x}")
        json.loads(on(store, "show", f"{n:012x}", "--json").out)
        on(store, "timeline", f"{n:012x}", "--out", f"{n}.json")
        assert not acts(Path(f"{n}.json").read_text("utf-8"))
        json.loads(Path(f"{n}.json").read_text("utf-8"))


def test_csv_cells_are_no_formulas_and_rows_stay_rows(store: Store) -> None:
    on(store, "report", "--csv", "out")
    files = sorted(Path("out").iterdir())
    assert {file.name for file in files} >= {"runs.csv", "failures.csv"}
    for file in files:
        assert not acts(file.read_text("utf-8"))
        with file.open(encoding="utf-8", newline="") as stream:
            header, *rows = csv.reader(stream, strict=True)
        assert all(len(row) == len(header) for row in rows)
        for cell in (cell for row in [header, *rows] for cell in row):
            plain = unicodedata.normalize("NFKC", cell).strip()
            assert not plain.startswith(("=", "+", "@")) or _is_number(cell), cell
            assert not plain.startswith("-") or _is_number(cell), cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_latex_has_no_command_that_is_not_its_own(store: Store) -> None:
    on(store, "report", "--latex", "out")
    own = {
        "begin", "end", "toprule", "midrule", "bottomrule", "textbf", "underline", "texttt",
        "alpha",
        "pm", "times", "textbackslash", "textasciitilde", "textasciicircum", "textasciigrave",
        "cdot",
        "S", "dots", "neq", "leq", "geq", "to", "mu", "lambda", "rho", "circ",
        "centering", "caption", "label", "rlap", "phantom", "approx", "shortstack", "linewidth",
    }  # fmt: skip
    main = {
        "documentclass", "usepackage", "floatplacement", "newsavebox", "tablebox", "let",
        "renewenvironment", "tabular", "endtabular", "plaintabular", "endplaintabular", "ifdim",
        "wd", "resizebox", "usebox", "else", "fi", "par", "input",
    }  # fmt: skip
    files = sorted(Path("out").glob("*.tex"))
    assert files
    for file in files:
        text = file.read_text("utf-8")
        assert not acts(text)
        code = [line for line in text.splitlines() if not line.startswith("% ")]
        for line in code:
            assert re.fullmatch(r"(\\%|[^%])*", line), line
            used = set(re.findall(r"\\([A-Za-z]+)", line.replace("\\\\", "")))
            assert used <= own | (main if file.name == "report.tex" else set()), line
        for inputs in re.findall(r"\\input\{([^}]*)\}", "\n".join(code)):
            assert re.fullmatch(r"[\w-]+", inputs)


class Elements(HTMLParser):
    """Counts a page's elements and collects what could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        assert tag != "img"


@pytest.mark.slow
def test_the_page_has_no_element_of_a_text(store: Store) -> None:
    clean = Store(Path("clean"))
    clean.put(run("moe-ondemand"))
    on(clean, "report", "--html", "clean.html")
    on(store, "report", "--html", "page.html")
    text = Path("page.html").read_text("utf-8")
    assert not acts(text)
    found, expected = Elements(text), Elements(Path("clean.html").read_text("utf-8"))
    assert (found.scripts, found.handlers) == (expected.scripts, expected.handlers)
    assert not acts(json.dumps(Page(text).data, ensure_ascii=False))


@pytest.mark.slow
def test_figures_are_drawn(here: Path) -> None:
    """Each figure compares a sound system with hostile ones; the drawing library may not abort."""
    base = run("moe-ondemand")
    store = Store(Path("hostile"))
    store.put(base)
    for one in documents(base, ["\x1b[2J", "a\x00b", "\ud800", "</text><script>", "\u2028"]):
        for name in ("model", "machine", "workload", "setting", "software", "overrides"):
            one["spec"][name] = base["spec"][name]
        one["badge"] = base["badge"]
        store.put(one)
    command = [sys.executable, "-m", "moebench", "report", "--figures", "figures", "--store",
               str(store.directory)]  # fmt: skip
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 0, ended.stderr
    drawn = sorted(Path("figures").glob("*.svg"))
    assert any("x1b[2J" in file.read_text("utf-8") for file in drawn)
    for file in drawn:
        text = file.read_text("utf-8")
        assert not acts(text)
        assert "<script" not in text


def test_sound_texts_are_shown_as_they_are(here: Path) -> None:
    base = run("moe-ondemand")
    store = Store(Path("sound"))
    for one in documents(base, SOUND):
        store.put(one)
    out = on(store, "report").out
    for n, text in enumerate(SOUND):
        assert visible(text) == text
        assert text in out
        assert text in on(store, "show", f"{n:012x}").out
    on(store, "report", "--csv", "out")
    assert all(text in Path("out/runs.csv").read_text("utf-8") for text in SOUND)


#: A system that fails with a hostile message.
FAILING = """
from moebench.systems.baselines import MoEOnDemand

class Failing(MoEOnDemand):
    def begin_sequences(self, prompts):
        raise RuntimeError("\\x1b[2J\\u202eabc")
"""


@pytest.mark.slow
def test_a_failed_cell_s_error_does_not_act_in_progress_lines(here: Path) -> None:
    Path("failing.py").write_text(FAILING)
    said = call("sweep", "--systems", "failing:Failing", "--settings", "S3", "--workloads",
                "arithmetic", "--prompts", "1", "--new-tokens", "2", "--jobs", "0")  # fmt: skip
    assert said.code == 1
    assert "\\x1b[2J\\u202eabc" in said.err
    assert not acts(said.out + said.err)


@pytest.mark.slow
def test_an_error_shows_what_was_typed_without_acting(here: Path) -> None:
    for text in HOSTILE:
        if "\x00" in text or text.startswith("-"):  # no program can be given these
            continue
        said = call("run", "--system", text)
        assert said.code == 2
        assert not acts(said.err)
