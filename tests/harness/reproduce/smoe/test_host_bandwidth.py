"""Host bandwidths that the paper's figures imply, of figures that are given."""

import math
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.harness.reproduce.ranges import PLACES
from moebench.harness.reproduce.smoe import host_bandwidth
from moebench.harness.reproduce.smoe.experiments import ABLATION, HOST, MAIN
from moebench.harness.reproduce.smoe.host_bandwidth import FIGURES, Implied, implied, said
from tests.harness.reproduce.shipped import check_words


def test_values_are_interpolated_over_their_logarithm() -> None:
    assert implied([1, 100], [5, 1], 2) == pytest.approx([10**1.5])
    # A figure that is the paper's at a place is implied from both sides.
    assert implied([1, 10, 100], [0, 3, 5], 3) == pytest.approx([10, 10])
    assert implied([1, 10, 100], [0, 4, 0], 2) == pytest.approx([10**0.5, 10**1.5])
    assert implied([1, 10], [3, 3], 3) == []
    assert said([1, 10, 100], [0, 4, 0], 2) == "3 and 32"
    assert said([1.5, 10, 100], [1, 2, 3], 0.9) == "below 1.5"
    assert said([1, 10, 100], [3, 2, 1.0], 0.5) == "above 100"
    assert said([1, 10, 100], [1, 3, 1], 4) == "none; closest at 10"


def test_the_table_has_each_figure_at_the_places_of_the_hosts_range(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure(evidence: Evidence) -> float:
        seen.append(dict(evidence.numbers))
        return 10.00049 + evidence.numbers.get(HOST, 0.0)

    given = Implied("a figure", "Fig. 9", 10.00049, "%", measure)
    monkeypatch.setattr(host_bandwidth, "FIGURES", (given,))
    found = host_bandwidth._table(evidence)
    assert seen == [{HOST: place} if place else {} for place in PLACES]
    (row,) = found.rows
    columns = [axis.field for axis in found.columns]
    assert columns == [*row]
    values = [float(name) for name in columns[4:-1]]
    assert values == sorted(values)
    assert [row[name] for name in columns[4:-1]] == [round(10.00049 + at, 3) for at in PLACES]
    # The paper's figure is ours at the profile's own value.
    own = values[list(PLACES).index(0)]
    assert (row["implied"], row["paper"], row["unit"]) == (f"{own:.0f}", 10.00049, "%")
    check_words(found)


def test_figures_are_read_from_runs_of_s3(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Given(Runs):
        def of(self, **fields: Any) -> Runs:
            asked.append(fields)
            raise ZeroDivisionError

    def runs(self: Evidence, *experiments: Experiment) -> Runs:
        asked.extend(experiments)
        return Given([])

    monkeypatch.setattr(Evidence, "runs", runs)
    read = []
    for one in FIGURES:
        try:
            read.append(one.measure(evidence))
        except ZeroDivisionError:
            continue
    assert asked == [
        part for experiment in (MAIN, MAIN, ABLATION, ABLATION, ABLATION)
        for part in (experiment, {"setting": "S3"})
    ]  # fmt: skip
    # Two are the cost model's: one expert on the host over its load, and over the GPU.
    assert len(read) == 2
    assert all(math.isfinite(value) and value > 0 for value in read)
    slow = [one.measure(evidence.moved({HOST: -1.0})) for one in (FIGURES[4], FIGURES[6])]
    assert all(low > own for low, own in zip(slow, read, strict=True))
