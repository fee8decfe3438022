"""What sets engines apart, from what their documentation says of them."""

from moebench.harness.advise.rules import RULES

#: ktransformers and sglang's kt-kernel compute on an x86 host (AMX, AVX-512, AVX2) beside a card.
BESIDE_A_CARD = {"ktransformers", "kt-kernel"}

#: llama.cpp and what is made of it map a GGUF file and read its pages when they are used.
READ_FROM_A_FILE = {
    "llama.cpp", "ik_llama.cpp", "llama.cpp-moe-cache", "ollama", "lm-studio", "koboldcpp",
}  # fmt: skip

#: Engines that were made for experts in host memory, and llama.cpp; the others have to be named.
ASKED = {
    "llama.cpp", "ik_llama.cpp", "llama.cpp-moe-cache", "kt-kernel", "exllamav3", "freetoken",
}  # fmt: skip


def test_where_engines_run_what_they_read_and_which_are_asked() -> None:
    assert {name for name, one in RULES.items() if not one.pools} == BESIDE_A_CARD
    assert {name for name, one in RULES.items() if one.maps} == READ_FROM_A_FILE
    assert {name for name, one in RULES.items() if one.by_default} == ASKED


def test_what_is_held_follows_from_the_engine() -> None:
    for name, one in RULES.items():
        assert (one.holds == "used") == one.engine.caches, name
        assert not (one.layers and one.holds), "either layers are chosen or experts of each"
        assert one.others is None or one.others in (8.0, 16.0), name
        assert one.reserve == (3 * 2**30 if name == "llama.cpp-moe-cache" else 0), name
