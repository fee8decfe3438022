"""A user's system as it was at a commit: its modules, and the hash that its runs would have.

A document does not hold the commit of the user's repository.  It holds `provenance.system_hash`,
which `harness.run.identity` computes from the source of the system and of all modules that it
imports.  Here the same hash is computed from the files of a commit.  No code of the repository is
imported: its modules are found by the statements that import them.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import resolve_name
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from moebench.harness.history.repository import Repository
from moebench.harness.run.identity import (
    INSTALLED,
    collect_sources,
    equivalents,
    find_module,
    imports_of,
    is_hashed,
    syntax_of,
)
from moebench.reports.compare.history import Commit

#: Beginning of the names of moebench's modules.
OURS = "moebench."


class Entry(NamedTuple):
    """Where a run's system begins: the class ``module:name``, and its policies' modules."""

    module: str
    name: str
    policies: frozenset[str]


class Version(NamedTuple):
    """A system as it is at a commit.

    Attributes:
        source: digest of the repository's own modules and files.
        hash: what a run's provenance would hold as ``system_hash``.
        libraries: digests of the other modules, by name.
    """

    source: str
    hash: str
    libraries: Mapping[str, str]


class Tree:
    """The modules of a folder at a commit.

    Args:
        folder: ends with ``/``, or ``""`` for the root.
        prefix: beginning of the modules' names that has no folder.
    """

    def __init__(
        self, repository: Repository, commit: str, folder: str = "", prefix: str = ""
    ) -> None:
        self.repository, self.commit, self.folder = repository, commit, folder
        self._prefix = prefix

    def path(self, module: str) -> str:
        """Return the path of a module without its suffix."""
        return self.folder + module.removeprefix(self._prefix).replace(".", "/")

    def covers(self, module: str) -> bool:
        """Return whether a module's first package is in the folder."""
        if self._prefix or module.startswith(OURS):
            return module.startswith(self._prefix or "/")
        top = module.partition(".")[0]
        is_folder = self.repository.is_folder(self.commit, self.path(top))
        return is_folder or self.read(top) is not None

    def read(self, module: str) -> tuple[bytes, bool] | None:
        """Return a module's source and whether it is a package, or None if there is none."""
        for end, is_package in (("/__init__.py", True), (".py", False)):
            source = self.repository.read(self.commit, self.path(module) + end)
            if source is not None:
                return source, is_package
        return None


