"""How the packages depend on each other, and rules that every module keeps."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: From the bottom up: a module may import those of its own line and of the lines above it.
LAYERS = [
    "substrate.choices",
    "substrate.errors",
    "substrate.files",
    "substrate.terms",
    "substrate.files_read",
    "substrate.progress_events",
    "substrate.models",
    "substrate.machines",
    "substrate.memory",
    "substrate.engine",
    "substrate.analysis",
    "substrate.traces",
    "systems.policies",
    "systems.learn",
    "systems",
    "systems.user_classes",
    "systems.registry",
    "systems.options",
    "systems.description",
    "workloads",
    "results",
    "reports",
    "harness.progress",
    "harness.console",
    "harness.arguments",
    "harness.hub",
    "harness.settings",
    "harness.run.rules",
    "harness.run.measure",
    "harness.stage",
    "harness.native",
    "harness.run",
    "harness.native.run",
    "harness.run.execute",
    "harness.conformance",
    "harness.sweep",
    "harness.machines",
    "harness.guard",
    "harness.advise",
    "harness.reproduce",
    "harness.scale",
    "harness.evaluate",
    "harness.cli",
    "moebench",
]
PACKAGES = ("substrate", "systems", "workloads", "results", "reports", "harness", "moebench")
FILES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents)
)


#: A module's full name, as `import_module` takes it.
NAME = re.compile(r"moebench(\.\w+)+")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    """A module's name below `moebench`, or `moebench` for the public names themselves."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in FILES}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """A file's syntax tree, node by node."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path: Path) -> Iterator[str]:
    """Every name that is imported, anywhere in a file; strings for `import_module` too."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
            yield str(node.value)


def modules_imported(path: Path) -> set[str]:
    """Our own modules that a file imports."""
    found = set()
    for name in imported(path):
        if name.startswith("moebench."):
            below = name.removeprefix("moebench.")
            while below and below not in MODULES:
                below = below.rpartition(".")[0]
            found.add(below or "moebench")
    return found - {module(path)}


def layer(name: str) -> int:
    """The line of the longest entry that a module stands under."""
    above = [entry for entry in LAYERS if f"{name}.".startswith(f"{entry}.")]
    return LAYERS.index(max(above, key=len, default=LAYERS[0]))


def test_there_are_files() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)
    assert all((ROOT / path).exists() for path in FILES)


def test_the_public_package_links_to_the_packages_beside_it() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "moebench").iterdir()}
    for package in PACKAGES[:-1]:
        assert links[package] == ROOT / package


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_only_point_down(path: Path) -> None:
    here = layer(module(path))
    assert {name for name in modules_imported(path) if layer(name) > here} == set()
    outside = {name.partition(".")[0] for name in imported(path)}
    assert outside.isdisjoint({"tests", "benchmarks", *PACKAGES[:-1]})


def test_modules_import_each_other_in_no_circle() -> None:
    # A package's own __init__ holds a docstring, so importing from it is importing a module in it.
    graph = {module(path): modules_imported(path) for path in FILES}
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_unpickles(path: Path) -> None:
    pickling = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert pickling.isdisjoint(name.split(".")[0] for name in imported(path))
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            assert called not in ("torch.load", "torch.save", "yaml.load", "yaml.unsafe_load")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400
