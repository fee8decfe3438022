"""Stages on this computer's processor: what is built, of which parts, and what the notes say."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.stage import local
from moebench.harness.stage.local import LocalKind
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.records import READS_IN_FLIGHT
from moebench.systems.policies.assign import LoadAll

#: Of one expert as the fake formats store it, and of the whole fake device.
RECORD, SLOTS = 1000, 6


class Made(SimpleNamespace):
    """A part of the stage that notes when its context is entered and left."""

    def __enter__(self) -> "Made":
        self.log.append(f"enter {self.what}")
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(f"leave {self.what}")


class MemoryRecords(Made):
    """Records of the emulated link."""


class Parts:
    """Replaces all parts of a stage by notes of how they were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[str, Any] = {}
        self.log: list[str] = []

        def part(name: str, /, **fields: Any) -> Any:
            def make(*given: Any, **more: Any) -> Any:
                self.log.append(f"make {name}")
                self.made[name] = (given, more)
                return Made(what=name, log=self.log, **fields)

            return make

        class Memory(MemoryRecords):
            """Notes how it was made, as the other parts."""

            def __init__(own, *given: Any, **more: Any) -> None:
                super().__init__(what="memory", log=self.log, notes=["of memory"], on_host="hosts")
                self.made["memory"] = (given, more)

        monkeypatch.setattr(local, "check_common", part("check"))
        monkeypatch.setattr(local, "Timeline", part("timeline"))
        monkeypatch.setattr(local, "format_of", part(
            "format", record_bytes=RECORD, notes=["of the format"], name="int4"))  # fmt: skip
        monkeypatch.setattr(local, "ExpertCache", part("cache", slots=5, slot_bytes=4096))
        monkeypatch.setattr(local, "EmulatedLink", lambda rate: ("link", rate))
        monkeypatch.setattr(local, "MemoryRecords", Memory)
        monkeypatch.setattr(local, "DiskRecords", part("disk", notes=["of the disk"]))
        monkeypatch.setattr(local, "ExpertStore", SimpleNamespace(
            build=lambda *given: ("store", *given)))  # fmt: skip
        monkeypatch.setattr(local, "record_read", lambda path: ("read", path))
        monkeypatch.setattr(local, "LocalMachine", part("machine", slots="the slots"))
        monkeypatch.setattr(local, "SlotExperts", lambda *given: ("experts", *given))
        monkeypatch.setattr(local, "Decoder", lambda *given: ("decoder", *given))
        monkeypatch.setattr(local, "Engine", lambda *given: ("engine", *given))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


SHAPE = SimpleNamespace(moe_layers=(1, 2, 3), num_experts=4)


def request(host: bool = False, chosen: int | None = None, **given: Any) -> Any:
    """Return what is asked for; options of the spec, and of the runtime."""
    options = {"emulated_link_gb_s": None, "expert_dtype": None, "page_cache": None} | given
    runtime = {name: options.pop(name, None) for name in
               ("overlap", "blocking_copies", "parallel_reads", "pinned_copies")}  # fmt: skip
    system = SimpleNamespace(
        runtime=SimpleNamespace(**runtime), place=SimpleNamespace(slots=lambda *given: chosen),
        scope="global", assign=SimpleNamespace(uses_host=host), policies={},
    )  # fmt: skip
    weights = SimpleNamespace(shape=SHAPE, common=lambda dtype: ("common", dtype))
    return SimpleNamespace(
        spec=SimpleNamespace(**options), system=system, weights=weights, keep_timeline="kept",
        weights_name="w1", scratch=Path("scratch"), ran="a model", model=lambda one: ("model", one),
    )  # fmt: skip


def memory() -> Any:
    return SimpleNamespace(
        capacity=SimpleNamespace(slots=SLOTS, homes="homes"), notes=["of memory's budget"],
        document=lambda *given: ("document", *given),
    )  # fmt: skip


def built(of: Any) -> Any:
    with ExitStack() as stack:
        return LocalKind().build(of, memory(), stack)


