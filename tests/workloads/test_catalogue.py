"""The catalogue of workloads and their draws, and errors for wrong requests."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, few_shot_of, workload, workload_names
from moebench.workloads.draw import GENERATED_POOL, PASSAGE_WORDS, load
from moebench.workloads.workload import Workload

ROOT = Path(__file__).parents[2]
NAMES = (
    "alpaca", "arc_challenge", "arc_easy", "arithmetic", "bbh", "boolq", "c4", "equations", "facts",
    "gaokao", "gaokao_biology", "gaokao_history", "gaokao_math_i", "gaokao_math_ii", "gsm8k",
    "hellaswag", "inflection", "math", "mmlu", "mt_bench", "nq_open", "orca_math", "passages",
    "piqa", "race_middle", "sharegpt", "squad", "text", "triviaqa", "truthfulqa",
    "truthfulqa_gen", "wic", "winogrande",
)  # fmt: skip
#: Issue: "few-shot count as the papers state"; DAOP section V-A, OpenCompass for SMoE's GSM8K.
STATED = {
    ("hellaswag", "DAOP"): 10, ("arc_easy", "DAOP"): 0, ("arc_challenge", "DAOP"): 25,
    ("piqa", "DAOP"): 0, ("winogrande", "DAOP"): 5, ("truthfulqa_gen", "DAOP"): 0,
    ("mmlu", "DAOP"): 5, ("bbh", "DAOP"): 3, ("triviaqa", "DAOP"): 0, ("gsm8k", "DAOP"): 5,
    ("gsm8k", "SMoE"): 4, ("triviaqa", "SMoE"): 0, ("race_middle", "SMoE"): 0,
    ("squad", "DuoServe-MoE"): 0, ("orca_math", "DuoServe-MoE"): 0, ("triviaqa", "FlashMoE"): 0,
}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a data folder in which gsm8k has ten test examples and no train split."""
    (tmp_path / "gsm8k").mkdir()
    records: list[dict[str, Any]] = [
        {"id": f"g/{i}", "prompt": f"{i}?", "choices": None, "answer": str(i), "answers": None,
         "split": "test"}
        for i in range(10)
    ]  # fmt: skip
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "gsm8k" / "test.jsonl").write_text(lines)
    return tmp_path


def test_names() -> None:
    assert workload_names() == NAMES
    assert all(workload(name).name == name for name in NAMES)


def test_sources_and_further_fields_of_workloads() -> None:
    """Each reads the data of its name, or generates it; the exceptions are these."""
    plain = Workload(
        name="x", title="x", category="exam", source="generated", metric="choice", max_new_tokens=1
    )
    four = tuple(f"gaokao_{subject}" for subject in ("math_i", "math_ii", "history", "biology"))
    sources = {"gaokao": four, "truthfulqa_gen": ("truthfulqa",), "text": ("corpus",),
               "c4": ("corpus",)}  # fmt: skip
    generated = {"arithmetic", "equations", "facts", "inflection", "passages"}
    untrained = {"gaokao", *four, "wic", "truthfulqa", "truthfulqa_gen", "hellaswag", "mt_bench",
                 "c4"}  # fmt: skip
    assert plain.template == "Question: {prompt}\nAnswer:"
    assert (plain.stop, plain.few_shot, plain.chance) == (("\nQuestion:",), 0, None)
    for name in NAMES:
        found = workload(name)
        source = "generated" if name in generated else sources.get(name, (name,))
        template = "{prompt}" if name in ("text", "c4") else plain.template
        assert (found.source, found.template) == (source, template)
        assert found.train_split_available == (name not in untrained)
        assert (found.few_shot, found.stop) == (0, plain.stop)
        assert found.chance == (25.0 if name == "facts" else None)


