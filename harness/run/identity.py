"""Run ids: hashes of a run's spec, of the code, and of the content of everything that it reads.

Code is hashed as syntax trees without docstrings and comments: rewriting prose changes no id.
`results/equivalent.json` maps hashes of refactored code to the hashes of the code that it replaces,
so that stored runs keep their ids; `python -m benchmarks.equivalent` writes it.
"""

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path

from moebench.harness.run.code_cache import CACHE, key_of
from moebench.results.spec import RunSpec
from moebench.results.store import run_key
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import quantised
from moebench.systems.dynamic_imports import imported_by
from moebench.systems.native.base import NativeSystem

#: Our modules that any result may depend on.  Those of systems count where a system imports them.
SHARED = (
    "substrate", "workloads", "harness/settings.py", "harness/stage", "harness/native",
    "harness/run", "systems/compiled",
)  # fmt: skip
#: Files of code; a change of a comment in C++ counts.
_CODE = (".py", ".cpp", ".h")
_SHARED_MODULES = ("moebench.substrate", "moebench.workloads", "moebench.harness")
INSTALLED = ("site-packages", "dist-packages")
_ROOT = Path(__file__).parents[2]


@lru_cache
def code_hash() -> str:
    """Hash of the modules that any result may depend on, or the hash that it is equivalent to."""
    computed = shared_code_hash()
    return equivalents()["code"].get(computed, computed)


def system_hash(system: System | NativeSystem) -> str:
    """Hash of the modules of a system and its policies, or the hash that it is equivalent to."""
    computed = system_code_hash(system)
    return equivalents()["systems"].get(computed, computed)


@cache
def equivalents() -> dict[str, dict[str, str]]:
    """Return the map from code hashes to the earlier hashes that they are equivalent to."""
    file = _ROOT / "results" / "equivalent.json"
    found: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def shared_code_hash() -> str:
    """Hash of the modules in `SHARED` as they are, without regard to equivalent code."""
    places = [_ROOT / name for name in SHARED]
    files = [
        path
        for one in places
        for path in ([one] if one.suffix else sorted(one.rglob("*")))
        if path.suffix in _CODE
    ]
    return _digest([(path.relative_to(_ROOT).as_posix(), path.read_bytes()) for path in files])


def _digest(sources: Sequence[tuple[str, bytes]], also: Iterable[bytes] = ()) -> str:
    """Return the hash of modules as syntax trees, by name, and of further content."""

    def compute() -> list[str]:
        digest = hashlib.sha256()
        for name, source in sources:
            digest.update(name.encode() + syntax_of(source))
        for content in also:
            digest.update(content)
        return [digest.hexdigest()[:16]]

    also = list(also)
    parts = [part for name, source in sources for part in (name.encode(), source)]
    (found,) = CACHE.texts(key_of([b"digest", *parts, b"also", *also]), compute)
    CACHE.save()
    return found


def system_code_hash(system: System | NativeSystem) -> str:
    """Hash of the modules that define a system and its policies, and of what these import.

    Of ours, the modules of `moebench.systems`; of a user's own, all that are not installed; of an
    installed package that a system or policy is from, its own modules; and the content of the files
    that the system declares.

    Raises UsageError: a declared file cannot be read.
    """
    modules = {type(system).__module__}
    if isinstance(system, System):
        modules |= {type(policy).__module__ for policy in system.policies.values()}
    if all(module.startswith("moebench.") for module in modules):
        return _ours(frozenset(modules))
    return _hashed(modules, system)


@lru_cache
def _ours(modules: frozenset[str]) -> str:
    """Return the hash of modules of ours, whose files do not change while a process plans cells."""
    return _hashed(modules)


def _hashed(modules: Set[str], system: System | NativeSystem | None = None) -> str:
    """Return the hash of modules, of what they import, and of a system's declared files."""
    packages = frozenset(module.partition(".")[0] for module in ("moebench", *modules))
    found: dict[str, bytes] = {}
    for module in modules:
        collect_sources(module, packages, found)
    declared = _sources(type(system)) if isinstance(system, System) else ()
    also = [name.encode() + hashlib.sha256(content).digest() for name, content in declared]
    return _digest(sorted(found.items()), also)


