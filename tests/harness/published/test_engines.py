"""Rules of engines that rows name, and what flags and dates change in them."""

from typing import Any

import pytest

from moebench.harness.published.engines import ENGINES, engine_named, engine_of
from moebench.harness.published.rows import Row
from moebench.substrate.models.catalogue import find_shape

#: 128 experts, of which 4 are used.
SHAPE = find_shape("gpt-oss-120b")


def rules(system: str, text: str = "", date: str = "") -> Any:
    found = engine_of(Row(id="r", system=system, date=date), text, SHAPE)
    assert found is not None
    return found


def test_engines_are_known_by_the_beginning_of_their_names() -> None:
    assert engine_named("llama.cpp b1234") == engine_named("LLAMA.CPP") == ENGINES["llama.cpp"]
    assert engine_named("my llama.cpp") is None
    assert engine_of(Row(id="r", system="unheard"), "", SHAPE) is None
    for name, found in ENGINES.items():
        assert engine_named(name) is not None
        assert found.name


def test_engines_differ_from_llama_cpp_in_these_rules() -> None:
    """Software for which experts are copied in decode has kernels on the card and locks pages."""
    plain = {
        "software": "ggml", "misses": "host", "streams_from": 32, "pinned": False, "kernels": "",
        "products": "llama.cpp", "caches": False, "overlap": True, "loads": "active",
    }  # fmt: skip
    copying = {"misses": "link", "pinned": True, "software": "python-graphs"}
    expected: dict[str, dict[str, Any]] = {
        "ik_llama.cpp": {"name": "llama.cpp", "software": "ik", "products": "ik_llama.cpp"},
        "llama.cpp-moe-cache": {"name": "llama.cpp", "caches": True},
        "llama.cpp": {"name": "llama.cpp"}, "Ollama 0.5": {"name": "llama.cpp"},
        "LM Studio": {"name": "llama.cpp"}, "koboldcpp": {"name": "llama.cpp"},
        "ktransformers": {"software": "kt", "streams_from": None, "products": "ktransformers"},
        "kt-kernel": {"name": "ktransformers", "software": "kt", "streams_from": None,
                      "products": "ktransformers"},
        "exllamav3": {"pinned": True}, "gnf4": {**copying, "overlap": False}, "vLLM": copying,
        "tinyserve": {**copying, "software": "hf-eager", "caches": True},
    }  # fmt: skip
    for system, differences in expected.items():
        found = engine_named(system)
        assert found is not None
        assert found._asdict() == {"name": system.lower(), **plain, **differences}, system
    assert len(expected) == len(ENGINES)


def test_repacked_rows_have_kernels_of_their_own_on_the_host_alone() -> None:
    plain = rules("ik_llama.cpp")
    assert plain.streams_from is not None
    for text in ("-rtr", "x -rtr y", "q4_k_r4", "IQ3_K_R8"):
        found = rules("ik_llama.cpp", text)
        assert (found.kernels, found.streams_from) == ("repacked", None), text
    for text in ("no-rtr", "nortr", "rtrx", "q4_k_r5"):
        assert rules("ik_llama.cpp", text) == plain, text
    other = rules("llama.cpp", "-rtr")
    assert (other.kernels, other.streams_from) == (ENGINES["llama.cpp"].kernels, None)


def test_some_interleaved_formats_got_kernels_on_the_card() -> None:
    base = ENGINES["ik_llama"].streams_from
    assert base is not None
    assert rules("ik_llama.cpp", "iq4_k_r4", "2025-05").streams_from is None
    on_card = rules("ik_llama.cpp", "iq4_k_r4", "2025-06")
    # As many rows of each of 128 experts, of which a row uses four.
    assert (on_card.kernels, on_card.streams_from) == ("repacked", -(-base * 128 // 4))
    assert rules("ik_llama.cpp", "q4_k_r4", "2025-06").streams_from is None
    assert rules("ik_llama.cpp", "iq4_k_r4 -rtr", "2025-06").streams_from is None
    assert rules("ik_llama.cpp", "", "2025-05-31").streams_from == base
    assert rules("ik_llama.cpp", "", "2025-06-01").streams_from == -(-base * 128 // 4)
    assert rules("llama.cpp", "", "2025-06-01") == ENGINES["llama.cpp"]


@pytest.mark.skipif("gnf4" not in ENGINES, reason="no such engine")
def test_an_engine_that_waits_is_eager() -> None:
    for text in ("eager", "with Sync"):
        assert rules("gnf4", text).software == "hf-eager"
    assert rules("gnf4") == ENGINES["gnf4"]
