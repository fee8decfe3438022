"""The hub's question sets, from local repositories with the hub's layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import load
from moebench.workloads.example import Example
from moebench.workloads.hub import HUB, is_hub, read_hub
from tests.systems.native.modules import put_in_place

NQ = "google-research-datasets/nq_open"
#: A row of each set in the hub's own columns, and the example that the evaluation data makes of it.
ROWS: dict[str, tuple[dict[str, Any], str, object, object]] = {
    "gsm8k": ({"question": "How many?", "answer": "48/2 = <<48/2=24>>24.\n#### 1,024"},
              "How many?", None, "1,024"),
    "math": ({"problem": "Half?", "level": "Level 1", "type": "Algebra",
              "solution": r"\boxed{2} is no, \boxed{\frac{1}{2}}."}, "Half?", None, r"\frac{1}{2}"),
    "boolq": ({"question": "is it", "answer": False, "passage": "It is not."},
              "It is not.\nQuestion: is it?\nA. yes\nB. no", ("yes", "no"), 1),
    "wic": ({"word": "class", "sentence1": "A class.", "sentence2": "Real class.", "label": 0},
            "Sentence 1: A class.\nSentence 2: Real class.\nQuestion: Is the word \"class\" used "
            "with the same meaning in both sentences?\nA. yes\nB. no", ("yes", "no"), 1),
    "race_middle": ({"article": "Text. ", "question": "Where?", "answer": "B",
                     "options": ["America.", "Canada."]},
                    "Text.\nQuestion: Where?\nA. America.\nB. Canada.", ("America.", "Canada."), 1),
    "hellaswag": ({"activity_label": "Tango", "ctx_a": "A band [a] plays.", "ctx_b": "they",
                   "ctx": "A band plays. they", "endings": ["dance.", "[substeps] fly."],
                   "label": "1"},
                  "Tango: A band plays. They\nA. dance.\nB. fly.", ("dance.", "fly."), 1),
    "arc_easy": ({"question": "Which?", "answerKey": "2",
                  "choices": {"text": ["gray", "warm"], "label": ["1", "2"]}},
                 "Which?\nA. gray\nB. warm", ("gray", "warm"), 1),
    "piqa": ({"goal": "Fight", "sol1": "run", "sol2": "hide", "label": 1},
             "Fight\nA. run\nB. hide", ("run", "hide"), 1),
    "winogrande": ({"sentence": "Sarah saw Maria so _ left.", "option1": "Sarah",
                    "option2": "Maria", "answer": "2"},
                   "Sarah saw Maria so _ left.\nA. Sarah\nB. Maria", ("Sarah", "Maria"), 1),
    "mmlu": ({"question": "True?", "subject": "logic", "choices": ["no", "yes"], "answer": 1},
             "True?\nA. no\nB. yes", ("no", "yes"), 1),
    "triviaqa": ({"question": "Who?", "answer": {"value": "Dieppe", "aliases": ["Dieppe", "D"]}},
                 "Who?", None, "Dieppe"),
    "nq_open": ({"question": "who", "answer": ["a", "b"]}, "who", None, "a"),
    "squad": ({"id": "x", "context": "A passage.", "question": "Which?",
               "answers": {"text": ["23", "23 years"], "answer_start": [1, 2]}},
              "A passage.\nQuestion: Which?", None, "23"),
    "orca_math": ({"question": "Jungkook is 5th. Who is last?",
                   "answer": "9 - 3 = 6, so there are 1,006."},
                  "Jungkook is 5th. Who is last?", None, "1,006"),
    "alpaca": ({"instruction": "Sum up", "input": "a text", "output": "short", "text": "..."},
               "Sum up\na text", None, "short"),
}  # fmt: skip


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty local copy of the hub, read offline and without another cache."""
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def publish(mirror: Path, folder: str, rows: list[dict[str, Any]], split: str = "test") -> Path:
    """Write a repository with a card in the hub's layout, and return its data folder."""
    found = HUB[folder]
    repository = mirror / found.repository
    repository.mkdir(parents=True)
    name = (found.test if split == "test" else found.train or "").split("[")[0]
    card = ["---", "configs:"]
    for config in found.configs:
        card += [f"- config_name: {config or 'default'}", "  data_files:"]
        card += [f"  - split: {name}", f"    path: {config or 'default'}/{name}.jsonl"]
        file = repository / (config or "default") / f"{name}.jsonl"
        file.parent.mkdir()
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (repository / "README.md").write_text("\n".join([*card, "---", ""]))
    return Path(f"hub:{mirror}")


def read(folder: str, data_dir: Path) -> list[Example]:
    return list(load(workload(folder), data_dir=data_dir).examples)


def test_every_set_has_a_row_here() -> None:
    assert set(HUB) == {*ROWS, "arc_challenge", "truthfulqa"}


@pytest.mark.parametrize("folder", ROWS)
def test_a_row_becomes_an_example_of_the_evaluation_data(folder: str, mirror: Path) -> None:
    row, prompt, choices, answer = ROWS[folder]
    first = read(folder, publish(mirror, folder, [row]))[0]
    assert (first.prompt, first.choices, first.answer) == (prompt, choices, answer)
    assert first.id == f"{folder}/test/0"


