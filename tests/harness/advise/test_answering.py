"""Answers: they agree with predictions of published rows, obey what machines obey, and rank."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.advise import answering
from moebench.harness.advise.answer import GIB, Answer, Answers, Rate
from moebench.harness.advise.answering import answers, with_others
from moebench.harness.advise.ask import question
from moebench.harness.advise.case import case_for
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.memory import needs
from moebench.harness.advise.question import Hardware
from moebench.harness.advise.ranking import GAIN, ROWS, chosen
from moebench.harness.advise.rules import RULES
from moebench.harness.published.case import case_of
from moebench.harness.published.constants import fitted
from moebench.harness.published.predict import predict_row
from moebench.harness.published.rows import Row, read_rows, shipped
from moebench.results.published_errors import ratio_error
from moebench.substrate.errors import UsageError

#: Parts of a usual desktop.
DESKTOP = {"gpu": "rtx-3090", "cpu": "ryzen-9-5950x", "ram": "64", "memory": "ddr4-3200*2"}


def ask(
    model: str = "gpt-oss-120b", engines: tuple[str, ...] = (),
    forced: Configuration | None = None, binding: bool = False,
    parts: dict[str, Any] | None = None, quant: str | None = None, **more: Any,
) -> Answers:  # fmt: skip
    one = question(model=model, quant=quant, hardware=hardware(**(parts or DESKTOP)), **more)
    return answers(one, engines, forced, binding)


# ------------------------------------------------------------------------------ published rows


def _comparable(row: Row) -> bool:
    """Whether a row says what advice asks for, and nothing else that its prediction uses."""
    return (
        row.system == "llama.cpp" and isinstance(row.n_cpu_moe, int) and row.n_cpu_moe > 0
        and row.ubatch in (512, None) and row.threads is not None and row.n_gpu == 1
        and not row.cached_experts_or_slots and (row.batch or 1) == 1 and not row.sweeps
        and bool(row.prompt_tokens) and row.bits_per_weight == 4.25 and "MXFP4" in row.quant
    )  # fmt: skip


ROWS_OF_OTHERS = [row for row in read_rows(shipped()) if _comparable(row)]


def test_there_are_rows_to_compare_with() -> None:
    assert len(ROWS_OF_OTHERS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS_OF_OTHERS, ids=lambda row: row.id)
def test_advice_is_what_is_predicted_of_a_row_that_says_as_much(row: Row) -> None:
    expected = {one.phase: one for one in predict_row(row)}
    parts = Hardware(
        gpu=row.gpu, cpu=row.cpu, sockets=row.sockets, ram_gib=row.ram_gb, memory=row.ram_type,
        channels=int(row.ram_channels or 0) or None, reads_gb_s=row.ram_gb_s,
        copies_gb_s=row.h2d_gb_s, link=f"pcie{row.pcie_gen}x{row.pcie_lanes}",
    )  # fmt: skip
    one = question(model="gpt-oss-120b", quant="mxfp4", hardware=parts,
                   prompt=str(row.prompt_tokens), new=str(row.new_tokens or 128))  # fmt: skip
    forced = Configuration(
        engine="llama.cpp", host_layers=row.n_cpu_moe, threads=row.threads, micro_batch=512,
        kv="q8_0" if "q8" in row.id else "f16", pinned=case_of(row).pinned,
    )  # fmt: skip
    (found,) = [r for r in answers(one, ["llama.cpp"], forced, binding=False).rows if r.forced]
    got = {"decode": found.decode, "prefill": found.prefill}
    for phase, published in expected.items():
        rate = got[phase]
        assert rate is not None
        assert rate.value == pytest.approx(published.predicted, rel=1e-9)
        # The bits of the format's name are a little less certain than those a row states.
        assert rate.high / rate.value == pytest.approx(published.high / published.predicted,
                                                       rel=0.05)  # fmt: skip


# ------------------------------------------------------------------------------ what holds


@pytest.mark.slow
def test_the_best_come_first_and_there_are_at_most_eight() -> None:
    found = ask(engines=tuple(RULES), binding=True).rows
    assert 1 < len(found) <= ROWS
    assert [row.request_s for row in found] == sorted(row.request_s for row in found)
    assert not found[0].tied
    for row in found:
        assert row.decode.low < row.decode.value < row.decode.high
        assert row.ttft_s is not None
        assert row.request_s == pytest.approx(row.ttft_s + 512 / row.decode.value)
        assert row.binds in row.shares
        assert all(0 <= share <= 1.01 for share in row.shares.values())


@pytest.mark.slow
def test_rows_are_tied_within_the_error_of_a_ratio_and_not_beyond() -> None:
    found = ask(engines=("llama.cpp", "ik_llama.cpp", "accelerate"), quant="q8_0",
                model="qwen3-30b-a3b", prompt="0", new="500",
                parts={**DESKTOP, "ram": "128"}).rows  # fmt: skip
    by = {row.engine: row for row in found}
    assert by["ik_llama.cpp"].tied or by["llama.cpp"].tied
    slow = by["accelerate"]
    assert slow.request_s > ratio_error() * found[0].request_s
    assert not slow.tied


@pytest.mark.slow
def test_more_host_layers_take_more_host_memory_and_time() -> None:
    llama = Configuration(engine="llama.cpp")
    rows = [ask(forced=replace(llama, host_layers=n), engines=("llama.cpp",)).rows
            for n in (26, 31, 36)]  # fmt: skip
    forced = [next(row for row in found if row.forced) for found in rows]
    assert [row.host_gib for row in forced] == sorted(row.host_gib for row in forced)
    assert [row.decode.value for row in forced] == sorted((r.decode.value for r in forced),
                                                          reverse=True)  # fmt: skip
    assert all(row.device_gib + row.host_gib > 58 for row in forced)


@pytest.mark.slow
def test_a_forced_configuration_that_does_not_fit_is_predicted_and_says_so() -> None:
    found = ask(forced=Configuration(engine="llama.cpp", host_layers=0))
    (row,) = [one for one in found.rows if one.forced]
    assert row.fits == "does not fit"
    assert f"on a device with {24 * 0.94:.1f} GiB free" in row.verdict
    assert row.decode.value > found.rows[-1].decode.value
    assert "does not fit" not in found.verdict


@pytest.mark.slow
def test_a_model_beyond_the_memory_pages_only_where_the_file_is_mapped() -> None:
    found = ask(parts={**DESKTOP, "ram": "32"})
    paged = {row.engine: row for row in found.rows}
    assert {"llama.cpp", "ik_llama.cpp"} <= paged.keys()
    assert "kt-kernel" in found.left_out
    assert "GiB of host memory, of which 28.0 GiB are free" in found.left_out["kt-kernel"]
    row = paged["llama.cpp"]
    assert row.fits == "pages"
    assert row.host_gib == pytest.approx(28)
    whole = {one.engine: one for one in ask().rows}["llama.cpp"]
    assert row.decode.value < whole.decode.value
    assert row.decode.high / row.decode.value > whole.decode.high / whole.decode.value
    faster = ask(parts={**DESKTOP, "ram": "32", "disk": "nvme5"}, engines=("llama.cpp",)).rows[0]
    slower = ask(parts={**DESKTOP, "ram": "32", "disk": "nvme3"}, engines=("llama.cpp",)).rows[0]
    assert faster.decode.value > slower.decode.value


@pytest.mark.slow
def test_a_context_too_large_is_answered_with_the_largest_that_fits() -> None:
    parts = {"gpu": "rtx-3060-12gb", "cpu": "ryzen-5-5600", "ram": "128"}
    found = ask("glm-4.5-air", parts=parts, context="128k", lossless=True)
    assert not found.rows
    assert 0 < found.largest_context < 131072
    assert f"at most {found.largest_context:,} tokens, not with 131,072" in found.verdict
    again = ask("glm-4.5-air", parts=parts, context=str(found.largest_context), lossless=True)
    assert any(row.engine == "llama.cpp" for row in again.rows)


@pytest.mark.slow
def test_a_cache_in_few_bits_is_offered_unless_all_must_be_lossless() -> None:
    parts = {"gpu": "rtx-3060-12gb", "cpu": "ryzen-5-5600", "ram": "128"}
    context = ask("glm-4.5-air", parts=parts, context="128k", lossless=True).largest_context
    asked = {"parts": parts, "context": str(context + 1024)}
    assert not ask("glm-4.5-air", **asked, lossless=True).rows
    rows = ask("glm-4.5-air", **asked).rows
    assert rows
    assert {row.quality for row in rows} == {"KV cache in q8_0"}


def test_a_machine_without_a_card_is_answered() -> None:
    found = ask("qwen3-30b-a3b", parts={"cpu": "ryzen-9-7950x", "ram": "64"}, binding=True)
    assert {row.engine for row in found.rows} == {"llama.cpp", "ik_llama.cpp"}
    assert all(row.device_gib == 0 and row.host_gib > 17 for row in found.rows)
    assert found.rows[0].binds in ("memory of the host", "cores of the host")
    assert found.left_out["exllamav3"] == "does not run without a card"


@pytest.mark.slow
def test_a_machine_of_one_memory_holds_all_on_the_device() -> None:
    found = ask("gpt-oss-120b", parts={"gpu": "strix-halo", "ram": "128"})
    assert [row.engine for row in found.rows] == ["llama.cpp"]
    assert found.rows[0].host_gib == 0
    spark = ask("gpt-oss-120b", parts={"gpu": "dgx-spark"})
    assert spark.left_out["kt-kernel"] == "does not run on a machine with one memory"
    small = ask("gpt-oss-120b", parts={"gpu": "strix-halo", "ram": "64"})
    assert not small.rows
    assert "does not fit" in small.verdict


@pytest.mark.slow
def test_engines_without_the_model_or_the_device_say_why() -> None:
    found = ask("deepseek-v3", quant="q2_k", parts={**DESKTOP, "ram": "512"})
    assert found.left_out["freetoken"] == "does not run models of the family deepseek_v3"
    amd = ask(parts={**DESKTOP, "gpu": "radeon-rx-7900-xtx"})
    assert {row.engine for row in amd.rows} == {"llama.cpp"}
    assert "AMD" in amd.left_out["kt-kernel"]


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    more=st.integers(1, 24), reads=st.floats(1.1, 3), model=st.sampled_from(
        ["gpt-oss-120b", "qwen3-30b-a3b", "glm-4.5-air"]),
)  # fmt: skip
def test_a_better_machine_is_never_slower(more: int, reads: float, model: str) -> None:
    one = question(model=model, quant="q4_k_m", hardware=hardware(**DESKTOP, bandwidth=40))
    larger = replace(one, hardware=replace(one.hardware, more_gib=float(more)))
    faster = replace(one, hardware=replace(one.hardware, reads_gb_s=40 * reads))
    now = answers(one, ["llama.cpp"], binding=False).rows[0]
    for changed in (larger, faster):
        found = answers(changed, ["llama.cpp"], binding=False).rows[0]
        assert found.request_s <= now.request_s * 1.001


@pytest.mark.slow
def test_a_batch_is_read_and_written_together() -> None:
    one, four = ask(engines=("llama.cpp",)).rows[0], ask(engines=("llama.cpp",), batch=4).rows[0]
    assert four.decode.value > one.decode.value, "tokens of all texts"
    assert four.prefill is not None
    assert four.ttft_s == pytest.approx(4 * 2048 / four.prefill.value)
    assert four.request_s == pytest.approx(four.ttft_s + 4 * 512 / four.decode.value)


# ------------------------------------------------------------------------------ choosing rows


def made(engine: str, decode: float, prefill: float, quality: str = "lossless",
         **more: Any) -> Answer:  # fmt: skip
    rate = Rate(decode, decode / 2, decode * 2)
    return Answer(
        engine=engine, configuration=Configuration(engine=engine), config="", decode=rate,
        prefill=Rate(prefill, prefill / 2, prefill * 2), ttft_s=1000 / prefill,
        request_s=1000 / prefill + 500 / decode, device_gib=0, host_gib=0, disk_gib=0,
        quality=quality, verdict="fits", fits="fits", checked=True, **more,
    )  # fmt: skip


def test_a_configuration_without_a_gain_has_no_row() -> None:
    best, alike = made("a", 20, 300), made("a", 20 / 1.02, 300 * (GAIN - 0.02))
    other = made("a", 20 * GAIN * 1.02, 100)
    assert chosen([best, alike, other]) == [best, other]


def test_a_lossy_configuration_needs_a_gain_and_never_hides_an_exact_one() -> None:
    exact, little, much = (made("a", 20, 300), made("a", 20.5, 300, "KV cache in q8_0"),
                           made("a", 40, 300, "KV cache in q8_0"))  # fmt: skip
    assert chosen([little, exact]) == [exact]
    assert chosen([much, exact]) == [much, exact]


def test_every_engine_has_a_row_before_any_has_two() -> None:
    many = [made("a", 20 * 1.2**n, 300 / 1.2**n) for n in range(12)]
    others = [made(name, 5, 50) for name in "bcdefgh"]
    found = chosen([*many, *others])
    assert len(found) == ROWS
    assert {row.engine for row in found} == set("abcdefgh")


@pytest.mark.slow
def test_shares_of_what_binds_are_those_of_a_time_that_is_known() -> None:
    # Experts on the host: twice its bandwidth halves that part of a token's time.
    one = question(model="qwen3-235b-a22b", quant="q4_k_m",
                   hardware=hardware(**{**DESKTOP, "ram": "256"}, bandwidth=20))  # fmt: skip
    (row,) = answers(one, ["llama.cpp"]).rows[:1]
    assert row.binds == "memory of the host"
    twice = replace(one, hardware=replace(one.hardware, reads_gb_s=40.0))
    faster = answers(twice, ["llama.cpp"], binding=False).rows[0]
    expected = 1 - row.shares["memory of the host"] / 2
    assert row.decode.value / faster.decode.value == pytest.approx(expected, rel=0.05)
    assert math.isclose(GIB, 2**30)


# ------------------------------------------------------------------------------ by hand

HOST_PARTS = {"gpu": "none", "cpu": "ryzen-9-5950x", "ram": "64"}


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every configuration decode 10 tokens/s and read 100, within e^(1.2816 x 0.3)."""
    monkeypatch.setattr(
        answering, "rate_of", lambda case, values, phase: 10.0 if phase == "decode" else 100.0
    )
    monkeypatch.setattr(answering, "deviation", lambda case, phase, found: 0.3)
    monkeypatch.setattr(answering, "is_checked", lambda case, phase: phase == "decode")


