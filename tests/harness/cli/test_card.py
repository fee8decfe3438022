"""--device cuda, on a card that is a part of this computer's memory."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.machines import accelerator, loader
from moebench.substrate.machines.cuda import CudaMachine
from moebench.substrate.models import catalogue
from tests.harness.cli.test_local_faults import Nth
from tests.harness.commands import SMALL, call, refused, run
from tests.substrate.machines.fake_card import FakeCard

pytestmark = pytest.mark.usefixtures("tiny_models")

CUDA = ("--machine", "local", "--device", "cuda", "--precision", "fp32")
ON_CARD = (*SMALL, *CUDA, "--store", "store")


@pytest.fixture(autouse=True)
def no_thread_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {thread.name for thread in threading.enumerate()}
    yield
    left = {thread.name for thread in threading.enumerate()} - before
    assert not left & {"loader", "host", "back"}


@pytest.fixture
def cards(monkeypatch) -> list[FakeCard]:
    """Those that were opened; all are alike."""
    opened: list[FakeCard] = []

    def opens() -> FakeCard:
        opened.append(FakeCard())
        return opened[-1]

    monkeypatch.setattr(accelerator, "Cuda", opens)
    return opened


SYSTEMS = ["daop", "fiddler", "hybrimoe", "llamacpp", "moe-infinity", "moe-ondemand", "smoe"]


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_of_every_kind_run_on_a_card(cards, system) -> None:
    document = run(system, *CUDA, "--slots", "9", "--calibrate-texts", "2")
    assert document["badge"] == "measured"
    assert document["spec"]["device"] == "cuda"
    assert document["measured"]["tpot_ms"]["median"] > 0
    assert document["provenance"]["machine"].startswith("Fake Card; ")
    kind = "pageable" if system == "llamacpp" else "pinned"  # as its authors' code does
    assert f"experts are copied from {kind} host memory" in document["notes"]
    if document["lossless"]:
        assert document["accuracy"]["agreement"] == 1.0


def test_recorded_routing_runs_with_random_weights(cards, tmp_path) -> None:
    recorded = ("--setting", "S3", "--workload", "arithmetic", "--prompts", "1", "--out", "t")
    assert call("trace", "record", *recorded, "--new-tokens", "4").code == 0
    shape = catalogue.SCALE / "qwen2-57b-a14b" / "config.json"
    given = ("--trace", "t", "--model", shape, "--capacity", "0.25", *CUDA, "--json")
    called = call("run", "--system", "moe-ondemand", *given)
    assert called.code == 0, called.err
    assert "random parameters ran in fp32, measured on Fake Card" in noted(called.json)
    assert called.json["metrics"]["bytes_h2d"] > 0


def test_half_precision_and_pageable_memory(cards) -> None:
    document = run("smoe", *CUDA, "--precision", "bf16", "--set", "pinned_copies=false")
    assert "experts are copied from pageable host memory" in document["notes"]
    assert " ran in bf16, measured on Fake Card" in noted(document)
    assert document["spec"]["precision"] == "bf16"


def test_a_limit_stands_for_a_smaller_card(cards) -> None:
    weights = ("--weights", str(catalogue.SCALE / "qwen2-57b-a14b"))
    alone = ("--workload", "arithmetic", "--prompts", "1", "--new-tokens", "3", *CUDA, *weights)
    whole = call("run", "--system", "moe-ondemand", *alone, "--json").json
    assert whole["spec"]["cache_ratio"] == 1.0
    slots, *others = (float(size) for size in re.findall(r"([0-9.e-]+) GB[,)]", noted(whole))[:3])
    cap = f"{slots / 2 + sum(others):.3g}GB"
    capped = call("run", "--system", "moe-ondemand", *alone, "--device-memory", cap, "--json")
    assert capped.code == 0, capped.err
    document = capped.json
    assert 0.4 < document["spec"]["slots"] / whole["spec"]["slots"] < 0.55
    assert " GB are allowed (--device-memory, or the setting's)" in noted(document)
    limited = [card.limited for card in cards if card.limited is not None]
    asked = document["spec"]["device_memory_gib"] * 2**30
    assert limited[-1] == round(asked) + accelerator.WORKSPACE_BYTES
    line = refused("run", "--system", "moe-ondemand", *alone, "--device-memory", "80GB")
    assert "--device-memory 74.5058: Fake Card has" in line


def noted(document: dict[str, Any]) -> str:
    """What is said of the card."""
    (said,) = [note for note in document["notes"] if "measured on Fake Card" in note]
    return str(said)


def test_a_card_with_less_memory_than_asked(monkeypatch) -> None:
    monkeypatch.setattr(accelerator, "Cuda", lambda: FakeCard(free=10**9 + 50_000))
    line = refused("run", "--system", "moe-ondemand", *ON_CARD)
    assert "of Fake Card" in line
    assert "are free beside a workspace; give a smaller --capacity or --slots" in line


def test_too_little_pinned_memory(monkeypatch) -> None:
    monkeypatch.setattr(accelerator, "Cuda", lambda: FakeCard(pinnable=False))
    assert "cannot be pinned" in refused("run", "--system", "moe-ondemand", *ON_CARD)


def test_without_cuda_one_line_says_so(monkeypatch) -> None:
    monkeypatch.setattr(accelerator._cuda, "is_available", lambda: False)
    line = refused("run", "--system", "moe-ondemand", *ON_CARD)
    assert "--device cuda: " in line
    assert "give --device cpu" in line


def test_a_mistake_in_a_thread_is_raised_where_the_run_waits(cards, monkeypatch) -> None:
    failing = Nth(loader.Loader.carry, 5, ZeroDivisionError("a mistake of ours"))
    monkeypatch.setattr(loader.Loader, "carry", lambda self, job: failing(self, job))
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        call("run", "--system", "moe-ondemand", *ON_CARD)


def test_an_interrupt_ends_the_run_and_stores_nothing(cards, monkeypatch) -> None:
    waits = Nth(CudaMachine.wait, 8, KeyboardInterrupt())
    monkeypatch.setattr(CudaMachine, "wait", lambda self, span: waits(self, span))
    called = call("run", "--system", "moe-ondemand", *ON_CARD)
    assert called.code == 130
    assert not cards[-1].pinned
    assert "no runs" in refused("report", "--store", "store")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "cuda"), "this computer is meant; add --machine local"),
        (("--device", "tpu", "--machine", "local"), "--device tpu: Input should be 'cpu'"),
        ((*CUDA, "--emulated-link", "4GB/s"), "behind its own link; give one"),
        ((*CUDA, "--page-cache", "keep"), "behind its own link; give one"),
        ((*CUDA, "--precision", "4bit"), "allowed with --device cuda: bf16, fp16, fp32"),
        ((*CUDA, "--device-memory", "12TB"), "--device-memory 12TB: expected a size"),
        ((*CUDA, "--set", "expert_precision=4bit"), "takes fp32 experts from host memory"),
    ],
)
def test_options_that_cannot_be(cards, arguments, says) -> None:
    assert says in refused("run", "--system", "moe-ondemand", *SMALL, *arguments)


def test_common_weights_that_are_not_on_the_card(cards) -> None:
    line = refused("run", "--system", "accelerate", *SMALL, *CUDA, "--set", "module_hooks=false")
    assert "accelerate leaves common weights to the host or streams them" in line


def test_every_operation_of_the_device_lasts(cards) -> None:
    called = call("run", "--system", "moe-ondemand", *ON_CARD, "--timeline", "t.json", "--json")
    assert called.code == 0, called.err
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    (device,) = (e["pid"] for e in events
                 if e["name"] == "process_name" and e["args"]["name"] == "device")  # fmt: skip
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == device]
    assert len(spans) > 20
    assert all(event["dur"] > 0 for event in spans)


def test_a_cards_kv_cache_grows_with_the_batch(cards, monkeypatch) -> None:
    def sizes(batch: int) -> float:
        line = refused("run", "--system", "moe-ondemand", *ON_CARD, "--batch", batch,
                       "--prompts", 4, "--force")  # fmt: skip
        return float(re.search(r"KV cache ([\d.e-]+) GB", line)[1])

    monkeypatch.setattr(FakeCard, "memory", lambda self: (1000, 10**9))
    assert sizes(4) == pytest.approx(4 * sizes(1), rel=0.05)
