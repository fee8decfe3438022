"""Places stored runs of users' own systems at the commits that made the systems' versions."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from moebench.harness.checkout import checkout
from moebench.harness.history.repository import Repository, opened
from moebench.harness.history.source import OURS, Entry, SourceHistory, Tree, Version
from moebench.harness.run.document import commit
from moebench.harness.run.identity import code_hash
from moebench.reports.compare.history import Commit, Placed
from moebench.results.document import Document, dig
from moebench.systems.registry import DECISIONS, POLICIES, installed


class Found(NamedTuple):
    """Stored runs and the versions of their systems.

    Attributes:
        placed: a run occurs once for each commit that made its version.
        versions: by a system's name, indices of the commits that made a version of it.
        left_out: sentences about runs that belong to no commit of the range.
    """

    placed: list[Placed]
    versions: dict[str, list[int]]
    left_out: list[str]


def place(
    runs: Iterable[Document], repository: Repository, commits: Sequence[Commit], since: str
) -> Found:
    """Place the runs of users' own systems at the commits that made their versions.

    Args:
        runs: of systems that do not ship with moebench.
        commits: the range along first parents, the oldest first.
        since: the commit before the range, as the user named it.
    """
    with _own_repository() as ours:
        return _Placing(repository, commits, since, ours).found(runs)


@contextmanager
def _own_repository() -> Iterator[Repository | None]:
    """Open the repository of moebench's checkout; None if moebench is installed."""
    root = checkout()
    if root is None or not (root / ".git").exists():
        yield None
        return
    with opened(root) as repository:
        yield repository


