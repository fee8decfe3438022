"""How a row's inputs become a simulation: its engine's parts, and its machine's numbers."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.published import simulate
from moebench.harness.published.case import Case, case_of
from moebench.harness.published.constants import COMPONENTS
from moebench.harness.published.prediction import Phase
from moebench.harness.published.routing import Drawn
from moebench.harness.published.rows import Row
from moebench.substrate.machines.costs import HostProducts
from moebench.substrate.models.catalogue import find_shape
from moebench.systems.llamacpp import CpuMoE, GpuLayers, HostOrCopy
from moebench.systems.policies.assign import LoadForOneUse
from tests.harness.published.made import SAID

#: A value of its own for each constant.
VALUES = {name: value * (0.80 + 0.005 * n) for n, (name, value) in enumerate(COMPONENTS.items())}


def case(**changes: Any) -> Case:
    return case_of(Row(**(SAID | changes)))


def numbers(one: Case) -> dict[str, float]:
    """Return the numbers that the constants change, by their field."""
    before = {name: number.value for name, number in one.profile.quantities()}
    after = dict(simulate.profile_of(one, VALUES).quantities())
    return {name: number.value for name, number in after.items()
            if before.get(name) != number.value}  # fmt: skip


SERVER = {"cpu": "2x Xeon Gold 6454S", "sockets": 2, "ram_type": "DDR5-4800",
          "ram_channels": "8 per socket", "threads": 64}  # fmt: skip


def test_the_numbers_of_a_desktop() -> None:
    one, v = case(), VALUES
    software = one.profile.software
    reads = 66.56 * v["desktop reads"]
    assert numbers(one) == pytest.approx({
        "host.gemv_bandwidth": reads,
        "software.host_attention": v["host attention"],
        "software.attention_reads": v["attention reads"],
        "software.latent_reads": v["latent reads"],
        "software.host_rows_gain": v["core AVX-512"] * v["rows llama.cpp"],
        "host.handoff": v["handoff us"],
        "software.launch": software.launch.value * v["launch ggml"],
        "gpu.small_read_efficiency": 0.65 * v["small reads"],
        "gpu.tensor_efficiency": v["device products"],
        "software.unpacking_rows": round(v["unpacking rows"]),
        "link.in_engine_efficiency": 1.0,
        "link.pageable_h2d": v["unpinned copies"] * 26,
    })  # fmt: skip
    assert simulate.profile_of(one, VALUES).software.host_kernel_gain is None


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"ram_gb_s": 60.0}, "host.gemv_bandwidth", 54 * VALUES["measured reads"] / 0.9),
        ({"other_flags": "q8_0 kv"}, "software.host_attention",
         VALUES["host attention"] * 2 / (34 / 32)),
        ({"cpu": "EPYC 9354 vm", "ram_type": ""}, "host.handoff",
         VALUES["handoff us"] * VALUES["virtual handoff"]),
        ({"system": "llama.cpp-moe-cache", "cached_experts_or_slots": "64 of 128"}, "host.handoff",
         VALUES["handoff us"] + VALUES["cached layer us"]),
        ({"system": "gnf4", "cached_experts_or_slots": "64 of 128"}, "host.handoff",
         VALUES["handoff us"]),
        ({"system": "vllm"}, "software.attention_reads", VALUES["python attention reads"]),
        ({"system": "ktransformers"}, "software.attention_reads", VALUES["attention reads"]),
        ({"system": "ik_llama.cpp"}, "software.host_rows_gain",
         VALUES["core AVX-512"] * VALUES["rows ik_llama.cpp"]),
        ({"system": "ktransformers", "notes": "amx"}, "software.host_rows_gain",
         VALUES["core AVX-512"] * VALUES["rows AMX"]),
        ({"quant": "Q4_0"}, "software.host_rows_gain",
         VALUES["core AVX-512"] * VALUES["rows llama.cpp repacked"]),
        ({"cpu": "Ryzen 9 5950X", "ram_type": ""}, "software.host_rows_gain",
         VALUES["core AVX2"] * VALUES["rows llama.cpp"]),
        ({"gpu": "MI300X"}, "gpu.tensor_efficiency", VALUES["other products"]),
        # A page that is not pinned is read, written and read again.
        ({"cpu": "Ryzen 9 5950X", "ram_type": ""}, "link.pageable_h2d",
         51.2 * 0.8 * VALUES["desktop reads"] / 3),
        ({"h2d_gb_s": 60.0}, "link.pinned_h2d", 66.56 * VALUES["desktop reads"]),
        ({"gpu": "Strix Halo"}, "gpu.small_read_efficiency", 0.65 * VALUES["pool reads"]),
    ],
)  # fmt: skip
def test_a_number_of_another_machine(changes: dict[str, Any], field: str, expected: float) -> None:
    assert numbers(case(**changes))[field] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("system", ["gnf4", "ktransformers"])
def test_launches_of_software(system: str) -> None:
    one = case(system=system)
    factor = VALUES["launch ggml" if system == "ktransformers" else "launch python"]
    moved = simulate.profile_of(one, VALUES).software
    for field in ("launch", "layer", "expert"):
        before = getattr(one.profile.software, field).value
        assert getattr(moved, field).value == pytest.approx(before * factor)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("sockets", [2, 4])
def test_sockets_multiply_bandwidth_and_products(bound: bool, sockets: int) -> None:
    """The composed profile has 1.5 times the bandwidth for each doubling of sockets."""
    one = replace(case(**SERVER), bound=bound, sockets=sockets)
    doublings = {2: 1, 4: 2}[sockets]
    alone = one.profile.host.gemv_bandwidth.value * VALUES["server reads"] / 1.5**doublings
    factor = VALUES["bound sockets"] ** doublings if bound else VALUES["unbound sockets"]
    found = numbers(one)
    assert found["host.gemv_bandwidth"] == pytest.approx(alone * factor)
    gain = VALUES["core AVX-512"] * VALUES["rows llama.cpp"]
    # Each doubling has twice the cores, whose products gain a share of that.
    gain *= sockets ** math.log2(2 * VALUES["sockets products"]) / sockets
    assert found["software.host_rows_gain"] == pytest.approx(gain)
    measured = replace(one, reads="measured reads")
    assert numbers(measured)["host.gemv_bandwidth"] == pytest.approx(
        one.profile.host.gemv_bandwidth.value * VALUES["measured reads"] / 0.9
    )


def test_what_was_measured_on_the_machine_is_not_moved() -> None:
    one = replace(case(), measured=frozenset({"reads", "cores", "link"}))
    found = numbers(one)
    assert "host.gemv_bandwidth" not in found
    assert "link.pageable_h2d" not in found
    assert found["software.host_rows_gain"] == VALUES["rows llama.cpp"]


def test_one_memory_reads_with_its_own_constant() -> None:
    one = case(gpu="Strix Halo")
    found = numbers(one)
    large = one.profile.gpu.large_read_efficiency.value
    assert found["gpu.large_read_efficiency"] == pytest.approx(large * VALUES["pool reads"])
    on_host = numbers(replace(one, on_host=True))
    assert "gpu.large_read_efficiency" not in on_host
    assert on_host["gpu.small_read_efficiency"] == pytest.approx(0.65 * VALUES["small reads"])
    assert "gpu.large_read_efficiency" not in numbers(case())


# ------------------------------------------------------------------------------ the engine


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return, after a simulation, the parts that it was made of and what it was asked."""
    seen: dict[str, Any] = {}

    class Engine:
        def __init__(self, *parts: Any) -> None:
            names = ("system", "model", "machine", "cache", "timeline", "homes")
            seen.update(zip(names, parts, strict=True))

        def start(self) -> None:
            seen["started"] = True

        def generate(self, prompts: list[list[int]], new_tokens: int) -> SimpleNamespace:
            assert seen["started"]
            seen["asked"] = ([len(one) for one in prompts], new_tokens)
            return SimpleNamespace(steps_ns=[3_000_000, 9], ttft_ns=5_000_000)

    def seeing(name: str) -> None:
        real = getattr(simulate, name)

        def make(*parts: Any, **named: Any) -> Any:
            seen[f"{name} of"] = (parts, named)
            return real(*parts, **named)

        monkeypatch.setattr(simulate, name, make)

    monkeypatch.setattr(simulate, "Engine", Engine)
    for name in ("Drawn", "CostModel", "SimulatedMachine", "Tier"):
        seeing(name)
    return seen


