"""Draws the prompts of a run from a workload's examples."""

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.catalogue import DEFAULT_WORKLOAD
from moebench.workloads.data import SPLITS, read_examples, read_passages
from moebench.workloads.example import Example, stem
from moebench.workloads.exercises import Split, exercises
from moebench.workloads.hub import HUB, is_hub, read_hub
from moebench.workloads.workload import Workload

#: Number of generated exercises that a draw chooses from (more if more are requested).
GENERATED_POOL = 1000
#: Plain text: the file of each workload's splits, and the number of words of a passage.
TEXT_FILES = {
    "text": {"test": "wikitext2_test.txt", "train": "wikitext2_valid.txt"},
    "c4": {"test": "c4_demo.txt"},
}
PASSAGE_WORDS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts of one run, with everything that is needed to draw them again.

    ``available`` is the number of prompts in the split; ``data_hash`` is 16 hex digits of a SHA-256
    over the chosen examples' content in their order, so that it changes with any of them.
    """

    examples: tuple[Example, ...]
    source: str
    split: Split
    seed: int
    available: int
    data_hash: str


def load(
    workload: Workload, split: Split = "test", count: int | None = None, seed: int = 0,
    data_dir: Path | None = None, or_fewer: bool = False,
) -> PromptSet:  # fmt: skip
    """Draw ``count`` prompts of a split without replacement; all, in file order, for ``None``.

    The draw is ``random.Random(seed).sample`` over the full list, kept in drawn order, so a sample
    is not biased towards the file's beginning and is the same on every machine.  With ``or_fewer``,
    a split that holds fewer than ``count`` prompts returns all of them.  ``data_dir`` holds one
    folder per data set; ``hub:`` in its place means the Hugging Face hub (``workloads.hub``).

    Raises:
        UsageError: the workload needs a data folder, or ``count`` or ``split`` is invalid.
        InputError: a folder or split is missing, a file is broken, or ``count`` is too large.
    """
    if split not in SPLITS:
        raise UsageError(f"split {split!r} does not exist; allowed: {', '.join(SPLITS)}")
    if count is not None and count < 1:
        raise UsageError(f"{count} prompts cannot be drawn; allowed: 1 or more")
    examples, source = _examples(workload, split, count, data_dir)
    if count is not None and or_fewer:
        count = min(count, len(examples))
    if count is not None and count > len(examples):
        raise InputError(f"{source}: {count} prompts wanted, {len(examples)} available")
    chosen = examples if count is None else random.Random(seed).sample(examples, count)
    return PromptSet(
        examples=tuple(chosen), source=source, split=split, seed=seed, available=len(examples),
        data_hash=_content_hash(chosen),
    )  # fmt: skip


@lru_cache(maxsize=8)
def _generated(family: str, split: Split, size: int) -> tuple[Example, ...]:
    """Return the first exercises of a stream; cached, as a calibrated run draws from it twice.

    Creating them takes a tenth of a second, whatever is drawn from them.
    """
    return tuple(itertools.islice(exercises(family, split), size))


def _examples(
    workload: Workload, split: Split, count: int | None, data_dir: Path | None
) -> tuple[Sequence[Example], str]:
    """Return all examples of a split, and the name of their source."""
    if workload.source == "generated":
        return _generated(workload.name, split, max(GENERATED_POOL, count or 0)), "generated"
    if data_dir is None:
        raise UsageError(
            f"workload {workload.name} needs a data folder; "
            f"give --data-dir DIR, or use --workload {DEFAULT_WORKLOAD}, which needs none"
        )
    if is_hub(data_dir):
        examples, source = read_hub(workload.source, split, data_dir)
    elif workload.metric == "perplexity":
        (file,) = _files(workload, workload.source, split, data_dir)
        return _passages(file, _state(file)), f"{file.parent.name}/{file.name}"
    else:
        files = _files(workload, workload.source, split, data_dir)
        examples = [example for file in files for example in _read(file, _state(file))]
        source = " + ".join(f"{file.parent.name}/{file.name}" for file in files)
    if workload.metric == "rouge":  # the model answers in its own words, without options
        examples = [replace(example, prompt=stem(example)) for example in examples]
    return examples, source


@lru_cache(maxsize=8)
def _read(file: Path, state: tuple[int, int]) -> list[Example]:
    """Return the examples of a file in this state: a plan of many seeds asks for them each time."""
    return read_examples(file)


@lru_cache(maxsize=2)
def _passages(file: Path, state: tuple[int, int]) -> list[Example]:
    return read_passages(file, PASSAGE_WORDS)


def _state(file: Path) -> tuple[int, int]:
    """Return a file's size and time of change in ns."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _files(
    workload: Workload, folders: tuple[str, ...], split: Split, data_dir: Path
) -> list[Path]:
    """Return the split's file in each of the workload's folders, and check that all exist."""
    jsonl = {name: f"{name}.jsonl" for name in SPLITS}
    names = TEXT_FILES.get(workload.name, jsonl)
    files = [data_dir / folder / names.get(split, jsonl[split]) for folder in folders]
    for file in files:
        if not file.parent.is_dir():
            raise InputError(
                f"{file.parent}: no such folder, but workload {workload.name} reads it; "
                f"{_remedy(workload)}"
            )
        if not file.is_file():
            present = [name for name in names if (file.parent / names[name]).is_file()]
            raise InputError(
                f"{file}: no such split of workload {workload.name}; "
                f"splits that exist: {', '.join(present) or 'none'}"
            )
    return files


def _remedy(workload: Workload) -> str:
    if workload.name == "orca_math":
        return (
            f"Orca-Math comes from the Hugging Face hub ({HUB['orca_math'].repository}): give "
            "--data-dir hub: when online, or write the folder yourself (format: docs/workloads.md)"
        )
    return "give --data-dir DIR, the folder that holds one folder per data set"


def _content_hash(examples: Sequence[Example]) -> str:
    content = f"[{', '.join(map(_json, examples))}]"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@lru_cache(maxsize=1 << 16)
def _json(example: Example) -> str:
    """Return an example as JSON; cached, as a plan of many seeds draws the same ones."""
    return json.dumps(asdict(example), sort_keys=True)
