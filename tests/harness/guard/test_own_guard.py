"""User-defined guards: file, references, exact latencies, and the commands of the CI examples."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.guard import check
from moebench.harness.guard.latency import compare_latencies
from moebench.harness.guard.verdicts import Verdict
from moebench.substrate.machines.profile import MACHINES
from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

DOCUMENT = Path(__file__).parents[3] / "docs" / "guard.md"

PLAN = {
    "common": {"setting": "S3", "workload": "arithmetic", "prompts": 2, "new_tokens": 4},
    "product": {"system": ["smoe", "moe-ondemand"], "machine": ["desk.yaml"]},
}
GUARD = ("check", "--file", "mine.yaml", "--references", "accepted", "--jobs", "0")


@pytest.fixture
def desk(here: Path) -> Path:
    """Write a plan, and the machine profile that it names."""
    (here / "mine.yaml").write_text(json.dumps(PLAN))
    file = here / "desk.yaml"
    file.write_text((MACHINES / "a6000.yaml").read_text())
    return file


def verdicts(called: Any) -> dict[str, str]:
    return {row["cell"]: row["verdict"] for row in called.json["cells"]}


@pytest.mark.slow
def test_nothing_moves_then_a_slower_link_is_a_regression_of_latency_alone(desk: Path) -> None:
    assert call(*GUARD).code == 3, "there is no reference yet"
    accepted = call(*GUARD, "--update")
    assert accepted.code == 0
    assert "2 references written" in accepted.err
    assert [path.name for path in Path("accepted").iterdir()] == ["mine.json"]
    same = call(*GUARD, "--json")
    assert same.code == 0
    cells = same.json["cells"]
    assert {row["reason"] for row in cells} == {"equal to the last bit"}
    assert len(cells) == 4, "answers and latencies of two cells"

    text = desk.read_text()
    link = "pinned_h2d:\n    {value: 26, unit: GB/s, range: [26, 27.5]"
    assert link in text
    desk.write_text(text.replace(link, link.replace("value: 26,", "value: 26.0001,")))
    faster = call(*GUARD, "--json")
    found = verdicts(faster)
    assert faster.code == 4
    assert {found[cell] for cell in found if cell.endswith(": latency")} == {"improved"}
    assert {found[cell] for cell in found if not cell.endswith(": latency")} == {"pass"}
    assert all("profile" in row["reason"] for row in faster.json["cells"] if "ms" in row["reason"])

    desk.write_text(text.replace(link, link.replace("26", "25.9999")))
    slower = call(*GUARD, "--json")
    assert slower.code == 1
    assert {v for cell, v in verdicts(slower).items() if cell.endswith(": latency")} == {
        "regressed"
    }
    assert "latency: tpot_ms" in call(*GUARD, "--update").err
    assert call(*GUARD).code == 0


def cell(arithmetic: str = "a", **figures: float | None) -> dict[str, Any]:
    means = {"tpot_ms": 10.0, "ttft_ms": 100.0, "e2e_ms": 1000.0, "profile_hash": "p"}
    return {"latency": means | figures, "arithmetic": arithmetic, "data_hash": "d"}


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (cell(), Verdict.PASS),
        (cell(tpot_ms=10.000000001), Verdict.REGRESSED),
        (cell(tpot_ms=9.999999999), Verdict.IMPROVED),
        (cell(tpot_ms=9.0, ttft_ms=100.000001), Verdict.REGRESSED),
        (cell(ttft_ms=None), Verdict.REGRESSED),
        (cell("b"), Verdict.PASS),
        (cell("b", tpot_ms=10.000000001), Verdict.NOT_MEASURED),
    ],
)
def test_latencies_are_judged_exactly_where_sums_round_alike(
    now: dict[str, Any], verdict: Verdict
) -> None:
    (found,) = compare_latencies({"x": now}, {"x": cell()})
    assert (found.cell, found.verdict) == ("x: latency", verdict)


def test_a_latency_on_other_arithmetic_is_judged_by_its_twin() -> None:
    twin = cell("none") | {"subject": {"system": "mine"}}
    moved = cell("b", tpot_ms=10.2) | {"subject": {"system": "mine"}}
    stranger = cell("b", tpot_ms=10.2) | {"subject": {"system": "another"}}
    now = {"computed": moved, "stranger": stranger, "replayed": twin}
    references = dict.fromkeys(now, cell()) | {"replayed": cell("none")}
    found = {one.cell: one for one in compare_latencies(now, references)}
    assert found["computed: latency"].verdict is Verdict.PASS
    assert found["computed: latency"].reason.endswith("judged by replayed")
    assert found["stranger: latency"].verdict is Verdict.NOT_MEASURED
    now["replayed"] = cell("none", tpot_ms=9.7) | {"subject": {"system": "mine"}}
    assert compare_latencies(now, references)[-1].verdict is Verdict.IMPROVED


def test_latencies_without_a_reference_are_not_judged() -> None:
    measured = cell() | {"latency": None}
    older = {key: value for key, value in cell().items() if key != "latency"}
    other_questions = cell() | {"data_hash": "e"}
    for reference in ({}, {"x": older}, {"x": measured}, {"x": other_questions}):
        assert compare_latencies({"x": cell()}, reference) == []
    assert compare_latencies({"x": measured}, {"x": cell()}) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--file", "mine.yaml"), "go together"),
        (("--references", "accepted"), "go together"),
        (("--file", "nope.yaml", "--references", "accepted"), "nope.yaml: no such file"),
        (("--file", "bad.yaml", "--references", "accepted"), "bad.yaml: unknown sweep key"),
        (("--file", "mine.yaml", "--references", "desk.yaml", "--update"), "is not a folder"),
        (("--data-dir", "."), "--file"),
    ],
)
def test_invalid_guard_options_are_refused_in_one_line(
    desk: Path, arguments: tuple[str, ...], said: str
) -> None:
    Path("bad.yaml").write_text("cells: []")
    before = sorted(path.name for path in desk.parent.iterdir())
    assert said in refused("check", *arguments)
    assert sorted(path.name for path in desk.parent.iterdir()) == before


@pytest.mark.slow
def test_a_guard_of_ones_own_holds_the_scale_models_too(desk: Path, shipped_models: None) -> None:
    assert call(*GUARD, "--update").code == 0
    (model,) = (row for row in call(*GUARD, "--json").json["cells"] if "model" in row["cell"])
    assert (model["cell"], model["verdict"]) == ("qwen2-57b-a14b: model", "pass")
    assert "logits differ from the golden ones" in model["reason"]


def test_references_are_never_in_the_package(desk: Path) -> None:
    from moebench.harness.guard.check import REFERENCES

    line = refused("check", "--file", "mine.yaml", "--references", REFERENCES.parent)
    assert "give a folder of your own" in line


def test_a_broken_reference_names_the_command_that_makes_it_again(desk: Path) -> None:
    Path("accepted").mkdir()
    Path("accepted/mine.json").write_text('{"x": {}}')
    line = refused(*GUARD)
    assert "make it again: moebench check --file mine.yaml --references accepted --update" in line


# ----------------------------------------------------------------------------- the document


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_ci_examples_do_what_the_document_says(here: Path) -> None:
    plan, _, gitlab = blocks("yaml")
    (here / "my-check.yaml").write_text(plan)
    job = yaml.safe_load(gitlab)["moebench"]
    assert all(line.startswith("pip install ") for line in job["before_script"])
    (check,) = job["script"]
    shown, files = blocks("bash")
    update, again = (shlex.split(text, comments=True)[1:] for text in shown.splitlines())
    assert check == files.strip()
    words = [*shlex.split(check)[1:], "--json"]
    assert words[: len(again)] == again
    assert call(*words, "--jobs", "0").code == 3
    assert call(*update, "--jobs", "0").code == 0
    done = call(*words, "--jobs", "0")
    assert done.code == 0
    assert set(verdicts(done).values()) == {"pass"}
    assert (here / "references" / "my-check.json").exists()
    assert {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]} == {
        path.name for path in here.iterdir() if path.suffix in (".md", ".xml")
    }


def test_the_github_example_gives_the_action_inputs_that_it_has() -> None:
    """`tests/moebench/test_action.py` runs the action's scripts."""
    _, github, _ = blocks("yaml")
    action = ".github/actions/moebench-check"
    inputs = yaml.safe_load((DOCUMENT.parents[1] / action / "action.yml").read_text())["inputs"]
    workflow = yaml.safe_load(github)
    *_, step = workflow["jobs"]["check"]["steps"]
    assert re.fullmatch(rf"OWNER/moebench/{re.escape(action)}@main", step["uses"])
    assert step["with"].keys() <= inputs.keys()
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    described = re.findall(r"^\| `([\w-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert described == [*inputs]


def test_a_guard_of_nothing_that_can_be_compared_is_refused(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measured latency varies and a replay has no answers: such a guard would always pass."""
    true = check.measure

    def nothing(jobs: int, guarded: Any) -> dict[str, dict[str, Any]]:
        return {name: cell | {"latency": None} for name, cell in true(jobs, guarded).items()}

    (desk.parent / "mine.yaml").write_text(
        json.dumps({**PLAN, "common": {"setting": "S3", "prompts": 1, "new_tokens": 2,
                                       "routing": "drawn"}})
    )  # fmt: skip
    assert call(*GUARD, "--update").code == 0
    assert call(*GUARD).code == 0, "their simulated latencies are compared"
    monkeypatch.setattr(check, "measure", nothing)
    called = call(*GUARD)
    assert called.code == 2
    assert "mine: no cell has anything to compare" in called.err