#: Category, metric, likelihood and most new tokens of each workload.
KINDS = {
    "alpaca": ("chat", "none", None, 256),
    "arc_challenge": ("exam", "choice", "texts", 16),
    "arc_easy": ("exam", "choice", "texts", 16),
    "arithmetic": ("reasoning", "exact_number", None, 64),
    "bbh": ("reasoning", "exact_text", "letters", 64),
    "boolq": ("knowledge", "choice", "texts", 16),
    "c4": ("language modelling", "perplexity", None, 128),
    "equations": ("exam", "exact_number", None, 32),
    "facts": ("knowledge", "exact_text", None, 64),
    **{f"gaokao{of}": ("exam", "choice", "letters", 16)
       for of in ("", "_biology", "_history", "_math_i", "_math_ii")},
    "gsm8k": ("reasoning", "exact_number", None, 256),
    "hellaswag": ("commonsense", "choice", "endings", 16),
    "inflection": ("language", "exact_text", None, 32),
    "math": ("reasoning", "exact_text", None, 512),
    "mmlu": ("exam", "choice", "letters", 16),
    "mt_bench": ("chat", "none", None, 512),
    "nq_open": ("knowledge", "text", None, 32),
    "orca_math": ("reasoning", "exact_number", None, 256),
    "passages": ("understanding", "exact_text", None, 32),
    "piqa": ("commonsense", "choice", "texts", 16),
    "race_middle": ("understanding", "choice", "letters", 16),
    "sharegpt": ("chat", "none", None, 256),
    "squad": ("understanding", "text", None, 32),
    "text": ("language modelling", "perplexity", None, 128),
    "triviaqa": ("knowledge", "text", None, 32),
    "truthfulqa": ("knowledge", "choice", "texts", 16),
    "truthfulqa_gen": ("knowledge", "rouge", None, 64),
    "wic": ("language", "choice", "letters", 16),
    "winogrande": ("commonsense", "choice", "blank", 16),
}  # fmt: skip


def test_every_workload_has_its_kind_of_answers_and_their_length() -> None:
    found = {
        name: (one.category, one.metric, one.likelihood, one.max_new_tokens)
        for name, one in ((name, workload(name)) for name in NAMES)
    }
    assert found == KINDS
    by_length = {"arc_easy", "arc_challenge", "hellaswag", "piqa"}
    assert {name for name in NAMES if workload(name).per_byte} == by_length
    stated = {
        (name, paper): count
        for name in NAMES
        for paper, count in workload(name).few_shot_in.items()
    }
    without = [name for name in NAMES if name.startswith("gaokao")] + ["wic", "boolq"]
    further = {(name, "SMoE"): 0 for name in without} | {
        (name, "DAOP"): 0 for name in ("math", "sharegpt", "c4")
    }
    assert stated == STATED | further


@pytest.mark.parametrize(("name", "paper"), STATED)
def test_few_shot_counts_as_the_papers_state_them(name: str, paper: str) -> None:
    assert few_shot_of(workload(name), paper) == STATED[name, paper]


def test_without_a_paper_that_uses_it_the_default_counts() -> None:
    gsm8k = workload("gsm8k").model_copy(update={"few_shot": 2})
    assert few_shot_of(gsm8k, None) == few_shot_of(gsm8k, "FlashMoE") == 2
    assert few_shot_of(gsm8k, "DAOP") == 5


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown workload 'gsm8'; nearest: gsm8k"):
        workload("gsm8")


def test_a_workload_is_frozen_and_refuses_impossible_values() -> None:
    gsm8k = workload("gsm8k")
    with pytest.raises(ValidationError):
        gsm8k.few_shot = 3
    fields = gsm8k.model_dump()
    for wrong in (
        {"few_shot": -1},
        {"few_shot_in": {"DAOP": -1}},
        {"few_shot_in": {"Mine": 1}},
        {"max_new_tokens": 0},
        {"metric": "f1"},
        {"extra": 1},
    ):
        with pytest.raises(ValidationError):
            Workload(**fields | wrong)
    assert gsm8k.model_copy(update={"few_shot": 4}).few_shot == 4


