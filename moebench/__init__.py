"""moebench: compare systems that run Mixture-of-Experts models on a device too small to hold them.

    import moebench as mb

    mb.run("smoe", setting="S3").frame()
    mb.sweep(system=["smoe", "daop"], setting="S3", batch=[1, 3]).compare().frame()

Names are imported when they are first used, so that ``import moebench`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from moebench.harness.advise.advice import advise as advise
    from moebench.harness.api.compare import compare as compare
    from moebench.harness.api.run import run as run
    from moebench.harness.api.sweep import sweep as sweep
    from moebench.harness.api.trace import trace as trace

_HOMES = {
    "Active": "moebench.substrate.engine.decisions",
    "Admission": "moebench.substrate.engine.policies",
    "Assignment": "moebench.substrate.engine.policies",
    "Budget": "moebench.substrate.memory.capacity",
    "Costs": "moebench.substrate.machines.timeline",
    "Engine": "moebench.substrate.engine.loop",
    "Eviction": "moebench.substrate.engine.policies",
    "ExpertCache": "moebench.substrate.memory.cache",
    "Fetch": "moebench.substrate.engine.decisions",
    "Form": "moebench.substrate.models.shape",
    "Forecast": "moebench.substrate.engine.decisions",
    "ForwardPass": "moebench.substrate.engine.decisions",
    "HardwareProfile": "moebench.substrate.machines.profile",
    "Home": "moebench.substrate.memory.capacity",
    "Lane": "moebench.substrate.machines.protocol",
    "LayerView": "moebench.substrate.engine.decisions",
    "Lookahead": "moebench.substrate.terms",
    "ModelShape": "moebench.substrate.models.shape",
    "MoeBenchError": "moebench.substrate.errors",
    "NO_EXPERT": "moebench.substrate.engine.decisions",
    "Op": "moebench.substrate.machines.protocol",
    "OpKind": "moebench.substrate.machines.protocol",
    "Placement": "moebench.substrate.engine.policies",
    "Plan": "moebench.substrate.engine.decisions",
    "Policy": "moebench.substrate.engine.policies",
    "Predictor": "moebench.substrate.engine.policies",
    "Prefetching": "moebench.substrate.engine.policies",
    "Prompts": "moebench.substrate.engine.decisions",
    "Routed": "moebench.substrate.engine.decisions",
    "RoutedSequence": "moebench.substrate.terms",
    "Routing": "moebench.substrate.engine.policies",
    "RunSpec": "moebench.results.spec",
    "Store": "moebench.results.store",
    "System": "moebench.substrate.engine.system",
    "UsageError": "moebench.substrate.errors",
    "advise": "moebench.harness.advise.advice",
    "best_scores": "moebench.substrate.engine.decisions",
    "build": "moebench.systems.options",
    "compare": "moebench.harness.api.compare",
    "fetches": "moebench.substrate.engine.decisions",
    "run": "moebench.harness.api.run",
    "split": "moebench.substrate.engine.decisions",
    "sweep": "moebench.harness.api.sweep",
    "trace": "moebench.harness.api.trace",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moebench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