class _Closure:
    """A system's modules with all that they import, read from a commit.

    Args:
        own: modules of the user's repository.
        ours: modules of moebench at an earlier commit; None for those that are installed.
    """

    def __init__(self, entry: Entry, own: Tree, ours: Tree | None) -> None:
        self._own, self._ours = own, ours
        self._plain: set[str] = set()
        self.sources: dict[str, bytes] = {}
        self.mine: set[str] = set()
        module, kind = self._defined(entry.module, entry.name)
        modules = {module, *entry.policies}
        self._packages = frozenset(one.partition(".")[0] for one in ("moebench", *modules))
        for one in sorted(modules):
            self._add(one)
        self.declared = self._declared(module, kind) if kind is not None else ()
        self.files = dict(self._files(module))

    def _add(self, module: str) -> None:
        """Add a module, its packages and what it imports, as `collect_sources` does."""
        if module in self.sources or not is_hashed(module):
            return
        package = module.rpartition(".")[0]
        if package:
            self._add(package)
        tree = next(
            (one for one in (self._ours, self._own) if one is not None and one.covers(module)), None
        )
        if tree is None:
            if module.startswith(OURS) or not self._in_work_tree(module):
                collect_sources(module, self._packages, self.sources)
            return
        read = None if package in self._plain else tree.read(module)
        if read is None:  # an attribute of a module, or a folder without __init__.py
            return
        self.sources[module], is_package = read
        if not is_package:
            self._plain.add(module)
        if tree is self._own:
            self.mine.add(module)
        for name in imports_of(self.sources[module], module if is_package else package):
            self._add(name)

    def _in_work_tree(self, module: str) -> bool:
        """Return whether a module that the commit lacks is in the work tree now."""
        spec = find_module(module.partition(".")[0])
        places = [*((spec and spec.submodule_search_locations) or ()), spec and spec.origin]
        paths = [Path(place).resolve() for place in places if place]
        root = self._own.repository.root.resolve()
        return any(
            path.is_relative_to(root) and not set(INSTALLED) & set(path.parts) for path in paths
        )

    def _defined(self, module: str, name: str, depth: int = 0) -> tuple[str, ast.ClassDef | None]:
        """Return the module that defines a class which may be imported from another one."""
        read = self._own.read(module)
        if read is None or depth > 20:
            return module, None
        package = module if read[1] else module.rpartition(".")[0]
        for node in _parsed(read[0]):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if (alias.asname or alias.name) == name:
                    assert isinstance(node, ast.ImportFrom), "it has names"
                    try:
                        base = resolve_name("." * node.level + (node.module or ""), package)
                    except ImportError:  # a relative import in a module of no package
                        return module, None
                    return self._defined(base, alias.name, depth + 1)
        return module, None

    def _files(self, module: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each file of `System.sources`, as `identity` does."""
        folder = self._own.path(module).rpartition("/")[0]
        read = self._own.read(module)
        folder = self._own.path(module) if read is not None and read[1] else folder
        repository, commit = self._own.repository, self._own.commit
        for name in self.declared:
            path = _joined(folder, name)
            if path is None:
                continue
            if repository.is_folder(commit, path):
                for file in sorted(map(PurePosixPath, repository.files_below(commit, path))):
                    content = repository.read(commit, f"{path}/{file}")
                    yield f"{name}/{file}", content or b""
            elif (content := repository.read(commit, path)) is not None:
                yield f"{name}/.", content

    def _declared(self, module: str, kind: ast.ClassDef, depth: int = 0) -> Sequence[str]:
        """Return `System.sources` of a class, or of the first base class that declares it."""
        for node in kind.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            if any(isinstance(one, ast.Name) and one.id == "sources" for one in targets):
                assert isinstance(node, ast.Assign | ast.AnnAssign), "it has targets"
                return _texts(node.value)
        for base in kind.bases:
            if isinstance(base, ast.Name) and depth < 20:
                found, above = self._defined(module, base.id)
                if above is not None and (declared := self._declared(found, above, depth + 1)):
                    return declared
        return ()

    def version(self) -> Version:
        """Return the version that the closure is."""
        whole, own = hashlib.sha256(), hashlib.sha256()
        libraries = {}
        for name, source in sorted(self.sources.items()):
            part = name.encode() + syntax_of(source)
            whole.update(part)
            if name in self.mine:
                own.update(part)
            else:
                libraries[name] = hashlib.sha256(syntax_of(source)).hexdigest()
        for name, content in self.files.items():
            part = name.encode() + hashlib.sha256(content).digest()
            whole.update(part)
            own.update(part)
        computed = whole.hexdigest()[:16]
        return Version(own.hexdigest(), equivalents()["systems"].get(computed, computed), libraries)


@cache
def _parsed(source: bytes) -> Sequence[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):  # a commit may hold a file that Python cannot read
        return ()


def _texts(node: ast.expr | None) -> Sequence[str]:
    """Return the texts of a literal tuple or list; others cannot be known without running it."""
    elements = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    values = [one.value for one in elements if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def _joined(folder: str, name: str) -> str | None:
    """Return the path of a file relative to a folder; None outside the repository."""
    parts: list[str] = [part for part in folder.split("/") if part]
    for part in name.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return None if name.startswith("/") else "/".join(parts)


class SourceHistory:
    """The versions of a system in all commits.

    Args:
        entries: where it begins; several if its file was renamed.
        folders: by a module's first package, where it was, nearest first.
        ours: by commit of moebench, its modules; the installed ones have the key None.
        alike: by commit, an earlier one with the same Python files.

    Attributes:
        declares: whether a version that was read declares other files.
    """

    def __init__(
        self, entries: Sequence[Entry], repository: Repository,
        folders: Mapping[str, Sequence[str]], ours: Mapping[str | None, Tree | None],
        alike: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._repository, self._ours, self._alike = repository, ours, alike
        self.declares = False
        self._places = [
            (entry, folder)
            for entry in entries
            for folder in folders[entry.module.partition(".")[0]]
        ]
        self._known: dict[tuple[str, str | None], list[Version]] = {}

    @property
    def nowhere(self) -> bool:
        """Whether no commit has its modules."""
        return not self._places

    def at(self, commit: str, ours: str | None) -> list[Version]:
        """Return the versions at a commit, with moebench's modules at one of its commits."""
        if (commit, ours) in self._known:
            return self._known[commit, ours]
        if commit in self._alike:
            found = self.at(self._alike[commit], ours)
            if not self.declares:
                return found
        trees = [(one, Tree(self._repository, commit, folder)) for one, folder in self._places]
        closures = [
            _Closure(entry, tree, self._ours[ours])
            for entry, tree in trees
            if tree.read(entry.module) is not None
        ]
        self.declares |= any(one.declared for one in closures)
        found = self._known[commit, ours] = [one.version() for one in closures]
        return found

    def starts(self, commits: Sequence[Commit]) -> list[int]:
        """Return the indices of the commits that made a version."""
        sources = [{version.source for version in self.at(one.id, None)} for one in commits]
        return [
            at for at, found in enumerate(sources) if found and (not at or found != sources[at - 1])
        ]
