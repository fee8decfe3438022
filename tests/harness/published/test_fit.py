"""The fit of constants: it finds values that made the rates, and leaves others where they were."""

import json
import math

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