def test_all_without_a_count_in_file_order(small: Path) -> None:
    sample = load(workload("gsm8k"), data_dir=small)
    assert [e.id for e in sample.examples] == [f"g/{i}" for i in range(10)]
    assert (sample.source, sample.split, sample.available) == ("gsm8k/test.jsonl", "test", 10)


def test_a_draw_is_seeded_and_keeps_its_order(small: Path) -> None:
    sample = load(workload("gsm8k"), "test", 4, 7, small)
    expected = random.Random(7).sample([f"g/{i}" for i in range(10)], 4)
    assert [e.id for e in sample.examples] == expected
    assert sample == load(workload("gsm8k"), "test", 4, 7, small)
    assert sample.seed == 7
    assert sample.examples != load(workload("gsm8k"), "test", 4, 8, small).examples


def test_the_hash_tells_content_and_order(small: Path) -> None:
    def drawn(seed: int) -> str:
        return load(workload("gsm8k"), "test", 10, seed, small).data_hash

    path = small / "gsm8k" / "test.jsonl"
    before = drawn(0)
    assert len(before) == 16
    assert int(before, 16) >= 0
    assert before == drawn(0) != drawn(1)
    path.write_text(path.read_text().replace('"3?"', '"3 ?"'))
    assert drawn(0) != before


def test_generated_problems_need_no_data() -> None:
    sample = load(workload("arithmetic"), "test", 5, 1)
    assert (sample.source, sample.available) == ("generated", GENERATED_POOL)
    assert len({e.id for e in sample.examples}) == 5
    assert all(e.id.startswith("arithmetic/test/") for e in sample.examples)
    more = load(workload("arithmetic"), "train", GENERATED_POOL + 1)
    assert len(more.examples) == more.available == GENERATED_POOL + 1


def test_a_data_workload_without_a_folder_says_what_to_type() -> None:
    with pytest.raises(UsageError) as caught:
        load(workload("gsm8k"))
    message = str(caught.value)
    assert "\n" not in message
    for part in ("gsm8k needs a data folder", "--data-dir DIR", "--workload passages"):
        assert part in message


def test_a_missing_split_lists_those_that_exist(small: Path) -> None:
    with pytest.raises(InputError, match=r"gsm8k; splits that exist: test$"):
        load(workload("gsm8k"), "train", data_dir=small)
    (small / "gsm8k" / "test.jsonl").unlink()
    with pytest.raises(InputError, match=r"splits that exist: none$"):
        load(workload("gsm8k"), "test", data_dir=small)


def test_a_missing_folder(small: Path) -> None:
    with pytest.raises(InputError, match="no such folder, but workload squad reads it"):
        load(workload("squad"), data_dir=small)


