"""What is stored of a run: its document, and the time of every token."""

from pathlib import Path

import pytest

from moebench.harness.keep import keep, samples_of
from moebench.results.samples import TokenSample, read_samples
from moebench.results.store import Store
from moebench.substrate.engine.records import Generation
from tests.reports.samples import run


def test_every_token_has_its_time_and_what_each_layer_used() -> None:
    first = Generation([[0] * 3], 5, [9, 12, 20], used=[[[1, 2], [3]], [[], [4, 5, 6]]])
    package = Generation([[0] * 2] * 2, 0, [7, 9])  # does not say what it used
    assert samples_of([first, package]) == [
        TokenSample(0, 0, 4, None), TokenSample(0, 1, 3, [2, 1]), TokenSample(0, 2, 8, [0, 3]),
        TokenSample(1, 0, 7, None), TokenSample(1, 1, 2, None),
    ]  # fmt: skip
    assert samples_of([]) == []


@pytest.mark.slow
def test_a_run_is_stored_with_its_samples(tmp_path: Path) -> None:
    store, document = Store(tmp_path), run()
    samples = [TokenSample(0, 0, 4, None), TokenSample(0, 1, 3, [2, 1])]
    keep(store, document, [], samples)
    assert store.get(document["run_id"]) == document
    assert read_samples(tmp_path, document["run_id"]) == samples
