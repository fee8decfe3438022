"""The machines, models, formats and contexts of the grid that ships."""

from typing import NamedTuple

from moebench.harness.advise.grid import GridMachine
from moebench.harness.advise.question import Hardware
from moebench.substrate.models.catalogue import find_shape

#: Contexts whose answers are computed, and those that the page interpolates.
CONTEXTS = (2048, 8192, 32768, 131072)
BETWEEN = (4096, 16384, 65536)


class Memory(NamedTuple):
    """A processor with its memory."""

    name: str
    cpu: str
    kind: str
    channels: int
    gib: int


#: Memories by a short key.
MEMORIES = {
    "ddr4-64": Memory("Ryzen 7 5800X", "ryzen-7-5800x", "DDR4-3200", 2, 64),
    "ddr5-96": Memory("Ryzen 9 9950X", "ryzen-9-9950x", "DDR5-5600", 2, 96),
    "ddr5-128": Memory("Ryzen 9 9950X", "ryzen-9-9950x", "DDR5-5600", 2, 128),
    "epyc-512": Memory("EPYC 7763", "epyc-7763", "DDR4-3200", 8, 512),
    "epyc-768": Memory("EPYC 9354", "epyc-9354", "DDR5-4800", 12, 768),
}

#: Cards: the name on the page, the part, how many, and the keys of the memories.
CARDS = (
    ("RTX 3060 12 GB", "rtx-3060-12gb", 1, ("ddr4-64",)),
    ("RTX 4060 Ti 16 GB", "rtx-4060-ti-16gb", 1, ("ddr4-64",)),
    ("RTX 5080 16 GB", "rtx-5080", 1, ("ddr5-96",)),
    ("RTX 3090 24 GB", "rtx-3090", 1, ("ddr4-64", "ddr5-128")),
    ("2 × RTX 3090 24 GB", "rtx-3090", 2, ("epyc-512",)),
    ("RTX 4090 24 GB", "rtx-4090", 1, ("ddr5-96", "epyc-512")),
    ("RTX 5090 32 GB", "rtx-5090", 1, ("ddr5-128",)),
    ("RTX PRO 6000 96 GB", "rtx-pro-6000-blackwell-workstation", 1, ("ddr5-128",)),
    ("no card", "", 0, ("ddr4-64", "ddr5-128", "epyc-512", "epyc-768")),
)

#: Machines whose processor and card share one memory: the name on the page, the part, GiB.
POOLS = (
    ("Strix Halo (Ryzen AI Max+ 395)", "strix-halo", 128),
    ("Apple M3 Ultra", "apple-m3-ultra", 512),
    ("DGX Spark", "dgx-spark", 128),
)

#: The most asked-for models, each with its formats.
MODELS = {
    "gpt-oss-120b": ("mxfp4",),
    "gpt-oss-20b": ("mxfp4",),
    "qwen3-30b-a3b": ("q4_k_m", "q8_0"),
    "qwen3.5-35b-a3b": ("q4_k_m", "q8_0"),
    "qwen3-next-80b-a3b": ("q4_k_m", "q8_0"),
    "qwen3-235b-a22b": ("q4_k_m", "q2_k"),
    "glm-4.5-air": ("q4_k_m", "q2_k"),
    "glm-4.7-flash": ("q4_k_m", "q8_0"),
    "minimax-m2.1": ("q4_k_m", "q2_k"),
    "deepseek-v3": ("q4_k_m", "q2_k"),
    "deepseek-v4-flash": ("q4_k_m", "q2_k"),
    "kimi-k2": ("q4_k_m", "q2_k"),
}


def machines() -> list[tuple[GridMachine, Hardware]]:
    """Return the grid's machines in the order of the page's lists."""
    found = []
    for card, part, cards, keys in CARDS:
        for key in keys:
            memory = MEMORIES[key]
            shown = f"{memory.gib} GB {memory.kind} × {memory.channels} ({memory.name})"
            modules = f"{memory.gib} GB of {memory.kind} on {memory.channels} channels"
            about = ", ".join([*([card] if part else ()), memory.name, modules])
            hardware = Hardware(
                gpu=part, cards=cards, cpu=memory.cpu, ram_gib=memory.gib, memory=memory.kind,
                channels=memory.channels,
            )  # fmt: skip
            found.append((GridMachine(card, shown, about), hardware))
    for name, part, gib in POOLS:
        machine = GridMachine(name, f"{gib} GB, shared", f"{name}, {gib} GB of shared memory")
        found.append((machine, Hardware(gpu=part, ram_gib=gib)))
    return found


def contexts_of(model: str) -> list[int]:
    """Return the grid's contexts that a model has positions for."""
    positions = find_shape(model).max_positions
    return [context for context in CONTEXTS if context <= positions]
