"""Git repositories of users' systems, made with git itself."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.modules import forget

#: Begin of the commits' times, in seconds since 1970: before any run of a test.
FIRST = int(time.time()) - 10_000

#: A system that keeps the experts that it loads, or drops each one after its use.
SYSTEM = """from dataclasses import dataclass, field
from moebench import Assignment, Fetch, split
from moebench.systems.smoe import SMoE
{above}

@dataclass
class Missing(Assignment):
    def assign(self, view, active):
        return split(active, [Fetch(view.layer, e, keep={keep}) for e in active.absent])


@dataclass(kw_only=True)
class MySystem(SMoE):
    assign: Assignment = field(default_factory=Missing)
    unused: int = {unused}
"""


def system(keep: bool = True, unused: int = 0, above: str = "") -> str:
    return SYSTEM.format(keep=keep, unused=unused, above=above)


class Project:
    """A work tree whose commits are a minute apart."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._minutes = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, at: int | None = None) -> str:
        when = f"{FIRST + 60 * self._minutes if at is None else at} +0000"
        environment = os.environ | {
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when,
            **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER")
               for what in ("NAME", "EMAIL")},
        }  # fmt: skip
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        """Write files, or remove those that are None; forget the modules of the work tree."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        forget(self.folder)

    def commit(
        self, subject: str, files: Mapping[str, str | None] | None = None, at: int | None = None
    ) -> str:
        """Commit all files, after these were written, and return the commit's id."""
        self._minutes += 1
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject, at=at)
        return self.git("rev-parse", "HEAD")
