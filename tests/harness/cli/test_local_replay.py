"""Recorded routing on this computer, with random weights in a model's shape."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.models.catalogue import model_shape, scale_path
from moebench.substrate.models.dummy import DummyWeights
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.harness.tiny import EXPERTS, LAYERS

pytestmark = pytest.mark.usefixtures("tiny_models")

LINK = ("--emulated-link", "4GB/s")
DISTINCT = 5


@pytest.fixture(scope="module")
def shape(tiny_models: None) -> Path:
    """A model of which there are no weights: its configuration alone."""
    return scale_path(SCALE_MODEL) / "config.json"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    out = tmp_path_factory.mktemp("traces") / "t"
    called = call(
        "trace", "record", "--setting", "S3", "--workload", "arithmetic", "--prompts", "2",
        "--new-tokens", "5", "--out", out,
    )  # fmt: skip
    assert called.code == 0, called.err
    return out


def replayed(trace: Path, shape: Path, *arguments: str | Path) -> dict[str, Any]:
    called = call(
        "run", "--trace", trace, "--model", shape, "--capacity", "0.25", "--json", *arguments
    )
    assert called.code == 0, called.err
    document: dict[str, Any] = called.json
    return document


@pytest.mark.parametrize(
    ("stored_as", "expert_bytes"),
    # H = 16, I = 8: gate above up [16, 16] and down [16, 8], a scale and a zero point a row.
    [(None, 3 * 16 * 8 * 4), ("int4", 16 * (8 + 4) + 16 * (4 + 4))],
    ids=["fp32", "int4"],
)
@pytest.mark.parametrize("below", [(), LINK], ids=["disk", "link"])
def test_hits_and_bytes_are_those_of_the_simulation(
    trace: Path,
    shape: Path,
    below: tuple[str, ...],
    stored_as: str | None,
    expert_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """On-demand decides nothing by time, so only times may differ."""
    few = partial(DummyWeights, most=DISTINCT * model_shape(str(shape)).expert_params)
    monkeypatch.setattr("moebench.harness.run.replay.DummyWeights", few)
    given: tuple[str | Path, ...] = ("--system", "moe-ondemand", "--store", tmp_path)
    if stored_as is not None:
        given = (*given, "--expert-dtype", stored_as)
    real = replayed(trace, shape, *given, "--machine", "local", *below)
    simulated = replayed(
        trace, shape, *given, "--machine", "a6000", "--precision", "fp32", "--allow-overcommit"
    )
    for figure in ("cache_ratio", "cache_ratio_begun"):
        assert real["metrics"][figure] == simulated["metrics"][figure]
    moved = "bytes_h2d" if below else "bytes_disk"
    assert real["metrics"][moved] == simulated["metrics"]["bytes_h2d"] > 0
    assert real["memory"]["expert_bytes"] == expert_bytes
    assert not real["metrics"][moved] % expert_bytes
    assert real["badge"] == ("measured, emulated link" if below else "measured")
    assert "random parameters" in real["measured"]["model"]
    assert f"{DISTINCT} random records stand for {LAYERS * EXPERTS} experts" in real["notes"]


@pytest.mark.parametrize(
    ("system", "below"),
    [("smoe", LINK), ("daop", LINK), ("hybrimoe", LINK), ("moe-infinity", ()), ("duoserve", LINK)],
)
def test_systems_of_every_kind_run(
    trace: Path, shape: Path, system: str, below: tuple[str, ...], tmp_path: Path
) -> None:
    document = replayed(
        trace, shape, "--system", system, "--machine", "local", *below, "--store", tmp_path,
        "--prompts", "1",
    )  # fmt: skip
    assert document["metrics"]["tpot_ms"]["mean"] > 0
    assert document["metrics"]["ttft_ms"]["mean"] > 0


def test_what_does_not_fit_is_one_line(
    trace: Path, shape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moebench.harness.stage.memory.available_bytes", lambda: 1000)
    line = refused(
        "run", "--trace", trace, "--model", shape, "--slots", "3", "--machine", "local",
        "--system", "smoe",
    )  # fmt: skip
    assert "common weights take" in line
    assert "choose a smaller --model" in line