def test_experts_from_the_disk_are_read_in_their_format(parts: Parts) -> None:
    of = request(overlap="overlap", blocking_copies=True)
    stage = built(of)
    made = parts.made
    assert made["check"] == ((SHAPE, torch.float32, "fp32"), {})
    assert made["timeline"] == (("kept",), {})
    assert made["format"] == ((SHAPE, torch.float32), {})
    shape, slots, scope, device, size = made["cache"][0]
    assert (shape, slots, scope, size, made["cache"][1]) == (SHAPE, SLOTS, "global", RECORD, {})
    assert (device.name, device.budget_bytes) == ("local", SLOTS * RECORD)
    store = ("store", of.weights, ("read", Path("scratch/experts/w1-int4.bin")), torch.float32)
    assert made["disk"] == ((store, 1, False), {})
    (records, slots, timeline), options = made["machine"]
    assert (records.what, slots, timeline) == ("disk", 5, stage.timeline)
    assert options == {"overlap": "overlap", "blocking_copies": True}
    decoder = ("decoder", SHAPE, ("common", torch.float32))
    name, system, model, machine, cache, when, homes = stage.engine
    assert (name, system, machine, when, homes) == ("engine", of.system, stage.machine,
                                                    stage.timeline, ())  # fmt: skip
    experts = model[1][3]
    assert (model[0], model[1][:3]) == ("model", decoder)
    assert experts[1:4] == (cache, "the slots", None)
    assert experts[4].what == "format"
    assert stage.device is device
    assert (stage.host.name, stage.host.budget_bytes) == ("host", 0)
    assert (stage.profile, stage.badge, stage.ran) == (None, "measured", "a model")
    assert (stage.slots, stage.total) == (5, 3 * 4)
    assert stage.memory == ("document", 4096, RECORD)
    assert stage.load_ns(True) == 0
    assert stage.notes == [
        "a model ran, measured on this computer's CPU with 5 slots in memory", "of the format",
        "of the disk", "of memory's budget",
    ]  # fmt: skip
    assert parts.log[-5:] == [
        "enter disk", "make machine", "enter machine", "leave machine", "leave disk",
    ]  # fmt: skip


def test_options_of_reading_reach_the_records(parts: Parts) -> None:
    built(request(parallel_reads=True, page_cache="keep", expert_dtype="int4", chosen=3))
    (store, in_flight, keeps), _ = parts.made["disk"]
    assert (store[3], in_flight, keeps) == ("int4", READS_IN_FLIGHT, True)
    assert parts.made["format"] == ((SHAPE, "int4"), {})
    assert parts.made["cache"][0][1] == 3, "the policy of placement chose fewer slots"
    assert parts.made["cache"][0][3].budget_bytes == SLOTS * RECORD
    built(request(parallel_reads=False, page_cache="drop"))
    assert parts.made["disk"][0][1:] == (1, False)
    assert parts.made["machine"][1]["blocking_copies"] is False


@pytest.mark.parametrize(("pinned", "is_pinned"), [(None, True), (True, True), (False, False)])
def test_experts_over_an_emulated_link_are_in_memory(
    pinned: bool | None, is_pinned: bool, parts: Parts
) -> None:
    of = request(emulated_link_gb_s=4.0, pinned_copies=pinned, host=True, expert_dtype="int8")
    stage = built(of)
    assert parts.made["memory"] == ((of.weights, "int8", ("link", 4e9), is_pinned), {})
    assert "disk" not in parts.made
    assert stage.badge == "measured, emulated link"
    assert stage.engine[6] == "homes"
    assert stage.engine[2][1][3][3] == "hosts"
    assert "of memory" in stage.notes
    assert of.system.assign.uses_host, "the host computes beside the link"
    assert not any("host assist is off" in note for note in stage.notes)


def test_without_a_link_the_host_is_the_device_and_computes_nothing(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    of = request(host=True)
    stage = built(of)
    assert isinstance(of.system.assign, LoadAll)
    assert stage.notes[-3:] == [
        "this computer's CUDA device took no part; --device cuda runs on it",
        "host assist is off: on this machine the host is the device (assign=load)",
        "of memory's budget",
    ]


class Policy(SimpleNamespace):
    """A policy that works only where the host computes."""


def test_policies_that_need_the_host_are_refused_before_records_are_written(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "name_of", lambda decision, policy: policy.name)
    for decision, other in (("place", "popular"), ("prefetch", "none"), ("evict", "lru")):
        of = request(host=True)
        of.system.policies = {decision: Policy(needs_host=True, name="mine")}
        with pytest.raises(UsageError) as caught:
            built(of)
        assert str(caught.value) == (
            "--machine local: here the host is the device and every missing expert is loaded, but "
            f"{decision}=mine works only where the host computes some; give --emulated-link RATE, "
            f"or --set {decision}={other}"
        )
        assert "make disk" not in parts.log
        of.system.assign.uses_host = False
        built(of)
        of.system.assign.uses_host = True
        of.spec.emulated_link_gb_s = 1.0
        built(of)
        parts.log.clear()
    # A device that holds every expert evicts none.
    monkeypatch.setattr(local, "ExpertCache", lambda *given: SimpleNamespace(
        slots=12, slot_bytes=1))  # fmt: skip
    of = request(host=True)
    of.system.policies = {"evict": Policy(needs_host=True, name="mine")}
    built(of)
    of.system.policies["place"] = Policy(needs_host=False, name="other")
    of.system.assign = SimpleNamespace(uses_host=True)
    built(of)
