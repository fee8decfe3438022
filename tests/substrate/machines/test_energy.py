"""Energy by hand, and counters on a powercap tree of the test's own."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from moebench.substrate.machines.energy import (
    Meter,
    RaplZone,
    figures,
    open_meter,
    rapl_zones,
    simulated,
)
from moebench.substrate.machines.profile import HardwareProfile, load_profile, profile_names
from tests.harness.run.test_document import timeline

# ----------------------------------------------------------------------------- simulated


def part(idle: float | None, full: float | None) -> SimpleNamespace:
    watts = [None if w is None else SimpleNamespace(watts=w) for w in (idle, full)]
    return SimpleNamespace(idle_power=watts[0], full_power=watts[1])


def profile(gpu: Any, host: Any, share: float = 0.25) -> HardwareProfile:
    software = SimpleNamespace(launch_bound_power=SimpleNamespace(ratio=share))
    box = SimpleNamespace(name="a box", gpu=gpu, host=host, software=software)
    return cast(HardwareProfile, box)


def test_idle_power_is_counted_of_both_parts_all_the_time() -> None:
    # 0.2 s: 20 W and 50 W; 13 ms of the device at 280 W more, 3 ms of the host at 200 W more.
    found = simulated(profile(part(20, 300), part(50, 250)), timeline(), 0.2, 4)
    parts = {"gpu, idle": 4.0, "gpu, at work": 3.64, "host, idle": 10.0, "host, at work": 0.6}
    assert found["energy"] == {"source": "simulated", "parts_j": parts, "reason": None}
    assert found["energy_j"] == pytest.approx(18.24)
    assert found["tokens_per_kj"] == pytest.approx(4 / 18.24 * 1000, abs=1e-3)


def test_launch_bound_time_draws_a_share_of_the_power() -> None:
    # Of 13 ms of the device, 4 ms wait for launches: 280 W more for 9 ms, a quarter of it for 4.
    found = simulated(profile(part(20, 300), part(50, 250)), timeline(), 0.2, 4, 4_000_000)
    parts = found["energy"]["parts_j"]
    assert parts["gpu, at work"] == pytest.approx(0.009 * 280)
    assert parts["gpu, launch-bound"] == pytest.approx(0.004 * 280 / 4)
    assert found["energy_j"] == pytest.approx(18.24 - 0.004 * 280 * 3 / 4, abs=1e-4)


@pytest.mark.parametrize(("gpu", "host", "named"), [
    (part(None, 300), part(50, 250), "gpu"), (part(20, 300), part(50, None), "host"),
])  # fmt: skip
def test_without_a_power_there_is_no_energy_but_a_reason(gpu, host, named: str) -> None:
    found = simulated(profile(gpu, host), timeline(), 0.2, 4)
    assert (found["energy_j"], found["tokens_per_kj"]) == (None, None)
    assert (
        found["energy"]["reason"] == f"profile a box states no idle and full power of its {named}"
    )


def test_every_shipped_machine_that_draws_power_has_idle_power() -> None:
    for name in profile_names():
        loaded = load_profile(name)
        for part_ in (loaded.gpu, loaded.host):
            assert (part_.idle_power is None) == (part_.full_power is None), name


# ----------------------------------------------------------------------------- a powercap tree

#: A counter's largest value plus 1, in µJ.
RANGE = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int = 0) -> Path:
    where = root / folder
    where.mkdir(parents=True)
    (where / "name").write_text(f"{name}\n")
    (where / "energy_uj").write_text(f"{energy_uj}\n")
    (where / "max_energy_range_uj").write_text(f"{RANGE - 1}\n")
    return where


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with cores; one has memory; a whole platform, and a second way to a package."""
    root = tmp_path / "powercap"
    zone(root, "intel-rapl:0", "package-0", 5_000_000)
    zone(root, "intel-rapl:0:0", "core", 3_000_000)
    zone(root, "intel-rapl:0:1", "dram", 1_000_000)
    zone(root, "intel-rapl:1", "package-1", RANGE - 1_000_000)
    zone(root, "intel-rapl:2", "psys", 9_000_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 5_000_000)
    return root


def spend(root: Path, folder: str, joules: float) -> None:
    """What the kernel does: the counter goes on, and wraps."""
    file = root / folder / "energy_uj"
    file.write_text(str((int(file.read_text()) + round(joules * 1e6)) % RANGE))


def test_packages_and_memory_are_counted_once(powercap: Path) -> None:
    assert [z.name for z in rapl_zones(powercap)] == [
        "host package-0", "host memory of package-0", "host package-1",
    ]  # fmt: skip


def test_only_batches_are_measured_and_a_counter_may_wrap(powercap: Path) -> None:
    meter = open_meter(None, powercap)
    for joules in (3.0, 4.0):
        spend(powercap, "intel-rapl:0", 100.0)  # between batches
        with meter:
            spend(powercap, "intel-rapl:0", joules)
            spend(powercap, "intel-rapl:0:0", joules)
            spend(powercap, "intel-rapl:0:1", 0.5)
            spend(powercap, "intel-rapl:1", 1.5)  # the first 1.0 J brings it to its end
    found = meter.figures(4)
    assert found["energy"] == {
        "source": "RAPL",
        "parts_j": {
            "host package-0": 7.0, "host memory of package-0": 1.0, "host package-1": 3.0,
        },
        "reason": None,
    }  # fmt: skip
    assert found["energy_j"] == 11.0
    assert found["tokens_per_kj"] == pytest.approx(4 / 11 * 1000, abs=1e-3)


