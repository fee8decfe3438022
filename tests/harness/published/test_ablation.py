"""What is left of a prediction without a component, a rule or a field."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.published import ablation
from moebench.harness.published.case import Case, case_of
from moebench.harness.published.constants import COMPONENTS, Fitted, Values, fold
from moebench.harness.published.prediction import Phase
from moebench.harness.published.rows import Row
from tests.harness.published.made import SAID, write

#: A value of its own for each constant.
VALUES = {name: float(n) for n, name in enumerate(COMPONENTS, 2)}

#: What each component's absence makes of the constants: a factor, or a value.
MUCH = {"core AVX2", "core AVX-512", "attention reads", "python attention reads", "latent reads",
        "host attention", "cache hits", "static hits", "rows llama.cpp", "rows AMX",
        "rows llama.cpp repacked", "rows ik_llama.cpp", "rows ktransformers"}  # fmt: skip
NOTHING = {"handoff us", "cached layer us", "launch ggml", "launch python"}
SET = {
    "server reads": 1 / 0.62, "desktop reads": 1.25, "measured reads": 1, "bound sockets": 2,
    "unbound sockets": 2, "sockets products": 1, "codebook formats": 1, "few bits": 1,
    "fp4 formats": 1, "repacked": 1, "virtual handoff": 1, "device products": 1,
    "other products": 1, "unpacking rows": 1, "unpinned copies": 1, "alike": 1e-6,
}  # fmt: skip


def test_a_component_that_is_taken_away_costs_nothing() -> None:
    """Each constant of `MUCH`, `NOTHING` and `SET` is taken away by one component, alone."""
    changed = dict[str, float]()
    for without in ablation.COMPONENTS_WITHOUT.values():
        found = without(VALUES)
        assert list(found) == list(VALUES)
        mine = {name: value for name, value in found.items() if value != VALUES[name]}
        assert mine
        assert not mine.keys() & changed.keys()
        changed |= mine
    assert changed == pytest.approx(
        {name: 1e4 * VALUES[name] for name in MUCH}
        | {name: 1e-6 * VALUES[name] for name in NOTHING}
        | SET
    )


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("sockets", {"bound sockets", "unbound sockets", "sockets products"}),
        ("threads and arithmetic of one row", {"core AVX2", "core AVX-512"}),
        ("hits of caches", {"cache hits", "static hits"}),
        ("share of the nominal bandwidth", {"server reads", "desktop reads", "measured reads"}),
    ],
)
def test_constants_of_a_component(name: str, constants: set[str]) -> None:
    found = ablation.COMPONENTS_WITHOUT[name](VALUES)
    assert {key for key, value in found.items() if value != VALUES[key]} == constants


def test_rules_that_are_taken_away() -> None:
    swept = case_of(Row(**SAID | {"notes": "sweep", "prompt_tokens": 4096}))
    one_batch = ablation.RULES_WITHOUT["micro-batches"](
        case_of(Row(**SAID | {"prompt_tokens": 4096}))
    )
    assert one_batch.micro_batch == 4096
    empty = ablation.RULES_WITHOUT["llama-sweep-bench's convention"]
    assert empty(swept).lengths == (4160, 4096, 0, 0)
    assert empty(case_of(Row(**SAID))).lengths == (576, 512, 0, 0)


def milliseconds(case: Case, values: Values, phase: Phase) -> float:
    """Return a number that differs with each constant, and with what rules and fields change."""
    of_values = sum(n * value for n, value in enumerate(values.values(), 1))
    return of_values + case.micro_batch + 1e4 * case.bits.routed + 1e5 * (phase == "decode")


class InTurn:
    """An executor that does all in this process."""

    def __enter__(self) -> "InTurn":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, one: Callable[[Any], Any], of: Iterable[Any], chunksize: int) -> Iterator[Any]:
        return map(one, of)


ROWS = [
    Row(**SAID | {"id": "one", "abs_class": "strict"}),
    Row(**SAID | {"id": "two", "abs_class": "strict", "threads": None, "cpu": "Ryzen 9 9950X"}),
    Row(**SAID | {"id": "weak", "threads": None}),
    Row(**SAID | {"id": "no", "abs_class": "strict", "system": "an engine"}),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Fit only the first row's machine, whose hand-over is then ten times as long."""
    slow = dict(COMPONENTS) | {"handoff us": 800.0}
    found = Fitted(COMPONENTS, {fold(ROWS[0]): slow}, {"decode": 0.2, "prefill": 0.4})
    monkeypatch.setattr(ablation, "fitted", lambda: found)
    monkeypatch.setattr(ablation, "ProcessPoolExecutor", InTurn)
    monkeypatch.setattr(ablation, "milliseconds", milliseconds)
    monkeypatch.setattr(
        ablation, "summary",
        lambda rows, found: {"rows": [row.id for row in rows], "found": found},
    )  # fmt: skip
    return slow


