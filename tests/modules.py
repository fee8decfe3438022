"""Forgets the modules that tests write and import."""

import importlib
import sys
from pathlib import Path


def forget(folder: Path) -> None:
    """Remove the modules of a folder from the interpreter, as a new process would not have them."""
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        if any(str(place).startswith(str(folder)) for place in places if place):
            del sys.modules[name]
    importlib.invalidate_caches()
