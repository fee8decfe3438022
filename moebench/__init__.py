"""moebench: compare systems that run Mixture-of-Experts models on a device too small to hold them.

    from moebench import System, build, prepare, resolve, run

Names are imported when they are first used, so that ``import moebench`` costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Assignment": "substrate.system",
    "Engine": "substrate.engine",
    "Eviction": "substrate.system",
    "HardwareProfile": "substrate.profile",
    "LayerView": "substrate.system",
    "ModelShape": "substrate.arch",
    "MoeBenchError": "substrate.errors",
    "Placement": "substrate.system",
    "Prefetching": "substrate.system",
    "Routing": "substrate.system",
    "RunSpec": "harness.spec",
    "Store": "results.store",
    "System": "substrate.system",
    "build": "systems",
    "prepare": "harness.runner",
    "resolve": "harness.spec",
    "run": "harness.runner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moebench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
