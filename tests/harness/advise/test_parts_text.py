"""A machine as a list of parts: stand-ins for processors, bounds of sizes, what does not fit."""

from typing import Any

import pytest

from moebench.harness.advise.parts_text import parts_text, stand_in
from moebench.harness.advise.question import Hardware
from moebench.substrate.errors import UsageError

DESKTOP, SERVER = "ryzen-7-7700", "epyc-9354"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, DESKTOP),
        ({"cores": 23}, DESKTOP),
        ({"cores": 24}, SERVER),
        ({"sockets": 1, "cores": 16}, DESKTOP),
        ({"sockets": 2, "cores": 2}, SERVER),
        ({"cards": 2}, DESKTOP),
        ({"cards": 3}, SERVER),
        ({"cpu": "Ampere Altra"}, SERVER),
        ({"cpu": "Graviton 4"}, SERVER),
    ],
)
def test_an_unlisted_processor_is_that_of_a_desktop_or_a_server(
    said: dict[str, Any], expected: str
) -> None:
    processor, exact = stand_in(Hardware(**{"cpu": "Some Chip", **said}))
    assert (processor.key, exact) == (expected, False)


def test_a_listed_processor_stands_for_itself() -> None:
    processor, exact = stand_in(Hardware(cpu="ryzen-9-5950x", cores=99))
    assert (processor.key, exact) == ("ryzen-9-5950x", True)
    text, remarks = parts_text(Hardware(gpu="rtx-3090", cpu="ryzen-9-5950x", sockets=2))
    assert (text, remarks) == ("rtx-3090+ryzen-9-5950x", ())  # such a processor has one socket
    relative, exact = stand_in(Hardware(cpu="AMD EPYC 7702"))
    assert (relative.key, exact) == ("epyc-7763", False)


def test_numbers_are_those_that_parts_can_have() -> None:
    most = Hardware(
        gpu="rtx-3090", cpu="x", cards=17, sockets=4, ram_gib=99999, memory="DDR5-4800",
        channels=12, link="pcie4x16", disk="nvme4",
    )  # fmt: skip
    assert parts_text(most) == (
        "rtx-3090*16+epyc-9354*2+ram=32768+ddr5-4800*12+pcie4x16+nvme4",
        ("EPYC 9354 stands in for x",),
    )
    least = Hardware(gpu="rtx-3090", cpu="x", cards=2, ram_gib=0.5)
    assert parts_text(least).text == "rtx-3090*2+ryzen-7-7700+ram=1"
    assert parts_text(Hardware(gpu="strix-halo", ram_gib=4, disk="nvme4")) == (
        "strix-halo+ram=64+nvme4", ()
    )  # fmt: skip
    assert parts_text(Hardware(gpu="strix-halo", ram_gib=400)).text == "strix-halo+ram=128"
    assert parts_text(Hardware(gpu="strix-halo")).text == "strix-halo"


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    text, remarks = parts_text(Hardware(link="pcie4x16", memory="DDR9-1", disk="nvme4"))
    assert text == "cpu-only+ryzen-7-7700+nvme4"  # without a card there is no link
    assert remarks == (
        "Ryzen 7 7700 stands in for an unknown processor",
        "ddr9-1 left out: unknown part 'ddr9-1'; all: moebench machines list --parts",
    )


def test_an_unknown_card_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"card 'rtx-3091' is not among the parts; nearest: .*rtx-3090"
    ):
        parts_text(Hardware(gpu="rtx-3091"))
    with pytest.raises(
        UsageError, match="card 'qqqqqqq' is not among the parts; write its profile"
    ):
        parts_text(Hardware(gpu="qqqqqqq"))
    with pytest.raises(UsageError, match="card 'ryzen-9-5950x' is not among the parts"):
        parts_text(Hardware(gpu="ryzen-9-5950x"))
