"""Dependencies between packages, and rules for every module."""

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
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
    "systems.compatible",
    "systems.space",
    "systems.description",
    "systems.space_page",
    "workloads",
    "results",
    "reports",
    "harness.checkout",
    "harness.progress",
    "harness.console",
    "harness.arguments",
    "harness.extras",
    "harness.hub",
    "harness.settings",
    "harness.stage",
    "harness.run",
    "harness.native",
    "harness.one_run",
    "harness.keep",
    "harness.history",
    "harness.conformance",
    "harness.sweep",
    "harness.api",
    "harness.machines",
    "harness.published",
    "harness.guard",
    "harness.search",
    "harness.advise",
    "harness.reproduce",
    "harness.scale",
    "harness.evaluate",
    "harness.cli",
    "moebench",
]
PACKAGES = ("substrate", "systems", "workloads", "results", "reports", "harness", "moebench")

#: A module's full name, as `import_module` takes it.
NAME = re.compile(r"moebench(\.\w+)+")


@cache
def nodes(text: str) -> list[ast.AST]:
    """Return the nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(text)))


def imported(path: Path) -> Iterator[str]:
    """Every name that is imported, anywhere in a file; strings for `import_module` too."""
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
            yield str(node.value)


def layer(name: str) -> int:
    """The index of the longest entry of `LAYERS` that contains a module."""
    above = [entry for entry in LAYERS if f"{name}.".startswith(f"{entry}.")]
    return LAYERS.index(max(above, key=len, default=LAYERS[0]))


class Tree:
    """The modules of a checkout, by their name below `moebench`, and their imports.

    Args:
        linked: find packages through the links in `moebench/`, not in the folders beside it.
    """

    def __init__(self, root: Path, linked: bool = False) -> None:
        self.files: dict[str, Path] = {}
        for package in PACKAGES:
            public = package == "moebench"
            folder = root / "moebench" / package if linked and not public else root / package
            for path in folder.glob("*.py") if public else folder.rglob("*.py"):
                parts = (package, *path.relative_to(folder).with_suffix("").parts)
                self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def imports(self, module: str) -> set[str]:
        """Modules of this tree that a module imports."""
        found = set()
        for name in imported(self.files[module]):
            if name.startswith("moebench."):
                below = name.removeprefix("moebench.")
                while below and below not in self.files:
                    below = below.rpartition(".")[0]
                found.add(below or "moebench")
        return found - {module}

    def upward(self) -> set[tuple[str, str]]:
        """Imports of modules in a higher layer: (importing module, imported module)."""
        return {
            (module, name)
            for module in self.files
            for name in self.imports(module)
            if layer(name) > layer(module)
        }

    def check_circles(self) -> None:
        """Raise `graphlib.CycleError` if modules import each other in a circle."""
        # A package's own __init__ holds a docstring: importing from it imports a module in it.
        list(
            TopologicalSorter(
                {module: self.imports(module) for module in self.files}
            ).static_order()
        )


FILES = sorted(Tree(ROOT).files.values())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_files() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)


def test_the_public_package_links_to_the_packages_beside_it() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "moebench").iterdir()}
    for package in PACKAGES[:-1]:
        assert links[package] == ROOT / package


@pytest.fixture(scope="module", params=["with links", "without links"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The modules found through the links; and those of a copy of the checkout that has none."""
    if request.param == "with links":
        return Tree(ROOT, linked=True)
    copy = tmp_path_factory.mktemp("copy")
    for path in FILES:
        (copy / relative(path)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy / relative(path))
    return Tree(copy)


def test_every_module_is_found_with_links_and_without(tree: Tree) -> None:
    assert tree.files.keys() == Tree(ROOT).files.keys()


def test_no_module_imports_upward(tree: Tree) -> None:
    assert tree.upward() == set()


def test_no_modules_import_each_other_in_a_circle(tree: Tree) -> None:
    tree.check_circles()


@pytest.fixture(params=[True, False], ids=["with links", "without links"])
def made_up(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, str]], Tree]:
    """Writes modules given as path and text, and returns their tree."""

    def write(modules: dict[str, str]) -> Tree:
        for path, text in modules.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
            package = tmp_path / "moebench" / path.partition("/")[0]
            if request.param and not package.exists():
                package.parent.mkdir(exist_ok=True)
                package.symlink_to(tmp_path / package.name)
        return Tree(tmp_path, linked=request.param)

    return write


@pytest.mark.parametrize(
    "text",
    [
        "from moebench.systems.high import x",
        "from moebench.systems import high",
        "import moebench.systems.high",
        "def later():\n    import moebench.systems.high",
        "import_module('moebench.systems.high')",
    ],
)
def test_an_upward_import_is_refused(made_up: Callable[..., Tree], text: str) -> None:
    tree = made_up({"substrate/models/low.py": text, "systems/high.py": ""})
    assert tree.upward() == {("substrate.models.low", "systems.high")}


def test_a_circle_is_refused(made_up: Callable[..., Tree]) -> None:
    tree = made_up(
        {
            "systems/a.py": "from moebench.systems.b import x",
            "systems/b.py": "from moebench.systems import c",
            "systems/c.py": "from moebench.systems.a import y",
        }
    )
    assert tree.upward() == set()
    with pytest.raises(CycleError, match=r"systems\.[abc]"):
        tree.check_circles()


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_name_moebench(path: Path) -> None:
    outside = {name.partition(".")[0] for name in imported(path)}
    assert outside.isdisjoint({"tests", "benchmarks", *PACKAGES[:-1]})


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_unpickles(path: Path) -> None:
    pickling = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert pickling.isdisjoint(name.split(".")[0] for name in imported(path))
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            assert called not in ("torch.load", "torch.save", "yaml.load", "yaml.unsafe_load")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False
