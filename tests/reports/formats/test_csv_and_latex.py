"""CSV and LaTeX: the same numbers, nothing that breaks a table."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.reports.formats.csv import write_csv, write_latex
from moebench.reports.formats.latex import escaped, latex
from moebench.reports.report import Report, report
from moebench.reports.sections.accuracy import views
from moebench.reports.text import TextTable, markdown, text_table
from moebench.substrate.errors import InputError
from tests.reports.alpha import ITEMS, ROWS
from tests.reports.samples import HOSTILE, RUNS, hostile_run, run

VIEWS = views(ROWS, ITEMS)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------------- CSV


def test_csv_holds_the_stored_numbers(tmp_path: Path) -> None:
    runs, compared, accuracy = write_csv(RUNS, report(RUNS), tmp_path / "new", VIEWS)
    first, _, traced = read(runs)
    assert first["tpot_ms"] == "61.23456"
    assert first["badge"] == "estimate"
    assert traced["tpot_ms"] == ""
    assert [line["tpot_ms"] for line in read(compared)] == ["61.23456", "88.0625", ""]
    cells = read(accuracy)
    assert len(cells) == len(ROWS)
    assert (cells[0]["workload"], cells[0]["alpha"], cells[0]["score"]) == ("gsm8k", "0.0", "45.0")


def test_csv_has_every_field_of_a_spec(tmp_path: Path) -> None:
    runs = [run("a"), run("b", overrides={"evict.window": "8"})]
    (file, _) = write_csv(runs, report(runs), tmp_path)
    first, second = read(file)
    assert {f"spec.{name}" for name in runs[0]["spec"]} - {"spec.options"} <= first.keys()
    assert first["spec.options.evict"] == "lru"
    assert (first["spec.seed"], first["spec.overrides.evict.window"]) == ("0", "")
    assert second["spec.overrides.evict.window"] == "8"


def test_comparisons_say_what_they_are_of_and_who_is_best(tmp_path: Path) -> None:
    runs = [run("a"), run("b", system="lru")]
    runs[1]["metrics"]["tpot_ms"]["mean"] = 100.0
    runs[1]["interval"]["tpot_ms"] = {"low": 85.0, "high": 115.0}
    _, file = write_csv(runs, report(runs), tmp_path)
    best, other = read(file)
    assert (best["system"], best["tpot_ms.place"], best["ratio_best"]) == ("smoe", "1", "1.0")
    assert (other["tpot_ms.place"], float(other["ratio_best"])) == ("", 100.0 / 61.23456)
    assert (best["software"], best["prompts"], best["runs"]) == ("lean", "32", "a")


# ---------------------------------------------------------------------- LaTeX


def parsed(text: str) -> tuple[str, list[list[str]]]:
    """The column letters and rows of a LaTeX file's only table; refuses what does not balance.

    Independent of the writer: it reads character by character, counts braces, and closes
    environments in order.
    """
    open_: list[str] = []
    for kind, name in re.findall(r"(?<!\\)\\(begin|end){(\w+)}", text):
        if kind == "begin":
            open_.append(name)
        else:
            assert open_.pop() == name
    assert open_ == []
    body = text[text.index(r"\begin{tabular}{") + len(r"\begin{tabular}{") :]
    depth, at, letters = 1, 0, ""
    while depth:
        depth += {"{": 1, "}": -1}.get(body[at], 0)
        letters += body[at] if depth else ""
        at += 1
    inside = body[at : body.index(r"\end{tabular}")]
    for rule in ("toprule", "midrule", "bottomrule"):
        assert inside.count(f"\\{rule}\n") >= (1 if rule != "midrule" else 0)
        inside = inside.replace(f"\\{rule}\n", "")
    rows, row, cell, depth, maths, at = [], [], "", 0, False, 0
    while at < len(inside):
        c = inside[at]
        if c == "\\":
            if inside[at + 1] == "\\" and depth == 0:
                assert not maths
                rows.append([*row, cell.strip()])
                row, cell, at = [], "", at + 2
                assert inside[at] == "\n", "an option of the row's end"
                assert inside[at + 1 : at + 2] not in ("[", "*")
                continue
            cell, at = cell + inside[at : at + 2], at + 2
            continue
        depth += {"{": 1, "}": -1}.get(c, 0)
        assert depth >= 0
        maths ^= c == "$"
        if c == "&" and depth == 0:
            row, cell = [*row, cell.strip()], ""
        else:
            assert c not in "&#%", "an unescaped special character"
            cell += c
        at += 1
    assert (depth, maths, row, cell.strip()) == (0, False, [], "")
    return re.sub(r"p{[\d.]+\\linewidth}", "p", letters), rows


def test_the_parser_refuses_what_latex_refuses() -> None:
    good = (
        "\\begin{table}\n\\begin{tabular}{lr}\n\\toprule\na & b \\\\\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}"
    )
    assert parsed(good) == ("lr", [["a", "b"]])
    for old, new in (
        ("a &", "a_{ &"), ("a &", "$a &"), ("\\end{table}", ""), ("b \\\\", "b% \\\\"),
        ("b \\\\\n", "b \\\\\n[c] & d \\\\\n"), ("\\toprule\n", ""), ("b \\\\", "b"),
    ):  # fmt: skip
        with pytest.raises((AssertionError, IndexError)):
            parsed(good.replace(old, new, 1))


def test_latex_tables_are_rectangular(tmp_path: Path) -> None:
    files = write_latex(report(RUNS, VIEWS), tmp_path)
    names = [path.name for path in files]
    assert names[-4:] == ["accuracy-S1-smoe.tex", "verdict-S1-smoe.tex", "runs.tex", "report.tex"]
    for path in files[:-1]:
        columns, rows = parsed(path.read_text(encoding="utf-8"))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(columns)}
    assert r"45.0 $\pm$ 3.5 & 44.0 $\pm$ 3.5" in (tmp_path / "accuracy-S1-smoe.tex").read_text()


def raced() -> TextTable:
    """Two systems that are tied, the first lossy, and a slower one."""
    runs = []
    for system, ms, kl in (("smoe", 20.0, 0.0213), ("lru", 20.4, 0.0), ("slow", 100.0, 0.0)):
        one = run(system, system=system)
        one["metrics"]["tpot_ms"]["mean"] = ms
        one["interval"]["tpot_ms"] = {"low": 0.8 * ms, "high": 1.2 * ms}
        one["accuracy"]["kl"], one["lossless"] = kl, kl == 0
        one["interval"]["fields"][0]["tpot_ms"] = [20.0, -20.0] if system == "smoe" else [0, 0]
        runs.append(one)
    return report(runs, brief=True, paper=True).tables["comparison-S3-batch-1"]


def test_a_table_for_a_paper_is_short_and_says_what_its_marks_mean() -> None:
    text = latex(raced(), "comparison S3")
    _, (heads, units, *rows) = parsed(text)
    assert heads[:2] + heads[5:7] == ["system", "TPOT", "hits", "begun"]
    assert units[:2] + units[5:7] == ["", "ms", r"\%", r"\%"]
    assert max(map(len, heads)) <= 20
    assert [row[0] for row in rows] == [r"smoe$^{\approx}$", "lru", "slow"]
    assert [row[1] for row in rows] == [
        r"\textbf{20.00}\rlap{$^{=}$}", r"\textbf{20.40}\rlap{$^{=}$}", r"\underline{100.00}",
    ]  # fmt: skip
    # Equal values are tied visibly: no mark.  The zero stands where the zeros of 0.0213 do.
    assert [row[-1] for row in rows] == [r"\underline{0.0213}", r"\textbf{0}\phantom{.0000}",
                                         r"\textbf{0}\phantom{.0000}"]  # fmt: skip
    caption = re.search(r"\\caption{(.*)}\n", text)
    assert caption is not None
    for said in (
        "S3, batch 1. ", "machine a6000", "software lean", "all estimate", "bold: best",
        "hits: hit ratio, complete", r"$^{\approx}$: lossy", "$^{=}$: cannot be told",
    ):  # fmt: skip
        assert said in caption[1]
    assert r"\label{tab:comparison-S3}" in text
    assert "remark" not in heads


def test_a_mark_that_does_not_occur_is_not_explained() -> None:
    text = latex(text_table("t", ["a"], [["1"]]))
    assert "\\caption{t.}" in text
    assert not re.search("bold|lossy|told", text)


@settings(deadline=None)
@given(st.text(), st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=3))
def test_any_text_is_a_table(title: str, rows: list[tuple[str, str]]) -> None:
    columns, found = parsed(latex(text_table(title, rows[0], rows, title), title))
    assert {len(row) for row in found} == {len(columns)} == {2}
    assert len(found) - len(rows) in (1, 2), "headers, and their units"


def test_best_is_bold_and_second_best_underlined() -> None:
    table = TextTable("t", ("a", "b"), ((("1", "2"), ("3", "4")),), "", {
        (0, 0, 1): "best", (0, 1, 1): "second",
    })  # fmt: skip
    assert "1 & \\textbf{2} \\\\\n3 & \\underline{4} \\\\" in latex(table)
    assert "{rr}" in latex(table)


def test_special_characters_are_escaped() -> None:
    table = text_table("t", ["a_b & 50% \\x", "y"], [["é → 中", "1"]])
    assert r"a\_b \& 50\% \textbackslash{}x & y" in latex(table)
    assert r"é $\to$ \texttt{U+4E2D} & 1" in latex(table)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5e-06", r"$5\cdot10^{-6}$"),
        ("2.2e-05 [-9.8e-05, 0.1]", r"$2.2\cdot10^{-5}$ [-$9.8\cdot10^{-5}$, 0.1]"),
        ("3e0-a1e5x", "3e0-a1e5x"),  # no number
    ],
)
def test_small_numbers_are_powers_of_ten(text: str, expected: str) -> None:
    assert escaped(text) == expected


def _printed(text: str) -> bool:
    """Whether nothing in a text is a command but those that were put there."""
    known = r"\\(?:[&%$#_{}]|text[a-z]+{}|texttt{U\+[0-9A-F]+}|S{}|dots{})|\$[^$]*\$"
    return not re.search(r"[\\&%$#_{}~^]", re.sub(known, "", text))


@settings(deadline=None)
@given(st.text())
def test_no_text_becomes_a_command(text: str) -> None:
    assert _printed(escaped(text))
    assert "\n" not in escaped(text)


def everything() -> Report:
    """Every kind of table, hostile text and every mark in them."""
    runs = [*RUNS, hostile_run(), run("a", system="b_c"), run("d", setting="S1 ± é 中 `'\"|~^")]
    runs[-1]["accuracy"]["kl"] = 5e-06
    return report(runs, VIEWS, intervals=True, paper=True)


def test_latex_compiles_or_is_balanced(tmp_path: Path) -> None:
    """A real compiler where there is one; else each brace and environment has its end."""
    files = write_latex(everything(), tmp_path)
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        for path in files:
            if path.name != "report.tex":
                parsed(path.read_text(encoding="utf-8"))
        pytest.skip("neither pdflatex nor tectonic is installed: only the syntax was checked")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in compiler else []
    done = subprocess.run(
        [compiler, *options, "report.tex"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    assert (tmp_path / "report.pdf").stat().st_size > 10_000


def test_a_long_table_is_named_in_the_document(tmp_path: Path) -> None:
    write_latex(report([run(f"{n}") for n in range(61)]), tmp_path)
    text = (tmp_path / "report.tex").read_text()
    assert "61 rows: runs.tex" in text
    assert r"\input{runs}" not in text
    assert (tmp_path / "runs.tex").exists()


# ---------------------------------------------------------------------- Markdown


def test_markdown_shows_text_as_text() -> None:
    drawn = markdown(text_table(HOSTILE, ["a|b"], [["*x*"], ["<b>"]], "all: a_b"))
    assert r"| a\|b |" in drawn
    assert r"| \*x\* |" in drawn
    assert r"| \<b\> |" in drawn
    assert "<" not in drawn.replace("\\<", "")
    assert r"all: a\_b" in drawn


# ---------------------------------------------------------------------- what cannot be


def test_of_failures_alone_there_is_no_empty_table(tmp_path: Path) -> None:
    found = report([])
    assert found.tables == {}
    assert write_latex(found, tmp_path)[-1].name == "report.tex"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(RUNS, report(RUNS), tmp_path / "file")
