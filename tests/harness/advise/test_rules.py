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


def named(of: str) -> set[str]:
    return set(of.split())


#: Engines whose device holds chosen experts of each layer at all times, by their documentation.
STATIC = named("kt-kernel exllamav3 gnf4")

#: Engines whose users choose layers with experts on the host.
BY_LAYERS = named("llama.cpp ik_llama.cpp ollama lm-studio koboldcpp accelerate vllm")

#: Engines that copy the experts of a token over the link; the others compute them on the host.
OVER_THE_LINK = named("freetoken accelerate deepspeed vllm tinyserve gnf4")


def test_what_devices_hold_and_which_layers_can_be_chosen() -> None:
    assert {name for name, one in RULES.items() if one.holds == "static"} == STATIC
    caches = named("llama.cpp-moe-cache freetoken tinyserve")
    assert {name for name, one in RULES.items() if one.holds == "used"} == caches
    assert {name for name, one in RULES.items() if one.layers} == BY_LAYERS
    assert {name for name, one in RULES.items() if one.whole} == {"ollama"}


def test_devices_and_families_of_engines() -> None:
    everywhere = named("llama.cpp ollama lm-studio koboldcpp")
    for name, one in RULES.items():
        if name in everywhere:
            assert one.makers == ("nvidia", "amd", "intel", "apple", "processor"), name
        else:
            alone = ("nvidia", "processor") if name == "ik_llama.cpp" else ("nvidia",)
            assert one.makers == alone, name
    assert {name for name, one in RULES.items() if one.families} == {"exllamav3", "freetoken"}
    assert set(RULES["freetoken"].families) - set(RULES["exllamav3"].families) == set()
    assert {"mixtral", "deepseek_v3"} <= set(RULES["exllamav3"].families)
    assert "mixtral" not in RULES["freetoken"].families


def test_engines_of_full_precision_hold_16_bits() -> None:
    """Accelerate and DeepSpeed load models as they are; kt-kernel all but the routed experts."""
    sixteen = {"accelerate": (16, 16), "deepspeed": (16, 16), "kt-kernel": (None, 16)}
    for name, one in RULES.items():
        assert (one.routed, one.others) == sixteen.get(name, (None, None)), name


def test_where_misses_are_computed_and_how_they_are_copied() -> None:
    engines = {name: one.engine for name, one in RULES.items()}
    assert {name for name, one in engines.items() if one.misses == "link"} == OVER_THE_LINK
    assert {name for name, one in engines.items() if one.loads == "all"} == named(
        "accelerate deepspeed"
    )
    assert {name for name, one in engines.items() if not one.overlap} == named("accelerate gnf4")
    pinned = OVER_THE_LINK - {"accelerate"} | {"exllamav3"}
    assert {name for name, one in engines.items() if one.pinned} == pinned
    kinds = {
        "ggml": named("llama.cpp llama.cpp-moe-cache exllamav3 ollama lm-studio koboldcpp"),
        "ik": {"ik_llama.cpp"}, "kt": BESIDE_A_CARD,
        "hf-eager": named("accelerate deepspeed tinyserve"),
        "python-graphs": named("freetoken vllm gnf4"),
    }  # fmt: skip
    for kind, names in kinds.items():
        assert {name for name, one in engines.items() if one.software == kind} == names
    assert engines["ik_llama.cpp"].products == "ik_llama.cpp"
    own = named("exllamav3 freetoken accelerate deepspeed vllm tinyserve gnf4")
    assert {name for name, one in engines.items() if one.name == name} >= own