SPREAD = math.exp(1.2816 * 0.3)


@pytest.mark.usefixtures("flat")
def test_all_fields_of_an_answer() -> None:
    """Three texts of 2048 and 512 tokens: 61.44 s and 153.6 s."""
    told: list[str] = []
    one = question(model="qwen3-30b-a3b", quant="q4_k_m", hardware=hardware(**DESKTOP), batch=3)
    found = answers(one, ["llama.cpp"], binding=False, told=told.append)
    row = found.rows[0]
    assert row.decode == pytest.approx((10, 10 / SPREAD, 10 * SPREAD))
    assert row.prefill == pytest.approx((100, 100 / SPREAD, 100 * SPREAD))
    assert row.ttft_s == pytest.approx(61.44)
    assert row.request_s == pytest.approx(61.44 + 153.6)
    need = needs(one, RULES["llama.cpp"], row.configuration)
    assert (row.device_gib, row.host_gib, row.disk_gib) == pytest.approx(
        (need.device / GIB, need.host / GIB, 0)
    )
    assert (row.engine, row.fits, row.verdict, row.checked, row.forced, row.binds) == (
        "llama.cpp", "fits", "fits", True, False, "",
    )  # fmt: skip
    assert row.remarks == ()
    assert told == [f"llama.cpp: 10 tokens/s, {row.config}"]
    assert found.left_out == {}
    assert found.assumed.startswith("PCIe 4.0 x16, the lower of GPU and processor")
    assert found.largest_context == 40_960, "as many positions as the model has"


