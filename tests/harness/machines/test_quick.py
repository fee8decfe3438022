"""Quick calibration with kernels and a clock that do what a test says, and with torch's own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moebench.harness.advise import detect
from moebench.harness.advise.question import Hardware
from moebench.harness.machines import copies, disk, ggml, quick
from moebench.harness.machines.products import (
    WEIGHTS,
    Experts,
    Kernels,
    Torch,
    measure_products,
    tiled,
)
from moebench.harness.machines.products_file import (
    EXPERT,
    Products,
    as_document,
    products_file,
    read_products,
    write_products,
)
from moebench.harness.machines.quick import Copies, Quick
from moebench.harness.machines.quick_profile import measured_fields, profile_of_parts
from moebench.harness.machines.rates import FEWEST_ROUNDS, LEAST_ROUNDS, Rate, rate_of
from moebench.substrate.errors import ProfileError
from moebench.substrate.machines.compose import composed
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.substrate.machines.fake_card import FakeCard


class Clock:
    """Nanoseconds that pass when a test says so, and a few for every look."""

    def __init__(self, look_ns: int = 0) -> None:
        self.now_ns, self._look_ns = 0, look_ns

    def __call__(self) -> int:
        self.now_ns += self._look_ns
        return self.now_ns


class Drawn(Experts):
    """Experts whose bytes take 1 ns over the number of threads; 32 rows take ten times as long."""

    def __init__(self, clock: Clock, bits: float) -> None:
        self._clock, self.expert_bytes = clock, round(WEIGHTS * bits / 8)

    def compute(self, rows: int, threads: int) -> int:
        each = self.expert_bytes / threads * (1 if rows == 1 else 10)
        self._clock.now_ns += round(2 * each)
        return 2


class Library(Kernels):
    """A library of drawn products."""

    def __init__(self, clock: Clock, **bits: float) -> None:
        self.name, self._clock, self._bits = "drawn", clock, bits
        self.formats = tuple(bits)

    @contextmanager
    def experts(self, form: str, memory: NDArray[np.uint8]) -> Iterator[Experts]:
        yield Drawn(self._clock, self._bits[form])


def one(value: float) -> Rate:
    return Rate(value, 0.9 * value, 1.1 * value)


PRODUCTS = Products(
    {"q4_k": "ggml", "q4_0": "ggml", "f32": "torch"},
    {"q4_k": 4.5, "q4_0": 4.5, "f32": 32.0},
    {
        "q4_k": {1: {1: one(9), 2: one(12)}, 32: {1: one(1), 2: one(2)}},
        "q4_0": {1: {1: one(10), 2: one(13)}, 32: {1: one(1), 2: one(2)}},
        "f32": {1: {1: one(15), 2: one(24)}, 32: {1: one(5), 2: one(6)}},
    },
)
COPIES = Copies(one(25), one(24), one(9), one(20), one(40), one(900))
RATES = {(0, 1): 1e-4, (4 << 20, 1): 2e9, (64 << 10, 16): 3e9}


def measured(gpu: Copies | None = None, kinds: Products = PRODUCTS, load: float = 0.0) -> Quick:
    return Quick({1: one(16), 2: one(30)}, one(14), kinds, one(5), RATES, gpu, load)


# ------------------------------------------------------------------------------- rates


def test_a_rate_is_the_median_of_rounds_with_the_middle_half() -> None:
    clock, took = Clock(), iter([7, 100, 200, 400, 500, 800])

    def work() -> float:
        clock.now_ns += next(took)
        return 1000

    assert rate_of(work, clock, 1e-6) == (2.5, 2.0, 5.0)  # the first round is not timed


@pytest.mark.parametrize(
    ("round_s", "rounds"), [(0.001, 100), (0.05, LEAST_ROUNDS), (3.0, FEWEST_ROUNDS)]
)
def test_rounds_fill_the_time_and_slow_work_has_fewer(round_s: float, rounds: int) -> None:
    clock, calls = Clock(), []

    def work() -> float:
        calls.append(1)
        clock.now_ns += round(round_s * 1e9)
        return 1

    rate_of(work, clock, 0.1)
    assert len(calls) == 1 + rounds


@pytest.mark.parametrize(
    ("processors", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_threads_are_powers_of_two_and_all(processors: int, counts: list[int]) -> None:
    assert quick.thread_counts(processors) == counts


@pytest.mark.parametrize(
    ("cache", "free", "size"),
    [
        (0, None, quick.LEAST_MEMORY), (480 << 20, None, 960 << 20),
        (4 << 30, None, quick.MOST_MEMORY), (480 << 20, 1 << 30, 256 << 20),
        (480 << 20, 1, quick.ONE_EXPERT),
    ],
)  # fmt: skip
def test_memory_exceeds_the_caches_but_not_the_free_memory(
    cache: int, free: int | None, size: int
) -> None:
    assert quick.memory_size(cache, free) == size


def test_a_handoff_is_timed_from_before_it_until_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handing a task over takes 1 us on this side, and 1 us on the thread's."""
    clock, plain = Clock(), threading.Lock

    class Lock:
        """A lock whose release takes a microsecond before it is free."""

        def __init__(self) -> None:
            self.own = plain()

        def acquire(self) -> None:
            self.own.acquire()

        def release(self) -> None:
            clock.now_ns += 1000
            self.own.release()

    monkeypatch.setattr(quick, "threading", SimpleNamespace(Lock=Lock, Thread=threading.Thread))
    assert quick.handoff(clock, count=5) == (2.0, 2.0, 2.0)