def test_truthfulqa_shuffles_its_options_always_alike(mirror: Path) -> None:
    rows = [
        {"question": f"What {i}?",
         "mc1_targets": {"choices": ["true", "false 1", "false 2"], "labels": [1, 0, 0]},
         "mc2_targets": {"choices": ["true", "right", "false 1"], "labels": [1, 1, 0]}}
        for i in range(30)
    ]  # fmt: skip
    data_dir = publish(mirror, "truthfulqa", rows)
    examples = read("truthfulqa", data_dir)
    assert examples == read("truthfulqa", data_dir)
    assert {e.answer for e in examples} == {0, 1, 2}
    for e in examples:
        assert e.choices is not None
        assert isinstance(e.answer, int)
        assert (e.choices[e.answer], e.answers) == ("true", ("true", "right"))
    assert read("truthfulqa_gen", data_dir)[0].prompt == "What 0?"
    with pytest.raises(InputError, match="no such split of truthfulqa; splits that exist: test"):
        load(workload("truthfulqa"), "train", data_dir=data_dir)


def test_a_draw_is_recorded(mirror: Path) -> None:
    rows = [{"question": f"q{i}", "answer": [f"a{i}"]} for i in range(20)]
    data_dir = publish(mirror, "nq_open", rows)
    sample = load(workload("nq_open"), count=5, seed=3, data_dir=data_dir)
    assert (sample.source, sample.available) == (f"hub:{NQ} validation", 20)
    assert sample == load(workload("nq_open"), count=5, seed=3, data_dir=data_dir)


def test_orca_math_keeps_its_first_thousand_for_testing(mirror: Path) -> None:
    rows = [{"question": f"q{i}", "answer": f"so it is {i}."} for i in range(1003)]
    data_dir = publish(mirror, "orca_math", rows)
    assert len(read("orca_math", data_dir)) == 1000
    train = load(workload("orca_math"), "train", data_dir=data_dir).examples
    assert [e.answer for e in train] == ["1000", "1001", "1002"]


def test_a_question_with_two_equal_options_is_left_out(mirror: Path) -> None:
    row = ROWS["mmlu"][0]
    data_dir = publish(mirror, "mmlu", [row | {"choices": ["yes", "yes"]}, row])
    assert [e.id for e in read("mmlu", data_dir)] == ["mmlu/test/1"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "who"}, r":1: the row is not as expected \(KeyError: 'question'\); its columns"),
        ({"question": "who", "answer": []}, ":1: the row is not as expected"),
        ({"question": " ", "answer": ["a"]}, ":1: prompt is empty; allowed: a non-empty string"),
    ],
)
def test_an_unexpected_row_names_its_place(row: dict[str, Any], message: str, mirror: Path) -> None:
    with pytest.raises(InputError, match=f"^hub:{NQ}{message}") as caught:
        read("nq_open", publish(mirror, "nq_open", [row]))
    assert "\n" not in str(caught.value)


def test_an_answer_out_of_range(mirror: Path) -> None:
    row = ROWS["mmlu"][0] | {"answer": 4}
    with pytest.raises(InputError, match=r"mmlu:1: answer is 4, out of range; allowed: .* 0 to 1"):
        read("mmlu", publish(mirror, "mmlu", [row]))


def test_what_the_hub_does_not_have(mirror: Path) -> None:
    data_dir = publish(mirror, "nq_open", [{"question": "q", "answer": ["a"]}])
    with pytest.raises(InputError, match="split train cannot be read") as caught:
        load(workload("nq_open"), "train", data_dir=data_dir)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        read("gsm8k", data_dir)
    with pytest.raises(
        UsageError, match=r"gaokao_math_i is not read from the hub; give --data-dir"
    ):
        read("gaokao", data_dir)