HOT = {"cached_experts_or_slots": "64 of 128"}


@pytest.mark.parametrize(
    ("changes", "slots", "on_host"),
    [
        # Room for one layer's experts as copies, where the host has a layer.
        ({}, 128, 0),
        ({"n_cpu_moe": 24}, 12 * 128 + 128, 0),
        ({"n_cpu_moe": 0}, 36 * 128, 0),
        ({"other_flags": "-ngl 12 whole"}, 12 * 128 + 128, 24),
        ({"n_gpu": 0}, 128, 36),
        ({"system": "llama.cpp-moe-cache", **HOT, "n_cpu_moe": 24}, 12 * 128 + 24 * 64 + 128, 0),
        ({"system": "gnf4", **HOT}, 36 * 64 + 2 * 4, 0),
        ({"system": "gnf4", **HOT, "batch": 3}, 36 * 64 + 2 * 4 * 3, 0),
    ],
)
def test_slots_and_homes(
    changes: dict[str, Any], slots: int, on_host: int, made: dict[str, Any]
) -> None:
    one = case(**changes)
    assert simulate.milliseconds(one, VALUES, "decode") == 3.0
    assert made["cache"].slots == slots
    assert made["homes"] == ["host"] * on_host + ["device"] * (36 - on_host)
    assert made["asked"] == ([576] * one.batch, 2)
    record = -(-24_891_840 * 4.25 // 8)
    assert made["Tier of"] == (("device", slots * record), {})


def test_an_engine_that_loads_whole_layers_has_room_for_two(made: dict[str, Any]) -> None:
    one = case(system="gnf4", **HOT)
    simulate.milliseconds(replace(one, engine=one.engine._replace(loads="all")), VALUES, "decode")
    assert made["cache"].slots == 36 * 64 + 2 * 128
    assert made["system"].assign.experts == "all"


@pytest.mark.parametrize(
    ("changes", "phase", "rows", "seen", "expected"),
    [
        ({}, "decode", 1, 576, 3.0),
        ({"batch": 4}, "decode", 4, 576, 3.0),
        ({}, "prefill", 512, 512, 5.0),
        ({"prompt_tokens": 100}, "prefill", 100, 100, 5.0),
        # The middle micro-batch has 1792 tokens before it: sqrt(2 x 512 x 1792 + 512^2) = 1448.
        ({"prompt_tokens": 4096}, "prefill", 512, 1448, 5.0 * 8),
        ({"prompt_tokens": 4096, "batch": 2}, "prefill", 1024, 1448, 5.0 * 8),
        # One chunk behind 4096: sqrt(2 x 512 x 4096 + 512^2) = 2111.
        ({"prompt_tokens": 4096, "notes": "sweep"}, "prefill", 512, 2111, 5.0),
    ],
)
def test_passes_of_a_figure(
    changes: dict[str, Any], phase: Phase, rows: int, seen: int, expected: float,
    made: dict[str, Any],
) -> None:  # fmt: skip
    one = case(**changes)
    assert simulate.milliseconds(one, VALUES, phase) == pytest.approx(expected)
    assert made["asked"] == ([seen] * one.batch, 2 if phase == "decode" else 1)
    assert made["Drawn of"] == ((one.shape, rows, 512, 0, 0.0, VALUES["alike"]), {})


@pytest.mark.parametrize(
    ("changes", "hits"),
    [
        ({"system": "gnf4"}, 0.5 ** VALUES["static hits"]),
        ({"system": "llama.cpp-moe-cache"}, 0.5 ** VALUES["cache hits"]),
        ({"system": "gnf4", "hit_rate": 0.4}, 0.4),
        ({"system": "gnf4", "cached_experts_or_slots": "0", "hit_rate": 0.4}, 0.0),
    ],
)
def test_hits_are_stated_or_of_the_law(
    changes: dict[str, Any], hits: float, made: dict[str, Any]
) -> None:
    simulate.milliseconds(case(**HOT | changes), VALUES, "decode")
    (_, _, _, hot, found, _), _ = made["Drawn of"]
    assert found == pytest.approx(hits)
    assert hot == (64 if hits else 0)


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, VALUES["fp4 formats"] * VALUES["core AVX-512"]),
        ({"quant": "Q4_K_M"}, VALUES["core AVX-512"]),
        ({"quant": "Q2_K", "cpu": "Ryzen 9 5950X", "ram_type": ""},
         VALUES["few bits"] * VALUES["core AVX2"]),
        ({"quant": "IQ2_K_R4", "system": "ik_llama.cpp"},
         VALUES["codebook formats"] * VALUES["repacked"] * VALUES["core AVX-512"]),
    ],
)  # fmt: skip
def test_a_cores_rate(changes: dict[str, Any], rate: float, made: dict[str, Any]) -> None:
    one = case(**changes)
    simulate.milliseconds(one, VALUES, "decode")
    (_, shape, others), named = made["CostModel of"]
    assert (shape, others) == (one.shape, one.bits.others)
    products = named.pop("host")
    assert named == {"expert_precision": 4.25, "pinned": one.pinned}
    assert products == HostProducts("fused", 16, pytest.approx(rate))
    simulate.milliseconds(replace(one, rate=0.3, measured=frozenset({"cores"})), VALUES, "decode")
    repacked = VALUES["repacked"] if one.engine.kernels else 1.0
    assert made["CostModel of"][1]["host"].rate == pytest.approx(0.3 * repacked)