def test_a_handoff_ends_after_the_thread_has_answered() -> None:
    # Between two looks at the clock pass 1000 ns.
    assert quick.handoff(Clock(1000), count=10) == (1.0, 1.0, 1.0)


def test_other_programs_are_named_only_if_they_use_much() -> None:
    assert quick.busy(0.1, 2) == ""
    assert quick.busy(1.9, 16) == ""
    assert quick.busy(1.5, 2).startswith("other programs had a load of 1.5 on 2 processors")


# ------------------------------------------------------------------------------- products


def test_products_are_by_format_rows_and_threads() -> None:
    clock, said = Clock(), list[str]()
    library = Library(clock, q4_k=4.5, f16=16.0)
    found = measure_products([library], np.zeros(8, np.uint8), [1, 2], said.append, clock, 1.0)
    assert found.bits == {"q4_k": 4.5, "f16": 16.0}
    assert found.kernels == {"q4_k": "drawn", "f16": "drawn"}
    assert list(found.rates["q4_k"]) == [1, 32]
    assert found.rates["f16"][1][1].value == pytest.approx(1)
    assert found.rates["f16"][1][2].value == pytest.approx(2)
    assert found.rates["f16"][32][2].value == pytest.approx(0.2)
    assert said[1] == (
        "experts in f16, one row: 1, 2 GB/s by 1, 2 threads; 32 rows: 6.4 GFLOPS"
    )  # fmt: skip
    assert found.best(1)[1:] == (2, found.rates["q4_k"][1][2])


def test_the_best_product_has_the_most_bytes() -> None:
    assert PRODUCTS.best(1) == ("f32", 2, one(24))
    assert PRODUCTS.best(1, ("q4_k", "q4_0")) == ("q4_0", 2, one(13))


def test_products_are_stored_next_to_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "here.yaml"
    assert read_products(profile) is None
    write_products(PRODUCTS, profile)
    assert products_file(profile) == tmp_path / "here.products.json"
    read = read_products(profile)
    assert read is not None
    assert (read.kernels, read.bits) == (PRODUCTS.kernels, PRODUCTS.bits)
    assert read.rates["q4_0"][1][2] == pytest.approx(one(13))
    assert read.rates.keys() == PRODUCTS.rates.keys()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"formats": 3}', '{"formats": {"q4_k": {}}}',
        '{"formats": {"q4_k": {"kernels": "x", "bits": 4.5, "gb_s": {"1": {"1": [1, 2]}}}}}',
        '{"formats": {"q4_k": {"kernels": "x", "bits": 4.5, "gb_s": {"1": {"1": [1, 2, 3]}}}}}',
        '{"formats": {"q4_k": {"kernels": "x", "bits": 4.5, "gb_s": {"x": {}}}}}',
    ],
)  # fmt: skip
def test_a_file_of_other_content_is_refused_with_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "here.products.json").write_text(text)
    with pytest.raises(ProfileError, match=r"here\.products\.json: not a file of measured") as info:
        read_products(tmp_path / "here.yaml")
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("numbers", "allowed"),
    [
        ((2, 2, 2), True), ((2, 1, 3), True), ((999_999, 1, 999_999), True),
        ((1, 0, 2), False), ((1, 2, 3), False), ((3, 1, 2), False), ((1, 1, 1e6), False),
    ],
)  # fmt: skip
def test_a_rate_lies_within_its_range_and_is_possible(
    numbers: tuple[float, float, float], allowed: bool, tmp_path: Path
) -> None:
    """A value, its lowest and its highest; a terabyte in a microsecond is no rate."""
    one_form = {"kernels": "x", "bits": 4.5, "gb_s": {"1": {"1": numbers}}}
    text = json.dumps({"formats": {"q4_k": one_form}})
    (tmp_path / "here.products.json").write_text(text)
    if allowed:
        read = read_products(tmp_path / "here.yaml")
        assert read is not None
        assert tuple(read.rates["q4_k"][1][1]) == numbers
    else:
        with pytest.raises(ProfileError, match="not a file of measured products"):
            read_products(tmp_path / "here.yaml")