def test_without_the_library(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("moebench.workloads.hub.import_module", missing)
    with pytest.raises(UsageError, match=r"pip install moebench\[hub\]"):
        read("gsm8k", Path("hub:"))


def test_what_stands_for_the_hub() -> None:
    assert is_hub(Path("hub:"))
    assert is_hub(Path("hub:/a/mirror"))
    assert not is_hub(Path("hub"))
    assert not is_hub(Path("data"))


# ----------------------------------------------------------------------------- rows by themselves


@pytest.mark.parametrize(
    ("folder", "row", "record"),
    [
        ("gsm8k", {"question": "q", "answer": "a\n#### 5 "},
         {"prompt": "q", "answer": "5", "solution": "a"}),
        ("orca_math", {"question": "q", "answer": "-1.5, then 2,000,"},
         {"prompt": "q", "answer": "2,000", "solution": "-1.5, then 2,000,"}),
        ("orca_math", {"question": "q", "answer": "so it is -0.25."},
         {"prompt": "q", "answer": "-0.25", "solution": "so it is -0.25."}),
        ("orca_math", {"question": "q", "answer": "none"},
         {"prompt": "q", "answer": "none", "solution": "none"}),
        ("math", {"problem": "p", "solution": "it is 3"},
         {"prompt": "p", "answer": "it is 3", "solution": "it is 3"}),
        ("math", {"problem": "p", "solution": r"\boxed{4} left"},
         {"prompt": "p", "answer": "4", "solution": r"\boxed{4} left"}),
        ("boolq", {"passage": "P.", "question": "is it", "answer": True},
         {"prompt": "P.\nQuestion: is it?\nA. yes\nB. no", "choices": ["yes", "no"], "answer": 0}),
        ("hellaswag", {"activity_label": "Knot", "ctx_a": "[header] How [title] Take it.",
                       "ctx_b": "then", "endings": [" go [x] on.", "stop."], "label": "0"},
         {"prompt": "Knot: How. Take it. Then\nA. go on.\nB. stop.",
          "choices": ["go on.", "stop."], "answer": 0}),
        ("winogrande", {"sentence": "s _", "option1": "a", "option2": "b", "answer": "1"},
         {"prompt": "s _\nA. a\nB. b", "choices": ["a", "b"], "answer": 0}),
        ("mmlu", {"question": " q ", "choices": ["a", "b"], "answer": 0},
         {"prompt": "q\nA. a\nB. b", "choices": ["a", "b"], "answer": 0}),
        ("triviaqa", {"question": "q", "answer": {"value": "D", "aliases": ["E", "D", "F"]}},
         {"prompt": "q", "answer": "D", "answers": ["D", "E", "F"]}),
        ("squad", {"context": "C.", "question": " q ", "answers": {"text": ["a", "a", "b"]}},
         {"prompt": "C.\nQuestion: q", "answer": "a", "answers": ["a", "b"]}),
        ("alpaca", {"instruction": "Do", "input": "", "output": "done"},
         {"prompt": "Do", "answer": "done", "turns": [{"role": "user", "content": "Do"}]}),
        ("alpaca", {"instruction": "Do", "input": "it", "output": "done"},
         {"prompt": "Do\nit", "answer": "done",
          "turns": [{"role": "user", "content": "Do\nit"}]}),
    ],
)  # fmt: skip
def test_every_field_of_a_converted_row(
    folder: str, row: dict[str, Any], record: dict[str, Any]
) -> None:
    assert HUB[folder].convert(row) == record


def test_sets_are_asked_for_by_repository_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    def load_dataset(*where: object, split: str) -> list[dict[str, Any]]:
        asked.append((*where, split))
        return [{"problem": f"p{len(asked)}", "solution": r"\boxed{1}"}]

    put_in_place(monkeypatch, "datasets", load_dataset=load_dataset)
    examples, source = read_hub(("math", "math"), "train", Path("hub:"))
    topics = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra",
              "number_theory", "prealgebra", "precalculus")  # fmt: skip
    assert asked == [("EleutherAI/hendrycks_math", topic, "train") for topic in (*topics, *topics)]
    assert source == " + ".join(["hub:EleutherAI/hendrycks_math train"] * 2)
    assert [one.id for one in examples] == [f"math/train/{n}" for n in range(7)] * 2
    assert [one.prompt for one in examples] == [f"p{n}" for n in range(1, 15)]


@pytest.mark.parametrize(
    ("problem", "said"),
    [(OSError("no route\nto the hub"), "no route"), (ValueError(" "), "ValueError")],
)
def test_a_hub_that_fails_is_one_line(
    problem: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(*where: object, split: str) -> None:
        raise problem

    put_in_place(monkeypatch, "datasets", load_dataset=load_dataset)
    with pytest.raises(InputError) as caught:
        read_hub(("gsm8k",), "test", Path("hub:"))
    assert str(caught.value) == (
        f"hub:openai/gsm8k: split test cannot be read ({said}); check the connection, or give "
        "--data-dir DIR"
    )


@pytest.mark.parametrize("folder", ["/nowhere", "./nowhere", "nowhere", "../nowhere"])
def test_a_copy_of_the_hub_is_a_folder_whatever_its_path(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name without a leading point is one, too: the hub itself has no folders."""
    monkeypatch.chdir(tmp_path)
    put_in_place(monkeypatch, "datasets", load_dataset=lambda *_, split: pytest.fail("asked"))
    with pytest.raises(InputError, match=r"nowhere/openai/gsm8k: no such folder; --data-dir hub:"):
        read_hub(("gsm8k",), "test", Path(f"hub:{folder}"))


def test_rows_of_other_columns_are_named_with_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": "q", "answer": "#### 1"}, {"query": "q", "text": "x"}]
    put_in_place(monkeypatch, "datasets", load_dataset=lambda *where, split: rows)
    with pytest.raises(InputError) as caught:
        read_hub(("gsm8k",), "test", Path("hub:"))
    assert str(caught.value) == (
        "hub:openai/gsm8k:2: the row is not as expected (KeyError: 'answer'); its columns are "
        "query, text"
    )
