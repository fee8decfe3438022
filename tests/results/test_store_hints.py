"""Commands that name a store: the default one is left out, others are quoted."""

from pathlib import Path

import pytest

from moebench.results.store_hints import in_store, no_runs


@pytest.mark.parametrize(
    ("directory", "option"),
    [
        (".moebench", ""), ("./.moebench", ""), (Path(".moebench"), ""),
        ("other", " --store other"),
        ("my runs", " --store 'my runs'"), ("a/.moebench", " --store a/.moebench"),
    ],
)  # fmt: skip
def test_the_default_store_is_left_out(directory: str | Path, option: str) -> None:
    assert in_store(directory) == option
    assert no_runs(directory) == (
        f"no runs in {directory}; run: moebench run --system smoe --setting S3{option}"
    )
