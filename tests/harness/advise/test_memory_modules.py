"""Memory modules of dmidecode's output and of the kernel's list, made by hand."""

from pathlib import Path

import pytest

from moebench.harness.advise.memory_modules import Modules, modules


def device(locator: str = "", bank: str = "", **fields: str) -> str:
    values = {
        "Size": "16 GB", "Locator": locator, "Bank Locator": bank, "Type": "DDR5",
        "Configured Memory Speed": "5600 MT/s", **fields,
    }  # fmt: skip
    lines = [f"\t{name}: {value}" for name, value in values.items()]
    return "\n".join(["Handle 0x1", "Memory Device", *lines])


def said(*devices: str) -> Modules | None:
    return modules(lambda command: "\n\n".join(devices), Path("nowhere"))


DMIDECODE = "dmidecode: modules and their locators"


def test_modules_have_kind_rate_and_channels() -> None:
    assert said(device("DIMM_A1"), device("DIMM_B1")) == (
        "ddr5-5600", 2, 2, False, DMIDECODE,
    )  # fmt: skip
    empty = device("DIMM_A2", Size="No Module Installed")
    assert said(device("DIMM_A1"), empty) == ("ddr5-5600", 1, 1, False, DMIDECODE)
    other = "Handle 0x2\nMemory Array\n\tSize: 16 GB"
    assert said(other, device("DIMM_A1")) == ("ddr5-5600", 1, 1, False, DMIDECODE)
    assert said(other) is None
    assert said() is None


def test_the_configured_rate_counts() -> None:
    older = {"Configured Memory Speed": "Unknown", "Configured Clock Speed": "4800 MHz"}
    plain = {"Configured Memory Speed": "", "Speed": "6400 MT/s"}
    for fields, rate in ((older, "4800"), (plain, "6400"), ({"Speed": "6400 MT/s"}, "5600")):
        found = said(device("DIMM_A1", **fields))
        assert found is not None
        assert found.memory == f"ddr5-{rate}"
    mixed = said(device("DIMM_A1", **older), device("DIMM_B1"), device("DIMM_C1", **plain))
    assert mixed == ("ddr5-4800", 3, 3, True, DMIDECODE)
    one_known = said(device("DIMM_A1"), device("DIMM_B1", Type="RAM"))
    assert one_known == ("ddr5-5600", 2, 2, False, DMIDECODE)
    unknown = {"Configured Memory Speed": "Unknown"}
    assert said(device("DIMM_A1", Type="RAM")) is None
    assert said(device("DIMM_A1", **unknown)) is None


def test_soldered_memory_is_in_channels_of_few_bits() -> None:
    """Eight channels of 32 bits are four of 64; modules have 64 whatever their width."""
    soldered = {"Type": "LPDDR5X", "Data Width": "32 bits", "Configured Memory Speed": "6400 MT/s"}
    eight = [device(f"Channel {n}", **soldered) for n in range(8)]
    found = said(*eight)
    assert found is not None
    assert (found.channels, found.modules) == (4, 8)
    alone = said(device("Channel 0", **soldered))
    assert alone is not None
    assert alone.channels == 1
    wide = said(*(device(f"DIMM_{c}1", **{"Data Width": "32 bits"}) for c in "AB"))
    assert wide is not None
    assert wide.channels == 2


def test_the_same_channel_of_two_sockets_is_two() -> None:
    found = said(device("P0 CHANNEL A"), device("P1 CHANNEL A"), device("P0 CHANNEL A"))
    assert found is not None
    assert (found.channels, found.modules) == (2, 3)
    bank = said(device("DIMM 0", "CPU1 Channel b"), device("DIMM 1", "CPU1 Channel B"))
    assert bank is not None
    assert bank.channels == 1
    # The locator names the channel, and the bank the socket.
    sockets = said(device("DIMM_A1", "NODE 0"), device("DIMM_A1", "NODE 1"))
    assert sockets is not None
    assert sockets.channels == 2
    none = said(device("x"), device("x"))
    assert none is not None
    assert none.channels == 2, "each module by itself"


@pytest.fixture
def edac(tmp_path: Path) -> Path:
    def dimm(controller: int, number: int, size: str, place: str | None) -> None:
        folder = tmp_path / f"devices/system/edac/mc/mc{controller}/dimm{number}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
        if place is not None:
            (folder / "dimm_location").write_text(place)

    dimm(0, 0, "16384", "channel 0 slot 0")
    dimm(0, 1, "16384", "channel 0 slot 1")
    dimm(0, 2, "0", "channel 1 slot 0")
    dimm(0, 3, "unknown", "channel 2 slot 0")
    dimm(1, 0, "16384", "channel 0 slot 0")
    dimm(1, 1, "16384", None)
    return tmp_path


def test_the_kernels_list_has_channels_without_rates(edac: Path) -> None:
    expected = ("", 3, 4, False, "/sys/devices/system/edac: modules")
    assert modules(lambda command: None, edac) == expected
    assert modules(lambda command: None, edac / "nowhere") is None
    asked: list[list[str]] = []
    modules(lambda command: asked.append([*command]), edac)  # type: ignore[func-returns-value]
    assert asked == [["dmidecode", "-t", "memory"]]
