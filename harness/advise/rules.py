"""What an engine can do with experts that do not fit on a device, as far as advice depends on it.

The rates come from the rules of `harness.published.engines`, with which published rows are
predicted.  The options of the engines are in ``engines.yaml``.
"""

from typing import Literal, NamedTuple

from moebench.harness.published.engines import KT, LLAMA, Engine

#: Makers of devices.
Maker = Literal["nvidia", "amd", "intel", "apple", "processor"]
EVERY: tuple[Maker, ...] = ("nvidia", "amd", "intel", "apple", "processor")


class Rules(NamedTuple):
    """An engine's rules.

    Attributes:
        engine: rules of its rates.
        makers: devices on which it runs; "processor" is a machine without any.
        layers: whether the number of layers with experts on the host can be chosen; else all are.
        whole: whether the layers on the host are there with their attention and KV cache.
        holds: what the device holds of the host's layers: nothing, the same experts at all times,
            or those that were used last.
        maps: whether its file can be larger than the memory, and is then read from the disk.
        others: bits of weights that are no routed experts, where they are not the file's; of
            models that are published in FP8 it is 8.
        routed: the same of routed experts.
        reserve: bytes of the device that it leaves free for its cache's sake.
        families: families of models that it runs; empty is all.
        pools: whether it runs on machines with one memory.
        by_default: whether it is asked where the user names no engines.
    """

    engine: Engine
    makers: tuple[Maker, ...] = ("nvidia",)
    layers: bool = False
    whole: bool = False
    holds: Literal["", "static", "used"] = ""
    maps: bool = False
    others: float | None = None
    routed: float | None = None
    reserve: float = 0.0
    families: tuple[str, ...] = ()
    pools: bool = True
    by_default: bool = True


#: Families of models in exllamav3 1.6.5's table of architectures, and in freetoken 0.2.1's folder
#: of models.
EXLLAMA = (
    "deepseek_v3", "deepseek_v4", "dots1", "ernie4_5_moe", "gemma4", "glm4_moe", "glm4_moe_lite",
    "glm_moe_dsa", "glm5_next", "gpt_oss", "kimi_k2", "laguna", "minimax_m2", "mistral4", "mixtral",
    "nemotron_h", "qwen3_moe", "qwen3_next", "qwen3_5_moe", "qwen4_exp", "step3p5",
)  # fmt: skip
FREETOKEN = (
    "deepseek_v4", "gemma4", "glm4_moe", "glm5_next", "glm_moe_dsa", "gpt_oss", "minimax_m2",
    "qwen3_moe", "qwen3_5_moe", "qwen4_exp",
)  # fmt: skip

#: Families whose weights are published in FP8, which engines of Hugging Face's files keep.
FP8 = ("deepseek_v3", "deepseek_v4", "kimi_k2", "minimax_m2")

_LINK = Engine("", "python-graphs", misses="link", pinned=True)

#: By the key in ``engines.yaml``.
RULES: dict[str, Rules] = {
    "llama.cpp": Rules(LLAMA, EVERY, layers=True, maps=True),
    "ik_llama.cpp": Rules(
        LLAMA._replace(software="ik", products="ik_llama.cpp"), ("nvidia", "processor"),
        layers=True, maps=True,
    ),
    "llama.cpp-moe-cache": Rules(
        LLAMA._replace(caches=True), holds="used", maps=True, reserve=3 * 2**30
    ),
    "ktransformers": Rules(KT, pools=False, by_default=False),
    "kt-kernel": Rules(KT, holds="static", others=16.0, pools=False),
    "exllamav3": Rules(LLAMA._replace(name="exllamav3", pinned=True), holds="static",
                       families=EXLLAMA),
    "freetoken": Rules(_LINK._replace(name="freetoken", caches=True), holds="used",
                       families=FREETOKEN),
    # Whole layers stay or are copied; their experts, nearly all of their bytes, stand for them.
    "accelerate": Rules(
        Engine("accelerate", "hf-eager", misses="link", loads="all", overlap=False),
        layers=True, routed=16.0, others=16.0, by_default=False,
    ),
    "deepspeed": Rules(
        Engine("deepspeed", "hf-eager", misses="link", pinned=True, loads="all"),
        routed=16.0, others=16.0, by_default=False,
    ),
    "vllm": Rules(_LINK._replace(name="vllm"), layers=True, by_default=False),
    "tinyserve": Rules(
        _LINK._replace(name="tinyserve", software="hf-eager", caches=True), holds="used",
        by_default=False,
    ),
    "gnf4": Rules(
        _LINK._replace(name="gnf4", overlap=False), holds="static", by_default=False
    ),
    "ollama": Rules(LLAMA, EVERY, layers=True, whole=True, maps=True, by_default=False),
    "lm-studio": Rules(LLAMA, EVERY, layers=True, maps=True, by_default=False),
    "koboldcpp": Rules(LLAMA, EVERY, layers=True, maps=True, by_default=False),
}  # fmt: skip


def maker_of(gpu: str) -> Maker:
    """Return the maker of a device by its name; "" is a machine without a card."""
    low = gpu.lower()
    if not low:
        return "processor"
    if any(word in low for word in ("radeon", "instinct", "rx ", "rx-", "mi3", "mi2", "mi1", "mi5",
                                    "strix", "ryzen")):  # fmt: skip
        return "amd"
    if "apple" in low or low.startswith(("m1", "m2", "m3", "m4", "m5")):
        return "apple"
    return "intel" if "arc" in low else "nvidia"
