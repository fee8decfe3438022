"""What determines a run's figures: its spec, the code, and the content of everything it reads."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path

from moebench.harness.run.spec import RunSpec
from moebench.results.store import run_key
from moebench.substrate.engine.system import System
from moebench.substrate.machines.profile import load_profile
from moebench.systems.native.base import NativeSystem

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


def system_hash(system: System | NativeSystem) -> str:
    """A hash of the modules that define a system and its policies, and of what these import.

    Of ours, the modules of `moebench.systems`; of a user's own, all that are not installed; of an
    installed package that a system or policy is from, its own modules.
    """
    modules = {type(system).__module__}
    if isinstance(system, System):
        modules |= {type(policy).__module__ for policy in system.policies.values()}
    packages = frozenset(module.partition(".")[0] for module in ("moebench", *modules))
    found: dict[str, bytes] = {}
    for module in modules:
        _collect(module, packages, found)
    digest = hashlib.sha256()
    for name, source in sorted(found.items()):
        digest.update(name.encode() + source)
    return digest.hexdigest()[:16]


def run_id(spec: RunSpec, **hashes: str) -> str:
    """A run's name: of its spec, the code, and the content of everything that it reads."""
    return run_key(spec.model_dump(), code=code_hash(), **hashes)


def profile_hash(spec: RunSpec) -> str:
    """Of the profile's content; every measurement on this computer has a hash of its own."""
    if spec.machine == "local":
        return datetime.now(UTC).isoformat()
    return load_profile(spec.machine, spec.software).content_hash()


def _collect(module: str, packages: frozenset[str], found: dict[str, bytes]) -> None:
    """A module's source and those of what it imports, by name; its package's come with it.

    Args:
        packages: those whose modules count even if they are installed.
    """
    if module in found or not _counts(module):
        return
    package = module.rpartition(".")[0]
    if package:
        _collect(package, packages, found)
    file = _source(module, packages)
    if file is None:
        return
    source = found[module] = file.read_bytes()
    for name in _imports(source, module if file.name == "__init__.py" else package):
        _collect(name, packages, found)


def _counts(module: str) -> bool:
    top = module.partition(".")[0]
    # The public names of `moebench` are defined elsewhere.
    shared = module == "moebench" or module.startswith(_SHARED_MODULES)
    return top not in sys.stdlib_module_names and not shared


def _source(module: str, packages: frozenset[str]) -> Path | None:
    """The file of a module of these packages, or of one that is not installed; else None."""
    spec = _found(module)
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    file = Path(spec.origin)
    own = module.partition(".")[0] in packages
    return file if own or not set(_INSTALLED) & set(file.parts) else None


def _found(module: str) -> ModuleSpec | None:
    """Where a module is; nothing is imported, as `importlib.util.find_spec` would its package."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    package = module.rpartition(".")[0]
    if not package:
        return importlib.util.find_spec(module)
    above = _found(package)
    if above is None or above.submodule_search_locations is None:  # an attribute of a module
        return None
    return PathFinder.find_spec(module, above.submodule_search_locations)


@cache
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Names of modules that may be imported; an attribute looks like a module here.

    Kept, because every cell of a sweep asks for the same modules, and parsing them takes 10 to
    50 ms.
    """
    try:
        return tuple(_names(ast.parse(source), package))
    except (SyntaxError, ValueError):  # imported only where that is expected
        return ()


def _names(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            # import_module("helper"), __import__("helper")
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # relative, in a module that is in no package
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