@pytest.mark.usefixtures("flat")
def test_without_a_prompt_there_is_no_time_to_the_first_token() -> None:
    row = ask(engines=("llama.cpp",), prompt="0", new="50").rows[0]
    assert (row.prefill, row.ttft_s) == (None, None)
    assert row.request_s == pytest.approx(5)


@pytest.mark.usefixtures("flat")
def test_what_is_read_from_the_disk_takes_its_time() -> None:
    """gpt-oss-120b with 32 GiB: 28 are free, and others are read at the disk's rates.

    With a share s in memory, s^0.18 of the uses are hits (`constants`).
    """
    row = ask(engines=("llama.cpp",), parts={**DESKTOP, "ram": "32"}, prompt="3000").rows[0]
    one = question(model="gpt-oss-120b", quant=None, hardware=hardware(**{**DESKTOP, "ram": "32"}),
                   prompt="3000")  # fmt: skip
    config = row.configuration
    need = needs(one, RULES["llama.cpp"], config)
    paged = need.host - 28 * GIB
    assert (row.host_gib, row.disk_gib) == pytest.approx((28, paged / GIB))
    assert (row.fits, row.remarks[-1]) == ("pages", "reads of a mapped file are an estimate")
    assert row.verdict == (
        f"fits and pages from disk: {paged / GIB:.1f} of {need.host / GIB:.1f} GiB are beyond the "
        "28.0 GiB of memory that are free"
    )
    disk = case_for(one, RULES["llama.cpp"], config).profile.disk
    law = fitted().all_rows["cache hits"]
    missed = 1 - (28 * GIB / need.host) ** law
    used = need.host_experts * 4 / 128 + need.host - need.host_experts
    decode = 1 / (1 / 10 + used * missed / disk.queue1_bandwidth.bytes_per_s)
    assert row.decode.value == pytest.approx(decode)
    wide = math.exp(1.2816 * (0.3**2 + 0.8**2) ** 0.5)
    assert row.decode.high == pytest.approx(decode * wide)
    assert row.decode.low == pytest.approx(decode / wide)
    times = math.ceil(3000 / (config.micro_batch or 0))
    reads = times * paged / disk.max_bandwidth.bytes_per_s
    assert row.prefill is not None
    assert row.prefill.value == pytest.approx(3000 / (3000 / 100 + reads))