def test_the_table_has_all_that_is_taken_away(made: dict[str, float]) -> None:
    found = list(ablation.table(ROWS))
    assert [(kind, name) for kind, name, _ in found] == [
        ("all", "with all"),
        *(("component", name) for name in ablation.COMPONENTS_WITHOUT),
        *(("rule", name) for name in ablation.RULES_WITHOUT),
        *((kind, name) for name in ablation.FIELDS for kind in ("with field", "without field")),
    ]
    scores = {(kind, name): one for kind, name, one in found}
    first = case_of(ROWS[0])

    def rates(kind: str, name: str) -> list[float | None]:
        return [one.predicted for one in scores[kind, name]["found"]]

    def of(case: Case, values: Values) -> list[float]:
        """128 decoded tokens are one each; a prompt has 512."""
        return [1e3 / milliseconds(case, values, "decode"),
                512e3 / milliseconds(case, values, "prefill")]  # fmt: skip

    everything = scores["all", "with all"]
    assert everything["rows"] == ["one", "two", "weak", "no"]
    assert [(one.id, one.phase, one.measured) for one in everything["found"]] == [
        (row.id, phase, rate) for row in ROWS for phase, rate in (("decode", 20), ("prefill", 300))
    ]
    assert rates("all", "with all") == [
        *of(first, made), *of(case_of(ROWS[1]), COMPONENTS), *of(first, made), None, None,
    ]  # fmt: skip
    assert everything["found"][-1].reason == "no rules of the engine 'an engine'"
    launches = {**made, "launch ggml": made["launch ggml"] * 1e-6,
                "launch python": made["launch python"] * 1e-6}  # fmt: skip
    assert rates("component", "launches")[:2] == of(first, launches)
    one_batch = ablation.RULES_WITHOUT["micro-batches"](first)
    assert rates("rule", "micro-batches")[:2] == of(one_batch, made)
    # Rows that say their threads, of those that count for absolute scores.
    assert scores["with field", "threads"]["rows"] == ["one", "no"]
    assert rates("with field", "threads")[:2] == of(first, made)
    silent = case_of(ROWS[0].model_copy(update={"bits_per_weight": None, "quant": ""}))
    assert rates("without field", "format")[:2] == of(silent, made)
    assert scores["without field", "format"]["rows"] == ["one", "two", "no"]


def test_the_printed_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scores = {"absolute_rows": 3, "prefill_absolute_rows": 2, "median_error": 0.12345,
              "p90_ratio": None, "prefill_median_error": 1, "prefill_p90_ratio": 2,
              "pairs_in_order": 3, "slopes_within_30": 4}  # fmt: skip
    asked = []

    def table(rows: list[Row]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        asked.append([row.id for row in rows])
        yield "all", "with all", scores

    monkeypatch.setattr(ablation, "table", table)
    ablation.main([str(write(tmp_path / "rows.csv", {"id": "mine"}))])
    assert capsys.readouterr().err.splitlines() == [
        "| | | figures | median_error | p90_ratio | prefill_median_error | prefill_p90_ratio | "
        "pairs_in_order | slopes_within_30 |",
        "|---" * 9 + "|",
        "| all | with all | 3, 2 | 0.123 | – | 1 | 2 | 3 | 4 |",
    ]
    ablation.main([])
    assert asked[0] == ["mine"]
    assert len(asked[1]) > 100
