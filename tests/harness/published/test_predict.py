"""Predictions of published rows: by hand, by what every machine obeys, and their refusals."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.published import predict as module
from moebench.harness.published.case import Unpredictable, case_of
from moebench.harness.published.constants import COMPONENTS, Fitted
from moebench.harness.published.predict import left_out, predict, predict_row
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.routing import Drawn
from moebench.harness.published.rows import Row
from moebench.harness.published.simulate import milliseconds, names_of
from moebench.substrate.models.catalogue import find_shape
from moebench.substrate.traces.law import used_experts
from tests.harness.published.made import SAID


def row(**changes: Any) -> Row:
    return Row(**(SAID | changes))


#: Component values, as if no fit had been made.
COMPONENT = Fitted(COMPONENTS, {}, {"decode": 0.2, "prefill": 0.4})


def predictions(said: Row) -> list[Prediction]:
    return predict_row(said, COMPONENT)


def rate(phase: Phase = "decode", **changes: Any) -> float:
    found = {one.phase: one for one in predictions(row(**changes))}[phase]
    assert found.predicted is not None, found.reason
    return found.predicted


def test_a_decoded_token_by_hand() -> None:
    """36 layers on the host, each 4 experts of 13.2 MB at 66.6 GB/s and a hand-over of 80 us."""
    case = case_of(row())
    weights = 24_891_840
    bandwidth = case.profile.host.gemv_bandwidth.bytes_per_s
    arithmetic = 4 * weights / (16 * case.profile.host.core_rate.per_s * 0.65)
    on_host = 36 * (80e-6 + max(4 * weights * 4.25 / 8 / bandwidth, arithmetic))
    shape = find_shape("gpt-oss-120b")
    read = 936e9 * 0.65  # single layers' reads on the card
    common = shape.active_common_params - shape.num_layers * shape.gate_params
    at_most = on_host + common * 16 / 8 / read + 36 * 40 * 5e-6 + 36 * 30e-6
    took = milliseconds(case, COMPONENTS, "decode") / 1e3
    assert on_host < took < at_most
    assert 1 / rate() == pytest.approx(took)


def test_experts_that_fit_on_the_card_save_their_layers() -> None:
    """A layer that leaves the host saves its product and hand-over there, less that of the card."""
    times = [1 / rate(n_cpu_moe=n) for n in (36, 24, 12, 0)]
    steps = [a - b for a, b in itertools.pairwise(times)]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
    assert steps[1] == pytest.approx(steps[2], rel=0.01)
    layer = 80e-6 + 4 * 24_891_840 * 4.25 / 8 / 66.56e9
    assert 0.85 * layer < steps[0] / 12 < layer


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 15), st.sampled_from([0, 10, 20, 30]), st.integers(0, 20_000))
def test_more_of_anything_is_never_slower(threads: int, layers: int, context: int) -> None:
    asked = {"threads": threads, "n_cpu_moe": layers, "prompt_tokens": context}
    here = rate(**asked)
    assert rate(**asked | {"threads": threads + 1}) >= here
    assert rate(**asked | {"ram_type": "DDR5-6000"}) >= here
    assert rate(**asked | {"n_cpu_moe": layers + 6}) <= here
    assert rate(**asked | {"prompt_tokens": context + 4000}) <= here


def test_prefill_streams_once_for_each_micro_batch() -> None:
    """Twice the micro-batch needs half the copies of experts that all its tokens use."""
    small, large = (rate("prefill", ubatch=n, prompt_tokens=4096) for n in (1024, 4096))
    assert 1.5 < large / small < 4


def test_repacked_weights_are_multiplied_on_the_host() -> None:
    streamed = rate("prefill", system="ik_llama.cpp")
    repacked = rate("prefill", system="ik_llama.cpp", other_flags="-rtr -fmoe --no-mmap")
    assert repacked != pytest.approx(streamed, rel=0.05)
    case = case_of(row(system="ik_llama.cpp", other_flags="-rtr"))
    assert case.engine.streams_from is None


def test_page_locked_copies_are_faster() -> None:
    assert rate("prefill") > 1.5 * rate("prefill", other_flags="mmap")


def test_a_sweeps_prompt_is_a_chunk_behind_cached_tokens() -> None:
    swept = case_of(row(notes="llama-sweep-bench", prompt_tokens=4096))
    assert swept.lengths == (4096 + 64, 512, 4096, 0)
    assert case_of(row(prompt_tokens=4096)).lengths == (4096 + 64, 4096, 0, 0)


@pytest.mark.slow
def test_hot_experts_save_the_link() -> None:
    gnf4 = {"system": "gnf4", "gpu": "H200", "h2d_gb_s": 45.0, "n_cpu_moe": None,
            "other_flags": "graphs"}  # fmt: skip
    times = [1 / rate(**gnf4, cached_experts_or_slots=f"static {n} of 128", hit_rate=hits)
             for n, hits in ((8, 0.3), (64, 0.8), (128, 1.0))]  # fmt: skip
    assert times[0] > times[1] > times[2]
    misses = 36 * 4 * 0.7 * 24_891_840 * 4.25 / 8 / 45e9
    assert times[0] == pytest.approx(misses, rel=0.35)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "some engine"}, "no rules of the engine 'some engine'"),
        ({"model": "Unheard-9B"}, "model 'Unheard-9B' is not in the catalogue"),
        ({"gpu": "RTX 9990"}, "card 'RTX 9990' is not among the parts"),
        ({"other_flags": "MTP draft 2"}, "speculative decoding: how many tokens are accepted"),
        ({"notes": "driver spill to shared memory"}, "the card's memory is exceeded"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, Any], reason: str) -> None:
    found = predictions(row(**changes))
    assert [one.phase for one in found] == ["decode", "prefill"]
    assert all(one.predicted is None and one.reason.startswith(reason) for one in found)
    with pytest.raises(Unpredictable):
        case_of(row(**changes))


def test_without_drafts_is_no_speculation() -> None:
    assert rate(other_flags="no draft") > 0


def test_what_a_row_does_not_say_widens_its_interval() -> None:
    full, less = (predictions(said)[0] for said in (row(), row(cpu="", ram_type="", threads=None)))
    widths = [math.log((one.high or 0) / (one.low or 1)) for one in (full, less)]
    assert 0 < widths[0] < widths[1]
    assert full.remarks == ()
    assert any("processor of a desktop not said" in remark for remark in less.remarks)


def test_a_rate_above_what_the_memory_allows_is_remarked_on() -> None:
    (found,) = predictions(row(decode_tok_s=500.0, prefill_tok_s=None))
    assert "impossible as stated" in found.remarks[-1]
    (fine,) = predictions(row(decode_tok_s=20.0, prefill_tok_s=None))
    assert fine.remarks == ()


def test_one_memory_and_no_card() -> None:
    pool = rate(gpu="Radeon 8060S (Strix Halo, one pool)", cpu="Ryzen AI Max+ 395",
                ram_type="", ram_channels="", n_cpu_moe=0)  # fmt: skip
    alone = rate(gpu="", n_gpu=0, other_flags="CPU only")
    assert pool > 1.5 * alone  # 256 GB/s against 83
    assert alone < rate()


def test_two_sockets_without_placement_are_slower_than_bound_ones() -> None:
    server = {"cpu": "2x Xeon Gold 6454S", "sockets": 2, "ram_type": "DDR5-4800",
              "ram_channels": "8 per socket", "threads": 64}  # fmt: skip
    anywhere, bound = rate(**server), rate(**server, notes="NUMA copies")
    assert bound / anywhere > 1.2


@pytest.mark.parametrize(("rows", "share"), [(256, 0.63), (512, 0.76), (2048, 0.98)])
def test_the_law_of_used_experts_has_the_measured_shares(rows: int, share: float) -> None:
    assert used_experts(rows, 4, 128) / 128 == pytest.approx(share, abs=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 700), st.sampled_from([64, 512]))
def test_drawn_rows_choose_distinct_experts(rows: int, micro_batch: int) -> None:
    shape = find_shape("qwen3-30b-a3b")
    model = Drawn(shape, rows, micro_batch)
    model.begin([[0] * rows], 1)
    model.embed("prefill")
    ids_TK = model.gate(0).ids_TK
    assert ids_TK.shape == (rows, 8)
    assert all(len(set(one)) == 8 for one in ids_TK.tolist())
    counts = model.dispatch(0, ids_TK, ids_TK)
    assert sum(counts.values()) == rows * 8
    assert len(counts) >= used_experts(min(rows, micro_batch), 8, 128)


def test_hits_have_the_stated_share() -> None:
    shape = find_shape("gpt-oss-120b")
    model = Drawn(shape, 1, 512, hot=16, hits=0.4)
    model.begin([[0]], 2)
    model.embed("decode")
    ids = [model.gate(layer).ids_TK[0].tolist() for layer in range(36)]
    assert sum(e < 16 for one in ids for e in one) / (36 * 4) == pytest.approx(0.4, abs=0.02)
    assert all(len(set(one)) == 4 for one in ids)


def test_a_cache_of_the_card_takes_its_hits_from_the_host() -> None:
    """Half of the experts on the card have half to the power of 0.18 of the uses."""
    off, on = (
        1 / rate(system="llama.cpp-moe-cache", cached_experts_or_slots=slots)
        for slots in ("0", "64 of 128 experts per layer")
    )
    case = case_of(row())
    layer = 4 * 24_891_840 * 4.25 / 8 / case.profile.host.gemv_bandwidth.bytes_per_s
    saved = 36 * (0.5**0.18 * layer - 90e-6)
    assert off - on == pytest.approx(saved, rel=0.12)


def test_a_context_costs_what_its_cache_takes_to_read() -> None:
    """36 layers, half of them with windows of 128; 8 heads of 64 keys and values of 2 bytes."""
    short, long = (1 / rate(n_cpu_moe=0, prompt_tokens=n, new_tokens=2) for n in (1000, 21_000))
    cache = 18 * 20_000 * 2 * 8 * 64 * 2
    profile = case_of(row()).profile
    read = profile.gpu.bandwidth.bytes_per_s * profile.gpu.large_read_efficiency.ratio * 0.4
    assert long - short == pytest.approx(cache / read, rel=0.02)


def test_second_threads_of_cores_add_a_part() -> None:
    virtual = {"cpu": "EPYC 9354 24 vCPU", "ram_type": "DDR5-4800", "ram_channels": "12"}
    cores = {n: case_of(row(**virtual, threads=n)).threads for n in (8, 12, 16, 24, 48)}
    assert cores == {8: 8, 12: 12, 16: pytest.approx(13.2), 24: pytest.approx(15.6),
                     48: pytest.approx(15.6)}  # fmt: skip


@pytest.mark.slow
def test_a_figure_depends_on_its_constants_alone() -> None:
    """A constant that is not named for a figure moves nothing; those of its own move it."""
    for said, phase in ((row(), "decode"), (row(), "prefill"), (row(n_gpu=0, gpu=""), "prefill")):
        case = case_of(said)
        here = milliseconds(case, COMPONENTS, phase)
        named = names_of(case, phase)
        for name, value in COMPONENTS.items():
            if name not in named:
                assert milliseconds(case, {**COMPONENTS, name: 1.3 * value}, phase) == here, name
    case = case_of(row())
    for name in ("desktop reads", "handoff us", "small reads"):
        slower = {**COMPONENTS, name: COMPONENTS[name] * (2 if name == "handoff us" else 0.5)}
        assert milliseconds(case, slower, "decode") > milliseconds(case, COMPONENTS, "decode")


def test_left_out_predictions_take_the_constants_of_other_machines(monkeypatch) -> None:
    from moebench.harness.published.constants import fold

    seen, new = row(), row(id="new", cpu="Ryzen 7 5800X", ram_type="DDR4-3200")
    slower = {**COMPONENTS, "handoff us": 800.0, "device products": 0.1}
    monkeypatch.setattr(
        module, "fitted", lambda: Fitted(COMPONENTS, {fold(seen): slower}, COMPONENT.own_error)
    )
    rows = [seen, new]
    inside = predict(rows)
    outside = left_out(rows, inside)
    by = {(one.id, one.phase): one.predicted for one in inside}
    assert [(one.id, one.phase) for one in outside] == [(one.id, one.phase) for one in inside]
    for one in outside:
        if one.id == "new":
            assert one.predicted == by[one.id, one.phase]
        else:
            assert one.predicted < by[one.id, one.phase]


# ------------------------------------------------------------------------------ by hand


def test_a_rate_has_an_interval_of_eighty_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rate_of", lambda case, values, phase: 10.0)
    monkeypatch.setattr(module, "deviation", lambda case, phase, found: math.log(2) / 1.2816)
    case = case_of(row())
    one = module._prediction("x", case, COMPONENTS, COMPONENT, "decode", 12.0)
    assert (one.id, one.phase, one.measured, one.predicted) == ("x", "decode", 12.0, 10.0)
    assert (one.low, one.high) == (pytest.approx(5.0), pytest.approx(20.0))
    assert one.remarks == tuple(case.remarks)


def test_a_rate_is_its_tokens_over_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "milliseconds", lambda case, values, phase: 50.0)
    case = replace(case_of(row()), batch=3)
    assert module.tokens(case, "decode") == 3
    assert module.tokens(case, "prefill") == 3 * 512
    assert module.rate_of(case, COMPONENTS, "decode") == 60
    assert module.rate_of(case, COMPONENTS, "prefill") == 3 * 512 * 20


def test_a_kinds_own_deviation_counts_else_the_largest_of_such_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of(row())
    known = module.known(case)
    kinds: dict[str, float] = {}
    monkeypatch.setattr(module, "own_deviations", lambda phase: kinds)

    def own() -> float:
        return math.sqrt(module.deviation(case, "decode", COMPONENT) ** 2 - known)

    assert own() == pytest.approx(0.2)
    assert not module.is_checked(case, "decode")
    kinds |= {"vllm, python, server": 0.9, "vllm, python, desktop": 0.15}
    assert own() == pytest.approx(0.2), "at least that of all"
    kinds["exllamav3, python, desktop"] = 0.5
    assert own() == pytest.approx(0.5)
    kinds["llamacpp, ggml, desktop"] = 0.1
    assert own() == pytest.approx(0.1)
    assert module.is_checked(case, "decode")


def test_no_rate_exceeds_what_the_hosts_memory_allows() -> None:
    """36 layers of 4 experts of 13.2 MB each at the higher bandwidth, and a quarter more."""
    case = case_of(row())
    size = 36 * 4 * 24_891_840 * 4.25 / 8
    high = case.profile.host.gemv_bandwidth.high.bytes_per_s
    slow = {**COMPONENTS, "desktop reads": 0.01}
    assert module._limit(case, slow) == pytest.approx(1.25 * high / size)
    fast = {**COMPONENTS, "desktop reads": 100.0}
    reads = module.profile_of(case, fast).host.gemv_bandwidth.bytes_per_s
    assert module._limit(case, fast) == pytest.approx(1.25 * max(reads, high) / size)
    half = replace(case, first=18)
    assert module._limit(half, slow) == pytest.approx(2.5 * high / size)
    assert module._limit(replace(case, first=0), slow) is None
    assert module._limit(replace(case, hot=0.5), slow) is None


def test_many_rows_are_predicted_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []

    class Pool:
        def __init__(self, cores: int) -> None:
            pools.append(cores)

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None: ...

        def map(self, one: Any, rows: Any, chunksize: int) -> Any:
            return map(one, rows)

    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(module, "MANY", 3)

    def one(some: Row) -> Any:
        return [some.id, some.id.upper()]

    rows = [Row(id=name) for name in "abc"]
    for cores, made in ((4, [4]), (1, []), (None, [])):
        pools.clear()
        monkeypatch.setattr(module.os, "cpu_count", lambda cores=cores: cores)
        assert module._all(rows, one) == ["a", "A", "b", "B", "c", "C"]
        assert pools == made
    monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
    assert module._all(rows[:2], one) == ["a", "A", "b", "B"]
    assert pools == []


def test_figures_are_of_rows_that_can_be_predicted() -> None:
    found = module.figures(
        [row(), row(id="no", model="Unheard-9B"), row(id="x", prefill_tok_s=None)]
    )
    assert [(one.id, phase, rate) for one, _, phase, rate in found] == [
        ("one", "decode", 20.0), ("one", "prefill", 300.0), ("x", "decode", 20.0),
    ]  # fmt: skip