class _Placing:
    """The state of `place`."""

    def __init__(
        self, repository: Repository, commits: Sequence[Commit], since: str,
        ours: Repository | None,
    ) -> None:  # fmt: skip
        self._repository, self._commits, self._since = repository, commits, since
        self._ours_repository, self._current = ours, commit()
        self._ours: dict[str | None, Tree | None] = {None: None}
        self._renames = repository.renames(since)
        changing, self._alike = repository.changing_python(since), dict[str, str]()
        for before, after in pairwise(one.id for one in commits):
            if after not in changing:
                self._alike[after] = self._alike.get(before, before)
        self._folders: dict[str, Sequence[str]] = {}
        self._systems: dict[tuple[Entry, ...], SourceHistory] = {}
        self._left_out: dict[str, list[str]] = {}

    def found(self, runs: Iterable[Document]) -> Found:
        """Return the placed runs."""
        placed: list[Placed] = []
        entries: dict[str, Entry] = {}
        systems: dict[str, set[tuple[Entry, ...]]] = {}
        for run in runs:
            name, key = str(run["spec"]["system"]), self._entries(run)
            if not key:
                self._leave_out(f"{name}: its package is not installed, which names its modules")
            elif self._system(key).nowhere:
                self._leave_out(f"{name}: no commit of {self._repository.root} has {key[0].module}")
            else:
                entries[name] = key[0]
                systems.setdefault(name, set()).add(key)
                placed += self._placed(run, name, self._system(key))
        latest = self._latest(entries)
        versions: dict[str, set[int]] = {}
        for name, keys in systems.items():
            for key in keys:
                versions.setdefault(latest[name], set()).update(
                    self._system(key).starts(self._commits)
                )
        said = [
            f"{len(details)} run{'s' * (len(details) > 1)} of {text}{_listed(details)}"
            for text, details in self._left_out.items()
        ]
        return Found(
            [replace(one, system=latest[one.system]) for one in placed],
            {name: sorted(found) for name, found in versions.items()}, said,
        )  # fmt: skip

    def _leave_out(self, text: str, detail: str = "") -> None:
        self._left_out.setdefault(text, []).append(detail)

    def _entries(self, run: Document) -> tuple[Entry, ...]:
        """Return where a run's system begins, and began before its file was renamed."""
        name = str(run["spec"]["system"])
        plugin = installed().usable.get(name)
        module, _, attribute = (plugin.value if plugin else name).partition(":")
        if not attribute or not all(part.isidentifier() for part in module.split(".")):
            return ()
        options = dig(run, "spec.options") or {}
        listed = (POLICIES[one].get(str(options.get(one))) for one in DECISIONS)
        policies = frozenset(f"moebench.systems.{one[0]}" for one in listed if one)
        # A name module:Class changes with the file; a package's name does not.
        modules = self._former(module) if plugin else [module]
        return tuple(Entry(one, attribute, policies) for one in modules)

    def _former(self, module: str) -> list[str]:
        """Return a module's name and those that it had before its file was renamed."""
        found = [module]
        for one in found:
            for folder in self._folders_of(one):
                for old, new in self._renames:
                    if new in _files_of(one, folder) and old.startswith(folder):
                        former = _module_of(old, folder)
                        found += [former] if former not in found else []
        return found

    def _folders_of(self, module: str) -> Sequence[str]:
        top = module.partition(".")[0]
        if top not in self._folders:
            self._folders[top] = self._repository.folders_of(top)
        return self._folders[top]

    def _system(self, key: tuple[Entry, ...]) -> SourceHistory:
        if key not in self._systems:
            for entry in key:
                self._folders_of(entry.module)
            self._systems[key] = SourceHistory(
                key, self._repository, self._folders, self._ours, self._alike
            )
        return self._systems[key]

    def _latest(self, entries: Mapping[str, Entry]) -> dict[str, str]:
        """Return for each system's name the latest one that its file was renamed to."""
        files = {
            name: {
                file
                for folder in self._folders_of(entry.module)
                for file in _files_of(entry.module, folder)
            }
            for name, entry in entries.items()
        }
        head, found = self._commits[-1].id, {}
        for name, entry in entries.items():
            same = [name]
            for one in same:
                same += [
                    other for other in entries
                    if other not in same and entries[other].name == entry.name
                    and any((a in files[one] and b in files[other])
                            or (b in files[one] and a in files[other]) for a, b in self._renames)
                ]  # fmt: skip
            found[name] = max(
                same,
                key=lambda one: (
                    any(self._repository.read(head, file) is not None for file in files[one]),
                    one,
                ),
            )
        return found

    def _placed(self, run: Document, name: str, system: SourceHistory) -> list[Placed]:
        """Return a run at each commit that made its version, or after the commit before it."""
        bases, known = self._bases(run)
        wanted = str(dig(run, "provenance.system_hash"))

        def version(of_commit: str) -> Version | None:
            found = (one for base in bases for one in system.at(of_commit, base))
            return next((one for one in found if one.hash == wanted), None)

        each = [version(commit.id) for commit in self._commits]
        placed = [
            Placed(run, name, at, True, one.libraries)
            for at, one in enumerate(each)
            if one is not None and (at == 0 or each[at - 1] is None)
        ]
        if placed:
            return placed
        inside = {commit.id for commit in self._commits}
        every = self._repository.every_commit(only_python=not system.declares)
        others = (one for one in every if one not in inside)
        other = next((one for one in others if version(one) is not None), None)
        if other is not None:
            text = f"{name}: their commits are not in {self._since}..HEAD along first parents"
            self._leave_out(text, other[:10])
            return []
        if not known:
            made = dig(run, "provenance.commit") or dig(run, "provenance.versions.moebench")
            self._leave_out(
                f"{name}: no commit has their source with this version of moebench, and the "
                "version that they were made with is not here",
                str(made),
            )
            return []
        made_at = _seconds(run)
        before = [at for at, one in enumerate(self._commits) if one.time <= made_at]
        if not before:
            self._leave_out(f"{name}: no commit has their source, and they were made before the "
                            f"first commit of {self._since}..HEAD")  # fmt: skip
            return []
        at = before[-1]
        nearest = system.at(self._commits[at].id, bases[0])
        return [Placed(run, name, at, False, nearest[0].libraries if nearest else {})]

    def _bases(self, run: Document) -> tuple[list[str | None], bool]:
        """Return the commits of moebench that a run may have used; None is the installed version.

        Returns:
            the commits, and whether the one that the run used is among them.
        """
        made = dig(run, "provenance.commit")
        if made == self._current:
            return [None], made is not None or dig(run, "provenance.code_hash") == code_hash()
        ours = self._ours_repository
        if ours is None or not re.fullmatch("[0-9a-f]{7,40}", str(made)) or not ours.has(made):
            return [None], False
        self._ours[made] = Tree(ours, made, prefix=OURS)
        return [made, None], True


def _files_of(module: str, folder: str) -> tuple[str, str]:
    """Return the two files that can define a module in a folder."""
    path = folder + module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def _module_of(file: str, folder: str) -> str:
    path = file.removeprefix(folder).removesuffix(".py").removesuffix("/__init__")
    return path.replace("/", ".")


def _seconds(run: Document) -> float:
    """Return the time at which a run was made, in seconds since 1970; -inf if it is not stated."""
    try:
        created = datetime.fromisoformat(str(dig(run, "provenance.created")))
    except ValueError:
        return -math.inf
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()


def _listed(details: Sequence[str], most: int = 5) -> str:
    """Return the distinct details in brackets, or "" if there are none."""
    found = sorted({*details} - {""})
    more = ", ..." if len(found) > most else ""
    return f" ({', '.join(found[:most])}{more})" if found else ""
