"""Machines as users type them: every field of what is read, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.advise.machine import gib, hardware, machine_text
from moebench.harness.advise.question import Hardware
from moebench.harness.machines.products_file import products_file
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile

CATALOGUE = Path(__file__).parents[3] / "substrate" / "catalogue" / "machines"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, Hardware()),
        ({"gpu": "None"}, Hardware()),
        ({"gpu": "cpu-only"}, Hardware()),
        ({"gpu": "RTX 3090"}, Hardware(gpu="rtx-3090")),
        ({"gpu": "rtx-3090 * 16"}, Hardware(gpu="rtx-3090", cards=16)),
        ({"gpu": "4X RTX 3090"}, Hardware(gpu="rtx-3090", cards=4)),
        ({"gpu": "Dual RTX 3090"}, Hardware(gpu="rtx-3090", cards=2)),
        ({"gpu": "RTX 3090 (24 GB)"}, Hardware(gpu="rtx-3090")),
        ({"gpu": "RTX 4090 48GB"}, Hardware(gpu="rtx-4090-48gb")),
        ({"gpu": "L4 24 GiB"}, Hardware(gpu="l4")),
        ({"gpu": "Strix Halo", "ram": "96GB"}, Hardware(gpu="strix-halo", ram_gib=96)),
        ({"gpu": "Strix Halo", "ram": "64"}, Hardware(gpu="strix-halo", ram_gib=64)),
        ({"gpu": "Strix Halo"}, Hardware(gpu="strix-halo")),
        ({"gpu": "strix-halo", "cpu": "Ryzen AI Max+ 395"}, Hardware(gpu="strix-halo")),
        ({"cpu": "2x Xeon Gold 6454S"}, Hardware(cpu="xeon-gold-6454s", sockets=2)),
        ({"cpu": "Xeon Gold 6454S"}, Hardware(cpu="xeon-gold-6454s", sockets=1)),
        ({"cpu": "EPYC 9575F (64 c)"}, Hardware(cpu="EPYC 9575F (64 c)", sockets=1, cores=64)),
        ({"cpu": "2x 32-core server"}, Hardware(cpu="32-core server", sockets=2, cores=64)),
        ({"cpu": "2x server, 48 vCPUs"},
         Hardware(cpu="server, 48 vCPUs", sockets=2, cores=48, virtual=True)),
        ({"cpu": "2x server, 8 vcpu/socket"},
         Hardware(cpu="server, 8 vcpu/socket", sockets=2, cores=16, virtual=True)),
        ({"cpu": "1024 cores"}, Hardware(cpu="1024 cores", sockets=1, cores=1024)),
        ({"cpu": "1 core"}, Hardware(cpu="1 core", sockets=1, cores=1)),
        ({"cpu": "Xeon"}, Hardware(cpu="Xeon", sockets=1)),
        ({"memory": "DDR5-5600*2"}, Hardware(memory="DDR5-5600", channels=2)),
        ({"memory": "ddr5-5600"}, Hardware(memory="DDR5-5600")),
        ({"gpu": "rtx-3090", "link": "PCIe4x8"}, Hardware(gpu="rtx-3090", link="pcie4x8")),
        ({"disk": "NVMe3"}, Hardware(disk="nvme3")),
        ({"bandwidth": 0.1, "copies": 20000.0}, Hardware(reads_gb_s=0.1, copies_gb_s=20000.0)),
        ({"ram": "1.5TB"}, Hardware(ram_gib=1536)),
        # A list of parts, with what it leaves open.
        ({"machine": "rtx-3090+ryzen-9-5950x"},
         Hardware(gpu="rtx-3090", cpu="ryzen-9-5950x", sockets=1, ram_gib=64, memory="DDR4-3200",
                  link="pcie4x16", disk="nvme4")),
        ({"machine": "rtx-3090*2+xeon-gold-6454s*2+ddr5-4800*16+ram=512+pcie4x8+nvme3"},
         Hardware(gpu="rtx-3090", cards=2, cpu="xeon-gold-6454s", sockets=2, ram_gib=512,
                  memory="DDR5-4800", channels=16, link="pcie4x8", disk="nvme3")),
        ({"machine": "rtx-3090+ddr4-3200*2"},
         Hardware(gpu="rtx-3090", ram_gib=64, memory="DDR4-3200", channels=2, link="pcie4x16",
                  disk="nvme4")),
        ({"machine": "rtx-3090+ram=32"},
         Hardware(gpu="rtx-3090", ram_gib=32, link="pcie4x16", disk="nvme5")),
        ({"machine": "cpu-only+epyc-9354"},
         Hardware(cpu="epyc-9354", sockets=1, ram_gib=768, memory="DDR5-4800", disk="nvme5")),
        ({"machine": "strix-halo+ram=96", "disk": "nvme5", "bandwidth": 200.0},
         Hardware(gpu="strix-halo", ram_gib=96, disk="nvme5", reads_gb_s=200.0)),
    ],
)  # fmt: skip
def test_what_is_typed_is_read(given: dict[str, Any], found: Hardware) -> None:
    assert hardware(**given) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": "rtx-3090*0"}, "--gpu 'rtx-3090*0': allowed: a name, or NAME*N"),
        ({"gpu": "rtx-3090*17"}, "--gpu 'rtx-3090*17': allowed: a name, or NAME*N"),
        ({"gpu": "*2"}, "--gpu '*2': allowed: a name, or NAME*N"),
        ({"gpu": "A100"}, "--gpu 'A100': may be a100-40gb-pcie or a100-80gb-pcie; give one"),
        ({"gpu": "nothing like it"},
         "--gpu 'nothing like it': unknown; all: moebench machines list --parts"),
        ({"gpu": "ryzen-9-5950x"}, "--gpu 'ryzen-9-5950x': unknown; "),
        ({"gpu": "strix-halo", "memory": "ddr5-5600"}, "--memory ddr5-5600: Strix Halo"),
        ({"gpu": "strix-halo", "link": "pcie4x16"}, "--link pcie4x16: Strix Halo"),
        ({"gpu": "strix-halo", "ram": "63"}, "--ram 63: Strix Halo"),
        ({"gpu": "strix-halo", "ram": "129"}, "--ram 129: Strix Halo"),
        ({"cpu": "1025 cores"}, "--cpu '1025 cores': allowed: 1 to 1024 cores"),
        ({"memory": "ddr5"}, "--memory 'ddr5': allowed: ddr4-3200, ddr5-5600*2 and the like"),
        ({"memory": "ddr4-3200*0"}, "--memory 'ddr4-3200*0': allowed after *: the number of"),
        ({"memory": "ddr4-3200*65"}, "--memory 'ddr4-3200*65': allowed after *: the number of"),
        ({"memory": "ddr4-3200*x"}, "--memory 'ddr4-3200*x': allowed after *: the number of"),
        ({"bandwidth": 0.09}, "--bandwidth 0.09: allowed: GB/s from 0.1 to 20000"),
        ({"copies": 20001.0}, "--copies 20001: allowed: GB/s from 0.1 to 20000"),
        ({"machine": "rtx-3090+ram=64", "cpu": "epyc-9354"}, "--cpu: --machine names the whole"),
        ({"machine": "rtx-3090+ram=64", "ram": "64"}, "--ram: --machine names the whole"),
        ({"machine": "rtx-3090+ram=64", "memory": "ddr4"}, "--memory: --machine names the whole"),
        ({"machine": "rtx-3090+ram=64", "link": "pcie4x16"}, "--link: --machine names the whole"),
        ({"gpu": "rtx-3090", "cpu": "ryzen-5-5600g", "link": "pcie4x16"}, "machine 'rtx-3090+"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hardware(**given)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("typed", "size"), [("1", 1), ("32768", 32768), ("32T", 32768), (" 1 gb ", 1), ("2.5", 2.5)]
)
def test_sizes_from_a_gibibyte_to_32_tebibytes(typed: str, size: float) -> None:
    assert gib("--ram", typed) == size
    for refused in ("0.99", "32769", "33T"):
        with pytest.raises(UsageError, match=rf"--x '{refused}': allowed: GB or GiB from 1 to"):
            gib("--x", refused)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Hardware(), "cpu-only"),
        (Hardware(gpu="rtx-3090", cards=2, ram_gib=64.5, disk="nvme3"),
         "rtx-3090*2+ram=64.5+nvme3"),
        (Hardware(gpu="rtx-3090", cpu="ryzen-9-5950x", sockets=1, memory="DDR4-3200", channels=1),
         "rtx-3090+ryzen-9-5950x+ddr4-3200*1"),
        (Hardware(gpu="rtx-3090", cpu="xeon-gold-6454s", sockets=2, memory="DDR5-4800"),
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800"),
        (Hardware(gpu="rtx-3090", cpu="EPYC 9575F", link="pcie4x16"), "rtx-3090+pcie4x16"),
        (Hardware(cpu="epyc-9354", link="pcie4x16"), "cpu-only+epyc-9354"),
        (Hardware(gpu="Strix Halo", cpu="epyc-9354", memory="DDR5-4800", ram_gib=96, disk="nvme5"),
         "strix-halo+ram=96+nvme5"),
    ],
)  # fmt: skip
def test_a_machine_as_a_list_of_parts(found: Hardware, text: str) -> None:
    assert machine_text(found) == text


def rate(*values: float) -> dict[str, list[float]]:
    """Return rates by threads, with their ends."""
    return {str(n): [value, value, value] for n, value in enumerate(values, 1)}


def calibrated(folder: Path, name: str) -> Path:
    """Write a machine of the catalogue to a file."""
    file = folder / "mine.yaml"
    file.write_bytes((CATALOGUE / f"{name}.yaml").read_bytes())
    return file


def test_the_file_of_a_calibrated_machine(tmp_path: Path) -> None:
    file = calibrated(tmp_path, "rtx4090")
    found = hardware(machine=str(file))
    profile = load_profile(str(file))
    assert found == Hardware(
        gpu=profile.gpu.name, cpu=profile.host.name, profile=profile, file=str(file),
        ram_gib=profile.host.memory.bytes / 2**30,
    )  # fmt: skip
    assert machine_text(found) == str(file)
    # Weights per second: 8.5 bits at 17 GB/s are half as many as 4.5 bits at 18.
    document = {"what": "", "expert": {}, "formats": {
        "q4_k": {"kernels": "a", "bits": 4.5, "gb_s": {"1": rate(9, 18), "8": rate(90)}},
        "q8_0": {"kernels": "a", "bits": 8.5, "gb_s": {"1": rate(17, 8)}},
        "q6_k": {"kernels": "a", "bits": 6.5, "gb_s": {"8": rate(17)}},
    }}  # fmt: skip
    products_file(file).write_text(json.dumps(document))
    assert hardware(machine=str(file)).products == pytest.approx({"q4_k": 1.0, "q8_0": 0.5})
    del document["formats"]["q4_k"]
    products_file(file).write_text(json.dumps(document))
    assert hardware(machine=str(file)).products == {}
