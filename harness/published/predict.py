"""Predicts published rows: each becomes a simulated run of its engine on its machine."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from moebench.harness.published.case import Case, Unpredictable, case_of
from moebench.harness.published.constants import Fitted, Values, fitted, fold, values_for
from moebench.harness.published.coverage import EIGHTY, known
from moebench.harness.published.kinds import kind_of_case, own_deviations
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row
from moebench.harness.published.simulate import milliseconds, profile_of
from moebench.results.published_errors import machine_kind

#: Fewest rows that are worth other processes.
MANY = 16


def predict(rows: Sequence[Row]) -> list[Prediction]:
    """Return a prediction for each phase of each row that has a measured rate, in sample.

    The constants were fitted to the rows that ship.
    """
    return _all(rows, partial(predict_row, found=fitted()))


def left_out(rows: Sequence[Row], in_sample: Sequence[Prediction]) -> list[Prediction]:
    """Return the predictions with constants that were fitted without a row's machine and author.

    Args:
        in_sample: predictions of the same rows; those of machines that no fit saw are taken over.
    """
    found = fitted()
    seen = [row for row in rows if fold(row) in found.left_out]
    again = {(one.id, one.phase): one for one in _all(seen, partial(_left_out, found=found))}
    return [again.get((one.id, one.phase), one) for one in in_sample]


def predict_row(row: Row, found: Fitted | None = None) -> list[Prediction]:
    """Return a row's predictions, or the reason why there are none."""
    found = found or fitted()
    return predicted(row, found.all_rows, found)


def _left_out(row: Row, found: Fitted) -> list[Prediction]:
    return predicted(row, values_for(row, found), found)


def _all(rows: Sequence[Row], one: Callable[[Row], list[Prediction]]) -> list[Prediction]:
    """Return the predictions of all rows, by as many processes as there are cores."""
    cores = os.cpu_count() or 1
    if len(rows) < MANY or cores == 1:
        return [prediction for row in rows for prediction in one(row)]
    with ProcessPoolExecutor(cores) as pool:
        return [prediction for found in pool.map(one, rows, chunksize=4) for prediction in found]


def predicted(row: Row, values: Values, found: Fitted) -> list[Prediction]:
    """Return a row's predictions with these values of the constants."""
    measured = [(phase, rate) for phase in row.phases if (rate := row.measured(phase)) is not None]
    try:
        case = case_of(row)
        return [_prediction(row.id, case, values, found, phase, rate) for phase, rate in measured]
    except Unpredictable as why:
        return [Prediction(row.id, phase, rate, reason=str(why)) for phase, rate in measured]


def _prediction(
    name: str, case: Case, values: Values, found: Fitted, phase: Phase, measured: float
) -> Prediction:
    rate, spread = rate_of(case, values, phase), math.exp(EIGHTY * deviation(case, phase, found))
    remarks = list(case.remarks)
    limit = _limit(case, values)
    if phase == "decode" and limit is not None and measured > limit:
        remarks.append(f"impossible as stated: the memory allows {limit:.3g} tokens/s at most")
    return Prediction(
        name, phase, measured, rate, rate / spread, rate * spread, remarks=tuple(remarks)
    )


def rate_of(case: Case, values: Values, phase: Phase) -> float:
    """Return the simulated rate in tokens/s."""
    return tokens(case, phase) * 1e3 / milliseconds(case, values, phase)


def deviation(case: Case, phase: Phase, found: Fitted) -> float:
    """Return the standard deviation of a rate's logarithm.

    It combines repetitions, what is not said, and the model's own error.
    The model's own is that of the kind of run where rows of enough machines are of this kind, with
    each machine and author left out; else the largest of such machines, but at least that of all.
    """
    own = found.own_error[phase]
    kinds = own_deviations(phase)
    name, where = kind_of_case(case), machine_kind(case.profile)
    if name in kinds:
        own = kinds[name]
    else:
        own = max(own, *(one for key, one in kinds.items() if key.endswith(f", {where}")), 0.0)
    return math.sqrt(known(case) + own**2)


def is_checked(case: Case, phase: Phase) -> bool:
    """Return whether rows of enough machines are of this kind of run."""
    return kind_of_case(case) in own_deviations(phase)


def tokens(case: Case, phase: Phase) -> float:
    """Return the tokens that the returned milliseconds are of."""
    return float(case.batch * (1 if phase == "decode" else case.lengths.prompt))


def _limit(case: Case, values: Values) -> float | None:
    """Return the decode rate at which the experts on the host need all of its bandwidth."""
    share = sum(layer < case.first for layer in case.shape.moe_layers)
    if not share or case.hot:
        return None
    size = share * case.shape.top_k * case.shape.expert_bytes(case.bits.routed)
    reads = profile_of(case, values).host.gemv_bandwidth
    return max(reads.bytes_per_s, case.profile.host.gemv_bandwidth.high.bytes_per_s) / size * 1.25


def figures(rows: Iterable[Row]) -> list[tuple[Row, Case, Phase, float]]:
    """Return each measured figure of the rows that can be predicted, with its case."""
    found = []
    for row in rows:
        try:
            case = case_of(row)
        except Unpredictable:
            continue
        found += [(row, case, phase, rate) for phase in row.phases
                  if (rate := row.measured(phase)) is not None]  # fmt: skip
    return found
