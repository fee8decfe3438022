"""The guard's verdicts as files for CI: JUnit XML for test reports, Markdown for a pull request."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.arguments import require_file
from moebench.harness.guard import latency, verdicts
from moebench.harness.guard.verdicts import Finding, Verdict
from moebench.results.metrics import metric_of
from moebench.substrate.errors import UsageError
from moebench.substrate.files import write_text
from moebench.substrate.text import visible

Cells = Mapping[str, Mapping[str, Any]]


class Outcome(NamedTuple):
    """What one guard found.

    Attributes:
        title: name of the guard: of its file of references.
        conditions: what was run, by the cell's name: each option and hash of an input as text.
        now, known: the cells as measured now and as accepted, by name.
        update: the command that accepts the cells of now.
        seconds: duration of the check.
    """

    title: str
    findings: Sequence[Finding]
    conditions: Mapping[str, Mapping[str, str]]
    now: Cells
    known: Cells
    update: str
    seconds: float


class Files(NamedTuple):
    """The files for CI that the verdicts are written to, by their option; None writes none."""

    junit: Path | None = None
    markdown: Path | None = None

    def require(self, inputs: Collection[Path]) -> None:
        """Refuse files that cannot be written, or that are one file or one that is read.

        Raises UsageError, InputError: names the option and the file.
        """
        taken = {path.resolve() for path in inputs}
        for name, path in self._asdict().items():
            if path is None:
                continue
            require_file(f"--{name}", path)
            if path.resolve() in taken:
                raise UsageError(f"--{name} {path}: this file has another use; give another name")
            taken.add(path.resolve())

    def write(self, outcome: Outcome) -> None:
        """Write the verdicts."""
        for path, text in ((self.junit, junit), (self.markdown, summary)):
            if path is not None:
                write_text(path, text(outcome))


# ----------------------------------------------------------------------------- JUnit


def junit(outcome: Outcome) -> str:
    """Return the verdicts as JUnit XML: a suite for each cell, a test case for each of its checks.

    A verdict that fails the command is a failure, and one without a comparison is skipped.
    Conditions are the properties of the suite, as older readers know no properties of a test case.
    """
    by_name: dict[str, list[Finding]] = {}
    for one in outcome.findings:
        by_name.setdefault(one.name, []).append(one)
    root = _element("testsuites", name=f"moebench check {outcome.title}")
    for name, findings in by_name.items():
        suite = ET.SubElement(root, "testsuite", _attributes(name=name, **_counts(findings)))
        suite.set("skipped", str(_count(findings, Verdict.NOT_MEASURED)))
        properties = ET.SubElement(suite, "properties")
        for key, value in outcome.conditions.get(name, {}).items():
            ET.SubElement(properties, "property", _attributes(name=key, value=value))
        for one in findings:
            suite.append(_case(one, outcome))
    root.attrib |= _counts(outcome.findings) | {"time": f"{outcome.seconds:.3f}"}
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(one: Finding, outcome: Outcome) -> ET.Element:
    """Return a test case: GitLab shows its class as the suite, and only the text of a failure."""
    case = _element("testcase", name=one.cell, classname=f"moebench.{outcome.title}.{one.check}")
    said = f"{one.verdict}: {one.reason}"
    if one.verdict is Verdict.NOT_MEASURED:
        ET.SubElement(case, "skipped", _attributes(message=said))
    elif one.verdict is not Verdict.PASS:
        failure = ET.SubElement(case, "failure", _attributes(message=said, type=one.verdict))
        failure.text = f"{_xml(one.cell)}: {_xml(said)}\naccept it: {_xml(outcome.update)}"
    else:
        ET.SubElement(case, "system-out").text = _xml(said)
    return case


def _counts(findings: Sequence[Finding]) -> dict[str, str]:
    failures = _count(findings, Verdict.REGRESSED) + _count(findings, Verdict.IMPROVED)
    return {"tests": str(len(findings)), "failures": str(failures), "errors": "0"}


def _count(findings: Sequence[Finding], verdict: Verdict) -> int:
    return sum(one.verdict is verdict for one in findings)


def _element(tag: str, **attributes: str) -> ET.Element:
    return ET.Element(tag, _attributes(**attributes))


def _attributes(**attributes: str) -> dict[str, str]:
    return {name: _xml(value) for name, value in attributes.items()}


def _xml(text: str) -> str:
    """Return a text of characters that XML 1.0 admits; ElementTree escapes markup alone."""
    return re.sub("[\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", visible(text))


# ----------------------------------------------------------------------------- Markdown

#: Characters of the Markdown: GitHub refuses a comment of more than 65,536.
MOST = 60_000
#: Characters of a name or reason in the table, and of a line below it.
LONGEST, LONGEST_LINE = 300, 2_000

_FIGURES = {"answers": verdicts.FIGURES, "latency": latency.FIGURES, "model": ()}
_HEAD = "| verdict | cell | figure | before | after | change |\n|---|---|---|--:|--:|--:|\n"


def summary(outcome: Outcome) -> str:
    """Return the verdicts as Markdown: a table of what moved, and all reasons, folded.

    Names may come from anybody: they are shown as code, in which a mention, a link or HTML is text.
    """
    ordered = sorted(outcome.findings, key=lambda one: -list(Verdict).index(one.verdict))
    counts = Counter(one.verdict for one in ordered)
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    head = f"### moebench check {_code(outcome.title)}: {found}\n\n"
    moved = [one for one in ordered if one.verdict is not Verdict.PASS]
    if not moved:
        return f"{head}Nothing moved.\n"
    rows = [row for one in moved for row in _rows(one, outcome)]
    table = _fitting(rows, MOST // 2, "\n{} more rows: see the JUnit file.\n")
    lines = [
        _shortened(f"{one.cell}: {one.verdict}: {one.reason}", LONGEST_LINE) + "\n"
        for one in ordered
    ]
    reasons = _fitting(lines, MOST // 3, "... {} more\n")
    fence = _fence(reasons, 3)
    return (
        f"{head}{_HEAD}{table}\nTo accept what is measured now: {_code(outcome.update)}\n\n"
        f"<details><summary>All {len(ordered)} checks</summary>\n\n"
        f"{fence}text\n{reasons}{fence}\n\n</details>\n"
    )


def _rows(one: Finding, outcome: Outcome) -> Iterator[str]:
    """Yield a table row for each figure of a check that differs, or one with the reason."""
    old, new = (_values(one, cells) for cells in (outcome.known, outcome.now))
    differing = [key for key in old if old[key] != new[key]]
    for key in differing:
        yield _row(one, key, old[key], new[key])
    if not differing:
        yield f"| {one.verdict} | {_code(one.cell)} | {_code(one.reason)} | | | |\n"


def _values(one: Finding, cells: Cells) -> dict[str, float | None]:
    """Return the figures of a cell that a check compared; none if it could not be compared."""
    if one.verdict is Verdict.NOT_MEASURED or one.name not in cells:
        return {}
    part = cells[one.name]["accuracy" if one.check == "answers" else one.check]
    return {key: part[key] for key in _FIGURES[one.check]}


def _row(one: Finding, key: str, old: float | None, new: float | None) -> str:
    metric = metric_of(key)
    before, after = (None if value is None else value * metric.factor for value in (old, new))
    texts = ["none" if value is None else f"{value:.6g}" for value in (before, after)]
    if before is not None and after is not None and texts[0] == texts[1]:
        texts = [repr(before), repr(after)]
    share = "" if not old or new is None else f"{100 * (new - old) / abs(old):+.3g} %"
    cells = [one.verdict, _code(one.cell), metric.header, *texts, share]
    return f"| {' | '.join(cells)} |\n"


def _fitting(lines: Sequence[str], room: int, more: str) -> str:
    """Return the first lines that fit, and how many do not."""
    kept: list[str] = []
    for line in lines:
        room -= len(line)
        if room < 0:
            return "".join(kept) + more.format(len(lines) - len(kept))
        kept.append(line)
    return "".join(kept)


def _code(text: str) -> str:
    """Return a text as code in a table's cell, shortened to `LONGEST` characters."""
    plain = _shortened(text, LONGEST)
    fence = _fence(plain, 1)
    # A bar ends a cell even in code; the table's parser removes the backslash.
    return f"{fence} {plain} {fence}".replace("|", "\\|")


def _shortened(text: str, most: int) -> str:
    plain = visible(text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _fence(text: str, shortest: int) -> str:
    """Return more backticks than the text has in a row."""
    runs = [len(run) for run in re.findall("`+", text)]
    return "`" * max([shortest, *(run + 1 for run in runs)])
