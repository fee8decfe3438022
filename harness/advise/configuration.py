"""How an engine is run on a machine: where the experts are, threads, rows and formats.

A `Configuration` is what advice compares, what ``--config`` forces, and what a command line is
written from.  A field that is None is open: the engine's default, or chosen by the advice.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A way to run one engine.

    Attributes:
        engine: key of the engine in ``engines.yaml``.
        host_layers: MoE layers whose routed experts are in host memory, the first ones; 0 keeps all
            experts on the device.
        whole_layers: layers that are on the device as a whole, the last ones, where the others are
            on the host with their attention (``-ngl``).
        resident: routed experts of each host layer that the device holds beside the host's: a
            static set, or the slots of a cache.
        threads: of the host.
        micro_batch: tokens of a prompt that are computed at once (``-ub``).
        kv: format of the KV cache: f16, q8_0, q4_0 or fp8.
        repacked: whether experts are repacked for the processor when they are read (``-rtr``).
        mapped: whether the file is mapped into memory, not read into it.
        bound: whether the memory of each socket holds what its cores read.
        experts_used: experts of a token, if fewer than the model's.
        pinned: whether host memory is page-locked for copies.
        other: further options of the engine, as typed, that no prediction depends on.
    """

    engine: str
    host_layers: int | None = None
    whole_layers: int | None = None
    resident: int | None = None
    threads: int | None = None
    micro_batch: int | None = None
    kv: str | None = None
    repacked: bool | None = None
    mapped: bool | None = None
    bound: bool | None = None
    experts_used: int | None = None
    pinned: bool | None = None
    other: tuple[str, ...] = ()
