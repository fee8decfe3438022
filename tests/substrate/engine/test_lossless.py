"""Lossless systems give the resident model's tokens and logits bit for bit, on both machines."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from moebench.harness.conformance.invariants import check_lanes, check_timeline
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.records import DiskRecords, EmulatedLink, MemoryRecords
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.resident import ResidentExperts
from moebench.systems.options import build
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.route import ExactRouting
from tests.substrate.engine.arbitrary import AnyAssignment, AnyCommitted, AnyPlacement, AnyPrefetch
from tests.substrate.engine.fakes import FlatCosts, prices, rig
from tests.substrate.models.checkpoints import make_checkpoint

# Together the first batch's prompts fill more places than a gathered product takes.
BATCHES = [[[5, 9, 2, 44, 17, 17, 30] * 3, [3], [60, 1, 8, 52]], [[7, 7, 20]]]
NEW_TOKENS = 8
EXPERTS, TOP_K = 8, 3

Output = list[tuple[list[list[int]], list[Tensor]]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["qwen2_moe", "deepseek"])
def checkpoint(request, tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="module")
def store(checkpoint, tmp_path_factory) -> ExpertStore:
    path = tmp_path_factory.mktemp("store") / "experts.bin"
    return ExpertStore.build(checkpoint, path, torch.float32)


def every_slot(checkpoint: Checkpoint) -> int:
    return len(checkpoint.shape.moe_layers) * EXPERTS


def simulated(checkpoint: Checkpoint, system: System, slots: int) -> Output:
    decoder = Decoder(
        checkpoint.shape,
        checkpoint.common(torch.float32),
        ResidentExperts(checkpoint, torch.float32),
    )
    costs = FlatCosts(prices(load=90, host=70), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)
    made = rig(system, decoder, slots=slots, costs=costs)
    outputs = _generate(made.engine, decoder)
    check_timeline(
        made.spans, made.events, num_experts=EXPERTS, capacity=slots,
        writes_back=system.evict.writes_back,
    )  # fmt: skip
    return outputs


def local(store: ExpertStore, common, system: System, slots: int) -> Output:
    return on(DiskRecords(store), common, system, slots)


def linked(checkpoint: Checkpoint, system: System, slots: int) -> Output:
    """Experts in memory behind a link, and a host thread beside the device."""
    memory = MemoryRecords(checkpoint, torch.float32, EmulatedLink(20e9))
    return on(memory, checkpoint.common(torch.float32), system, slots)


def on(
    source: DiskRecords | MemoryRecords, common, system: System, slots: int, homes: tuple = ()
) -> Output:
    timeline, shape = Timeline(keep_all=True), source.shape
    record_bytes = shape.expert_params * 4
    tier = Tier("memory", slots * record_bytes)
    cache = ExpertCache(shape, slots, system.scope, tier, record_bytes)
    on_host = source.on_host if source.lane is Lane.H2D else None
    with (
        source as records,
        LocalMachine(
            records, cache.slots, timeline, blocking_copies=system.blocking_copies,
            overlap=system.overlap,
        ) as machine,
    ):  # fmt: skip
        decoder = Decoder(shape, common, SlotExperts(cache, machine.slots, on_host))
        engine = Engine(system, decoder, machine, cache, timeline, homes)
        engine.start()
        outputs = _generate(engine, decoder)
    cache.check_integrity()
    check_lanes(timeline.spans)
    assert tier.peak_bytes <= tier.budget_bytes
    for counts in engine.tally.by_phase.values():
        assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
    return outputs


def _generate(engine: Engine, decoder: Decoder) -> Output:
    outputs = []
    for prompts in BATCHES:
        tokens = engine.generate(prompts, NEW_TOKENS).tokens
        outputs.append((tokens, list(decoder.history)))
    return outputs


def tokens_of(outputs: Output) -> list[list[list[int]]]:
    return [tokens for tokens, _ in outputs]


def assert_bit_identical(got: Output, wanted: Output) -> None:
    assert tokens_of(got) == tokens_of(wanted)
    for (_, logits), (_, reference) in zip(got, wanted, strict=True):
        assert len(logits) == NEW_TOKENS
        assert all(torch.equal(a, b) for a, b in zip(logits, reference, strict=True))


# ----------------------------------------------------------------------------- simulated

LOSSLESS_SMOE: list[dict[str, str]] = [
    {"evict": "score"},
    {"evict": "lru"},
    {"evict": "lfu"},
    {"evict": "static"},
    {"evict": "static", "evict.staging": "1", "assign": "load"},
    {"assign": "host"},
    {"assign": "load", "prefetch": "next-gate"},
    {"assign.by": "batch", "prefetch.predict": "gate"},
    {"scope": "layer"},
    {"scope": "layer", "assign": "load", "prefetch.prefill": "false"},
    {"route": "exact", "prefetch": "none"},
]


def name_of(settings: dict[str, str]) -> str:
    return " ".join(f"{k}={v}" for k, v in settings.items()) or "plain"


@pytest.fixture(scope="module")
def resident(checkpoint) -> Output:
    return simulated(checkpoint, build("gpu-only"), every_slot(checkpoint))


@pytest.mark.parametrize("slots", [TOP_K, 5, 9])
@pytest.mark.parametrize("settings", LOSSLESS_SMOE, ids=name_of)
def test_smoe_without_substitution_on_the_simulated_machine(checkpoint, resident, settings, slots):
    exact = {} if settings.get("route") == "exact" else {"alpha": "0"}
    system = build("smoe", settings | exact)
    assert system.lossless
    assert_bit_identical(simulated(checkpoint, system, slots), resident)


@pytest.mark.parametrize("slots", [TOP_K, 5, 9])
@pytest.mark.parametrize("evict", ["lru", "lfu", "score", "static"])
def test_on_demand_on_the_simulated_machine(checkpoint, resident, evict, slots):
    got = simulated(checkpoint, build("moe-ondemand", {"evict": evict}), slots)
    assert_bit_identical(got, resident)


OTHERS: list[tuple[str, dict[str, str], int]] = [
    ("duoserve", {}, 5),
    ("flashmoe", {"evict": "lifo"}, 5),
    ("moe-infinity", {}, 5),
    ("mixtral-offloading", {}, 5),
    ("adapmoe", {"route.threshold": "0"}, 5),
    ("acc", {}, TOP_K),
    ("moesys", {"prefetch.buffers": "1"}, EXPERTS),
    ("moesys", {}, 2 * EXPERTS),
    ("ktransformers", {"assign.threshold": "0", "place": "by-id"}, 5),
    ("ktransformers", {"assign.threshold": "4", "place": "random"}, EXPERTS + 3),
    (
        "ktransformers",
        {"assign.threshold": "4", "assign.update": "true", "place": "by-id"},
        EXPERTS + 3,
    ),
    ("kt-kernel", {"assign.threshold": "4", "assign.update": "true"}, EXPERTS + 3),
    ("exllamav3-mcs", {"place": "tail-on-host", "admit": "hit-sweep", "admit.interval": "1"}, 12),
]


@pytest.mark.parametrize(("system", "settings", "slots"), OTHERS)
def test_other_lossless_systems_on_the_simulated_machine(
    checkpoint, resident, system, settings, slots
):
    made = build(system, settings)
    assert made.lossless
    assert_bit_identical(simulated(checkpoint, made, slots), resident)


#: Systems that place whole layers, and stream common weights or leave them to the host.
DIVIDED: list[tuple[str, dict[str, str]]] = [
    ("accelerate", {"assign.experts": "all"}),
    ("accelerate", {"assign.experts": "active"}),
    ("deepspeed", {"assign.experts": "all", "prefetch.bucket": "9000"}),
    ("deepspeed", {"assign.experts": "active", "prefetch.bucket": "9000"}),
    ("deepspeed-mii", {}),
    ("llamacpp", {"assign.min_batch": "8", "assign.micro_batch": "10"}),
    ("llamacpp", {"place": "ngl", "assign.min_batch": "4", "assign.micro_batch": "10"}),
    ("llamacpp", {"place": "ngl", "assign.min_batch": "999"}),
]


@pytest.mark.parametrize("spare", [0, 20, 999])
@pytest.mark.parametrize("settings", DIVIDED, ids=lambda settings: name_of(settings[1]))
def test_systems_of_whole_layers_on_the_simulated_machine(checkpoint, resident, settings, spare):
    system, shape = build(*settings), checkpoint.shape
    assert system.lossless
    # All common weights, one layer's experts, and what is to spare.
    room = 20 + shape.num_layers * 11 + (EXPERTS + spare) * 3
    budget = Budget(room, (10,) * shape.num_layers, 1, 20, 5, 3)
    homes = system.place.homes(shape, budget)
    slots = min(budget.slots(homes), every_slot(checkpoint))
    common, experts = checkpoint.common(torch.float32), ResidentExperts(checkpoint, torch.float32)
    decoder = Decoder(shape, common, experts)
    costs = FlatCosts(prices(load=90, host=70), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)
    made = rig(system, decoder, slots=slots, costs=costs, homes=homes)
    outputs = _generate(made.engine, decoder)
    check_lanes(made.spans)
    made.cache.check_integrity()
    assert_bit_identical(outputs, resident)


def drawn(seed: int, prefetch: type[AnyPrefetch], chunks: int, host: float) -> System:
    """Any exchanges, unchosen and passing experts, prefetches two layers ahead; own top-k."""
    return System(
        place=AnyPlacement(seed=seed),
        route=ExactRouting(),
        assign=AnyAssignment(seed=seed, on_host=host, later=0),
        prefetch=prefetch(seed=seed, chunks=chunks),
        evict=LeastRecentlyUsed(),
        scope="layer" if seed % 2 else "global",
        blocking_copies=seed % 3 == 0,
        overlap=seed % 3 > 0,
    )


DRAWN = [(AnyPrefetch, 1), (AnyPrefetch, 3), (AnyCommitted, 1)]


@pytest.mark.parametrize(("prefetch", "chunks"), DRAWN)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drawn_decisions_on_the_simulated_machine(checkpoint, resident, prefetch, chunks, seed):
    system = drawn(seed, prefetch, chunks, host=0.3)
    assert_bit_identical(simulated(checkpoint, system, 5), resident)


def test_substitution_shows_in_tokens_or_logits(checkpoint, resident):
    system = build("smoe", {"alpha": "0.6"})
    assert not system.lossless
    changed = simulated(checkpoint, system, 5)
    with pytest.raises(AssertionError):
        assert_bit_identical(changed, resident)


def test_the_logits_are_those_of_one_pass_over_the_finished_text(checkpoint, resident):
    decoder = Decoder(
        checkpoint.shape,
        checkpoint.common(torch.float32),
        ResidentExperts(checkpoint, torch.float32),
    )
    for prompts, (tokens, history) in zip(BATCHES, resident, strict=True):
        texts = [p + t[:-1] for p, t in zip(prompts, tokens, strict=True)]
        whole = decoder.full_logits(texts)
        for row, prompt in enumerate(prompts):
            stepwise = torch.stack([logits[row] for logits in history])
            at_once = whole[row][len(prompt) - 1 :]
            torch.testing.assert_close(stepwise, at_once, atol=1e-4, rtol=1e-4)


# ----------------------------------------------------------------------------- local

LOCAL: list[tuple[str, dict[str, str]]] = [
    ("moe-ondemand", {}),
    ("moe-ondemand", {"evict": "static"}),
    ("moe-ondemand", {"scope": "layer"}),
    ("moe-ondemand", {"prefetch": "next-gate"}),
    ("moe-ondemand", {"prefetch": "next-gate", "scope": "layer", "evict": "lfu"}),
    ("moe-ondemand", {"prefetch": "next-gate", "evict": "static", "evict.staging": "1"}),
    ("smoe", {"alpha": "0", "assign": "load"}),
    ("smoe", {"alpha": "0", "assign": "load", "scope": "layer"}),
    ("smoe", {"alpha": "0", "assign": "load", "prefetch.predict": "gate"}),
    ("mixtral-offloading", {}),
    ("adapmoe", {"route.threshold": "0", "prefetch.layers": "2"}),
]


@pytest.fixture(scope="module")
def common(checkpoint) -> dict[str, Tensor]:
    return checkpoint.common(torch.float32)


@pytest.fixture(scope="module")
def resident_here(checkpoint, store, common) -> Output:
    return local(store, common, build("gpu-only"), every_slot(checkpoint))


def test_both_machines_give_the_same_tokens(resident, resident_here):
    assert tokens_of(resident) == tokens_of(resident_here)
    for (_, logits), (_, reference) in zip(resident_here, resident, strict=True):
        torch.testing.assert_close(logits, reference, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("slots", [TOP_K, 7])
@pytest.mark.parametrize(("system", "settings"), LOCAL)
def test_offloading_on_this_computer(store, common, resident_here, system, settings, slots):
    assert_bit_identical(local(store, common, build(system, settings), slots), resident_here)


@pytest.mark.parametrize(
    ("system", "settings", "slots"), [other for other in OTHERS if other[0] in ("acc", "moesys")]
)
def test_other_lossless_systems_on_this_computer(
    store, common, resident_here, system, settings, slots
):
    assert_bit_identical(local(store, common, build(system, settings), slots), resident_here)


@pytest.mark.parametrize(("prefetch", "chunks"), DRAWN)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_drawn_decisions_on_this_computer(store, common, resident_here, prefetch, chunks, seed):
    system = drawn(seed, prefetch, chunks, host=0)
    assert_bit_identical(local(store, common, system, 5), resident_here)


def test_substitution_shows_on_this_computer(store, common, resident_here):
    settings = {"alpha": "0.6", "assign": "load"}
    with pytest.raises(AssertionError):
        assert_bit_identical(local(store, common, build("smoe", settings), 5), resident_here)


# ----------------------------------------------------------------------------- memory and a link

LINKED: list[tuple[str, dict[str, str], int]] = [
    ("smoe", {"alpha": "0"}, 5),
    ("smoe", {"alpha": "0", "assign": "host"}, 5),
    ("smoe", {"alpha": "0", "prefetch.chunks": "3", "assign": "load"}, 5),
    ("moe-ondemand", {"blocking_copies": "true", "pinned_copies": "false"}, TOP_K),
    ("moe-ondemand", {"overlap": "false"}, 5),
    ("fiddler", {"place": "by-id"}, 5),
    ("hybrimoe", {}, 5),
    ("moe-infinity", {}, 5),
    ("mixtral-offloading", {}, 5),
    ("ktransformers", {"assign.threshold": "0", "place": "by-id"}, 5),
    (
        "ktransformers",
        {"assign.threshold": "4", "assign.update": "true", "place": "by-id"},
        EXPERTS + 3,
    ),
    (
        "kt-kernel",
        {"assign.threshold": "2", "assign.chunk": "2", "assign.update": "true"},
        EXPERTS + 3,
    ),
    ("exllamav3-mcs", {"place": "tail-on-host", "admit.ratio": "0.5"}, 12),
]


@pytest.mark.parametrize(("name", "settings", "slots"), LINKED)
def test_systems_with_a_host_beside_the_device(checkpoint, resident_here, name, settings, slots):
    made = build(name, settings)
    assert made.lossless
    assert_bit_identical(linked(checkpoint, made, slots), resident_here)


@pytest.mark.parametrize("settings", DIVIDED, ids=lambda settings: name_of(settings[1]))
def test_systems_that_divide_common_weights_with_a_host(checkpoint, resident_here, settings):
    made, shape = build(*settings), checkpoint.shape
    homes = (*(("host", "stream", "device") * shape.num_layers)[: shape.num_layers],)
    memory = MemoryRecords(checkpoint, torch.float32, EmulatedLink(20e9))
    common = checkpoint.common(torch.float32)
    assert_bit_identical(on(memory, common, made, every_slot(checkpoint), homes), resident_here)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("daop", {"route.first": "1", "place": "by-id", "assign.threshold": "1e9"}),
        ("ktransformers", {"assign.threshold": "0", "assign.defer": "2", "place": "by-id"}),
    ],
)
def test_what_another_thread_computes_ahead_or_late_is_what_it_was(checkpoint, name, settings):
    """The simulated machine computes it when it is submitted; no decision here reads the time."""
    got = linked(checkpoint, build(name, settings), 5)
    wanted = simulated(checkpoint, build(name, settings), 5)
    assert tokens_of(got) == tokens_of(wanted)
    for (_, logits), (_, reference) in zip(got, wanted, strict=True):
        torch.testing.assert_close(logits, reference, atol=1e-4, rtol=1e-4)
