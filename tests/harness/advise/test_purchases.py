"""Gains of purchases: by answers on the changed machine, and by what cannot help."""

import pytest

from moebench.harness.advise.answering import answers
from moebench.harness.advise.ask import question
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.purchases import Purchase, changes, purchases
from moebench.harness.advise.question import Question


def asked(model: str = "gpt-oss-120b", **parts: str) -> Question:
    usual = {"gpu": "rtx-3090", "cpu": "ryzen-9-5950x", "ram": "64", "memory": "ddr4-2666*2"}
    return question(model=model, quant=None, hardware=hardware(**(usual | parts)))


def bought(one: Question, *engines: str) -> dict[str, Purchase]:
    found = purchases(answers(one, engines, binding=False), engines)
    assert [p.gain.value for p in found] == sorted((p.gain.value for p in found), reverse=True)
    return {p.what: p for p in found}


@pytest.mark.slow
def test_a_gain_is_the_difference_of_two_answers() -> None:
    one = asked()
    now = answers(one, ["llama.cpp"], binding=False).rows[0]
    found = bought(one, "llama.cpp")
    faster = answers(asked(memory="ddr4-3200*2"), ["llama.cpp"], binding=False).rows[0]
    gain = found["DDR4-3200 instead of DDR4-2666"].gain
    assert gain.value == pytest.approx(faster.decode.value - now.decode.value)
    assert gain.value > 0
    assert gain.low < gain.value < gain.high


@pytest.mark.slow
def test_what_is_bound_by_the_hosts_memory_gains_by_it_and_not_by_a_disk() -> None:
    found = bought(asked(), "llama.cpp")
    assert found["DDR4-3200 instead of DDR4-2666"].gain.value > 0
    assert found["a second such disk"].gain == (0, 0, 0)
    assert found["128 GB of memory instead of 64"].gain.value == 0
    cards = [found[f"card with {more} GB more"].gain.value for more in (8, 16, 24)]
    assert 0 < cards[0] < cards[1] < cards[2]


@pytest.mark.slow
def test_what_pages_gains_by_memory_and_by_a_second_disk() -> None:
    found = bought(asked(ram="32"), "llama.cpp")
    assert found["a second such disk"].gain.value > 0
    memory = found["64 GB of memory instead of 32"]
    assert memory.best.fits == "fits"
    assert memory.gain.value > found["a second such disk"].gain.value


@pytest.mark.slow
def test_a_faster_link_helps_what_loads_over_it() -> None:
    found = bought(asked(link="pcie3x16"), "freetoken")
    assert found["PCIe 4.0 x16 instead of PCIe 3.0 x16"].gain.value > 0
    host = bought(asked(link="pcie3x16"), "llama.cpp")
    assert host["PCIe 4.0 x16 instead of PCIe 3.0 x16"].gain.value == pytest.approx(0, abs=0.05)


def test_only_what_a_machine_can_have_is_offered() -> None:
    pool = question(model="gpt-oss-120b", quant=None,
                    hardware=hardware(gpu="strix-halo", ram="128"))  # fmt: skip
    names = {what for what, _ in changes(pool)}
    assert names == {"a second such disk"}
    server = question(
        model="gpt-oss-120b", quant=None,
        hardware=hardware(gpu="rtx-3090", cpu="epyc-9354", memory="ddr5-4800*8", ram="256"),
    )  # fmt: skip
    offered = {what for what, _ in changes(server)}
    assert "memory on 12 channels instead of 8" in offered
    assert not any(what.startswith("DDR5-5600") for what in offered), "the processor has 4800"
    full = {what for what, _ in changes(asked())}
    assert not any("channels instead" in what for what in full)