@pytest.mark.usefixtures("flat")
def test_a_processor_alone_holds_everything_in_its_memory() -> None:
    row = ask(engines=("llama.cpp",), parts=HOST_PARTS).rows[0]
    one = question(model="gpt-oss-120b", quant=None, hardware=hardware(**HOST_PARTS))
    need = needs(one, RULES["llama.cpp"], row.configuration)
    both = (need.host + need.device) / GIB
    assert both > 60, "four GiB are the system's"
    assert (row.device_gib, row.host_gib, row.disk_gib) == pytest.approx((0, 60, both - 60))
    assert row.fits == "pages"
    assert ask(engines=("llama.cpp",), parts=HOST_PARTS).largest_context == 0


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize(
    ("engine", "parts", "model", "why"),
    [
        ("vllm", {"gpu": "mi300x"}, "gpt-oss-120b", "does not run on AMD's devices"),
        ("vllm", {"gpu": "arc-b580"}, "gpt-oss-120b", "does not run on Intel's devices"),
        ("vllm", {"gpu": "apple-m4-max"}, "gpt-oss-120b", "does not run on Apple's devices"),
        ("vllm", HOST_PARTS, "gpt-oss-120b", "does not run without a card"),
        ("kt-kernel", {"gpu": "dgx-spark"}, "gpt-oss-120b",
         "does not run on a machine with one memory"),
        ("freetoken", {"gpu": "rtx-3090"}, "mixtral-8x7b",
         "does not run models of the family mixtral"),
        ("vllm", {"gpu": "rtx-3090", "ram": "32"}, "gpt-oss-120b", "needs "),
    ],
)  # fmt: skip
def test_an_engine_without_a_row_says_why(
    engine: str, parts: dict[str, str], model: str, why: str
) -> None:
    found = ask(model, (engine,), parts=parts)
    assert found.rows == []
    assert found.left_out[engine].startswith(why)
    if parts.get("gpu") != "none":
        forced = ask(model, (engine,), Configuration(engine=engine), parts=parts)
        assert [row.engine for row in forced.rows if row.forced] == [engine]


