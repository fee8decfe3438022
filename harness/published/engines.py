"""The engines that published rows name: their kind of software and their rules of prefill."""

import re
from typing import Literal, NamedTuple

from moebench.harness.published.rows import Row
from moebench.substrate.models.shape import ModelShape


class Engine(NamedTuple):
    """An engine's rules, as far as a row's rates depend on them.

    Attributes:
        name: the engine; its forks and backends have its rules.
        software: the kind of software whose costs it has.
        misses: where experts that the device lacks are computed in decode.
        streams_from: fewest rows of a micro-batch whose experts are copied to the device; None
            leaves them to the host.
        pinned: whether it copies from page-locked memory by default.
        kernels: the constant of its host kernels' rate over llama.cpp's for one row; "" is 1.
        products: whose products with many rows it has on the host (constants "rows ...").
        caches: whether the device's part of a layer's experts follows their use.
        overlap: whether its device computes while experts are copied.
        loads: which experts of a layer are copied to the device where misses take the link.
    """

    name: str
    software: str
    misses: Literal["host", "link"] = "host"
    streams_from: int | None = 32
    pinned: bool = False
    kernels: str = ""
    products: Literal["llama.cpp", "ik_llama.cpp", "ktransformers"] = "llama.cpp"
    caches: bool = False
    overlap: bool = True
    loads: Literal["active", "all"] = "active"


LLAMA = Engine("llama.cpp", "ggml")
KT = Engine("ktransformers", "kt", streams_from=None, products="ktransformers")

#: By the beginning of a row's ``system``, in lower case; sources in `docs/published.md`.
ENGINES: dict[str, Engine] = {
    "ik_llama": LLAMA._replace(software="ik", products="ik_llama.cpp"),
    "llama.cpp-moe-cache": LLAMA._replace(caches=True),
    "llama.cpp": LLAMA,
    "ollama": LLAMA,
    "lm studio": LLAMA,
    "koboldcpp": LLAMA,
    "ktransformers": KT,
    "kt-kernel": KT,
    "exllamav3": LLAMA._replace(name="exllamav3", pinned=True),
    # Its author's law: 12.5 ms and the bytes of cold experts over the link's rate, added up.
    "gnf4": Engine("gnf4", "python-graphs", misses="link", pinned=True, overlap=False),
    "vllm": Engine("vllm", "python-graphs", misses="link", pinned=True),
    "tinyserve": Engine("tinyserve", "hf-eager", misses="link", pinned=True, caches=True),
}


#: When ik_llama.cpp began to ask for rows of each expert (PR 520), and had kernels on the card for
#: IQ2_K_R4 to IQ5_K_R4 (PR 461, 462).
BY_EXPERT, ON_CARD = "2025-06", "2025-06"


def engine_named(system: str) -> Engine | None:
    """Return the rules of the engine that a row's ``system`` names, or None."""
    low = system.lower()
    return next((rules for name, rules in ENGINES.items() if low.startswith(name)), None)


def engine_of(row: Row, text: str, shape: ModelShape) -> Engine | None:
    """Return the rules of the engine that a row names, as it ran it, or None.

    Args:
        text: all that the row says about the run.
    """
    found, low = engine_named(row.system), text.lower()
    if found is None:
        return None
    repacks, named = re.search(r"(?<!no)(?<!no-)rtr\b", low), re.search(r"_r[48]\b", low)
    if (repacks or named) and found.products == "ik_llama.cpp":
        found = found._replace(kernels="repacked")
    on_card = re.search(r"iq[2-5]_k_r4", low) and row.date >= ON_CARD
    if repacks or (named and not on_card):
        found = found._replace(streams_from=None)  # repacked weights have no kernel on the card
    elif found.products == "ik_llama.cpp" and found.streams_from and row.date >= BY_EXPERT:
        each = -(-found.streams_from * shape.num_experts // shape.top_k)
        found = found._replace(streams_from=each)
    if found.name == "gnf4" and re.search("eager|sync", low):
        return found._replace(software="hf-eager")
    return found