def _sources(system: type[System]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file that a system declares in `System.sources`.

    Raises UsageError: a file cannot be read.
    """
    module = sys.modules[system.__module__]
    for name in system.sources:
        place = Path(module.__file__ or "").parent / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        try:
            for file in files:
                if not file.is_dir():
                    yield f"{name}/{file.relative_to(place).as_posix()}", file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{system.__name__}.sources names {name}, and {place} cannot be read: "
                f"{error.strerror or error}"
            ) from error


def run_id(spec: RunSpec, **hashes: str) -> str:
    """Return the id of a run: a hash of its spec, the code, and the content of all inputs."""
    return run_key(spec.model_dump(), code=code_hash(), **hashes)


def profile_hash(spec: RunSpec) -> str:
    """Return the hash of the hardware profile; a time stamp for each run on this computer."""
    if spec.machine == "local":
        return datetime.now(UTC).isoformat()
    return load_profile(spec.machine, spec.software).content_hash()


def bits_hash(spec: RunSpec) -> dict[str, str]:
    """Return the bits of the run's weights as a part of its id, if a format gives them."""
    found = quantised(spec.quant, spec.model)
    return {} if found is None else {"bits": repr([*found.bits, found.rate])}


def collect_sources(module: str, packages: frozenset[str], found: dict[str, bytes]) -> None:
    """Collect the sources of a module, of its packages, and of the modules that it imports.

    Args:
        packages: those whose modules count even if they are installed.
    """
    if module in found or not is_hashed(module):
        return
    package = module.rpartition(".")[0]
    if package:
        collect_sources(package, packages, found)
    file = _source(module, packages)
    if file is None:
        return
    source = found[module] = file.read_bytes()
    static = imports_of(source, module if file.name == "__init__.py" else package)
    for name in (*static, *imported_by(module)):
        collect_sources(name, packages, found)


def is_hashed(module: str) -> bool:
    """Return whether a system's hash counts a module: not the standard library's, nor `SHARED`."""
    top = module.partition(".")[0]
    # The public names of `moebench` are defined elsewhere.
    shared = module == "moebench" or module.startswith(_SHARED_MODULES)
    return top not in sys.stdlib_module_names and not shared


def _source(module: str, packages: frozenset[str]) -> Path | None:
    """Return the file of a module of ``packages`` or of a user's module; else None."""
    spec = find_module(module)
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    file = Path(spec.origin)
    own = module.partition(".")[0] in packages
    return file if own or not set(INSTALLED) & set(file.parts) else None


def find_module(module: str) -> ModuleSpec | None:
    """Return the spec of a module without importing its package, unlike `find_spec`."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    package = module.rpartition(".")[0]
    if not package:
        return importlib.util.find_spec(module)
    above = find_module(package)
    if above is None or above.submodule_search_locations is None:  # an attribute of a module
        return None
    return PathFinder.find_spec(module, above.submodule_search_locations)


@cache
def syntax_of(source: bytes) -> bytes:
    """Return a module's code in a form independent of docstrings, comments and Python version.

    A module that cannot be parsed stands for itself.  Cached, because systems share modules, and
    parsing one takes some ms; `CACHE` keeps hashes and imports for later processes.
    """
    try:
        parts: list[str] = []
        _write(ast.parse(source), parts)
        return "".join(parts).encode(errors="surrogatepass")
    except (SyntaxError, ValueError):
        return source


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _write(node: object, parts: list[str]) -> None:
    """Append a syntax tree as text, without docstrings and without fields that are empty.

    Python versions add fields (``type_params``) and leave others out where they are empty;
    `ast.dump` shows both differently from version to version.
    """
    if not isinstance(node, ast.AST):
        parts.append(repr(node))
        return
    parts.append(f"{type(node).__name__}(")
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, False):
                value = value[1:]
            if isinstance(node, ast.JoinedStr):  # Python 3.12.1 puts empty texts between fields
                value = [one for one in value if getattr(one, "value", None) != ""]
            for one in value:
                parts.append(f"{name}:")
                _write(one, parts)
        elif value is not None and name != "ctx":  # it follows from where a name stands
            parts.append(f"{name}=")
            _write(value, parts)
    parts.append(")")


@cache
def imports_of(source: bytes, package: str) -> tuple[str, ...]:
    """Return the names that a module imports; an imported attribute is listed as a module."""

    def compute() -> list[str]:
        try:
            return list(_names(ast.parse(source), package))
        except (SyntaxError, ValueError):  # imported only where that is expected
            return []

    return tuple(CACHE.texts(key_of([b"imports", package.encode(), source]), compute))


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
