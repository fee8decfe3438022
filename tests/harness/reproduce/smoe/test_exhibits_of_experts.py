"""SMoE's figures of the time of one expert, with times that are given."""

from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import exhibits_of_experts as exhibits
from moebench.harness.reproduce.smoe.components import EIGHT_CORES, MACHINE, MODELS
from moebench.harness.settings import setting
from moebench.substrate.machines.protocol import Lane
from tests.harness.reproduce.shipped import check_words

#: Milliseconds of one row by lane.
ONE = {Lane.DEVICE: 1, Lane.HOST: 20, Lane.H2D: 50}


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes longer with six cores and with each model; rows of a prompt are its tokens."""

    def expert(lane: Lane, rows: int, machine: str = "", model: str = "") -> int:
        slower = 2 if machine == MACHINE else 1
        return 1_000_000 * ONE[lane] * rows * slower + len(model)

    def load(machine: str, model: str) -> int:
        return 1_000_000 * len(machine) + len(model)

    def one(lane: Lane, machine: str, model: str) -> int:
        assert machine == MACHINE
        return 1_000_000 * ONE[lane] + MODELS.index(model) * 1000

    def badge(profile: Any, lane: Lane) -> str:
        assert lane is Lane.HOST
        return "datasheet" if profile.name == setting("S2").machine else "calibrated"

    for name, function in (("expert_ns", expert), ("load_ns", load), ("one_ns", one),
                           ("rows_of", lambda tokens, model: tokens // 2 + 1),
                           ("charged_badge", badge)):  # fmt: skip
        monkeypatch.setattr(exhibits, name, function)


def test_figure_3_has_three_times_of_each_model(evidence: Evidence) -> None:
    found = exhibits._fig_3(evidence)
    assert found.rows == tuple(
        {"model": model, "side": side, "ms": pytest.approx(ms + number / 1000)}
        for number, model in enumerate(MODELS)
        for side, ms in (("GPU", 1), ("CPU", 20), ("PCIe", 50))
    )
    check_words(found)


def test_figure_8_has_the_gpu_and_two_hosts_by_batch(evidence: Evidence) -> None:
    found = exhibits._fig_8(evidence)
    assert found.rows == tuple(
        {"side": side, "batch": batch, "ms": pytest.approx(ms * batch)}
        for side, ms in (("GPU", 1), ("CPU, 8 cores", 20), ("CPU, 6 cores", 40))
        for batch in (1, 2, 3, 4, 6, 8, 12, 16)
    )
    assert EIGHT_CORES != MACHINE
    check_words(found)


def test_prompts_have_the_hosts_time_and_the_load_of_each_setting(evidence: Evidence) -> None:
    """A prompt of 8 tokens has five rows of an expert here; the badge is the lowest of all."""
    found = exhibits._prompts(evidence)
    expected = []
    for name in ("S1", "S2", "S3"):
        model, machine = setting(name).model, setting(name).machine
        slower = 2 if machine == MACHINE else 1
        for tokens in (1, 8, 32, 64, 128, 256, 512, 1024):
            row = {"setting": name, "tokens": tokens}
            host = 20 * (tokens // 2 + 1) * slower + len(model) / 1e6
            expected += [
                {**row, "side": "CPU", "ms": pytest.approx(host)},
                {**row, "side": "PCIe", "ms": pytest.approx(len(machine) + len(model) / 1e6)},
            ]
    assert found.rows == tuple(expected)
    assert found.badge == "datasheet", "that of S2 is the lowest"
    check_words(found)
