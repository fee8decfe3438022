"""`moebench list`."""

from pathlib import Path

import pytest

from moebench.substrate.models.catalogue import scale_names
from moebench.systems.registry import SYSTEMS
from tests.harness.commands import SCALE_MODEL, call

FIRST_COLUMN = {
    "systems": ("system", set(SYSTEMS)),
    "settings": ("setting", {"S1", "S2", "S3", "D1", "D2", "U1", "U2", "U3", "U4", "F1", "F2"}),
    "machines": ("machine", {"a6000", "a6000@daop", "rtx3080ti", "h200", "local"}),
    "workloads": ("workload", {"gsm8k", "arithmetic", "mmlu"}),
    "policies": ("name", {"lru", "expert-cache", "balanced", "by-id", "top-score"}),
    "models": ("model", {"mixtral-8x7b", "gpt-oss-20b", "deepseek-v3"}),
}


@pytest.mark.parametrize("what", FIRST_COLUMN)
def test_list(here: Path, what: str) -> None:
    key, names = FIRST_COLUMN[what]
    listed = call("list", what, "--json")
    assert (listed.code, listed.err) == (0, "")
    assert names <= {row[key] for row in listed.json}
    shown = call("list", what)
    assert (shown.code, shown.err) == (0, "")
    header, *rows = (line.split("\t") for line in shown.out.splitlines())
    assert key in header
    assert len(rows) == len(listed.json)
    assert {len(row) for row in rows} == {len(header)}
    assert all(cell for row in rows for cell in row[:2])
    assert list(here.iterdir()) == []


def test_list_settings_says_what_runs_at_once() -> None:
    rows = {row["setting"]: row for row in call("list", "settings", "--json").json}
    assert rows["S3"]["runs"] == "yes"
    assert rows["S3"]["model"] == SCALE_MODEL


def test_sizes_of_mixtral_are_those_of_its_matrices() -> None:
    """32 layers of 8 experts with 3 matrices of 4,096 × 14,336, two of them active."""
    (row,) = [
        one for one in call("list", "models", "--json").json if one["model"] == "mixtral-8x7b"
    ]
    expert = 3 * 4096 * 14_336
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024  # 8 of 32 heads have keys and values
    common = 32 * (attention + 8 * 4096 + 2 * 4096) + 2 * 32_000 * 4096 + 4096
    assert (row["layers"], row["experts"]) == (32, "8, top-2")
    assert row["expert_mb_bf16"] == f"{2 * expert / 1e6:.1f}"
    assert row["common_gb_bf16"] == f"{2 * common / 1e9:.2f}"
    assert row["params_b"] == f"{(common + 32 * 8 * expert) / 1e9:.2f}"
    active = common - 32_000 * 4096 + 32 * 2 * expert  # a token reads one row of the embedding
    assert row["active_b"] == f"{active / 1e9:.2f}"


def test_models_that_ship_a_scale_model_are_named() -> None:
    rows = {row["model"]: row["scale_model"] for row in call("list", "models", "--json").json}
    assert {name for name, ships in rows.items() if ships == "ships"} == set(scale_names())
    assert {ships for name, ships in rows.items() if name not in scale_names()} == {None}
