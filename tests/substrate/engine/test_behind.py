"""Slots of a device that runs behind its control thread: it is given work on what has not come."""

import threading
from types import SimpleNamespace

import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.tier import Tier
from moebench.systems.options import build
from tests.substrate.engine.fakes import small_shape

SHAPE = small_shape()
LAYER, EXPERT = SHAPE.moe_layers[0], 2


@pytest.fixture
def cache() -> ExpertCache:
    return ExpertCache(SHAPE, 4, "global", Tier("device", 400), 100)


@pytest.fixture
def transfers(cache) -> Transfers:
    system = build("moe-ondemand")
    system.start(SHAPE, cache)
    machine = SimpleNamespace(
        lock=threading.RLock(), now_ns=lambda: 10, load=lambda op, client, after: Span(op, Lane.H2D)
    )
    return Transfers(system.evict, machine, cache, Timeline())


def computed(transfers: Transfers, cache: ExpertCache) -> Span:
    """The expert is fetched for one use, which is submitted before it has come."""
    key = cache.key(LAYER, EXPERT)
    loading = transfers.demand([Fetch(LAYER, EXPERT, keep=False)])[EXPERT]
    transfers.under_way(Op(OpKind.LOAD, LAYER, (), (EXPERT,)), loading)
    cache.pin([key])
    reads = Span(Op(OpKind.EXPERT, LAYER, (1,), (EXPERT,)), Lane.DEVICE)
    transfers.computed([reads])
    assert cache.holds(key)
    return reads


def arrives(transfers: Transfers) -> None:
    transfers.arrived(Op(OpKind.LOAD, LAYER, (), (EXPERT,)), 20, 30)


def test_what_passes_through_leaves_when_it_has_come_and_was_read(transfers, cache) -> None:
    reads = computed(transfers, cache)
    arrives(transfers)
    assert not cache.holds(cache.key(LAYER, EXPERT))
    other = cache.key(LAYER, 0)
    for expert in (0, 1, 3):
        cache.claim(cache.key(LAYER, expert), None)
    assert not cache.has_free_slot(other, 40), "it is read"
    reads.end_ns = 35
    assert cache.has_free_slot(other, 40)


def test_what_its_layer_chose_anew_before_it_came_stays(transfers, cache) -> None:
    key = cache.key(LAYER, EXPERT)
    computed(transfers, cache)
    transfers.layer_ends([key])
    transfers.drop_unused(LAYER)
    cache.pin([key])  # the next pass
    arrives(transfers)
    assert cache.holds(key)
    again = Span(Op(OpKind.EXPERT, LAYER, (1,), (EXPERT,)), Lane.DEVICE)
    transfers.computed([again])
    assert not cache.holds(key)


def test_what_is_read_cannot_be_evicted_until_the_end_is_known(transfers, cache) -> None:
    key, other = cache.key(LAYER, EXPERT), cache.key(LAYER, 0)
    reads = Span(Op(OpKind.EXPERT, LAYER, (1,), (EXPERT,)), Lane.DEVICE)
    cache.claim(key, None)
    cache.pin([key])
    cache.read_by([reads])
    assert not cache.evictable_soon(other, 20)[key], "it has not come"
    assert cache.arriving(other, 20) == [key]
    cache.arrive(key, 15)
    assert cache.evictable_soon(other, 20)[key]
    assert cache.arriving(other, 20) == []
    cache.unpin([key])
    assert not cache.evictable(other, 20)[key]
    reads.end_ns = 25
    assert not cache.evictable(other, 24)[key]
    assert cache.evictable(other, 25)[key]
