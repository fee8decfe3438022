"""Every system that moebench compares, by name.

One file a paper or baseline.  `describe` and `names` import nothing heavy; `build` makes a system
with its options:

    build("smoe", {"route.alpha": "0.3", "evict": "lru"})
"""

import hashlib
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from substrate.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from substrate.system import System

#: name → (module, class, one line)
SYSTEMS: dict[str, tuple[str, str, str]] = {
    "gpu-only": ("systems.baselines", "GpuOnly", "everything resident on the device: the ceiling"),
    "moe-ondemand": ("systems.baselines", "MoEOnDemand", "load after the gate, LRU, no prefetch"),
    "smoe": ("systems.smoe", "SMoE", "substitute low-score experts, prefetch top-score ones"),
    "daop": ("systems.daop", "DAOP", "swap in prefill, compute on the host one layer ahead"),
    "duoserve": ("systems.duoserve", "DuoServe", "stream through k slots, a learned path ahead"),
    "flashmoe": ("systems.flashmoe", "FlashMoE", "experts on disk, a learned eviction a layer"),
}


def system_class(name: str) -> "type[System]":
    """The class behind a system's name, or behind ``module:Class`` for one of your own.

    Raises:
        UnknownNameError: no such system.
        UsageError: your module cannot be imported, or has no such system.
    """
    if ":" in name:
        return _own_system(name)
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, SYSTEMS, "see: moebench list systems")
    module, attribute, _ = SYSTEMS[name]
    return cast("type[System]", getattr(import_module(module), attribute))


def _own_system(name: str) -> "type[System]":
    from substrate.system import System

    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # whatever a module of the user's own does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"--system {name}: cannot import {module} ({reason})") from error
    if not (isinstance(found, type) and issubclass(found, System)):
        raise UsageError(
            f"--system {name}: {attribute} is not a System; write module:Class, where the class "
            "is a subclass of moebench.System"
        )
    return found


def source_hash(name: str) -> str:
    """A hash of the file that defines a system of your own; empty for those that ship."""
    if ":" not in name:
        return ""
    path = sys.modules[system_class(name).__module__].__file__
    return "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def build(name: str, settings: Mapping[str, str] | None = None) -> "System":
    """A system with its options changed.

    Args:
        name: see `SYSTEMS`; ``module:Class`` for a system of your own.
        settings: ``evict=lru`` swaps a decision, ``evict.window=16`` changes one of its options,
            ``scope=layer`` an option of the system itself.

    Raises:
        UnknownNameError: an unknown system, decision, policy or option.
        UsageError: a value that the option does not allow.
    """
    from systems.options import configure

    return configure(system_class(name), settings or {})