def test_orca_math_is_not_in_the_data_and_says_where_it_comes_from(small: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(workload("orca_math"), data_dir=small)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("no such folder", "microsoft/orca-math-word-problems-200k", "--data-dir hub:"):
        assert part in message


def test_text_in_passages_of_whole_words(small: Path) -> None:
    words = [f"w{i}" for i in range(2 * PASSAGE_WORDS + 5)]
    (small / "corpus").mkdir()
    (small / "corpus" / "wikitext2_test.txt").write_text(" = \n" + "  ".join(words))
    sample = load(workload("text"), data_dir=small)
    assert (sample.available, sample.source) == (2, "corpus/wikitext2_test.txt")
    assert [e.prompt.split() for e in sample.examples] == [
        ["=", *words[: PASSAGE_WORDS - 1]],
        words[PASSAGE_WORDS - 1 : 2 * PASSAGE_WORDS - 1],
    ]
    assert sample.examples[0].prompt.startswith("= \nw0  w1")
    with pytest.raises(InputError, match="splits that exist: test"):
        load(workload("text"), "train", data_dir=small)
    (small / "corpus" / "wikitext2_test.txt").write_text("too short")
    with pytest.raises(InputError, match=r"has 2 words; allowed: 128 or more"):
        load(workload("text"), data_dir=small)


def test_c4_is_read_from_its_own_file_and_has_no_train_split(small: Path) -> None:
    (small / "corpus").mkdir()
    (small / "corpus" / "c4_demo.txt").write_text("word " * PASSAGE_WORDS)
    sample = load(workload("c4"), data_dir=small)
    assert (sample.available, sample.source) == (1, "corpus/c4_demo.txt")
    for name, split in (("c4", "train"), ("text", "test")):
        with pytest.raises(InputError, match="no such split of workload"):
            load(workload(name), split, data_dir=small)  # type: ignore[arg-type]


def test_truthfulqa_in_own_words_does_not_show_the_options(data_dir: Path) -> None:
    shown = load(workload("truthfulqa"), data_dir=data_dir).examples
    bare = load(workload("truthfulqa_gen"), data_dir=data_dir).examples
    assert [e.answer for e in shown] == [e.answer for e in bare]
    assert bare[0].prompt == "What happens if you eat a pomegranate?"
    assert all(s.prompt.startswith(f"{b.prompt}\nA. ") for s, b in zip(shown, bare, strict=True))


def test_more_than_there_are_says_how_many(small: Path) -> None:
    with pytest.raises(InputError, match=r"gsm8k/test.jsonl: 11 prompts wanted, 10 available"):
        load(workload("gsm8k"), count=11, data_dir=small)


@pytest.mark.parametrize("count", [0, -1])
def test_a_draw_of_none_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="allowed: 1 or more"):
        load(workload("arithmetic"), count=count)


def test_an_unknown_split_is_refused_for_generated_problems_too() -> None:
    with pytest.raises(UsageError, match=r"'dev' does not exist; allowed: test, train"):
        load(workload("arithmetic"), "dev")  # type: ignore[arg-type]


def test_the_default_needs_no_data() -> None:
    assert workload(DEFAULT_WORKLOAD).source == "generated"
    assert workload(DEFAULT_WORKLOAD).train_split_available
    assert len(load(workload(DEFAULT_WORKLOAD), count=3).examples) == 3


def test_every_folder_of_the_data_has_its_workload(data_dir: Path) -> None:
    folders = {path.parent.name for path in data_dir.glob("*/test.jsonl")}
    others = ("text", "c4", "orca_math")  # plain text; not in the folder
    entries = [w for w in map(workload, NAMES) if w.source != "generated" and w.name not in others]
    assert folders == {folder for entry in entries for folder in entry.source}
    for entry in entries:
        trains = [(data_dir / folder / "train.jsonl").is_file() for folder in entry.source]
        assert entry.train_split_available == all(trains), entry.name


def test_a_merged_set_holds_its_parts_in_order(data_dir: Path) -> None:
    merged = load(workload("gaokao"), data_dir=data_dir)
    parts = [load(workload(name), data_dir=data_dir) for name in workload("gaokao").source]
    assert merged.examples == tuple(e for part in parts for e in part.examples)
    assert merged.source == " + ".join(part.source for part in parts)
    assert merged.available == 214 + 218 + 287 + 150


def test_importing_the_catalogue_is_light() -> None:
    code = (
        "import sys, moebench.workloads.draw, moebench.workloads.likelihood;"
        "heavy = ('torch', 'numpy', 'transformers', 'yaml', 'datasets', 'rouge_score', 'nltk');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_documented_table_is_the_catalogue() -> None:
    lines = (ROOT / "docs" / "workloads.md").read_text().splitlines()
    for name in NAMES:
        entry = workload(name)
        papers = ", ".join(f"{paper} {count}" for paper, count in entry.few_shot_in.items())
        options = (entry.likelihood or "—") + (", per byte" if entry.per_byte else "")
        cells = (f"`{name}`", entry.category, papers or "—", entry.metric, options)
        assert f"| {' | '.join(cells)} | {entry.max_new_tokens} |" in lines