@pytest.mark.usefixtures("flat")
def test_a_context_that_does_not_fit_is_named_with_the_largest_one() -> None:
    found = ask("qwen3-30b-a3b", ("llama.cpp",), parts={"gpu": "rtx-2060-6gb", "ram": "64"},
                context="40k", quant="q8_0", lossless=True)  # fmt: skip
    assert found.rows == []
    said = found.left_out["llama.cpp"]
    one = question(model="qwen3-30b-a3b", quant="q8_0", context="40k",
                   hardware=hardware(gpu="rtx-2060-6gb", ram="64"))  # fmt: skip
    config = Configuration(engine="llama.cpp", micro_batch=512, host_layers=48)
    need = needs(one, RULES["llama.cpp"], config)
    assert said == (
        f"without routed experts it needs {need.device / GIB:.1f} GiB on the device "
        f"({need.kv / GIB:.1f} GiB of them for the KV cache), which has {6 * 0.94:.1f} GiB; the "
        f"largest context that fits: {found.largest_context:,} tokens"
    )
    assert 0 < found.largest_context < 40_960


@pytest.mark.usefixtures("flat")
def test_engines_that_users_run_are_asked_unless_some_are_named() -> None:
    usual = {name for name, rules in RULES.items() if rules.by_default}
    found = ask()
    assert {row.engine for row in found.rows} | found.left_out.keys() == usual
    one = question(model="gpt-oss-120b", quant=None, hardware=hardware(**DESKTOP))
    assert answers(one, systems_only=True).rows == []
    forced = answers(one, forced=Configuration(engine="ollama"), systems_only=True, binding=False)
    assert [(row.engine, row.forced) for row in forced.rows if row.forced] == [("ollama", True)]
    same = ask(engines=("llama.cpp",)).rows
    again = ask(engines=("llama.cpp",), forced=same[0].configuration).rows
    assert [row.configuration for row in again].count(same[0].configuration) == 1
    with_more = with_others(ask(engines=("llama.cpp",)), ask(engines=("ollama",)).rows, {"x": "no"})
    assert {row.engine for row in with_more.rows} == {"llama.cpp", "ollama"}
    assert with_more.left_out == {"x": "no"}
    assert with_more.rows[0].request_s == min(row.request_s for row in with_more.rows)


def test_a_machine_that_cannot_be_simulated_is_refused() -> None:
    one = question(model="gpt-oss-120b", quant=None, hardware=Hardware(gpu="RTX 9990"))
    with pytest.raises(UsageError, match="card 'RTX 9990' is not among the parts"):
        answers(one, ["llama.cpp"])
