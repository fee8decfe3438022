"""Draws by hand: how many, from where, in what order, and the hash of what was drawn."""

import hashlib
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import GENERATED_POOL, PASSAGE_WORDS, TEXT_FILES, load
from moebench.workloads.exercises import exercises


def folder(root: Path, name: str, *prompts: str, split: str = "test", **fields: Any) -> Path:
    """Write a data set with these prompts, and return the data folder."""
    (root / name).mkdir(exist_ok=True)
    records = [
        {"id": f"{name}/{n}", "prompt": prompt, "choices": None, "answer": "1", "answers": None,
         "split": split, **fields}
        for n, prompt in enumerate(prompts)
    ]  # fmt: skip
    text = "".join(json.dumps(record) + "\n" for record in records)
    (root / name / f"{split}.jsonl").write_text(text)
    return root


def test_constants_of_draws() -> None:
    assert (GENERATED_POOL, PASSAGE_WORDS) == (1000, 128)
    assert TEXT_FILES == {
        "text": {"test": "wikitext2_test.txt", "train": "wikitext2_valid.txt"},
        "c4": {"test": "c4_demo.txt"},
    }


@pytest.mark.parametrize(("count", "or_fewer", "found"), [
    (1, False, 1), (3, False, 3), (3, True, 3), (9, True, 3), (2, True, 2), (None, True, 3),
])  # fmt: skip
def test_as_many_as_asked_for(
    count: int | None, or_fewer: bool, found: int, tmp_path: Path
) -> None:
    data = folder(tmp_path, "gsm8k", "a?", "b?", "c?")
    drawn = load(workload("gsm8k"), "test", count, 5, data, or_fewer)
    ids = ["gsm8k/0", "gsm8k/1", "gsm8k/2"]
    wanted = ids if count is None else random.Random(5).sample(ids, found)
    assert [one.id for one in drawn.examples] == wanted
    assert (drawn.available, drawn.seed, drawn.split) == (3, 5, "test")
    assert drawn.source == "gsm8k/test.jsonl"
    text = ", ".join(json.dumps(asdict(one), sort_keys=True) for one in drawn.examples)
    assert drawn.data_hash == hashlib.sha256(f"[{text}]".encode()).hexdigest()[:16]


def test_a_draw_is_of_the_test_split_and_of_seed_0_by_default(tmp_path: Path) -> None:
    data = folder(folder(tmp_path, "gsm8k", *"abcdef"), "gsm8k", "train me", split="train")
    drawn = load(workload("gsm8k"), count=2, data_dir=data)
    ids = [f"gsm8k/{n}" for n in range(6)]
    assert [one.id for one in drawn.examples] == random.Random(0).sample(ids, 2)
    assert (drawn.seed, drawn.split) == (0, "test")
    (only,) = load(workload("gsm8k"), "train", data_dir=data).examples
    assert only.prompt == "train me"


@pytest.mark.parametrize(("count", "available"), [(None, 1000), (4, 1000), (1000, 1000),
                                                  (1001, 1001)])  # fmt: skip
def test_the_pool_of_generated_exercises(count: int | None, available: int) -> None:
    drawn = load(workload("arithmetic"), "train", count)
    assert (drawn.available, drawn.source) == (available, "generated")
    stream = exercises("arithmetic", "train")
    pool = [next(stream) for _ in range(available)]
    wanted = pool if count is None else random.Random(0).sample(pool, count)
    assert list(drawn.examples) == wanted


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    data = folder(tmp_path, "gsm8k", "a?")
    before = load(workload("gsm8k"), data_dir=data)
    folder(tmp_path, "gsm8k", "another one?")
    after = load(workload("gsm8k"), data_dir=data)
    assert [one.examples[0].prompt for one in (before, after)] == ["a?", "another one?"]


def test_plain_text_is_cut_into_passages(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for name in ("wikitext2_test.txt", "wikitext2_valid.txt", "c4_demo.txt"):
        words = " ".join(f"{name[:4]}{n}" for n in range(300))
        (tmp_path / "corpus" / name).write_text(words + "\n")
    drawn = load(workload("text"), data_dir=tmp_path)
    assert drawn.source == "corpus/wikitext2_test.txt"
    assert [len(one.prompt.split()) for one in drawn.examples][:2] == [128, 128]
    assert load(workload("text"), "train", data_dir=tmp_path).source == "corpus/wikitext2_valid.txt"
    assert load(workload("c4"), data_dir=tmp_path).examples[0].prompt.startswith("c4_d0 c4_d1 ")
    with pytest.raises(InputError, match=r"no such split of workload c4; .* exist: test$"):
        load(workload("c4"), "train", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "split", "says"),
    [
        ("gsm8k", "train", r"gsm8k/train\.jsonl: no such split .* gsm8k; splits that exist: test$"),
        (
            "boolq",
            "test",
            "boolq: no such folder, but workload boolq reads it; give --data-dir DIR",
        ),
        (
            "orca_math",
            "test",
            r"from the Hugging Face hub \(microsoft/orca-math-word-problems-200k",
        ),
    ],
)
def test_what_is_not_there_is_named(name: str, split: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        load(workload(name), split, data_dir=folder(tmp_path, "gsm8k", "a?"))


def test_a_workload_with_data_needs_a_folder() -> None:
    with pytest.raises(UsageError, match=r"workload gsm8k needs a data folder; .* --workload pass"):
        load(workload("gsm8k"))
