"""What is asked of `moebench advise`: a model on a machine, and the lengths of its texts."""

from dataclasses import dataclass, field
from typing import NamedTuple

from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.models.bits import Bits
from moebench.substrate.models.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine as a user names it; "" and None are not said.

    Attributes:
        gpu: name of the card or of a one-pool machine; "" without a card.
        cards: number of cards.
        cpu: name of the processor.
        cores: number of cores of all sockets; of a virtual machine, the number of its processors,
            which may be threads of fewer cores.
        virtual: whether this computer is a virtual machine.
        ram_gib: memory of the host in GiB.
        memory: kind and rate of its modules, such as ``DDR4-3200``.
        channels: memory channels of all sockets that have modules.
        reads_gb_s: measured bandwidth of the host's memory in GB/s.
        link: key of the link's part, such as ``pcie4x16``.
        copies_gb_s: measured rate of copies to the device in GB/s.
        disk: key of the disk's part.
        more_gib: memory that the card has beyond its part's, in GiB.
        disks: number of such disks, which are read at the same time.
        profile: a calibrated machine that replaces the composed one.
        file: path of its file.
        products: by format, weights per second that it multiplies with one row, over those of q4_k.
        sources: by field, where its value was read on this computer.
        unread: sentences on fields that could not be read, with what to type instead.
    """

    gpu: str = ""
    cards: int = 1
    cpu: str = ""
    sockets: int | None = None
    cores: int | None = None
    virtual: bool = False
    ram_gib: float | None = None
    memory: str = ""
    channels: int | None = None
    reads_gb_s: float | None = None
    link: str = ""
    copies_gb_s: float | None = None
    disk: str = ""
    more_gib: float = 0.0
    disks: int = 1
    profile: HardwareProfile | None = None
    file: str = ""
    products: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


class Lengths(NamedTuple):
    """Tokens: room of the KV cache, of the prompt, and of the answer."""

    context: int
    prompt: int
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model in a format on a machine.

    Attributes:
        model: name in the catalogue, or path of a GGUF file.
        quant: name of the format, such as ``q4_k_m``; ``file`` for a GGUF file's own.
        batch: texts that are decoded at the same time.
        lossless: whether only configurations without loss are wanted.
    """

    model: str
    shape: ModelShape
    quant: str
    bits: Bits
    hardware: Hardware
    lengths: Lengths
    batch: int = 1
    lossless: bool = False
