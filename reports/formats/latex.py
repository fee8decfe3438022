r"""Tables of text as LaTeX: a `table` with the rules of booktabs for each, to paste or `\input`.

The caption states what all rows have in common, and what the marks mean.  Special characters are
escaped, and characters without a glyph in pdfLaTeX are replaced by their code points, so that every
table compiles.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping

from moebench.reports.text import TextTable
from moebench.substrate.text import visible

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", '"': "''", "`": r"\textasciigrave{}",
    "–": "--", "—": "---", "−": "$-$", "…": r"\dots{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "μ": r"$\mu$", "λ": r"$\lambda$", "ρ": r"$\rho$",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≠": r"$\neq$", "≤": r"$\leq$",
    "≥": r"$\geq$", "→": r"$\to$", "²": r"$^2$", "³": r"$^3$", "⁻": r"$^-$", "⁴": r"$^4$",
    "°": r"$^\circ$", "“": "``", "”": "''", "’": "'", "§": r"\S{}",
}  # fmt: skip

#: A cell: its group, row and column.
Place = tuple[int, int, int]

#: A number with an exponent, as `format` writes very small and large ones.
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?!\w)")

#: Most rows of a table that the document includes.
LONG = 60

#: Cells of a column that are longer are paragraphs.
_WORDY = 44

#: Headers that are longer are broken between words.
_WIDE = 12

_AROUND = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}

#: Marks of lossy systems and of shared ranks; the second has no width, so that numbers align.
_LOSSY, _TIED = r"$^{\approx}$", r"\rlap{$^{=}$}"

_DECIMAL = re.compile(r"[-−]?\d[\d,]*(?:\.(\d+))?")


def latex(table: TextTable, name: str = "table") -> str:
    """Return a table: numbers aligned at the decimal point, best bold, second best underlined.

    Args:
        name: for its label, ``tab:NAME``.
    """
    padding = _padding(table)
    lines = [
        [_line([_cell(table, padding, (g, r, c)) for c in range(len(row))])
         for r, row in enumerate(group)]
        for g, group in enumerate(table.groups)
    ]  # fmt: skip
    groups = ["".join(group) for group in lines]
    wordy = [max((len(row[c]) for row in table.rows), default=0) > _WORDY
             for c in range(len(table.headers))]  # fmt: skip
    share = round(0.7 / max(sum(wordy), 1), 2)
    numbers = table.numbers or [False] * len(table.headers)
    columns = "".join(
        "r" if number else f"p{{{share}\\linewidth}}" if long else "l"
        for number, long in zip(numbers, wordy, strict=True)
    )
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_caption(table)}}}",
            f"\\label{{tab:{re.sub(r'[^0-9A-Za-z.-]+', '-', name)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            _heads(table.headers, numbers) + "\\midrule",
            "\\midrule\n".join(groups) + "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _cell(table: TextTable, padding: Mapping[tuple[int, int, int], str], at: Place) -> str:
    g, r, c = at
    text = _AROUND[table.marks.get(at, "")].format(escaped(table.groups[g][r][c]))
    text += padding.get(at, "")
    if c == 0 and (g, r) in table.lossy:
        text += _LOSSY
    return text + (_TIED if at in table.ties else "")


def _padding(table: TextTable) -> dict[Place, str]:
    """Return invisible digits after the numbers of columns whose numbers of digits differ."""
    found: dict[Place, str] = {}
    for c, number in enumerate(table.numbers):
        cells = {
            (g, r, c): match
            for g, group in enumerate(table.groups)
            for r, row in enumerate(group)
            if (match := _DECIMAL.fullmatch(row[c]))
        }
        digits = {at: len(match[1] or "") for at, match in cells.items()}
        most = max(digits.values(), default=0)
        for at, own in digits.items() if number and len({*digits.values()}) > 1 else ():
            if own < most:
                missing = "0" * (most - own)
                found[at] = rf"\phantom{{{missing if own else '.' + missing}}}"
    return found


def _caption(table: TextTable) -> str:
    """Return title, common conditions, and the meaning of the marks and headers that occur."""
    marks = {*table.marks.values()}
    legend = [
        *(f"{escaped(short)}: {escaped(label)}" for short, label in table.names.items()),
        *([f"{_LOSSY}: lossy"] if table.lossy else []),
        *(["bold: best"] if "best" in marks else []),
        *(["underlined: second best"] if "second" in marks else []),
        *(["$^{=}$: cannot be told from others of its rank"] if table.ties else []),
    ]
    sentences = [escaped(text.rstrip(".")) for text in (table.title, table.said) if text]
    return ". ".join([*sentences, *(["; ".join(legend)] if legend else [])]) + "."


def _heads(headers: Iterable[str], numbers: Iterable[bool]) -> str:
    """Return the lines of headers: labels, and under them units, if there are any."""
    labels, units = [], []
    for header, number in zip(headers, numbers, strict=True):
        label, found, unit = header.rpartition(" (") if header.endswith(")") else (header, "", "")
        labels.append(_stacked(label, "r" if number else "l"))
        units.append(escaped(unit.removesuffix(")")) if found else "")
    return _line(labels) + (_line(units) if any(units) else "")


def _stacked(label: str, side: str) -> str:
    """Return a header, broken between words if it is long."""
    lines = textwrap.wrap(label, _WIDE, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return escaped(label)
    return f"\\shortstack[{side}]{{" + r"\\".join(map(escaped, lines)) + "}"


def document(tables: Mapping[str, TextTable]) -> str:
    """Return a LaTeX document that includes all tables by file name.

    A table of more than `LONG` rows is only named.
    """
    parts = [
        (
            f"\\input{{{name}}}\n"
            if len(table.rows) <= LONG
            else f"{escaped(table.title)}, {len(table.rows)} rows: {escaped(name)}.tex\\par\n"
        )
        + "".join(f"{escaped(text)}\\par\n" for text in table.notes)
        for name, table in tables.items()
    ]
    return "\n".join(
        [
            "\\documentclass{article}",
            "\\usepackage[a4paper,margin=15mm]{geometry}",
            "\\usepackage{booktabs,float,graphicx,textcomp}",
            "\\floatplacement{table}{H}",  # at their places: LaTeX keeps only a few floats waiting
            # Shrink tables that are wider than the page.
            "\\newsavebox{\\tablebox}",
            "\\let\\plaintabular\\tabular\\let\\endplaintabular\\endtabular",
            "\\renewenvironment{tabular}[1]{\\begin{lrbox}{\\tablebox}\\plaintabular{#1}}"
            "{\\endplaintabular\\end{lrbox}\\ifdim\\wd\\tablebox>\\linewidth"
            "\\resizebox{\\linewidth}{!}{\\usebox{\\tablebox}}\\else\\usebox{\\tablebox}\\fi}",
            "\\begin{document}",
            *parts,
            "\\end{document}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Return text with all LaTeX commands escaped."""
    pieces = _POWER.split(visible(text))  # text, mantissa, exponent, text, ...
    found = [_plain(pieces[0])]
    for mantissa, exponent, after in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        found += [rf"${mantissa}\cdot10^{{{int(exponent)}}}$", _plain(after)]
    return "".join(found)


def _plain(text: str) -> str:
    return "".join(map(_character, text))


def _character(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if c.isascii():
        return c if c.isprintable() else " "
    return c if c in _ACCENTED else f"\\texttt{{U+{ord(c):04X}}}"


#: Letters with accents that pdfLaTeX's own fonts can build.
_ACCENTED = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿ")


def _line(cells: Iterable[str]) -> str:
    line = " & ".join(cells)
    # After the end of a row or a rule, these would be an option of it.
    return ("{}" if line.startswith(("[", "*", "(")) else "") + line + " \\\\\n"
