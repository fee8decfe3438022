"""LaTeX tables line by line, with their headers, and the document that includes them."""

import re

import pytest

from moebench.reports.formats.latex import _heads, _stacked, document, escaped, latex
from moebench.reports.text import TextTable


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("system", ["system"]),
        ("twelve chars", ["twelve chars"]),  # 12 characters are one line
        ("hit ratio, complete", ["hit ratio,", "complete"]),
        # Neither a long word nor one with hyphens is divided.
        ("deterministically", ["deterministically"]),
        ("a deterministically b", ["a", "deterministically", "b"]),
        ("first-come-first-served", ["first-come-first-served"]),
        ("cache first-come-first", ["cache", "first-come-first"]),
    ],
)
@pytest.mark.parametrize("side", ["l", "r"])
def test_long_headers_are_broken_between_words(label: str, lines: list[str], side: str) -> None:
    found = _stacked(label, side)
    if len(lines) == 1:
        assert found == lines[0]
    else:
        assert found == "\\shortstack[" + side + "]{" + r"\\".join(lines) + "}"


def test_units_stand_in_a_line_of_their_own() -> None:
    one, two = _heads(["system", "TPOT (ms)", "hits (%)"], [False, True, True]).splitlines()
    assert one.split(" & ")[:2] == ["system", "TPOT"]
    assert two.split(" & ")[0].strip() == ""
    assert "ms" in two
    assert r"\%" in two
    assert "(" not in one + two
    assert len(_heads(["system", "runs"], [False, True]).splitlines()) == 1


def test_only_numbers_are_broken_to_the_right() -> None:
    (line,) = _heads(["a long header here", "a long header too"], [False, True]).splitlines()
    first, second = line.split(" & ")
    assert first.startswith(r"\shortstack[l]")
    assert second.startswith(r"\shortstack[r]")


def marked() -> TextTable:
    """Two groups of rows with numbers of 0 to 2 digits, every mark, and a column of words."""
    return TextTable(
        "Times.", ("system", "TPOT (ms)", "what it said"),
        ((("a", "12.5", "x" * 45), ("b", "3", "y")), (("c", "100.25", "z"),)),
        said="all of it", marks={(0, 1, 1): "best", (0, 0, 1): "second"},
        ties=frozenset({(0, 0, 1)}), lossy=frozenset({(1, 0)}), names={"TPOT": "time of a token"},
    )  # fmt: skip


def test_every_line_of_a_table() -> None:
    """Numbers have the invisible digits that the longest one of their column has beyond theirs."""
    assert latex(marked(), "a b/c_d").splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Times. all of it. TPOT: time of a token; $^{\approx}$: lossy; bold: best; "
        r"underlined: second best; $^{=}$: cannot be told from others of its rank.}",
        r"\label{tab:a-b-c-d}",
        r"\begin{tabular}{lrp{0.7\linewidth}}",
        r"\toprule",
        r"system & TPOT & what it said \\",
        r" & ms &  \\",
        r"\midrule",
        rf"a & \underline{{12.5}}\phantom{{0}}\rlap{{$^{{=}}$}} & {'x' * 45} \\",
        r"b & \textbf{3}\phantom{.00} & y \\",
        r"\midrule",
        r"c$^{\approx}$ & 100.25 & z \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert latex(marked(), "x").endswith("\\end{table}\n")


def test_columns_of_words_share_seven_tenths_of_the_line() -> None:
    long, short = "w" * 45, "w" * 44
    for row, columns in (
        ((short, "1", short), "lrl"),
        ((long, "1", short), r"p{0.7\linewidth}rl"),
        ((long, "1", long), r"p{0.35\linewidth}rp{0.35\linewidth}"),
        ((long,) * 3, r"p{0.23\linewidth}" * 3),
    ):
        text = latex(TextTable("t", ("a", "b", "c"), ((row,),)))
        assert rf"\begin{{tabular}}{{{columns}}}" in text
    assert r"\begin{tabular}{ll}" in latex(TextTable("t", ("a", "b"), ()))


def test_only_the_numbers_of_a_column_of_numbers_are_aligned() -> None:
    rows = (("1.5 x", "-1,000.5", "1.5"), ("2.25", "–", "2"), ("3", "−7.125", "n/a, 3"))
    text = latex(TextTable("t", ("a", "b", "c"), (rows,)))
    assert r"\begin{tabular}{rrl}" in text, "a number may be followed by words"
    assert "\n".join([
        r"1.5 x & -1,000.5\phantom{00} & 1.5 \\",
        r"2.25 & -- & 2 \\",
        r"3\phantom{.00} & $-$7.125 & n/a, 3 \\",
    ]) in text  # fmt: skip
    words = latex(TextTable("t", ("c",), ((("1.5",), ("2",), ("x",)),)))
    assert "phantom" not in words
    same = latex(TextTable("t", ("b",), ((("1.5",), ("2.5",)),)))
    assert "phantom" not in same


def test_a_document_includes_short_tables_and_names_long_ones() -> None:
    one = marked()._replace(notes=("50 % of it",))
    rows = tuple((str(at), "1", "x") for at in range(60))
    tables = {
        "one": one, "most_rows": one._replace(groups=(rows,), notes=()),
        "too_many": one._replace(groups=(rows, rows[:1]), notes=("below",)),
    }  # fmt: skip
    lines = document(tables).splitlines()
    assert lines[0] == r"\documentclass{article}"
    begin, end = lines.index(r"\begin{document}"), lines.index(r"\end{document}")
    assert lines[begin + 1 : end] == [
        r"\input{one}", r"50 \% of it\par", "", r"\input{most_rows}", "",
        r"Times., 61 rows: too\_many.tex\par", r"below\par", "",
    ]  # fmt: skip
    assert end == len(lines) - 1
    for needed in ("booktabs", "float", "graphicx", "textcomp"):
        assert re.search(rf"usepackage{{.*{needed}.*}}", document({}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é ß", "é ß"), ("中", r"\texttt{U+4E2D}"),
        ("[x", "[x"), ("1e-05", r"$1\cdot10^{-5}$"), ("2.5e+10 s", r"$2.5\cdot10^{10}$ s"),
        ("1e-05 3e-07", r"$1\cdot10^{-5}$ $3\cdot10^{-7}$"),
    ],
)  # fmt: skip
def test_characters_without_a_glyph_are_code_points(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize("first", ["[", "*", "("])
def test_a_row_cannot_begin_with_an_option_of_the_row_before(first: str) -> None:
    text = latex(TextTable("t", ("a", "b"), (((f"{first}x", "1"), (f"x{first}", "2")),)))
    assert f"\n{{}}{first}x & 1 \\\\\n" in text
    assert f"\nx{first} & 2 \\\\\n" in text
