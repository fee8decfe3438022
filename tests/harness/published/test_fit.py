"""The fit of constants: it finds values that made the rates, and leaves others where they were."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.published import coverage, fit, kinds
from moebench.harness.published.constants import (
    COMPONENTS,
    CONSTANTS,
    Fitted,
    fitted,
    fold,
    values_for,
)
from moebench.harness.published.predict import predict_row
from moebench.harness.published.prediction import Phase
from moebench.harness.published.rows import Row
from moebench.substrate.errors import InputError
from tests.harness.published.test_predict import COMPONENT, SAID, rate

NAMES = [constant.name for constant in CONSTANTS]


def problem(residuals, slopes, folds) -> fit.Problem:
    at = np.log([constant.value for constant in CONSTANTS])
    matrix = np.zeros((len(residuals), len(NAMES)))
    for name, column in slopes.items():
        matrix[:, NAMES.index(name)] = column
    return fit.Problem(at, np.array(residuals), matrix, np.full(len(residuals), 50.0), folds)


def test_a_common_error_moves_the_constant_that_explains_it() -> None:
    """All rates are 20 % too high, and follow the desktop's bandwidth one to one."""
    made = problem([0.2] * 12, {"desktop reads": [1.0] * 12}, ("a",) * 12)
    found = dict(zip(NAMES, fit.solve(made, np.ones(12, bool)), strict=True))
    assert found["desktop reads"] == pytest.approx(-0.2, abs=0.02)
    others = {name: value for name, value in found.items() if name != "desktop reads"}
    assert others == pytest.approx({name: math.log(COMPONENTS[name]) for name in others}, abs=1e-6)


def test_no_constant_leaves_its_range() -> None:
    made = problem([3.0] * 30, {"desktop reads": [1.0] * 30}, ("a",) * 30)
    found = dict(zip(NAMES, fit.solve(made, np.ones(30, bool)), strict=True))
    assert found["desktop reads"] == pytest.approx(-math.log(1.3), abs=1e-3)


def test_figures_left_out_move_nothing() -> None:
    made = problem([0.2] * 6 + [-0.2] * 6, {"desktop reads": [1.0] * 12}, ("a",) * 6 + ("b",) * 6)
    without = fit.solve(made, np.array([name != "b" for name in made.folds]))
    assert dict(zip(NAMES, without, strict=True))["desktop reads"] == pytest.approx(-0.2, abs=0.02)


def test_intervals_cover_four_fifths() -> None:
    errors = [0.1 * n for n in range(1, 11)]
    deviation = coverage.covering([(error, 0.01) for error in errors])
    covered = sum(e <= coverage.EIGHTY * math.sqrt(deviation**2 + 0.01) * 1.01 for e in errors)
    assert covered == 8


@pytest.mark.slow
def test_a_fit_explains_rates_of_slower_memory() -> None:
    """Rates of two desktops, as if their memory reached 0.85 of what is composed.

    Other constants could explain a part of it, so the bandwidth moves less than all the way.
    """
    rows = []
    for cpu in ("Ryzen 9 7950X", "Ryzen 9 9950X"):
        for layers in (36, 24, 12):
            said = {**SAID, "id": f"{cpu} {layers}", "cpu": cpu, "n_cpu_moe": layers}
            slow = rate(cpu=cpu, n_cpu_moe=layers, ram_type="DDR5-4420")  # 0.85 of 5200 MT/s
            rows.append(Row(**{**said, "decode_tok_s": slow, "prefill_tok_s": None}))
    found = fit.fit(rows, rounds=1)
    assert 0.8 < found["all"]["desktop reads"] < 0.95
    fit_of_all = Fitted(found["all"], {}, {"decode": 0.1, "prefill": 0.1})
    for row in rows:
        (one,) = predict_row(row, fit_of_all)
        before = predict_row(row, COMPONENT)[0].predicted
        errors = [abs(math.log(value / one.measured)) for value in (one.predicted, before)]
        assert errors[1] > 0.06
        assert errors[0] < 0.6 * errors[1]
    assert set(found["left_out"]) == {fold(row) for row in rows}
    assert found["all"].keys() == COMPONENTS.keys()