@pytest.mark.parametrize("size", [6, 7, 2])
def test_memory_is_filled_with_copies_of_a_block(size: int) -> None:
    memory = np.zeros(size, np.uint8)
    tiled(memory, np.array([1, 2, 3], np.uint8))
    assert memory.tolist() == [1, 2, 3, 1, 2, 3, 1][:size]


@pytest.mark.parametrize(("form", "size"), [("f32", 4), ("bf16", 2)])
def test_torch_multiplies_one_expert_after_another(form: str, size: int) -> None:
    memory, before = np.zeros(2 * size * WEIGHTS, np.uint8), torch.get_num_threads()
    with Torch().experts(form, memory) as experts:
        assert experts.expert_bytes == size * WEIGHTS
        assert [experts.compute(rows, 1) for rows in (1, 32, 1)] == [1, 1, 1]
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


# ------------------------------------------------------------------------------- ggml


def test_without_llama_cpp_there_are_no_kernels_of_ggml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, "find_spec", lambda name: None)
    assert ggml.ggml() is None


def test_a_package_without_the_library_has_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(ggml, "find_spec", lambda name: found)
    assert ggml.ggml() is None
    monkeypatch.setattr(ggml.ctypes, "CDLL", lambda path, mode: object())  # without functions
    assert ggml.ggml() is None


