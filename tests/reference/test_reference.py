"""The engine's times are those of a simulator that was written from the documentation alone."""

import ast
import copy
from pathlib import Path
from typing import Any

import pytest

from tests.reference import laws, page
from tests.reference.cases import CATALOGUE, Cell, differences, engine, moebench, reference, wrong
from tests.reference.inputs import Trace, numbers

SHIPPED = CATALOGUE / "traces" / "qwen2-57b-a14b__arithmetic"
CELLS = [
    Cell("S3", "hf-eager", 1, "everything resident"),
    Cell("S3", "lean", 2, "on demand"),
    Cell("S3", "hf-eager", 2, "placed, misses on the host"),
    Cell("S3", "hf-eager", 1, "SMoE at α = 0, prefetching"),
    Cell("S3", "lean", 1, "SMoE at α = 0, LRU"),
    Cell("S3", "hf-eager", 1, "FlashMoE's slots, LRU"),
]
A6000 = numbers(CATALOGUE / "machines" / "a6000.yaml", CATALOGUE / "software" / "hf-eager.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_engine_agrees_with_the_reference(cell: Cell, tmp_path: Path) -> None:
    document = engine(cell, SHIPPED, 2, 6, tmp_path / "store")
    ours = reference(cell, Trace(SHIPPED), 2, 6, document["spec"]["slots"])
    assert wrong(differences(ours, document["metrics"])) == []
    # One load more, or a latency that is 0.01 % longer, is seen.
    ours["experts"]["decode"]["loads"] = ours["experts"]["decode"].get("loads", 0) + 1
    ours["tpot_ms"] *= 1.0001
    assert [line.split()[0] for line in wrong(differences(ours, document["metrics"]))] == [
        "TPOT", "decode",
    ]  # fmt: skip


def test_the_reference_reads_files_and_nothing_of_the_engine() -> None:
    for name in ("inputs", "cache", "lanes", "prices", "simulator"):
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
        named = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        named += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        assert not [one for one in named if one.partition(".")[0] == "moebench"]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = tmp_path_factory.mktemp("laws")
    return moebench(
        "--setting", "S3", "--trace", str(SHIPPED), "--prompts", "2", "--new-tokens", "6",
        "--system", "smoe", "--store", str(store),
    )  # fmt: skip


def test_a_document_obeys_the_laws_of_conservation(document: dict[str, Any]) -> None:
    assert laws.conserved(document, A6000) == []


@pytest.mark.parametrize(
    ("path", "factor", "law"),
    [
        ("tpot_ms.mean", 1.01, "TTFT and steps are the end-to-end time"),
        ("tokens_per_s", 1.01, "tokens/s counts all tokens over all time"),
        ("lanes.h2d", 50, "no lane is busier than the run"),
        ("bytes_h2d", 2, "no more than the link can carry"),
        ("experts.decode.hits", 1.2, "uses of decode are hits, loads, host and deferred"),
        ("energy_j", 1.01, "energy is the sum of its parts"),
        ("device_ms.launch_bound", 1.5, "the device's busy time has two parts"),
    ],
)
def test_a_document_that_breaks_a_law_is_refused(
    document: dict[str, Any], path: str, factor: float, law: str
) -> None:
    wrong_one = copy.deepcopy(document)
    *parts, last = path.split(".")
    owner = wrong_one["metrics"]
    for part in parts:
        owner = owner[part]
    owner[last] = type(owner[last])(owner[last] * factor)
    assert law in laws.conserved(wrong_one, A6000)


def timed(tpot: float, ttft: float) -> dict[str, Any]:
    return {"metrics": {"tpot_ms": {"mean": tpot}, "ttft_ms": {"mean": ttft}}}


def test_times_that_do_not_halve_or_become_longer_are_found() -> None:
    before = timed(10.0, 100.0)
    assert laws.not_halved("smoe", before, timed(5.0, 50.0)) == []
    assert laws.not_halved("smoe", before, timed(5.001, 50.0)) == ["TPOT +2.0e-04"]
    assert laws.not_halved("hybrimoe", before, timed(5.001, 50.0)) == []
    assert laws.not_halved("hybrimoe", before, timed(5.2, 50.0)) != []
    assert laws.slower(before, timed(9.0, 100.05)) == {}
    assert laws.slower(before, timed(10.1, 90.0)) == pytest.approx({"TPOT": 0.01})


@pytest.mark.slow
def test_a_machine_twice_as_fast_has_every_rate_twice(tmp_path: Path) -> None:
    factors = laws.twice_as_fast("a6000")
    assert (factors["link.pinned_h2d"], factors["software.layer"]) == (2, 0.5)
    assert not {"gpu.memory", "gpu.small_read_efficiency"} & factors.keys()
    path = laws.changed("a6000", factors, tmp_path / "twice.yaml")
    runs = [
        moebench("--setting", "S3", "--trace", str(SHIPPED), "--prompts", "1", "--new-tokens", "3",
                 "--system", "moe-ondemand", "--machine", machine, "--slots", "300",
                 "--store", str(tmp_path / "store"))
        for machine in (str(laws.changed("a6000", {}, tmp_path / "same.yaml")), str(path))
    ]  # fmt: skip
    assert laws.not_halved("moe-ondemand", *runs) == []


@pytest.mark.slow
@pytest.mark.parametrize("system", page.SHOWN)
def test_a_token_can_be_computed_by_hand(system: str, tmp_path: Path) -> None:
    cell = Cell("S3", "hf-eager", 1, system)
    document = engine(cell, page.TRACE, page.PROMPTS, page.NEW_TOKENS, tmp_path / "store")
    if system != "everything resident":
        assert document["spec"]["slots"] == page.SLOTS
    expected = document["metrics"]["tpot_ms"]["mean"]
    assert page.tpot_ms(system) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_page_shows_the_calculation() -> None:
    assert page.PAGE.read_text().endswith(page.tables())