def test_the_values_that_ship_are_within_their_ranges_and_of_every_machine() -> None:
    found = fitted()
    for values in (found.all_rows, *found.left_out.values()):
        for constant in CONSTANTS:
            allowed = constant.value / constant.factor, constant.value * constant.factor
            assert allowed[0] * 0.999 <= values[constant.name] <= allowed[1] * 1.001, constant.name
    assert set(found.own_error) == {"decode", "prefill"}
    new = Row(id="new", cpu="an unheard-of processor")
    assert values_for(new, found) == found.all_rows


def test_damaged_values_are_refused(tmp_path) -> None:
    good = {"all": COMPONENTS, "left_out": {}, "own_error": {}}
    bad = [{}, {**good, "all": {}}, {**good, "all": {**COMPONENTS, "handoff us": -1}}, [1]]
    for number, document in enumerate(bad):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document))
        with pytest.raises(InputError, match="make fit"):
            fitted(file)
    fine = tmp_path / "fine.json"
    fine.write_text(json.dumps(good))
    assert fitted(fine).all_rows == COMPONENTS


def test_errors_of_an_earlier_version_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = {"kinds": {"llamacpp, ggml, desktop": {"decode": {"within_80": 1.5}}}}
    monkeypatch.setattr(kinds, "shipped_errors", lambda: old)
    with pytest.raises(InputError, match="make fit"):
        kinds.own_deviations.__wrapped__("decode")
    assert kinds.own_deviations.__wrapped__("prefill") == {}


# ------------------------------------------------------------------------------ parts of a fit


def figure(row: Row, measured: float, case: Any = None, phase: Phase = "decode") -> Any:
    return row, case, phase, measured


def test_a_curve_keeps_its_ends_and_two_figures_between() -> None:
    curve = [figure(Row(id=f"r{n}", group="curve"), float(n)) for n in (6, 0, 3, 1, 5, 2, 4)]
    short = [figure(Row(id="x"), 9.0), figure(Row(id="x"), 8.0, phase="prefill")]
    other = [figure(Row(id="y", group="curve", system="vllm"), 7.0)]
    kept = [one[3] for one in fit._spread([*curve, *short, *other])]
    assert kept == [0.0, 2.0, 4.0, 6.0, 9.0, 8.0, 7.0]


def test_weights_fall_with_what_is_not_known_and_with_a_machines_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "known", lambda case: case)
    row = Row(id="r")
    found = [
        figure(row, 1.0, 0.0), figure(row, 1.0, fit.SCALE**2), figure(row, 1.0, 0.0, "prefill"),
        figure(row, 1.0, 0.0),
    ]  # fmt: skip
    weights = fit._weights(found, ("a", "a", "a", "b"))
    assert weights.tolist() == pytest.approx([1 / math.sqrt(2), 0.5 / math.sqrt(2), 1.0, 1.0])


def test_own_errors_are_of_absolute_rates_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "known", lambda case: case)
    monkeypatch.setattr(fit, "covering", list)
    absolute, relative = Row(id="r", abs_class="strict"), Row(id="s")
    found = [
        figure(absolute, 1.0, 0.5), figure(relative, 1.0, 0.6), figure(absolute, 1.0, 0.7),
        figure(absolute, 1.0, 0.8, "prefill"),
    ]  # fmt: skip
    assert fit._own_errors(found, [-0.1, 0.2, 0.3, -0.4]) == {
        "decode": [(0.1, 0.5), (0.3, 0.7)], "prefill": [(0.4, 0.8)],
    }  # fmt: skip


