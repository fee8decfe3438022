"""Which answers have a row, in which order, and which are tied."""

import math
from dataclasses import replace
from typing import Any

import pytest

from moebench.harness.advise.answer import LOSSLESS, Answer, Rate
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.ranking import SAME_ENGINE, chosen, tie, time_error
from moebench.results.published_errors import ratio_error

LOSSY = "KV cache in q8_0"


def one(
    engine: str, request_s: float, decode: float = 10, prefill: float | None = 100, **more: Any
) -> Answer:  # fmt: skip
    found = Answer(
        engine=engine, configuration=Configuration(engine=engine), config="",
        decode=Rate(decode, decode, decode),
        prefill=None if prefill is None else Rate(prefill, prefill, prefill), ttft_s=None,
        request_s=request_s, device_gib=1, host_gib=1, disk_gib=0, quality=LOSSLESS,
        verdict="", fits="fits", checked=True, remarks=(),
    )  # fmt: skip
    return replace(found, **more)


def times(found: list[Answer]) -> list[tuple[str, float]]:
    return [(row.engine, row.request_s) for row in found]


def test_the_best_of_each_engine_come_before_others_and_there_are_eight() -> None:
    """Another configuration is one that is more than a tenth faster in a phase."""
    found = [
        one("llama.cpp", 1), one("llama.cpp", 2, prefill=109), one("llama.cpp", 3, prefill=111),
        one("llama.cpp", 4, decode=11.1), one("llama.cpp", 5, decode=11, prefill=110),
        one("vllm", 6), one("ollama", 9, fits="does not fit"),
    ]  # fmt: skip
    assert times(chosen(found[::-1])) == [
        ("llama.cpp", 1), ("llama.cpp", 3), ("llama.cpp", 4), ("vllm", 6),
    ]  # fmt: skip
    engines = ["llama.cpp", "ik_llama.cpp", "kt-kernel", "exllamav3", "freetoken", "vllm", "gnf4",
               "ollama", "koboldcpp"]  # fmt: skip
    many = [one(name, n) for n, name in enumerate(engines, 2)]
    kept = chosen([*many, one("llama.cpp", 1.5, prefill=200)])
    assert times(kept) == [("llama.cpp", 1.5), *((name, n) for n, name in
                                                 enumerate(engines[1:8], 3))]  # fmt: skip
    # One that is worth a row of its own takes the last place of eight.
    seven = chosen([*many[:7], one("llama.cpp", 1.5, decode=5, prefill=200)])
    assert len(seven) == 8
    assert times(seven)[:2] == [("llama.cpp", 1.5), ("llama.cpp", 2)]


def test_what_was_forced_is_a_row_in_any_case() -> None:
    forced = one("llama.cpp", 50, fits="does not fit", forced=True)
    assert times(chosen([one("llama.cpp", 1), forced])) == [("llama.cpp", 1), ("llama.cpp", 50)]
    engines = ["ik_llama.cpp", "kt-kernel", "exllamav3", "freetoken", "vllm", "gnf4", "ollama",
               "koboldcpp"]  # fmt: skip
    found = chosen([*(one(name, 2) for name in engines), forced])
    assert len(found) == 8
    assert times(found)[-1] == ("llama.cpp", 50)
    # What it repeats, another configuration may still be.
    same = one("llama.cpp", 60)
    assert same in chosen([forced, same])


def test_a_lossy_configuration_has_to_be_a_tenth_faster() -> None:
    exact = one("llama.cpp", 10)
    assert chosen([exact, one("llama.cpp", 9.2, decode=10.9, quality=LOSSY)]) == [exact]
    faster = one("llama.cpp", 9, decode=11.2, quality=LOSSY)
    assert chosen([exact, faster]) == [faster, exact]
    # The exact one has a row beside it, though it is slower in both phases.
    much = one("llama.cpp", 5, decode=20, prefill=200, quality=LOSSY)
    assert chosen([exact, much]) == [much, exact]
    other = one("llama.cpp", 6, decode=20, prefill=200, quality=LOSSY)
    assert chosen([much, other]) == [much]
    assert chosen([much, replace(other, quality="KV cache in q4_0")]) == [
        much, replace(other, quality="KV cache in q4_0"),
    ]  # fmt: skip


def test_runs_of_this_project_come_last_and_prompts_may_be_missing() -> None:
    own = one("moe-ondemand", 1)
    assert chosen([own, one("llama.cpp", 9, prefill=None)])[-1] is own
    assert times(chosen([one("vllm", 1, prefill=None), one("vllm", 2, prefill=5)])) == [
        ("vllm", 1), ("vllm", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("ttft", [None, 0.0, 2.0, 8.0])
def test_the_error_of_times_is_by_the_shares_of_both_phases(ttft: float | None) -> None:
    best, row = one("llama.cpp", 5), one("vllm", 8, ttft_s=ttft)
    share = (ttft or 0) / 8
    expected = ratio_error("prefill") ** share * ratio_error("decode") ** (1 - share)
    assert time_error(row, best) == pytest.approx(expected)
    paged = replace(row, fits="pages")
    wider = expected * math.exp(1.2816 * 0.8)
    assert time_error(paged, best) == pytest.approx(wider)
    assert time_error(paged, replace(best, fits="pages")) == pytest.approx(wider)
    alike = math.exp(1.2816 * 0.1 * 2**0.5)
    assert pytest.approx(alike) == SAME_ENGINE
    assert time_error(one("llama.cpp", 8), best) == SAME_ENGINE
    assert time_error(one("llama.cpp", 8, fits="pages"), best) > SAME_ENGINE


def test_rows_within_the_error_are_tied_with_the_best() -> None:
    best = one("llama.cpp", 10, tied=True)
    rows = [best, one("llama.cpp", 10 * SAME_ENGINE * 0.999), one("llama.cpp", 10 * SAME_ENGINE),
            one("vllm", 10 * ratio_error("decode") * 0.999),
            one("vllm", 10 * ratio_error("decode") * 1.001)]  # fmt: skip
    tie(rows)
    assert [row.tied for row in rows] == [False, True, False, True, False]
    tie([])
