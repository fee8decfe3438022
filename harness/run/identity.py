"""What determines a run's figures: its spec, the code, and the content of everything it reads."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path

from moebench.harness.run.spec import RunSpec
from moebench.results.store import run_key
from moebench.substrate.engine.system import System

#: Our modules that any result may depend on.  Those of systems count where a system imports them.
SHARED = ("substrate", "workloads", "harness/run")
_SHARED_MODULES = ("moebench.substrate", "moebench.workloads", "moebench.harness")
_INSTALLED = ("site-packages", "dist-packages")


@lru_cache
def code_hash() -> str:
    """A hash of the modules that any result may depend on: of this version in effect."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in SHARED:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def system_hash(system: System) -> str:
    """A hash of the modules that define a system and its policies, and of what these import.

    Of ours, the modules of `moebench.systems`; of a user's own, all that are not installed.
    """
    modules = {type(system).__module__}
    modules |= {type(policy).__module__ for policy in system.policies.values()}
    found: dict[str, bytes] = {}
    for module in modules:
        _collect(module, found)
    digest = hashlib.sha256()
    for name, source in sorted(found.items()):
        digest.update(name.encode() + source)
    return digest.hexdigest()[:16]


def run_id(spec: RunSpec, **hashes: str) -> str:
    """A run's name: of its spec, the code, and the content of everything that it reads."""
    return run_key(spec.model_dump(), code=code_hash(), **hashes)


def _collect(module: str, found: dict[str, bytes]) -> None:
    """A module's source and those of what it imports, by name."""
    if module in found or not _counts(module):
        return
    file = _source(module)
    if file is None:
        return
    source = found[module] = file.read_bytes()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for name in _imports(ast.parse(source), package):
        _collect(name, found)


def _counts(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and not module.startswith(_SHARED_MODULES)


def _source(module: str) -> Path | None:
    """The file of a module that is not installed; None for any other name."""
    known = sys.modules.get(module)
    try:
        spec = known.__spec__ if known is not None else importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):  # an attribute of a module, or a broken one
        return None
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    file = Path(spec.origin)
    own = module.startswith("moebench.")
    return file if own or not set(_INSTALLED) & set(file.parts) else None


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Names of modules that may be imported; an attribute looks like a module here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