def test_without_counters_there_is_a_reason(tmp_path: Path) -> None:
    meter = open_meter(None, tmp_path / "nothing")
    with meter:
        pass
    found = meter.figures(4)
    assert (found["energy_j"], found["tokens_per_kj"]) == (None, None)
    assert found["energy"]["source"] is None
    assert "no RAPL zone" in found["energy"]["reason"]


@pytest.mark.parametrize("damage", ["gone", "words"])
def test_a_counter_that_cannot_be_read_is_the_reason(powercap: Path, damage: str) -> None:
    file = powercap / "intel-rapl:1" / "energy_uj"
    file.unlink()
    if damage == "words":
        file.write_text("a lot")
    found = open_meter(None, powercap).figures(4)
    assert found["energy_j"] is None
    assert "no counter of the processor" in found["energy"]["reason"]


def test_a_counter_that_fails_later_ends_the_measurement_alone(powercap: Path) -> None:
    meter = open_meter(None, powercap)
    with meter:
        spend(powercap, "intel-rapl:0", 1.0)
    with meter:
        (powercap / "intel-rapl:0" / "energy_uj").unlink()
    with meter:
        pass
    found = meter.figures(4)
    assert found["energy_j"] is None
    assert "could not be read" in found["energy"]["reason"]


def test_a_batch_that_fails_is_not_hidden(powercap: Path) -> None:
    with pytest.raises(OSError, match="of the batch"), Meter("RAPL", rapl_zones(powercap)):
        raise OSError("of the batch")


# ----------------------------------------------------------------------------- a card


class FakeNvml(ModuleType):
    """NVML of one card, whose counter goes on by 2 J with every reading."""

    class NVMLError(Exception):
        pass

    def __init__(self, counts: bool = True) -> None:
        super().__init__("pynvml")
        self._counts, self._millijoules = counts, 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        assert handle == "GPU-1"
        if not self._counts:
            raise self.NVMLError("Not Supported")
        self._millijoules += 2000
        return self._millijoules


def test_a_card_is_counted_beside_the_processor(powercap: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    meter = open_meter("GPU-1", powercap)
    with meter:
        spend(powercap, "intel-rapl:0", 1.0)
    found = meter.figures(4)
    assert found["energy"]["source"] == "RAPL and NVML"
    assert found["energy"]["parts_j"]["gpu"] == 2.0
    assert found["energy_j"] == 3.0


@pytest.mark.parametrize(("nvml", "uuid"), [
    (None, "GPU-1"), (FakeNvml(), "GPU-2"), (FakeNvml(counts=False), "GPU-1"),
])  # fmt: skip
def test_the_processor_alone_is_not_the_energy_of_a_run_on_a_card(
    powercap: Path, monkeypatch, nvml, uuid: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = open_meter(uuid, powercap)
    with meter:
        spend(powercap, "intel-rapl:0", 1.0)
    found = meter.figures(4)
    assert found["energy_j"] is None
    assert found["energy"]["reason"]


def test_figures_have_four_decimals_and_none_without_all_parts() -> None:
    parts = {"gpu": 1.234561, "host": 2.0}
    assert figures(parts, "RAPL", None, 5) == {
        "energy_j": 3.2346, "tokens_per_kj": round(5000 / 3.234561, 4),
        "energy": {"source": "RAPL", "parts_j": {"gpu": 1.2346, "host": 2.0}, "reason": None},
    }  # fmt: skip
    assert figures(parts, None, "no card", 5) == {
        "energy_j": None, "tokens_per_kj": None,
        "energy": {"source": None, "parts_j": {"gpu": 1.2346, "host": 2.0}, "reason": "no card"},
    }  # fmt: skip
    nothing = figures({}, "simulated", None, 5)
    assert (nothing["energy_j"], nothing["tokens_per_kj"]) == (0, None)
    assert figures(parts, "RAPL", None, 0)["tokens_per_kj"] == 0


def test_a_zone_counts_in_microjoules_and_restarts_after_its_range(tmp_path: Path) -> None:
    zone = RaplZone("host", tmp_path)
    (tmp_path / "energy_uj").write_text("1500000\n")
    (tmp_path / "max_energy_range_uj").write_text("2999999\n")
    assert (zone.read_j(), zone.wraps_at_j) == (1.5, 3.0)
    meter = Meter("RAPL", [zone])
    for before, after in ((2_500_000, 500_000), (500_000, 500_000), (0, 2_999_999)):
        (tmp_path / "energy_uj").write_text(str(before))
        with meter:
            (tmp_path / "energy_uj").write_text(str(after))
    assert meter.joules == {"host": pytest.approx(1.0 + 0.0 + 2.999999)}
