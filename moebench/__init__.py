"""moebench: compare systems that run Mixture-of-Experts models on a device too small to hold them.

    from moebench import System, build, prepare, resolve, run

Names are imported when they are first used, so that ``import moebench`` costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Assignment": "moebench.substrate.engine.system",
    "Engine": "moebench.substrate.engine.loop",
    "Eviction": "moebench.substrate.engine.system",
    "HardwareProfile": "moebench.substrate.machines.profile",
    "LayerView": "moebench.substrate.engine.system",
    "ModelShape": "moebench.substrate.models.shape",
    "MoeBenchError": "moebench.substrate.errors",
    "Placement": "moebench.substrate.engine.system",
    "Prefetching": "moebench.substrate.engine.system",
    "Routing": "moebench.substrate.engine.system",
    "RunSpec": "moebench.harness.run.spec",
    "Store": "moebench.results.store",
    "System": "moebench.substrate.engine.system",
    "build": "moebench.systems.options",
    "prepare": "moebench.harness.run.runner",
    "resolve": "moebench.harness.run.spec",
    "run": "moebench.harness.run.runner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moebench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
