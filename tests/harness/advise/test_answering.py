"""Answers: they agree with predictions of published rows, obey what machines obey, and rank."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.advise.answer import GIB, Answer, Answers, Rate
from moebench.harness.advise.answering import answers
from moebench.harness.advise.ask import question
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.question import Hardware
from moebench.harness.advise.ranking import GAIN, ROWS, chosen
from moebench.harness.advise.rules import RULES
from moebench.harness.published.case import case_of
from moebench.harness.published.predict import predict_row
from moebench.harness.published.rows import Row, read_rows, shipped
from moebench.results.published_errors import ratio_error

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


def test_rows_are_tied_within_the_error_of_a_ratio_and_not_beyond() -> None:
    found = ask(engines=("llama.cpp", "ik_llama.cpp", "accelerate"), quant="q8_0",
                model="qwen3-30b-a3b", prompt="0", new="500",
                parts={**DESKTOP, "ram": "128"}).rows  # fmt: skip
    by = {row.engine: row for row in found}
    assert by["ik_llama.cpp"].tied or by["llama.cpp"].tied
    slow = by["accelerate"]
    assert slow.request_s > ratio_error() * found[0].request_s
    assert not slow.tied


def test_more_host_layers_take_more_host_memory_and_time() -> None:
    llama = Configuration(engine="llama.cpp")
    rows = [ask(forced=replace(llama, host_layers=n), engines=("llama.cpp",)).rows
            for n in (26, 31, 36)]  # fmt: skip
    forced = [next(row for row in found if row.forced) for found in rows]
    assert [row.host_gib for row in forced] == sorted(row.host_gib for row in forced)
    assert [row.decode.value for row in forced] == sorted((r.decode.value for r in forced),
                                                          reverse=True)  # fmt: skip
    assert all(row.device_gib + row.host_gib > 58 for row in forced)


def test_a_forced_configuration_that_does_not_fit_is_predicted_and_says_so() -> None:
    found = ask(forced=Configuration(engine="llama.cpp", host_layers=0))
    (row,) = [one for one in found.rows if one.forced]
    assert row.fits == "does not fit"
    assert f"on a device with {24 * 0.94:.1f} GiB free" in row.verdict
    assert row.decode.value > found.rows[-1].decode.value
    assert "does not fit" not in found.verdict


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


def test_a_context_too_large_is_answered_with_the_largest_that_fits() -> None:
    parts = {"gpu": "rtx-3060-12gb", "cpu": "ryzen-5-5600", "ram": "128"}
    found = ask("glm-4.5-air", parts=parts, context="128k", lossless=True)
    assert not found.rows
    assert 0 < found.largest_context < 131072
    assert f"at most {found.largest_context:,} tokens, not with 131,072" in found.verdict
    again = ask("glm-4.5-air", parts=parts, context=str(found.largest_context), lossless=True)
    assert any(row.engine == "llama.cpp" for row in again.rows)


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
