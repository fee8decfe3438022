"""What goes wrong on this computer ends a run in one line, and leaves no thread behind."""

import errno
import os
import threading
from typing import Any

import pytest

from moebench.substrate.machines import loader, records
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.models import expert_store
from tests.harness.commands import SMALL, call, refused, run

HERE = (*SMALL, "--machine", "local", "--store", "store")
LINK = ("--emulated-link", "2GB/s")

pytestmark = pytest.mark.usefixtures("tiny_models")


@pytest.fixture(autouse=True)
def no_thread_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {thread.name for thread in threading.enumerate()}
    yield
    left = {thread.name for thread in threading.enumerate()} - before
    assert not left & {"loader", "host", "back"}


class Nth:
    """Does what it stands for until the n-th call, which fails."""

    def __init__(self, real: Any, n: int, failure: BaseException) -> None:
        self._real, self._left, self._failure = real, n, failure

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if not self._left:
            raise self._failure
        return self._real(*arguments, **named)


def test_both_tiers_run_for_real() -> None:
    linked = run("smoe", "--machine", "local", *LINK, "--store", "store")
    assert linked["badge"] == "measured, emulated link"
    assert linked["spec"]["emulated_link_gb_s"] == 2.0
    assert any("an emulated link of 2 GB/s" in note for note in linked["notes"])
    assert linked["metrics"]["bytes_h2d"] > linked["metrics"]["bytes_disk"] == 0
    on_disk = run("smoe", "--machine", "local", "--store", "store")
    assert on_disk["badge"] == "measured"
    assert any(note.startswith("host assist is off") for note in on_disk["notes"])
    assert on_disk["metrics"]["bytes_disk"] > on_disk["metrics"]["bytes_h2d"] == 0
    for document in (linked, on_disk):
        assert document["measured"]["batches"] == 1
        assert document["measured"]["tpot_ms"]["median"] > 0


@pytest.mark.parametrize("system", ["daop", "duoserve", "fiddler", "hybrimoe", "llamacpp"])
def test_systems_of_every_kind_run_behind_a_link(system) -> None:
    document = run(system, "--machine", "local", *LINK, "--calibrate-texts", "2")
    if document["lossless"]:
        assert document["accuracy"]["agreement"] == 1.0


@pytest.mark.parametrize(
    ("system", "swap"),
    [("hybrimoe", "prefetch=none"), ("ktransformers", "evict=lru"), ("daop", "evict=lru"),
     ("fiddler", "evict=lru")],
)  # fmt: skip
def test_what_needs_the_host_s_help_is_refused_where_the_host_is_the_device(system, swap) -> None:
    line = refused("run", "--system", system, *HERE, "--calibrate-texts", "2")
    assert f"give --emulated-link RATE, or --set {swap}" in line
    document = run(system, "--machine", "local", "--set", swap, "--calibrate-texts", "2")
    assert document["badge"] == "measured"


def test_a_placement_for_host_computing_is_refused_where_the_host_is_the_device() -> None:
    line = refused("run", "--system", "smoe", *HERE, "--set", "place=threshold-ilp")
    assert "give --emulated-link RATE, or --set place=popular" in line