NEVER = int(np.iinfo(np.int32).max)


@pytest.mark.parametrize(
    ("changes", "place", "assign"),
    [
        ({"n_cpu_moe": 24}, CpuMoE(), HostOrCopy(min_batch=32, micro_batch=512)),
        ({"ubatch": 64}, CpuMoE(), HostOrCopy(min_batch=32, micro_batch=64)),
        ({"system": "ktransformers"}, CpuMoE(), HostOrCopy(min_batch=NEVER, micro_batch=512)),
        ({"n_gpu": 0}, GpuLayers(), HostOrCopy(min_batch=NEVER, micro_batch=512)),
        ({"other_flags": "-ngl 12 whole"}, GpuLayers(), HostOrCopy(min_batch=32, micro_batch=512)),
        ({"system": "llama.cpp-moe-cache", **HOT}, simulate.Hot(hot=64, first=36),
         HostOrCopy(min_batch=32, micro_batch=512)),
        ({"system": "vllm", "n_cpu_moe": 24, **HOT}, simulate.Hot(hot=64, first=24),
         LoadForOneUse(experts="active")),
    ],
)  # fmt: skip
def test_the_system_of_a_row(
    changes: dict[str, Any], place: Any, assign: Any, made: dict[str, Any]
) -> None:
    one = case(**changes)
    simulate.milliseconds(one, VALUES, "decode")
    system = made["system"]
    if isinstance(place, simulate.Hot):
        assert system.place == place
    else:
        assert type(system.place) is type(place)
        assert system.place.first == one.first
    assert system.assign == assign
    links = one.engine.misses == "link"
    assert system.overlap is (links and one.engine.overlap)
    assert system.pinned_copies is one.pinned
    assert system.host_together is True
    assert not (links and system.blocking_copies)
    assert made["SimulatedMachine of"][1] == {"overlap": system.overlap, "blocking_copies": False}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_copies_of_misses(pinned: bool, overlap: bool, made: dict[str, Any]) -> None:
    one = case(system="vllm", **HOT)
    one = replace(one, pinned=pinned, engine=one.engine._replace(overlap=overlap))
    simulate.milliseconds(one, VALUES, "decode")
    assert (made["system"].pinned_copies, made["system"].overlap) == (pinned, overlap)