def test_ggml_multiplies_as_numpy_does() -> None:
    found = ggml.ggml()
    if found is None:
        pytest.skip("llama-cpp-python is not installed")
    assert {"q4_k", "q8_0", "f16"} <= set(found.formats)
    memory = np.zeros((48 << 20) + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    with found.experts("f16", memory) as experts:
        assert experts.expert_bytes == 2 * WEIGHTS
        assert [experts.compute(rows, 1) for rows in (1, 1, 32, 32)] == [2, 1, 2, 1]
        output = experts.output(32)
    hidden, width = EXPERT

    def weights(rows: int, length: int) -> Any:
        block = np.random.default_rng(0).standard_normal((8, length)) / 50
        return np.tile(block, (rows // 8, 1))

    x = np.random.default_rng(1).standard_normal((32, hidden))
    gate = x @ weights(width, hidden).T
    expected = (gate / (1 + np.exp(-gate)) * gate) @ weights(hidden, width).T
    assert np.linalg.norm(output - expected) < 1e-2 * np.linalg.norm(expected)


# ------------------------------------------------------------------------------- measuring


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small memory, disk and copies."""
    monkeypatch.setattr(quick, "memory_size", lambda cache, free: 1 << 20)
    monkeypatch.setattr(quick, "thread_counts", lambda processors: [1, 2])
    monkeypatch.setattr(quick, "HANDOFFS", 5)
    monkeypatch.setattr(quick, "READS_S", 1e-6)
    monkeypatch.setattr(quick, "EXPERT_BYTES", 4096)
    monkeypatch.setattr(quick, "DEVICE_BYTES", 1 << 16)
    monkeypatch.setattr(copies, "LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(disk, "DISK_BYTES", 8 << 20)
    return tmp_path


def test_all_is_measured_without_a_card(short: Path) -> None:
    clock, said = Clock(1000), list[str]()
    library = Library(clock, q4_k=4.5, f32=32.0)
    found = quick.measure(short, None, said.append, [library], clock, lambda command: None)
    assert list(found.reads) == [1, 2]
    assert found.copies is None
    assert set(found.products.rates) == {"q4_k", "f32"}
    assert [line.partition(":")[0] for line in said] == [
        "reads of 1 MiB", "copies inside the memory", "experts in q4_k, one row",
        "experts in f32, one row", "hand-off to a waiting thread and back", "disk",
    ]  # fmt: skip
    profile = profile_of_parts(composed("cpu-only+ryzen-9-5950x"), found, "", None, None)
    assert HardwareProfile.from_mapping(profile).host.handoff.value > 0


def test_a_card_s_copies_are_measured_also_while_the_host_reads(short: Path) -> None:
    clock, said = Clock(1000), list[str]()
    card = FakeCard()
    found = quick.measure(short, card, said.append, [Library(clock, f32=32.0)], clock)
    assert found.copies is not None
    assert all(rate.low > 0 for rate in found.copies)
    assert found.copies.together.value > found.copies.beside.value
    assert not card.pinned
    assert any(line.startswith("copies to Fake Card: ") for line in said)


def test_without_ggml_the_missing_formats_are_named(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, said = Clock(1000), list[str]()
    monkeypatch.setattr(quick, "ggml", lambda: None)
    monkeypatch.setattr(quick, "Torch", lambda: Library(clock, f32=32.0))
    quick.measure(short, None, said.append, clock=clock)
    assert said[0].startswith("llama-cpp-python is not installed: products of f32 and bf16 alone")
    monkeypatch.setattr(quick, "ggml", lambda: Library(clock, q4_k=4.5))
    found = quick.measure(short, None, said.append, clock=clock)
    assert list(found.products.rates) == ["q4_k", "f32"]


# ------------------------------------------------------------------------------- the profile


def test_without_a_card_the_processor_is_the_device() -> None:
    parts = composed("cpu-only+epyc-9354+ram=24")
    data = profile_of_parts(parts, measured(), "Xeon", 2, 23.5, ["a stand-in"])
    profile = HardwareProfile.from_mapping(data)
    assert (profile.name, profile.pool) == ("this computer", True)
    assert "a stand-in; measured by moebench calibrate --quick" in profile.description
    host, gpu, link = profile.host, profile.gpu, profile.link
    assert (host.name, gpu.name) == ("Xeon", "Xeon (no GPU)")
    assert (host.cores.count, host.cores.badge) == (2, "measured")
    assert (host.memory.value, gpu.memory.value) == (23.5, 23.5)
    assert (host.gemv_bandwidth.value, host.gemv_bandwidth.range) == (24, (21.6, 26.4))
    assert "experts in f32, one row, 2 threads, torch" in host.gemv_bandwidth.source
    # 6 GB/s of fp32 weights, each multiplied with 32 rows
    assert host.peak_fp32.flops_per_s == pytest.approx(6e9 / 4 * 2 * 32)
    assert host.gemm_efficiency.ratio == 1
    assert host.core_rate is not None
    assert host.core_rate.value == 16  # 9 GB/s of q4_k, 4.5 bits a weight
    assert host.core_rate.range == (14.4, 19.56)  # from q4_k's lowest to q4_0's highest
    assert host.handoff.ns == 5000
    assert host.shared_bandwidth is not None
    assert host.shared_bandwidth.value == gpu.bandwidth.value == 30
    assert gpu.large_read_efficiency.ratio == gpu.small_read_efficiency.ratio == 0.8
    assert link.pinned_h2d.value == link.pageable_h2d.value == 14
    assert link.in_engine_efficiency.ratio == 1
    assert profile.disk.queue1_bandwidth.value == 2
    assert profile.disk.max_bandwidth.value == 3
    assert profile.disk.access_latency.ns == 100_000
    badges = {number["badge"] for _, number in measured_fields(data)}
    assert badges == {"calibrated"}
    assert len(measured_fields(data)) == 18


def test_products_that_are_faster_than_sums_are_the_device_s_bandwidth() -> None:
    found = measured()._replace(reads={1: one(20)})
    data = profile_of_parts(composed("cpu-only+epyc-9354"), found, "Xeon", None, None)
    profile = HardwareProfile.from_mapping(data)
    gpu = profile.gpu
    assert profile.host.shared_bandwidth == gpu.bandwidth
    assert (gpu.bandwidth.value, gpu.large_read_efficiency.high.ratio) == (24, 1)
    assert "experts in f32" in gpu.bandwidth.source


def test_with_a_card_its_link_and_copies_are_measured() -> None:
    parts = composed("rtx-4090+ryzen-9-7950x")
    data = profile_of_parts(parts, measured(COPIES), "AMD Ryzen 9 7950X", None, None)
    profile = HardwareProfile.from_mapping(data)
    assert not profile.pool
    assert profile.gpu.name == "RTX 4090"
    assert profile.gpu.bandwidth.badge == "datasheet"
    assert profile.gpu.large_read_efficiency.ratio == pytest.approx(900 / 1008, rel=1e-3)
    assert profile.gpu.small_read_efficiency.badge == "estimate"
    link = profile.link
    assert (link.pinned_h2d.value, link.pinned_d2h.value, link.pageable_h2d.value) == (25, 24, 9)
    assert "20 GB/s while all threads read" in link.pinned_h2d.source
    assert link.in_engine_efficiency.badge == "estimate"
    assert profile.host.shared_bandwidth is not None
    assert profile.host.shared_bandwidth.value == 40
    assert profile.host.cores.badge == parts["host"]["cores"]["badge"]


def test_a_card_that_torch_does_not_use_keeps_its_parts_numbers() -> None:
    parts = composed("rtx-4090+ryzen-9-7950x")
    data = profile_of_parts(parts, measured(), "AMD Ryzen 9 7950X", 16, 62.0)
    assert (data["gpu"], data["link"]) == (parts["gpu"], parts["link"])
    assert data["host"]["shared_bandwidth"] == parts["host"]["shared_bandwidth"]
    assert data["host"]["gemv_bandwidth"]["badge"] == "calibrated"


def test_a_machine_with_one_memory_has_whole_copies_where_they_were_measured() -> None:
    parts = composed("dgx-spark")
    data = profile_of_parts(parts, measured(COPIES), "Cortex-X925", 20, 119.6)
    link = HardwareProfile.from_mapping(data).link
    assert (link.pinned_h2d.value, link.in_engine_efficiency.ratio) == (25, 1)
    data = profile_of_parts(parts, measured(), "Cortex-X925", 20, 119.6)
    assert data["link"] == parts["link"]
    assert "shared_bandwidth" not in data["host"]


def test_without_ggml_a_core_s_rate_is_the_part_s() -> None:
    parts = composed("cpu-only+ryzen-9-5950x")
    alone = PRODUCTS._replace(rates={"f32": PRODUCTS.rates["f32"]})
    data = profile_of_parts(parts, measured(kinds=alone), "", None, None)
    assert data["host"]["core_rate"] == parts["host"]["core_rate"]
    assert data["host"]["name"] == parts["host"]["name"]


# ------------------------------------------------------------------------------- the command


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """A computer with a processor that is not a part, whose measurement is known."""
    hardware = Hardware(cpu="AMD EPYC 7B13", cores=2, ram_gib=384.0)
    monkeypatch.setattr(detect, "this_computer", lambda: hardware)
    monkeypatch.setattr(quick, "measure", lambda store, card, say: measured(load=99))
    return hardware


def test_the_command_writes_a_machine_that_runs(known: Hardware, tiny_models: Any) -> None:
    called = call("calibrate", "--quick", "--out", "here.yaml")
    assert called.code == 0, called.err
    assert called.out.splitlines()[0] == "field\tvalue\tmiddle half\tunit"
    assert "host.gemv_bandwidth\t24\t21.6 to 26.4\tGB/s" in called.out
    assert "parts: cpu-only+epyc-7763+ram=384" in called.err
    assert "EPYC 7763 stands in for AMD EPYC 7B13" in called.err
    assert "note: other programs had a load of 99.0 on" in called.err
    profile = load_profile("here.yaml")
    assert profile.host.gemv_bandwidth.badge == "calibrated"
    assert read_products(Path("here.yaml")) is not None
    small = ("--capacity", "0.5", "--prompts", "1", "--new-tokens", "2", "--no-interval")
    ran = call(
        "run", "--system", "moe-ondemand", "--model", SCALE_MODEL, "--machine", "here.yaml", *small
    )  # fmt: skip
    assert ran.code == 0, ran.err


def test_the_command_prints_profile_and_products_as_json(known: Hardware) -> None:
    called = call("calibrate", "--quick", "--out", "here.yaml", "--json")
    assert called.code == 0, called.err
    printed = called.json
    assert HardwareProfile.from_mapping(printed["profile"]) == load_profile("here.yaml")
    assert printed["products"] == json.loads(Path("here.products.json").read_text())
    assert printed["products"]["formats"]["q4_k"]["gb_s"]["1"]["2"] == [12.0, 10.8, 13.2]


def test_an_impossible_measurement_is_refused_before_anything_is_written(
    known: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible = measured()._replace(handoff=one(-5))
    monkeypatch.setattr(quick, "measure", lambda store, card, say: impossible)
    line = refused("calibrate", "--quick", "--out", "here.yaml")
    assert "here.yaml: host.handoff: value -5 is out of range" in line
    assert not list(Path.cwd().iterdir())


def test_a_card_without_torch_s_support_is_noted(
    known: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "this_computer", lambda: Hardware(gpu="rtx-4090", cpu="x"))
    called = call("calibrate", "--quick", "--out", "here.yaml")
    assert called.code == 0, called.err
    assert "note: torch uses no card, so card and link keep the numbers of their" in called.err
    assert load_profile("here.yaml").link.pinned_h2d.badge != "calibrated"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--weights", "."), "--weights: not with --quick, which measures without a checkpoint"),
        (("--model", SCALE_MODEL), "--model: not with --quick"),
        (("--emulated-link", "4GB/s"), "--emulated-link: not with --quick"),
        (("--device", "cuda"), "--device: not with --quick"),
        (("--precision", "bf16"), "--precision: not with --quick"),
        (("--out", "x.txt"), "--out x.txt: a profile's name ends in .yaml"),
        (("--out", "no/x.yaml"), "in a folder that exists"),
    ],
)
def test_options_of_a_checkpoint_are_refused(
    known: Hardware, options: tuple[str, ...], says: str
) -> None:
    line = refused("calibrate", "--quick", "--out", "here.yaml", *options)
    assert says in line
    assert not list(Path.cwd().iterdir())


def test_an_unknown_card_is_refused_before_measuring(
    known: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "this_computer", lambda: Hardware(gpu="NVIDIA RTX 9090", cpu="x"))
    monkeypatch.setattr(quick, "measure", None)
    line = refused("calibrate", "--quick", "--out", "here.yaml")
    assert "card 'NVIDIA RTX 9090' is not among the parts; nearest: " in line
    assert "machines init NAME" in line


def test_products_of_the_file_s_formats_have_positive_bits() -> None:
    document = as_document(PRODUCTS)
    assert {form: said["bits"] for form, said in document["formats"].items()} == PRODUCTS.bits


# ------------------------------------------------------------------------------- step by step


def test_all_parts_are_measured_in_turn_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, said, asked = Clock(), list[str](), list[Any]()
    monkeypatch.setattr(quick, "_load", lambda: 0.5)
    monkeypatch.setattr(quick, "_processors", lambda: 6)
    monkeypatch.setattr(quick, "cache_bytes", lambda ask: ask("caches"))
    monkeypatch.setattr(quick, "available_bytes", lambda: 8 << 30)
    monkeypatch.setattr(quick, "_aligned", lambda size: f"{size >> 20} MiB")

    def noted(name: str, answer: Any) -> None:
        monkeypatch.setattr(quick, name, lambda *given: asked.append((name, *given)) or answer)

    monkeypatch.setattr(quick, "_reads", lambda memory, n, on: one(10 * n))
    noted("_inner", one(7))
    noted("measure_products", PRODUCTS)
    noted("handoff", one(3))
    noted("_copies", COPIES)
    monkeypatch.setattr(quick, "_Host", lambda *given: given)
    monkeypatch.setattr(quick, "disk_rates", lambda folder: RATES)
    card: Any = SimpleNamespace(name="a card")
    for on in (None, card):
        said.clear()
        found = quick.measure(tmp_path, on, said.append, ["libraries"], clock, lambda of: 500 << 20)
        reads = {n: one(10 * n) for n in (1, 2, 4, 6)}
        copies_ = None if on is None else COPIES
        assert found == Quick(reads, one(7), PRODUCTS, one(3), RATES, copies_, 0.5)
        assert said[:3] == [
            "reads of 1000 MiB: 10, 20, 40, 60 GB/s by 1, 2, 4, 6 threads",
            "copies inside the memory: 7 GB/s", "hand-off to a waiting thread and back: 3 us",
        ]  # fmt: skip
        assert said[-1] == "disk: at most 3 GB/s"
    assert said[3] == (
        "copies to a card: 25 GB/s pinned, 9 pageable, 20 while the host computes; inside it 900 "
        "GB/s"
    )
    first = [
        ("_inner", "1000 MiB", 6, clock),
        ("measure_products", ["libraries"], "1000 MiB", [1, 2, 4, 6], said.append, clock, 45.0),
        ("handoff", clock),
    ]
    assert asked == [*first, *first, ("_copies", card, ("1000 MiB", 6), clock)]


def test_the_load_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 8.0, 9.0))
    assert quick._load() == 1.5

    def unknown() -> None:
        raise OSError

    monkeypatch.setattr("os.getloadavg", unknown)
    assert quick._load() == 0


def test_processors_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 4, 6} if process == 0 else {1})
    assert quick._processors() == 3
    monkeypatch.setattr(quick, "_processors", lambda: 4)
    assert quick.busy(0.99) == ""
    assert quick.busy(1.0).startswith("other programs had a load of 1.0 on 4 processors before")
    monkeypatch.undo()
    monkeypatch.delattr("os.sched_getaffinity")
    for count, used in ((5, 5), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda count=count: count)
        assert quick._processors() == used


def test_memory_begins_on_a_page_and_is_written() -> None:
    for size in (4096, 10_000):
        memory = quick._aligned(size)
        assert (memory.ctypes.data % 4096, memory.nbytes) == (0, size)
        assert set(memory.tolist()) == {1}


def test_memory_is_read_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    host = quick._Host(np.zeros(4 * 64, np.uint8), 3)
    assert host.read() == 256
    summed: list[list[float]] = []
    values = torch.arange(64.0)

    class Parts:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, at: slice) -> Any:
            part = values[at]
            return SimpleNamespace(sum=lambda: summed.append(part.tolist()), nbytes=part.nbytes)

    host._values = Parts()  # type: ignore[assignment]
    assert [host.read(n, 16) for n in (0, 1, 15)] == [16, 16, 16]
    assert summed == [[0, 1, 2, 3], [4, 5, 6, 7], [60, 61, 62, 63]]
    assert threads == [3] * 4


def test_rates_of_memory_use_the_threads_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, threads = Clock(), [7]
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads[-1])
    worked: list[float] = []

    def rate_of_(work: Any, of: Clock, seconds: float) -> Rate:
        assert (of, seconds) == (clock, quick.READS_S)
        worked.append(work())
        return one(threads[-1])

    monkeypatch.setattr(quick, "rate_of", rate_of_)
    memory = np.arange(4096, dtype=np.int64).view(np.uint8)
    half = memory[: 16 << 10].copy()
    assert quick._reads(memory, 3, clock) == one(3)
    assert quick._inner(memory, 2, clock) == one(2)
    assert worked == [32 << 10, 16 << 10]
    assert threads == [7, 3, 7, 2, 7]
    assert (memory == np.concatenate((half, half))).all(), "one half is copied over the other"


def test_first_rounds_of_copies_warm_the_link_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def copy_rates(card: Any, size: int, pinned: bool, back: bool = False, **more: Any) -> Any:
        asked.append((card, size))
        rate = {(True, False): 25.0, (True, True): 24.0, (False, False): 9.0}[pinned, back]
        return [1.0, rate, rate, rate]

    monkeypatch.setattr(quick, "copy_rates", copy_rates)
    monkeypatch.setattr(quick, "device_rates", lambda card, size: asked.append((card, size)) or [
        1.0, 900.0, 900.0])  # fmt: skip
    monkeypatch.setattr(quick, "_beside", lambda *given: (("beside", *given), "together"))
    card: Any = "a card"
    host, clock = SimpleNamespace(), Clock()

    def flat(value: float) -> Rate:
        return Rate(value, value, value)

    assert quick._copies(card, host, clock) == (  # type: ignore[arg-type]
        flat(25), flat(24), flat(9), ("beside", card, host, clock), "together", flat(900),
    )  # fmt: skip
    assert asked == [(card, 2 * WEIGHTS)] * 3 + [(card, 256 << 20)]


def test_rates_of_copies_and_reads_at_one_time_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of 100 bytes ends 50 ns after the one before."""
    clock, done = Clock(), threading.Event()
    parts: list[tuple[int, int]] = []

    class Host:
        def read(self, first: int, of: int) -> int:
            if len(parts) == 20:
                done.set()
                over.wait()
            parts.append((first, of))
            clock.now_ns += 50
            return 100

    over = threading.Event()
    more: list[bool] = []

    def copy_rates(card: Any, size: int, pinned: bool, rounds: int, go_on: Any) -> list[float]:
        assert (card, size, pinned, rounds) == ("a card", 2 * WEIGHTS, True, 8)
        done.wait(60)
        more.append(go_on())
        over.set()
        return [1.0, 20.0, 22.0, 24.0]

    monkeypatch.setattr(quick, "copy_rates", copy_rates)
    threads = torch.get_num_threads()
    copied, together = quick._beside("a card", Host(), clock)  # type: ignore[arg-type]
    assert copied == Rate(22, 21, 23)
    assert together == Rate(22 + 2, 21 + 2, 23 + 2)  # 100 bytes in 50 ns
    assert parts[:18] == [(n % 16, 16) for n in range(18)]
    assert more == [False]
    assert torch.get_num_threads() == threads


def test_a_disk_is_read_by_blocks_and_depths_in_random_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read takes 100 µs and its bytes at 1 GB/s."""
    monkeypatch.setattr(disk, "DISK_BYTES", 8 << 20)
    now, reads, lock = [0.0], list[tuple[int, int]](), threading.Lock()

    def preadv(file: int, buffers: list[Any], place: int) -> int:
        size = len(buffers[0])
        with lock:
            reads.append((size, place))
            now[0] += 100e-6 + size / 1e9
        return size

    monkeypatch.setattr("os.preadv", preadv)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    folder = tmp_path / "new"
    rates = disk.disk_rates(folder)
    assert [*folder.iterdir()] == []
    blocks = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
    assert rates.keys() == {(0, 1)} | {(block, depth) for block in blocks for depth in (1, 4, 16)}
    assert rates[0, 1] == pytest.approx(100e-6 + disk.ALIGNMENT / 1e9)
    for block in blocks:
        for depth in (1, 4, 16):
            assert rates[block, depth] == pytest.approx(block / (100e-6 + block / 1e9))
    assert len(reads) == 64 + 3 * (64 + 16 + 4 + 1)
    assert all(place % size == 0 and place + size <= 8 << 20 for size, place in reads)
    small = [place for size, place in reads if size == disk.ALIGNMENT]
    assert len(set(small)) == 64
    assert small != sorted(small)


def test_copies_of_a_card_are_timed_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 4 copies of 1 MiB at least; they begin again while something goes on."""
    log: list[Any] = []
    times = iter([100, 0, 50, 200, 40])

    class Fake:
        def allocate(self, count: int, size: int) -> Any:
            log.append(("allocate", count, size))
            return ["device 0", "device 1"]

        def pin(self, host: Any) -> None:
            log.append("pin")

        def unpin(self, host: Any) -> None:
            log.append("unpin")

        def stream(self) -> str:
            return "stream"

        @contextmanager
        def on(self, stream: str) -> Iterator[None]:
            yield

        def copy(self, target: Any, source: Any) -> None:
            log.append((target, source))

        def record(self, stream: str) -> Any:
            return SimpleNamespace(synchronize=lambda: None)

        def elapsed_ns(self, began: Any, ended: Any) -> int:
            return next(times)

    monkeypatch.setattr(copies, "LEAST_BYTES", 3 << 20)
    monkeypatch.setattr(copies, "rows", lambda n, size, what: [f"host {i}" for i in range(n)])
    card: Any = Fake()
    again = iter([True, False])
    found = copies.copy_rates(card, 1 << 20, True, rounds=2, go_on=lambda: next(again))
    bytes_ = 4 << 20
    assert found == [bytes_ / 100, bytes_ / 1, bytes_ / 50]
    one_round = [(f"device {n % 2}", f"host {n}") for n in range(4)]
    assert log == [("allocate", 2, 1 << 20), "pin", *one_round * 3, "unpin"]
    log.clear()
    assert copies.copy_rates(card, 1 << 19, False, back=True, rounds=1) == [(6 << 19) / 200]
    assert log == [("allocate", 2, 1 << 19), *((f"host {n}", f"device {n % 2}") for n in range(6))]
    log.clear()
    monkeypatch.setattr(copies, "ROUNDS", 1)
    assert copies.device_rates(card, 1000) == [2000 / 40]
    assert log == [("allocate", 2, 1000), ("device 1", "device 0")]
    monkeypatch.setattr(copies, "copy_rates", lambda *given: [3.0, 7.0, 5.0])
    assert copies.copy_rate(card, 5, pinned=True) == 7


def test_between_256_mib_and_2_gib_are_read_in_turn() -> None:
    assert (quick.LEAST_MEMORY, quick.MOST_MEMORY) == (2**28, 2**31)
