"""Commands that repeat a run or an evaluation."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate.session import resolve_evaluated
from moebench.harness.run.repeat import _needs_data, repeat, repeats, shortest
from moebench.harness.run.rules import resolve
from moebench.results.store import Store


def evaluated(*tasks: tuple[str, int, int]) -> dict[str, Any]:
    """Return an evaluation's document; of each task its name, questions and shown examples."""
    spec = resolve_evaluated(None, "decode", system="smoe", setting="S3")
    return {
        "run_id": "0123456789ab",
        "spec": spec.model_dump(),
        "evaluation": {
            "evaluator": "lm-eval", "mode": "decode",
            "tasks": [{"workload": name, "n": n, "shown": shown} for name, n, shown in tasks],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "prompts", "shown"),
    [
        ([("arc_easy", 3, 0)], "3", None),
        ([("arc_easy", 3, 0), ("mmlu", 5, 2)], "5", "2"),
        ([("mmlu", 4, 1)], "4", "1"),
        ([("mmlu", 5, 2), ("arc_easy", 6, 4), ("gsm8k", 3, 3)], "6", "4"),
    ],
)
def test_an_evaluation_names_tasks_questions_and_shots(
    tasks: list[tuple[str, int, int]], prompts: str, shown: str | None, tmp_path: Path
) -> None:
    words = shlex.split(repeat(Store(tmp_path), evaluated(*tasks)))
    assert words[:4] == ["moebench", "eval", "--engine", "lm-eval"]

    def after(flag: str) -> str | None:
        return words[words.index(flag) + 1] if flag in words else None

    assert after("--tasks") == ",".join(name for name, _, _ in tasks)
    assert (after("--prompts"), after("--few-shot")) == (prompts, shown)
    assert (after("--system"), after("--setting"), after("--mode")) == ("smoe", "S3", "decode")


# ------------------------------------------------------------------------- runs

BARE = {"system": "smoe", "model": "mixtral-8x7b", "machine": "a6000"}


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"system": "smoe", "setting": "S3"}, "--system smoe --setting S3"),
        # What the setting says, or a default, is left out; what differs is not.
        ({"system": "smoe", "setting": "S3", "machine": "a6000", "alpha": 0.25, "batch": 1},
         "--system smoe --setting S3"),
        ({"system": "smoe", "setting": "S3", "machine": "h100"},
         "--system smoe --setting S3 --machine h100"),
        ({"system": "smoe", "setting": "S3", "alpha": 0.3, "overrides": {"evict": "lru"}},
         "--system smoe --setting S3 --set alpha=0.3 --set evict=lru"),
        ({"system": "smoe", "setting": "D1", "new_tokens": 64},
         "--system smoe --setting D1 --new-tokens 64"),
        # 33 prompts follow from batches of 3, but not from others.
        ({"system": "smoe", "setting": "S3", "batch": 3, "prompts": 33},
         "--system smoe --setting S3 --batch 3"),
        ({"system": "smoe", "setting": "S3", "batch": 3, "prompts": 30},
         "--system smoe --setting S3 --batch 3 --prompts 30"),
        ({"system": "smoe", "setting": "S3", "machine": "local"},
         "--system smoe --setting S3 --machine local"),
        # As many new tokens as the setting says, but not as what is scored needs.
        ({"system": "smoe", "setting": "S3", "scoring": "prefill", "new_tokens": 64},
         "--system smoe --setting S3 --scoring prefill --new-tokens 64"),
        (BARE, "--system smoe --machine a6000 --model mixtral-8x7b"),
        (BARE | {"clairvoyant": True, "allow_overcommit": True},
         "--system smoe --machine a6000 --model mixtral-8x7b --allow-overcommit --clairvoyant"),
        (BARE | {"batch": 5}, "--system smoe --machine a6000 --model mixtral-8x7b --batch 5"),
        (BARE | {"batch": 5, "prompts": 10},
         "--system smoe --machine a6000 --model mixtral-8x7b --batch 5 --prompts 10"),
        (BARE | {"device_memory_gib": 10.5},
         "--system smoe --machine a6000 --model mixtral-8x7b --device-memory 10.5GiB"),
        (BARE | {"machine": "local", "emulated_link_gb_s": 4.0, "cache_ratio": 0.5},
         "--system smoe --machine local --model mixtral-8x7b --capacity 0.5 "
         "--emulated-link 4.0GB/s"),
    ],
)  # fmt: skip
def test_the_fewest_arguments_of_a_run(given: dict[str, Any], arguments: str) -> None:
    spec = resolve(None, **given)
    found = shortest(spec)
    words, expected = shlex.split(found), shlex.split(arguments)
    assert sorted(words) == sorted(expected), found
    assert words[:2] == expected[:2]


def test_a_system_that_is_not_ours_is_repeated_without_importing_it() -> None:
    spec = resolve(None, system="smoe", setting="S3").model_copy(update={"system": "mine:Own"})
    words = shlex.split(shortest(spec))
    assert words[:2] == ["--system", "mine:Own"]
    assert {"--model", "--machine", "--device-memory", "--setting"} <= {*words}


def test_a_run_that_cannot_be_resolved_any_more_is_repeated_whole() -> None:
    spec = resolve(None, system="smoe", setting="S3").model_copy(update={"model": "no/such.json"})
    words = shlex.split(shortest(spec))
    assert {"--setting", "--model", "--machine", "--precision", "--device-memory"} <= {*words}


@pytest.mark.parametrize(
    ("spec", "tasks", "needs"),
    [
        ({"workload": "facts"}, None, False), ({"workload": "gsm8k"}, None, True),
        ({"workload": "no such"}, None, True), ({"workload": "gsm8k", "trace": "x"}, None, False),
        ({"workload": "facts", "routing": "real"}, None, True),
        ({"workload": "gsm8k"}, ["facts"], False), ({"workload": "facts"}, ["facts", "mmlu"], True),
    ],
)  # fmt: skip
def test_real_questions_need_a_data_folder(
    spec: dict[str, Any], tasks: list[str] | None, needs: bool
) -> None:
    evaluation = None if tasks is None else {"tasks": [{"workload": name} for name in tasks]}
    assert _needs_data(spec, evaluation) is needs


def test_commands_are_of_what_was_asked_for_or_of_what_was_done() -> None:
    asked = resolve(None, system="smoe", setting="S3", cache_ratio=0.5)
    done = asked.model_dump() | {"cache_ratio": 0.5, "slots": 77, "workload": "gsm8k"}
    cells = [SimpleNamespace(run_id="a", spec=asked.model_dump())]
    store: Any = SimpleNamespace(
        cells_of=lambda ids: [one for one in cells if one.run_id in {*ids}]
    )
    documents = [{"run_id": name, "spec": done} for name in "ab"]
    found = repeats(store, documents)
    assert found == {
        "a": "moebench run --system smoe --setting S3 --capacity 0.5",
        "b": "moebench run --system smoe --setting S3 --workload gsm8k --slots 77 --data-dir DIR",
    }
    assert repeat(store, documents[1]) == found["b"]