def test_hot_experts_are_the_first_of_each_layer_and_all_of_the_last() -> None:
    shape = find_shape("Mixtral-8x7B")
    found = list(simulate.Hot(hot=2, first=30).place(shape, 0, "global"))
    assert found == [
        *((layer, expert) for layer in range(30) for expert in (0, 1)),
        *((layer, expert) for layer in (30, 31) for expert in range(8)),
    ]


# ------------------------------------------------------------------------------ constants

ROWS = {name for name in COMPONENTS if name.startswith("rows ")}
#: Constants that no figure of a desktop with an NVIDIA card and llama.cpp depends on.
FOREIGN = {"other products", "server reads", "measured reads", "pool reads", "core AVX2"}
PROMPTS = {"sockets products", "device products", "unpacking rows", "alike", "rows llama.cpp"}
TOKENS = {
    "attention reads", "latent reads", "codebook formats", "few bits", "fp4 formats", "repacked",
    "python attention reads", "cache hits", "static hits",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "phase", "without"),
    [
        ({}, "decode", FOREIGN | ROWS | PROMPTS),
        ({}, "prefill", FOREIGN | (ROWS - {"rows llama.cpp"}) | TOKENS),
        ({"batch": 2}, "decode", FOREIGN | (ROWS - {"rows llama.cpp"})),
        ({"batch": 2}, "prefill", FOREIGN | (ROWS - {"rows llama.cpp"}) | TOKENS),
        ({"gpu": "MI300X", "batch": 2}, "decode",
         (FOREIGN - {"other products"}) | {"device products"} | (ROWS - {"rows llama.cpp"})),
        ({"cpu": "Ryzen 9 5950X", "ram_type": ""}, "decode",
         (FOREIGN - {"core AVX2"}) | {"core AVX-512"} | ROWS | PROMPTS),
    ],
)  # fmt: skip
def test_constants_of_a_figure(changes: dict[str, Any], phase: Phase, without: set[str]) -> None:
    expected = [name for name in COMPONENTS if name not in without]
    assert simulate.names_of(case(**changes), phase) == expected


# ------------------------------------------------------------------------------ routing


@pytest.mark.parametrize(
    ("hot", "hits", "here"),
    [(16, 0.25, 1), (16, 0.5, 2), (2, 1.0, 2), (128, 0.0, 4), (126, 0.0, 2), (16, 0.0, 0)],
)
def test_a_decoded_token_uses_the_first_hot_experts_and_the_first_others(
    hot: int, hits: float, here: int
) -> None:
    """Not fewer hot ones than are needed where few experts are cold."""
    model = Drawn(find_shape("gpt-oss-120b"), 1, 512, hot=hot, hits=hits)
    model.begin([[0]], 2)
    model.embed("decode")
    (ids,) = model.gate(0).ids_TK.tolist()
    assert ids == [*range(here), *range(hot, hot + 4 - here)]
