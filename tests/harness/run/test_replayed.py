"""Runs with ``--routing replayed``: equal to live runs where nothing is substituted."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run.recording import once
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.worker import group_of
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError

pytestmark = pytest.mark.usefixtures("tiny_models")

#: Systems that predict, that learn, and that do neither; none substitutes an expert.
LOSSLESS = ("moe-ondemand", "hybrimoe", "moe-infinity", "duoserve", "llamacpp")


def spec_of(system: str, routing: str = "replayed", **given: Any) -> RunSpec:
    sizes = {"workload": "arithmetic", "prompts": 2, "new_tokens": 6, "cache_ratio": 0.25}
    if system in ("moe-infinity", "duoserve"):
        given["calibrate_texts"] = 2
    return resolve(None, system=system, setting="S3", routing=routing, **{**sizes, **given})


@pytest.mark.parametrize("system", LOSSLESS)
def test_a_lossless_system_takes_the_times_of_its_live_run(system: str, tmp_path: Path) -> None:
    live, replayed = (
        run(prepare(spec_of(system, routing), None), tmp_path).document
        for routing in ("model", "replayed")
    )
    for part in ("tpot_ms", "ttft_ms", "experts", "cache_ratio", "load_ms"):
        assert replayed["metrics"][part] == live["metrics"][part], part
    assert replayed["run_id"] != live["run_id"]
    assert replayed["provenance"]["learnt"] == live["provenance"]["learnt"]
    assert replayed["accuracy"]["score"] is None
    assert live["accuracy"]["score"] is not None


def test_one_recording_serves_all_systems_batches_and_machines(tmp_path: Path) -> None:
    for spec in (
        spec_of("moe-ondemand"), spec_of("hybrimoe"), spec_of("moe-ondemand", batch=2),
        spec_of("moe-ondemand", machine="a6000+link.pinned_h2d=12"),
    ):  # fmt: skip
        run(prepare(spec, None), tmp_path)
    assert len(list((tmp_path / "routing").iterdir())) == 1
    run(prepare(spec_of("moe-ondemand", seed=1), None), tmp_path)
    assert len(list((tmp_path / "routing").iterdir())) == 2


def test_what_is_recorded_depends_on_the_text_alone() -> None:
    one, other = spec_of("smoe", overrides={"alpha": "0.3"}), spec_of("deepspeed", batch=2)
    assert once(one) == once(other)
    assert once(one) != once(spec_of("smoe", new_tokens=7))
    assert once(one) != once(spec_of("smoe", workload="facts"))


def test_cells_that_replay_one_recording_run_in_one_process() -> None:
    assert group_of(spec_of("smoe")) == group_of(spec_of("hybrimoe"))
    assert group_of(spec_of("smoe")) != group_of(spec_of("smoe", routing="model"))


def test_the_note_says_that_a_replay_does_not_follow_a_substituting_system(tmp_path: Path) -> None:
    notes = run(prepare(spec_of("smoe"), None), tmp_path).document["notes"]
    assert any("does not follow the text" in note for note in notes)
    lossless = run(prepare(spec_of("moe-ondemand"), None), tmp_path).document["notes"]
    assert not any("does not follow the text" in note for note in lossless)


def test_what_no_replay_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--scoring and --routing replayed"):
        spec_of("smoe", scoring="generation")
    with pytest.raises(UsageError, match="allowed: model, replayed, drawn, real"):
        spec_of("smoe", routing="again")
