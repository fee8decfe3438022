"""The guard's JUnit XML and Markdown: structure, counts, figures, and names from anybody."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.guard.outputs import MOST, Outcome, junit, summary
from moebench.harness.guard.verdicts import Finding, Verdict
from moebench.substrate.machines.profile import MACHINES
from tests.harness.acting import acts
from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

#: Control characters, markup, what XML 1.0 does not admit, and other scripts.
HOSTILE = "a\x00\x1b[2J\nb]]><failure>&amp;\"'\ufffe\uffff\ud800 π日本🧮 | `` @team #1 <!-- --> \\|"
UPDATE = "moebench check --file mine.yaml --references accepted --update"


def cell(**figures: float | None) -> dict[str, Any]:
    accuracy = {"score": 50.0, "agreement": 0.962, "kl": 0.0213}
    latency = {"tpot_ms": 61.5, "ttft_ms": 912.0, "e2e_ms": None}
    for name, value in figures.items():
        (accuracy if name in accuracy else latency)[name] = value
    return {"accuracy": accuracy, "latency": latency}


def outcome(*findings: Finding, **cells: dict[str, Any]) -> Outcome:
    """Return an outcome whose accepted cells are all `cell()`."""
    known = dict.fromkeys(cells, cell())
    conditions = {name: {"system": "smoe", "machine": HOSTILE} for name in cells}
    return Outcome("mine", findings, conditions, cells, known, UPDATE, 1.25)


def both(name: str, answers: Verdict, latency: Verdict) -> tuple[Finding, Finding]:
    return (
        Finding(name, answers, "its answers"),
        Finding(f"{name}: latency", latency, "its latency", "latency"),
    )


# ----------------------------------------------------------------------------- JUnit

#: What Jenkins' schema (junit-10.xsd) admits: attributes, those of them that are needed, children.
SCHEMA = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
        {"name", "tests", "failures", "errors"}, {"properties", "testcase"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, {"name", "value"}, set()),
    "testcase": ({"name", "time", "classname"}, {"name"}, {"skipped", "failure", "system-out"}),
    "skipped": ({"type", "message"}, set(), set()),
    "failure": ({"type", "message"}, set(), set()),
    "system-out": (set(), set(), set()),
}  # fmt: skip


def problems(text: str) -> list[str]:
    """Return what readers of a JUnit file would refuse or misread in a text."""
    root = ET.fromstring(text)
    found = [] if root.tag == "testsuites" else [f"root {root.tag}"]
    for one in root.iter():
        allowed, needed, children = SCHEMA.get(one.tag, (set(), set(), set()))
        if one.tag not in SCHEMA or not needed <= {*one.keys()} <= allowed:
            found.append(f"{one.tag}: {sorted(one.keys())}")
        found += [f"{child.tag} in {one.tag}" for child in one if child.tag not in children]
    for part in (root, *root.iter("testsuite")):
        cases = list(part.iter("testcase"))
        for name, tag in (("tests", None), ("failures", "failure"), ("skipped", "skipped")):
            count = sum(tag is None or case.find(tag) is not None for case in cases)
            if int(part.get(name, count)) != count:
                found.append(f"{part.tag} counts {part.get(name)} {name}, has {count}")
    # GitLab ignores a second test case of the same class and name.
    keys = Counter((case.get("classname"), case.get("name")) for case in root.iter("testcase"))
    return found + [f"twice: {key}" for key, count in keys.items() if count > 1]


def test_every_verdict_becomes_a_test_case_with_the_guards_own_line() -> None:
    text = junit(outcome(
        *both("one", Verdict.PASS, Verdict.REGRESSED),
        *both("two", Verdict.IMPROVED, Verdict.NOT_MEASURED),
        Finding("qwen: model", Verdict.PASS, "logits", "model"), one=cell(), two=cell(),
    ))  # fmt: skip
    assert problems(text) == []
    root = ET.fromstring(text)
    assert root.attrib == {
        "name": "moebench check mine", "tests": "5", "failures": "2", "errors": "0",
        "time": "1.250",
    }  # fmt: skip
    assert [suite.get("name") for suite in root] == ["one", "two", "qwen"]
    found = {case.get("name"): case for case in root.iter("testcase")}
    assert {case.get("classname") for case in found.values()} == {
        "moebench.mine.answers", "moebench.mine.latency", "moebench.mine.model",
    }  # fmt: skip
    failure = found["one: latency"].find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "regressed: its latency", "type": "regressed"}
    assert failure.text == f"one: latency: regressed: its latency\naccept it: {UPDATE}"
    skipped = found["two: latency"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not measured: its latency"
    assert found["two"].find("failure") is not None, "the command fails for it, too"
    assert found["one"].findtext("system-out") == "pass: its answers"
    properties = {one.get("name"): one.get("value") for one in root[0].iter("property")}
    assert properties["system"] == "smoe"
    assert len(list(root[2].iter("property"))) == 0


def test_hostile_names_stay_text_in_junit() -> None:
    findings = [Finding(HOSTILE, verdict, HOSTILE) for verdict in Verdict]
    for one in findings:
        text = junit(outcome(one, **{HOSTILE: cell()})._replace(title=HOSTILE, update=HOSTILE))
        assert problems(text) == []
        assert acts(text) == []
        assert re.search("[\ufffe\uffff]", text) is None
        (case,) = ET.fromstring(text).iter("testcase")
        name = case.get("name", "")
        for part in (r"a\x00\x1b[2J\nb]]><failure>&amp;", r"\ufffe\uffff\ud800 π日本🧮"):
            assert part in name


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('tests="2"', 'tests="3"', "counts 3 tests"),
        ("<system-out", "<stdout", "stdout"),
        ('name="one: latency"', 'name="one"', "twice"),
        (' value="smoe"', "", "property: ['name']"),
    ],
)
def test_the_structure_check_refuses_other_files(before: str, after: str, said: str) -> None:
    passing = outcome(*both("one", Verdict.PASS, Verdict.PASS), one=cell())
    text = junit(passing).replace("latency\" classname=\"moebench.mine.latency", 'latency" '
                                  'classname="moebench.mine.answers')  # fmt: skip
    assert problems(text) == []
    damaged = text.replace(before, after).replace(
        before.replace("<", "</"), after.replace("<", "</")
    )
    assert damaged != text
    assert any(said in line for line in problems(damaged))


# ----------------------------------------------------------------------------- Markdown


def table(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table, read as GitHub does: a backslash keeps a bar."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    assert set(lines[1]) <= set("|-:")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in [lines[0], *lines[2:]]]
    assert {len(row) for row in rows} == {6}
    return [[one.strip().replace("\\|", "|") for one in row] for row in rows]


def test_nothing_moved_is_two_lines() -> None:
    text = summary(outcome(*both("one", Verdict.PASS, Verdict.PASS), one=cell(tpot_ms=61.6)))
    assert text == "### moebench check ` mine `: 2 pass\n\nNothing moved.\n"


def test_what_moved_is_shown_before_and_after_most_serious_first() -> None:
    text = summary(outcome(
        *both("good", Verdict.PASS, Verdict.IMPROVED),
        *both("bad", Verdict.REGRESSED, Verdict.PASS),
        Finding("bad: latency", Verdict.REGRESSED, "slower", "latency"),
        Finding("new", Verdict.NOT_MEASURED, "no reference"),
        good=cell(tpot_ms=61.5 / 2), bad=cell(agreement=0.481, e2e_ms=3.0, ttft_ms=912.0000001),
        new=cell(score=0.0),
    ))  # fmt: skip
    assert text.startswith(
        "### moebench check ` mine `: 2 regressed, 1 not measured, 1 improved, 2 pass\n"
    )
    assert table(text)[1:] == [
        ["regressed", "` bad `", "agreement (%)", "96.2", "48.1", "-50 %"],
        ["regressed", "` bad: latency `", "TTFT (ms)", "912.0", "912.0000001", "+1.1e-08 %"],
        ["regressed", "` bad: latency `", "end-to-end time (ms)", "none", "3", ""],
        ["not measured", "` new `", "` no reference `", "", "", ""],
        ["improved", "` good: latency `", "TPOT (ms)", "61.5", "30.75", "-50 %"],
    ]
    assert f"` {UPDATE} `" in text
    folded = text[text.index("<details>") :]
    assert "All 6 checks" in folded
    assert "good: pass: its answers" in folded


def test_hostile_names_stay_text_in_markdown() -> None:
    one = Finding(HOSTILE, Verdict.REGRESSED, f"{HOSTILE}\n```\n</details>")
    text = summary(outcome(one, **{HOSTILE: cell()})._replace(title=HOSTILE, update=HOSTILE))
    assert acts(text) == []
    (row,) = table(text)[1:]
    for code, longest in ((row[1], 2), (row[2], 3)):
        fence = "`" * (longest + 1)
        assert code.startswith(f"{fence} ")
        assert code.endswith(f" {fence}")
        assert fence not in code[len(fence) : -len(fence)]
    opened, body = re.split(r"\n(`+)text\n", text)[1:]
    inside, _, after = body.partition(f"\n{opened}\n")
    assert "</details>" in inside
    assert after == "\n</details>\n"


def test_a_comment_never_exceeds_githubs_limit() -> None:
    names = [f"{n} {'`' * 900}" for n in range(300)]
    text = summary(outcome(*(Finding(name, Verdict.REGRESSED, "x" * 5000) for name in names)))
    assert len(text) <= MOST + 5_000 < 65_536
    left = re.search(r"(\d+) more rows", text)
    assert left is not None
    assert len(table(text)) - 1 + int(left[1]) == 300


# ----------------------------------------------------------------------------- the command

GUARD = ("check", "--file", "mine.yaml", "--references", "accepted", "--jobs", "0")
FILES = ("--junit", "out/junit.xml", "--markdown", "out/moved.md")


@pytest.fixture
def guard(here: Path) -> Path:
    """Write a guard of one cell without computation, and the profile that it names."""
    common = {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 3,
              "routing": "drawn", "machine": "desk.yaml", "system": "moe-ondemand"}  # fmt: skip
    (here / "mine.yaml").write_text(json.dumps({"common": common}))
    (here / "desk.yaml").write_text((MACHINES / "a6000.yaml").read_text())
    return here


def test_the_command_writes_both_files_with_unchanged_exit_codes(guard: Path) -> None:
    new = call(*GUARD, *FILES)
    assert new.code == 3
    text = Path("out/junit.xml").read_text()
    assert problems(text) == []
    assert "not measured: no reference; moebench check --file mine.yaml" in text
    assert call(*GUARD, "--update").code == 0
    same = call(*GUARD, *FILES, "--json")
    assert (same.code, same.json["verdict"]) == (0, "pass")
    assert "Nothing moved." in Path("out/moved.md").read_text()

    text = (guard / "desk.yaml").read_text()
    link = "pinned_h2d:\n    {value: 26, unit: GB/s, range: [26, 27.5]"
    assert link in text
    (guard / "desk.yaml").write_text(text.replace(link, link.replace("26", "13")))
    slower = call(*GUARD, *FILES, "--json")
    assert slower.code == 1
    rows = table(Path("out/moved.md").read_text())[1:]
    assert {row[0] for row in rows} == {"regressed"}
    assert "TPOT (ms)" in {row[2] for row in rows}
    text = Path("out/junit.xml").read_text()
    assert problems(text) == []
    root = ET.fromstring(text)
    properties = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert (properties["system"], properties["new_tokens"]) == ("moe-ondemand", "3")
    assert (
        properties["profile_hash"]
        != json.loads(Path("accepted/mine.json").read_text())[root[0].get("name")]["latency"][
            "profile_hash"
        ]
    )
    assert sorted(path.name for path in Path("out").iterdir()) == ["junit.xml", "moved.md"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--junit", "accepted"), "--junit accepted: this is a folder; give a file in it"),
        (("--markdown", "mine.yaml/x.md"), "mine.yaml is not a folder; give another place"),
        (("--junit", "a", "--markdown", "a"), "--markdown a: this file has another use"),
        (("--markdown", "mine.yaml"), "--markdown mine.yaml: this file has another use"),
        (("--junit", "accepted/mine.json"), "mine.json: this file has another use"),
        (("--junit", "a", "--update"), "--update judges nothing: leave out --junit"),
    ],
)
def test_invalid_files_are_refused_before_the_cells_run(
    guard: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moebench.harness.guard import check

    monkeypatch.setattr(check, "measure", lambda *_: pytest.fail("the cells ran"))
    Path("accepted").mkdir()
    assert said in refused(*GUARD, *options)
    assert list(Path("accepted").iterdir()) == []
