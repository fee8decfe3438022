"""Task files for lm-evaluation-harness, of examples by hand, without lm-eval."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.evaluate.lm_eval_run import _metric
from moebench.harness.evaluate.lm_eval_tasks import check, write_tasks
from moebench.harness.evaluate.tasks import Questions
from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet
from moebench.workloads.example import Example
from moebench.workloads.prompts import build_prompt


def asked(name: str, *examples: Example, shots: tuple[Example, ...] = ()) -> Questions:
    drawn = PromptSet(examples=examples, source="s", split="test", seed=0, available=9,
                      data_hash="h")  # fmt: skip
    return Questions(workload=workload(name), drawn=drawn, shots=shots)


def example(prompt: str, answer: Any, **more: Any) -> Example:
    return Example(id="e/1", prompt=prompt, answer=answer, **{"choices": None, **more})


def written(questions: Questions) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a task's configuration and its examples as they were written."""
    folder = Path("tasks")
    write_tasks([questions], folder)
    config = yaml.safe_load((folder / f"{questions.name}.yaml").read_text(encoding="utf-8"))
    file = Path(config["dataset_kwargs"]["data_files"]["test"])
    assert file == (folder / f"{questions.name}.jsonl").absolute()
    text = file.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return config, [json.loads(line) for line in text.splitlines()]


def test_a_number_is_written_and_compared_after_lm_evals_filters() -> None:
    shot, one = example("1 + 1?", "2"), example("How many é?", "12")
    config, records = written(asked("gsm8k", one, shots=(shot,)))
    assert config["task"] == "gsm8k"
    assert (config["dataset_path"], config["test_split"]) == ("json", "test")
    assert config["dataset_kwargs"]["cache_dir"] == str(Path("tasks/cache").absolute())
    assert (config["num_fewshot"], config["metadata"]) == (0, {"version": 1.0})
    assert (config["output_type"], config["doc_to_text"]) == ("generate_until", "query")
    assert config["generation_kwargs"] == {
        "until": ["\nQuestion:"], "do_sample": False, "max_gen_toks": 256,
    }  # fmt: skip
    assert [one["name"] for one in config["filter_list"]] == ["strict-match", "flexible-extract"]
    query = build_prompt(workload("gsm8k"), one, (shot,))
    assert records == [{"id": "e/1", "query": query, "answers": ["12"]}]
    assert list(config)[:2] == ["task", "dataset_path"]
    assert "é" in Path("tasks/gsm8k.jsonl").read_text(encoding="utf-8")


def test_a_short_text_ends_with_a_line_and_has_several_answers() -> None:
    one = example("Who?", "Bo", answers=("Al", "Bo"))
    config, records = written(asked("nq_open", one))
    assert config["generation_kwargs"]["until"] == ["\n", ".", ","]
    assert config["generation_kwargs"]["max_gen_toks"] == 32
    assert records[0]["answers"] == ["Bo", "Al"]
    assert config["metric_list"][0]["ignore_punctuation"] is True
    config, records = written(asked("facts", example("Where?", "shop")))
    assert config["generation_kwargs"]["until"] == ["\nQuestion:"]
    assert [one["name"] for one in config["filter_list"]] == ["answer"]
    assert records[0]["answers"] == ["shop"]


def test_options_are_weighed() -> None:
    one = example("Which?\nA. x\nB. y", 1, choices=("x", "y"))
    config, records = written(asked("mmlu", one))
    assert config["output_type"] == "multiple_choice"
    assert [one["metric"] for one in config["metric_list"]] == ["acc", "acc_norm"]
    assert config["target_delimiter"] == " "
    (record,) = records
    assert (record["id"], record["gold"], record["choices"]) == ("e/1", 1, ["A", "B"])
    assert record["query"].endswith("Answer:")


def test_a_blank_is_filled_before_the_rest_is_scored() -> None:
    prompt = "Ann saw Bea because _ was late.\nA. Ann\nB. Bea"
    one = example(prompt, 0, choices=("Ann", "Bea"))
    config, records = written(asked("winogrande", one))
    (record,) = records
    assert record["rest"].strip() == "was late."
    assert [text.rstrip().rpartition(" ")[2] for text in record["choices"]] == ["Ann", "Bea"]
    assert (config["doc_to_text"], config["doc_to_target"]) == ("gold", "rest")
    assert [one["metric"] for one in config["metric_list"]] == ["acc"]
    assert "query" not in record


def test_plain_text_has_three_perplexities() -> None:
    config, records = written(asked("text", example("All of it.", "")))
    assert (config["output_type"], config["doc_to_target"]) == ("loglikelihood_rolling", "text")
    assert [(one["metric"], one["higher_is_better"]) for one in config["metric_list"]] == [
        ("word_perplexity", False), ("byte_perplexity", False), ("bits_per_byte", False),
    ]  # fmt: skip
    assert records == [{"id": "e/1", "text": "All of it."}]


@pytest.mark.parametrize("name", ["math", "alpaca", "truthfulqa_gen"])
def test_what_lm_eval_cannot_score_is_refused(name: str) -> None:
    said = f"--tasks {name}: lm-eval's metrics cannot score its answers; type: moebench run"
    with pytest.raises(UsageError, match=said):
        check([asked("gsm8k"), asked(name)])
    with pytest.raises(UsageError, match=said):
        write_tasks([asked(name)], Path("tasks"))
    assert not Path("tasks").exists()


def test_a_folder_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "tasks").write_text("a file")
    with pytest.raises(InputError, match=r"^tasks cannot be written: File exists$"):
        write_tasks([asked("gsm8k", example("?", "1"))], Path("tasks"))


# ------------------------------------------------------------------------------ scores


def test_scores_are_of_a_filter_with_its_examples_in_order() -> None:
    samples = [
        {"filter": "none", "doc_id": 1, "acc": 1.0}, {"filter": "none", "doc_id": 0, "acc": 0.0},
        {"filter": "strict", "doc_id": 2, "acc": 1.0}, {"filter": "none", "doc_id": 2, "acc": []},
    ]  # fmt: skip
    results = {"acc_stderr,none": 0.25, "acc_stderr,strict": "N/A"}
    found = _metric("acc,none", 0.5, results, {"acc": True}, samples, 0.2)
    assert (found.name, found.value, found.stderr) == ("acc", 0.5, 0.25)
    assert (found.guessing, found.higher_is_better, found.items) == (0.2, True, [0.0, 1.0])
    found = _metric("acc,strict", 1, results, {}, samples, 0.2)
    assert (found.name, found.value, found.stderr) == ("acc (strict)", 1.0, None)
    assert (found.higher_is_better, found.items) == (None, [1.0])
    perplexity = [{"filter": "none", "doc_id": 0, "word_perplexity": (1.0, 2)}]
    found = _metric("word_perplexity,none", 9.5, {}, {"word_perplexity": False}, perplexity, 0.2)
    assert (found.guessing, found.items, found.higher_is_better) == (None, [], False)