@pytest.mark.slow
@pytest.mark.usefixtures("shipped_models")  # tiny ones read too little to fail in the middle
def test_a_disk_that_fails_in_the_middle_of_a_run(monkeypatch) -> None:
    run("moe-ondemand", "--machine", "local", "--store", "store")
    failing = Nth(os.preadv, 900, OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(records.os, "preadv", failing)
    line = refused("run", "--system", "moe-ondemand", *HERE, "--force")
    assert "failed (Input/output error); check the disk, or give another --store" in line


def test_a_disk_that_fails_before_the_first_decision(monkeypatch) -> None:
    run("moe-ondemand", "--machine", "local", "--store", "store")
    # The first read asks whether direct reads are possible, the next ones are trials.
    failing = Nth(os.preadv, 3, OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(records.os, "preadv", failing)
    assert "failed (Input/output error)" in refused(
        "run", "--system", "moe-ondemand", *HERE, "--force"
    )


def test_a_disk_that_is_full_leaves_nothing_half_written(monkeypatch, tmp_path) -> None:
    full = Nth(expert_store.ExpertStore._write, 1, OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(expert_store.ExpertStore, "_write", full)
    line = refused("run", "--system", "moe-ondemand", *HERE)
    assert "could not be written (No space left on device); free" in line
    assert not list((tmp_path / "store" / "experts").iterdir())


@pytest.mark.usefixtures("shipped_models")  # tiny ones need less than is left
@pytest.mark.parametrize(("link", "what"), [((), "slots of the device"), (LINK, "in host memory")])
def test_too_little_memory(link, what, monkeypatch) -> None:
    monkeypatch.setattr(records, "available_bytes", lambda: 100_000)
    line = refused("run", "--system", "moe-ondemand", *HERE, *link)
    assert what in line
    assert "this computer has 0.0001 GB of memory to spare; give a smaller --capacity" in line


def test_without_direct_reads_the_page_cache_is_named(monkeypatch) -> None:
    monkeypatch.setattr(records, "_reads_directly", lambda path: False)
    document = run("moe-ondemand", "--machine", "local", "--store", "store")
    assert any("has no direct reads" in note for note in document["notes"])
    monkeypatch.undo()
    document = run("moe-ondemand", "--machine", "local", "--page-cache", "keep")
    assert any("through the page cache, as asked" in note for note in document["notes"])


@pytest.mark.parametrize("link", [(), LINK])
def test_a_mistake_in_a_thread_is_raised_where_the_run_waits(link, monkeypatch) -> None:
    failing = Nth(loader.Loader.carry, 5, ZeroDivisionError("a mistake of ours"))
    monkeypatch.setattr(loader.Loader, "carry", lambda self, job: failing(self, job))
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        call("run", "--system", "moe-ondemand", *HERE, *link)


@pytest.mark.parametrize("link", [(), LINK])
def test_an_interrupt_ends_the_run_and_stores_nothing(link, monkeypatch) -> None:
    waits = Nth(LocalMachine.wait, 20, KeyboardInterrupt())
    monkeypatch.setattr(LocalMachine, "wait", lambda self, span: waits(self, span))
    called = call("run", "--system", "moe-ondemand", *HERE, *link)
    assert called.code == 130
    assert called.err.rstrip().endswith("interrupted")
    assert "no runs" in refused("report", "--store", "store")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--emulated-link", "4"), "--emulated-link 4: expected a rate, for example 4GB/s"),
        (("--emulated-link", "0GB/s"), "--emulated-link 0GB/s: expected a rate"),
        (("--page-cache", "drop", "--machine", "local"), "--page-cache drop: Input should be"),
        (("--page-cache", "keep"), "this computer is meant; add --machine local"),
        (("--emulated-link", "4GB/s"), "this computer is meant; add --machine local"),
        (
            ("--page-cache", "keep", "--machine", "local", *LINK),
            "experts are in memory then; give one",
        ),
        (
            ("--machine", "local", "--set", "expert_precision=4bit"),
            'takes fp32 experts from the disk, but moe-ondemand has expert_precision="4bit"',
        ),
        (("--machine", "local", "--set", "overlap=false"), "but moe-ondemand has overlap=false"),
    ],
)
def test_options_that_cannot_be(arguments, says) -> None:
    assert says in refused("run", "--system", "moe-ondemand", *SMALL, *arguments)


@pytest.mark.parametrize("system", ["fiddler", "smoe", "moe-ondemand"])
def test_what_a_lane_does_takes_time(system) -> None:
    document = run(system, "--machine", "local", *LINK, "--calibrate-texts", "2")
    lanes, experts = document["metrics"]["decode"]["lanes"], document["metrics"]["experts"]
    assert (lanes["host"] > 0) == (experts["decode"]["host"] > 0)
    assert (lanes["d2h"] > 0) == (experts["decode"]["host"] > 0), "outputs return"
    assert lanes["h2d"] > 0 or experts["decode"]["loads"] == 0  # prefetches are no loads
    assert lanes["device"] > 0
