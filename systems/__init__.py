"""Every system that moebench compares, by name.

One file a paper or baseline.  `describe` and `names` import nothing heavy; `build` makes a system
with its options:

    build("smoe", {"route.alpha": "0.3", "evict": "lru"})
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from substrate.errors import UnknownNameError

if TYPE_CHECKING:
    from substrate.system import System

#: name → (module, class, one line)
SYSTEMS: dict[str, tuple[str, str, str]] = {
    "gpu-only": ("systems.baselines", "GpuOnly", "everything resident on the device: the ceiling"),
    "moe-ondemand": ("systems.baselines", "MoEOnDemand", "load after the gate, LRU, no prefetch"),
    "smoe": ("systems.smoe", "SMoE", "substitute low-score experts, prefetch top-score ones"),
}


def system_class(name: str) -> "type[System]":
    """The class behind a system's name.

    Raises:
        UnknownNameError: no such system.
    """
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, SYSTEMS, "see: moebench list systems")
    module, attribute, _ = SYSTEMS[name]
    return cast("type[System]", getattr(import_module(module), attribute))


def build(name: str, settings: Mapping[str, str] | None = None) -> "System":
    """A system with its options changed.

    Args:
        name: see `SYSTEMS`.
        settings: ``evict=lru`` swaps a decision, ``evict.window=16`` changes one of its options,
            ``scope=layer`` an option of the system itself.

    Raises:
        UnknownNameError: an unknown system, decision, policy or option.
        UsageError: a value that the option does not allow.
    """
    from systems.options import configure

    return configure(system_class(name), settings or {})
