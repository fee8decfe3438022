"""Files of the repository: shipped weights, their size, and how git stores them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: All scale models together.  Every version of a file stays in the history for good.
MOST_BYTES = 90_000_000

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a git checkout"
)


def git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def weights() -> list[str]:
    return git("ls-files", "*.safetensors")


def test_the_shipped_weights_are_few_bytes(weights: list[str]) -> None:
    scale = ROOT / "substrate" / "catalogue" / "scale"
    assert {Path(name).parent for name in weights} == {
        path.parent.relative_to(ROOT) for path in scale.glob("*/config.json")
    }
    assert 0 < sum((ROOT / name).stat().st_size for name in weights) <= MOST_BYTES


def test_git_stores_weights_whole_and_never_shows_them(weights: list[str]) -> None:
    found = git("check-attr", "binary", "diff", "merge", "text", "delta", "--", *weights)
    values = {tuple(line.rsplit(": ", 2)[1:]) for line in found}
    assert values == {
        ("binary", "set"), ("diff", "unset"), ("merge", "unset"), ("text", "unset"),
        ("delta", "unset"),
    }  # fmt: skip


def test_no_other_file_is_large(weights: list[str]) -> None:
    others = [ROOT / name for name in git("ls-files") if name not in weights]
    assert [file for file in others if file.is_file() and file.stat().st_size > 1_000_000] == []