@pytest.fixture
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step of a case of N tokens take as many ms as N times ``desktop reads``."""
    monkeypatch.setattr(fit, "tokens", lambda case, phase: case)
    monkeypatch.setattr(
        fit, "milliseconds", lambda case, values, phase: case * values["desktop reads"]
    )
    monkeypatch.setattr(fit, "names_of", lambda case, phase: ["desktop reads"])


@pytest.mark.usefixtures("proportional")
def test_a_rates_derivatives_are_in_the_logarithms_of_constants() -> None:
    at = np.log([COMPONENTS[name] for name in NAMES])
    off, slopes = fit._derivatives(figure(Row(id="r"), 250.0, 4.0), at)
    reads = COMPONENTS["desktop reads"]
    assert off == pytest.approx(math.log(1000 / reads / 250))  # 4 tokens in 4 * reads ms
    expected = [-1.0 if name == "desktop reads" else 0.0 for name in NAMES]
    assert slopes == pytest.approx(expected)
    error = fit._error((figure(Row(id="r"), 250.0, 4.0), {"desktop reads": 2.0}))
    assert error == pytest.approx(math.log(2))


@pytest.mark.usefixtures("proportional")
def test_a_fit_is_of_all_rows_and_of_those_without_each_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pool:
        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None: ...

        def map(self, function: Any, items: Any, chunksize: int) -> Any:
            return map(function, items)

    monkeypatch.setattr(fit, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(fit, "known", lambda case: 0.0)
    monkeypatch.setattr(fit, "covering", list)
    reads = COMPONENTS["desktop reads"]
    # The rates of machine a are 10 % higher than the component's, those of b as much lower.
    rows = {"a": 1.1, "b": 1 / 1.1}
    found = [
        figure(Row(id=f"{cpu}{n}", cpu=cpu, abs_class="stream"), 1000 / reads * factor, 1.0)
        for cpu, factor in rows.items()
        for n in range(60)
    ]
    monkeypatch.setattr(fit, "figures", lambda rows: found)
    document = fit.fit([], rounds=2)
    assert capsys.readouterr().err.splitlines() == ["median |log ratio| before: 0.095"] * 2
    assert document["all"]["desktop reads"] == pytest.approx(reads, rel=2e-3)
    left = {name: values["desktop reads"] for name, values in document["left_out"].items()}
    assert left["b (no source)"] < 0.97 * reads < 1.03 * reads < left["a (no source)"]
    errors = document["own_error"]["decode"]
    assert len(errors) == 120
    assert all(error > 0.1 for error, _ in errors), "each is predicted from the other machine"


def test_changes_are_shown_with_their_range_over_machines() -> None:
    first = CONSTANTS[0]
    values = {"x": {**COMPONENTS, first.name: 0.5}, "y": {**COMPONENTS, first.name: 1.25}}
    rows = fit.changes({"all": {**COMPONENTS, first.name: 0.7654}, "left_out": values})
    assert rows[0] == [first.name, f"{first.value:g}", "0.765", "0.5 to 1.25", first.source]
    assert len(rows) == len(CONSTANTS)


def test_the_command_writes_both_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[Any] = []
    rows = [Row(id="r")]
    monkeypatch.setattr(fit, "FOLDER", tmp_path)
    monkeypatch.setattr(fit, "shipped", lambda: "those that ship")
    monkeypatch.setattr(fit, "read_rows", lambda path: read.append(path) or rows)
    fitted_now = {"all": COMPONENTS, "left_out": {"a": COMPONENTS}}
    monkeypatch.setattr(fit, "fit", lambda given: {**fitted_now, "rows": len(given)})
    monkeypatch.setattr(fit, "predict", lambda given: ["in sample", given])
    monkeypatch.setattr(fit, "left_out", lambda given, inside: ["left out", given, inside])
    monkeypatch.setattr(
        fit.errors, "document",
        lambda given, inside, out: {"n": len(given), "inside": inside[0], "out": out[0]},
    )  # fmt: skip
    for cached in (fit.fitted, fit.published_errors.shipped_errors, fit.own_deviations):
        monkeypatch.setattr(cached, "cache_clear", lambda: read.append("cleared"), raising=False)
    fit.main(["mine.csv"])
    fit.main([])
    assert [one for one in read if one != "cleared"] == [Path("mine.csv"), "those that ship"]
    assert read.count("cleared") == 2 * (1 + 2 * 2)
    written = json.loads((tmp_path / fit.FILE).read_text())
    assert (written["rows"], written["all"]) == (1, COMPONENTS)
    text = (tmp_path / fit.published_errors.FILE.name).read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {"n": 1, "inside": "in sample", "out": "left out"}
    assert list(json.loads(text)) == sorted(json.loads(text))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split("\t") == ["constant", "component", "fitted", "left out", "source"]
    assert len(shown) == 2 * (1 + len(CONSTANTS))
