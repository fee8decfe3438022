"""Gains of purchases: by answers on the changed machine, and by what cannot help."""

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import purchases as module
from moebench.harness.advise.answer import Rate
from moebench.harness.advise.answering import answers
from moebench.harness.advise.ask import question
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.purchases import Purchase, changes, purchases
from moebench.harness.advise.question import Hardware, Question
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import Processor, parts


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


# ------------------------------------------------------------------------------ by hand


def offered(**parts: str) -> dict[str, dict[str, object]]:
    """Return the fields that each purchase changes, by its name, in order."""
    one = question(model="gpt-oss-120b", quant=None, hardware=hardware(**parts))
    names = [field.name for field in fields(Hardware)]
    return {what: {name: getattr(other, name) for name in names
                   if getattr(other, name) != getattr(one.hardware, name)}
            for what, other in changes(one)}  # fmt: skip


def test_all_purchases_of_a_desktop() -> None:
    found = offered(gpu="2x rtx-3090", cpu="ryzen-9-5950x", ram="64", memory="ddr4-2666*1",
                    link="pcie3x8")  # fmt: skip
    assert list(found.items()) == [
        ("card with 8 GB more", {"more_gib": 8.0}), ("card with 16 GB more", {"more_gib": 16.0}),
        ("card with 24 GB more", {"more_gib": 24.0}),
        ("a second card of this kind", {"cards": 4}),
        ("DDR4-3200 instead of DDR4-2666", {"memory": "DDR4-3200"}),
        ("DDR4-3600 instead of DDR4-2666", {"memory": "DDR4-3600"}),
        ("memory on 2 channels instead of 1", {"channels": 2}),
        ("PCIe 4.0 x8 instead of PCIe 3.0 x8",
         {"link": "", "copies_gb_s": parts()["pcie4x8"].h2d_gbs}),
        ("128 GB of memory instead of 64", {"ram_gib": 128.0}),
        ("a second such disk", {"disks": 2}),
    ]  # fmt: skip


def test_all_purchases_of_a_server_without_a_card() -> None:
    """Its modules have the rate of the processor's memory already."""
    assert offered(gpu="none", cpu="epyc-9354*2", ram="256", memory="ddr5-4800*12") == {
        "memory on 24 channels instead of 12": {"channels": 24},
        "512 GB of memory instead of 256": {"ram_gib": 512.0},
        "a second such disk": {"disks": 2},
    }
    slow = offered(gpu="none", cpu="epyc-9355", ram="256", memory="ddr5-4800*12")
    assert list(slow)[:2] == [
        "DDR5-5600 instead of DDR5-4800", "DDR5-6000 instead of DDR5-4800",
    ]  # fmt: skip


def test_a_measured_memory_is_not_replaced_and_an_unknown_processor_has_no_channels() -> None:
    one = asked()
    measured = replace(one, hardware=replace(one.hardware, reads_gb_s=30.0))
    assert not any("DDR4" in what for what, _ in changes(measured))
    unknown = offered(gpu="rtx-3090", ram="32", memory="ddr5-4800*1")
    assert [what for what in unknown if "DDR5" in what or "channels" in what] == [
        "DDR5-5600 instead of DDR5-4800", "DDR5-6000 instead of DDR5-4800",
    ]  # fmt: skip
    fast = offered(gpu="rtx-5090", cpu="ryzen-9-9950x", memory="ddr5-8000*2", link="pcie5x16")
    assert not any("instead of DDR5" in what or "PCIe" in what for what in fast)


def test_modules_for_all_channels_have_the_rate_of_those_that_are_there() -> None:
    """Modules that were detected are in the machine's description alone."""
    now, processor = Hardware(gpu="rtx-3090"), parts()["ryzen-9-5950x"]
    assert isinstance(processor, Processor)
    found = dict(module._memory(now, processor, "1 channel of DDR4-2666"))
    assert {what: (one.memory, one.channels) for what, one in found.items()} == {
        "DDR4-3200 instead of DDR4-2666": ("DDR4-3200", 1),
        "DDR4-3600 instead of DDR4-2666": ("DDR4-3600", 1),
        "memory on 2 channels instead of 1": ("DDR4-2666", 2),
    }
    two = replace(now, sockets=2)
    assert "memory on 4 channels instead of 1" in dict(
        module._memory(two, processor, "1 channel of DDR4-2666")
    )
    assert list(module._memory(now, processor, "soldered memory")) == []


def row(decode: float, prefill: float | None = None, forced: bool = False) -> Any:
    def rate(value: float) -> Rate:
        return Rate(value, 0.8 * value, 1.25 * value)

    return SimpleNamespace(decode=rate(decode), forced=forced,
                           prefill=None if prefill is None else rate(prefill))  # fmt: skip


def test_gains_are_of_the_best_rows_that_were_not_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio of 2 times or over e^(1.2816 x 0.1 x sqrt 2), on the ends of the rate before."""
    after = {8.0: [row(20, 90)], 16.0: [], 24.0: [row(30), row(99)]}

    def answered(one: Question, engines: Any, binding: bool) -> Any:
        assert (engines, binding) == (("vllm",), False)
        if one.hardware.cards == 2:
            raise UsageError("no such machine")
        return SimpleNamespace(rows=after.get(one.hardware.more_gib, []) if
                               one.hardware.more_gib else [row(10, 45)])  # fmt: skip

    monkeypatch.setattr(module, "answers", answered)
    one = question(model="gpt-oss-120b", quant=None, hardware=hardware(gpu="rtx-3090"))
    now: Any = SimpleNamespace(question=one, rows=[row(500, 1, forced=True), row(10, 45)])
    found = purchases(now, ("vllm",))
    assert [one.what for one in found[:2]] == ["card with 24 GB more", "card with 8 GB more"]
    assert all(one.gain == Rate(0.0, 0.0, 0.0) == one.prefill_gain for one in found[2:])
    assert not any("16 GB more" in one.what or "second card" in one.what for one in found)
    largest, second = found[:2]
    assert (largest.best, largest.prefill_gain) == (after[24.0][0], None)
    error = math.exp(1.2816 * 0.1 * 2**0.5)
    assert second.gain == pytest.approx((10, 8 * (2 / error - 1), 12.5 * (2 * error - 1)))
    assert second.prefill_gain == pytest.approx((45, 36 * (2 / error - 1), 56.25 * (2 * error - 1)))
    alone = purchases(SimpleNamespace(question=one, rows=[]), ("vllm",))  # type: ignore[arg-type]
    assert alone[0].gain == after[24.0][0].decode
    slower = {**after, 8.0: [row(5, 45)]}
    after.update(slower)
    worse = next(one for one in purchases(now, ("vllm",)) if "with 8 GB" in one.what)
    assert worse.gain == pytest.approx((-5, 12.5 * (0.5 / error - 1), 8 * (0.5 * error - 1)))
