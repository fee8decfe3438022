"""The engines that published rows name: their kind of software and their rules of prefill."""

import re
from typing import Literal, NamedTuple


class Engine(NamedTuple):
    """An engine's rules, as far as a row's rates depend on them.

    Attributes:
        name: the engine; its forks and backends have its rules.
        software: the kind of software whose costs it has.
        misses: where experts that the device lacks are computed in decode.
        streams_from: fewest rows of a micro-batch whose experts are copied to the device; None
            leaves them to the host.
        pinned: whether it copies from page-locked memory by default.
        gain: rate of its host kernels over llama.cpp's, for one row.
        host_share: of a core's fp32 peak, what products with many rows reach; above 1 where the
            weights are repacked and multiplied as 8-bit integers.
        device_share: of the device's tensor peak, what products of quantised experts reach.
        handoff_us: handing a layer's work to the host's threads and back, with its copies.
    """

    name: str
    software: str
    misses: Literal["host", "link"] = "host"
    streams_from: int | None = 32
    pinned: bool = False
    gain: float = 1.0
    host_share: float = 0.3
    device_share: float = 0.35
    handoff_us: float = 80.0


LLAMA = Engine("llama.cpp", "ggml")

#: By the beginning of a row's ``system``, in lower case; sources in `docs/published.md`.
ENGINES: dict[str, Engine] = {
    "ik_llama": LLAMA._replace(gain=1.3, host_share=1.1),
    "llama.cpp": LLAMA,
    "ollama": LLAMA,
    "lm studio": LLAMA,
    "koboldcpp": LLAMA,
    "ktransformers": Engine("ktransformers", "ggml", streams_from=None, host_share=0.4),
    "kt-kernel": Engine("ktransformers", "ggml", streams_from=None, host_share=0.4),
    "exllamav3": Engine("exllamav3", "ggml", pinned=True),
    "gnf4": Engine("gnf4", "python-graphs", misses="link", pinned=True),
    "vllm": Engine("vllm", "python-graphs", misses="link", pinned=True),
    "tinyserve": Engine("tinyserve", "hf-eager", misses="link", pinned=True),
}


def engine_of(system: str, text: str) -> Engine | None:
    """Return the rules of the engine that a row names, or None.

    Args:
        text: the row's flags and notes, which may say that it runs eagerly.
    """
    low = system.lower()
    found = next((rules for name, rules in ENGINES.items() if low.startswith(name)), None)
    if found is not None and re.search(r"-rtr\b|_r[48]\b", text.lower()):
        found = found._replace(streams_from=None)  # repacked weights have no kernel on the card
    if found is not None and found.name == "gnf4" and re.search("eager|sync", text.lower()):
        return found._replace(software="hf-eager")
    return found
