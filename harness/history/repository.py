"""A git repository as `moebench report --since` reads it: commits, renames, files at a commit."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from moebench.reports.compare.history import Commit
from moebench.substrate.errors import UsageError
from moebench.substrate.text import visible

#: Configuration of a user that would change what is parsed here.
_PLAIN = ("-c", "log.showSignature=false", "-c", "log.showRoot=true", "-c", "core.quotePath=false")

#: All Python files.
_PYTHON = ":(top)*.py"


class Repository:
    """The git repository of a folder; `opened` makes it and ends its process.

    Args:
        root: folder of the work tree.
        objects: pipes of a running ``git cat-file --batch``.
    """

    def __init__(self, root: Path, objects: tuple[IO[bytes], IO[bytes]]) -> None:
        self.root = root
        self._ask, self._answer = objects

    def commits_since(self, since: str) -> list[Commit]:
        """Return the commits of ``since..HEAD`` along first parents, the oldest first.

        Raises UsageError: the history is cut off, ``since`` is no commit, or none follows it.
        """
        if _line(self.root, "rev-parse", "--is-shallow-repository") == "true":
            raise UsageError(
                f"--since {since}: {self.root} is a shallow clone, which lacks commits; run: "
                "git fetch --unshallow"
            )
        first = self._commit(since)
        text = self._git("log", "--first-parent", "--reverse", "--format=%H%x09%ct%x09%s",
                         f"{first}..HEAD")  # fmt: skip
        parts = (line.split("\t", 2) for line in text.split("\n") if line)
        found = [Commit(name, int(time), _readable(subject)) for name, time, subject in parts]
        if not found:
            raise UsageError(
                f"--since {since}: HEAD has no commit after it; give an earlier one, such as HEAD~5"
            )
        return found

    def _commit(self, name: str) -> str:
        """Return the id of a commit.

        Raises UsageError: it does not exist.
        """
        wanted = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        found = _line(self.root, *wanted)
        if not found:
            raise UsageError(
                f"--since {name}: no such commit in {self.root}; allowed: a commit, branch or tag; "
                "see: git log --oneline"
            )
        return found

    def every_commit(self, only_python: bool) -> list[str]:
        """Return the ids of all commits of all branches, tags and HEAD, the newest first.

        Args:
            only_python: leave out commits whose Python files are those of a parent.
        """
        paths = ("--full-history", "--", _PYTHON) if only_python else ()
        return self._git("rev-list", "--all", "HEAD", *paths).split()

    def changing_python(self, since: str) -> set[str]:
        """Return the commits along first parents that change Python files."""
        commits = f"{self._commit(since)}..HEAD"
        return {*self._git("rev-list", "--first-parent", commits, "--", _PYTHON).split()}

    def renames(self, since: str) -> set[tuple[str, str]]:
        """Return the pairs of old and new path of Python files renamed along first parents."""
        commits = f"{self._commit(since)}..HEAD"
        text = self._git("log", "--first-parent", "-m", "-M", "--diff-filter=R", "--name-status",
                         "-z", "--format=", commits, "--", _PYTHON)  # fmt: skip
        words = [word.strip("\n") for word in text.split("\0") if word.strip("\n")]
        return set(zip(words[1::3], words[2::3], strict=True))

    def folders_of(self, package: str) -> list[str]:
        """Return the folders that contained a module or package in any commit, nearest first.

        The current folder is the nearest one.  Folders end with ``/``; the root is ``""``.
        """
        globs = [f":(top,glob)**/{package}.py", f":(top,glob)**/{package}/**/*.py"]
        text = self._git("log", "--all", "HEAD", "-m", "--no-renames", "--diff-filter=A",
                         "--name-only", "-z", "--format=", "--", *globs)  # fmt: skip
        found = set()
        for path in {word.strip("\n") for word in text.split("\0")} - {""}:
            parts = PurePosixPath(path).parts
            at = next(i for i, part in enumerate(parts) if part in (package, f"{package}.py"))
            found.add("".join(f"{part}/" for part in parts[:at]))
        here = Path.cwd().resolve()
        current = "" if here == self.root else f"{here.relative_to(self.root).as_posix()}/"
        return sorted(found, key=lambda folder: (folder != current, folder))

    def read(self, commit: str, path: str) -> bytes | None:
        """Return a file as it was at a commit, or None if it did not exist."""
        kind, content = self._object(f"{commit}:{path}")
        return content if kind == "blob" else None

    def is_folder(self, commit: str, path: str) -> bool:
        """Return whether a path was a folder at a commit."""
        return self._object(f"{commit}:{path}")[0] == "tree"

    def has(self, commit: str) -> bool:
        """Return whether the repository has a commit."""
        return self._object(commit)[0] == "commit"

    def files_below(self, commit: str, path: str) -> list[str]:
        """Return the paths of all files in a folder at a commit, relative to it."""
        text = self._git("ls-tree", "-r", "-z", "--name-only", f"{commit}:{path}")
        return [name for name in text.split("\0") if name]

    def _object(self, name: str) -> tuple[str, bytes]:
        """Return the type and content of an object; ``("missing", b"")`` without one."""
        if "\n" in name:
            return "missing", b""
        self._ask.write(name.encode(errors="surrogateescape") + b"\n")
        self._ask.flush()
        *_, kind, size = [b"", b"", *self._answer.readline().split(b" ")]
        if not size.strip().isdigit():  # "NAME missing", "NAME ambiguous"
            return "missing", b""
        content = self._answer.read(int(size))
        self._answer.read(1)
        return kind.decode(), content

    def _git(self, *arguments: str) -> str:
        done = _run(self.root, *arguments)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise UsageError(f"--since: git {arguments[0]} failed in {self.root}: {said}")
        return done.stdout.decode(errors="surrogateescape")


def _readable(text: str) -> str:
    """Return a text whose bytes may be of any encoding as one that can be printed."""
    return visible(text.encode(errors="surrogateescape").decode(errors="replace"))


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    # By default, git may lock the index to refresh it.
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", *_PLAIN, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)


def _line(folder: Path, *arguments: str) -> str | None:
    """Return the first line that git prints, or None if it fails."""
    done = _run(folder, *arguments)
    return None if done.returncode else os.fsdecode(done.stdout).partition("\n")[0]


@contextmanager
def opened(folder: Path, since: str = "") -> Iterator[Repository]:
    """Open the repository of a folder of its work tree.

    Args:
        since: the commit that the user named, for errors.

    Raises UsageError: git is not installed, or the folder is in no work tree.
    """
    if shutil.which("git") is None:
        raise UsageError(f"--since {since}: needs git, which is not installed; install git")
    root = _line(folder, "rev-parse", "--show-toplevel")
    if not root:
        raise UsageError(
            f"--since {since}: {folder} is in no git repository; run it in the repository of your "
            "system, with the store's folder as --store"
        )
    command: Sequence[str] = ("git", *_PLAIN, "cat-file", "--batch")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        yield Repository(Path(root), (process.stdin, process.stdout))
