r"""Tables of text as LaTeX: a `tabular` with the rules of booktabs for each, for `\input`.

Special characters are escaped, and characters without a glyph in pdfLaTeX are replaced by their
code points, so that every table compiles.
"""

import re
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

#: A number with an exponent, as `format` writes very small and large ones.
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?!\w)")

#: Most rows of a table that the document includes.
LONG = 60

_AROUND = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}


def latex(table: TextTable) -> str:
    """Return a table's `tabular`: numbers right-aligned, best bold, second best underlined."""
    groups = [
        "".join(
            _line(
                [
                    _AROUND[table.marks.get((g, r, c), "")].format(escaped(text))
                    for c, text in enumerate(row)
                ]
            )
            for r, row in enumerate(group)
        )
        for g, group in enumerate(table.groups)
    ]
    columns = "".join("r" if number else "l" for number in table.numbers)
    said = "".join(f"% {visible(line)}\n" for line in (table.title, table.said) if line)
    top = f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{_line(map(escaped, table.headers))}"
    body = "\\midrule\n".join(groups)
    return f"{said}{top}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"


def document(tables: Mapping[str, TextTable]) -> str:
    """Return a LaTeX document that includes all tables by file name.

    A table of more than `LONG` rows is only named.
    """
    parts = [
        f"\\section*{{{escaped(table.title)}}}\n"
        + "".join(f"{escaped(text)}\\par\n" for text in (table.said, *table.notes) if text)
        + (
            f"\\medskip\\noindent\\fitted{{\\input{{{name}}}}}\n"
            if len(table.rows) <= LONG
            else f"{len(table.rows)} rows: {escaped(name)}.tex\n"
        )
        for name, table in tables.items()
    ]
    return "\n".join(
        [
            "\\documentclass{article}",
            "\\usepackage[a4paper,margin=15mm]{geometry}",
            "\\usepackage{booktabs,graphicx,textcomp}",
            # Shrink tables that are wider than the page.
            "\\newsavebox{\\tablebox}",
            "\\newcommand{\\fitted}[1]{\\sbox{\\tablebox}{#1}\\ifdim\\wd\\tablebox>\\linewidth"
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
    return " & ".join(cells) + " \\\\\n"
