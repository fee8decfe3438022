"""OpenCompass's configuration, read as OpenCompass does but with stand-ins for its modules."""

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moebench.harness.evaluate import opencompass_run
from moebench.harness.evaluate.opencompass_data import DATASETS

FILE = Path(opencompass_run.__file__).parent / "opencompass" / "moebench_config.py"

#: Names of OpenCompass's classes, by the module that has them.
CLASSES = {
    "opencompass.partitioners": ["NaivePartitioner"], "opencompass.runners": ["LocalRunner"],
    "opencompass.tasks": ["OpenICLEvalTask", "OpenICLInferTask"],
    "moebench_model": ["MoeBenchModel"],
}  # fmt: skip

#: Abbreviations of its data sets, by the last part of the module and the list that has them.
SETS = {
    ("GaokaoBench.GaokaoBench_gen_5cfe9e", "GaokaoBench_datasets"): ["Gaokao I", "Gaokao II"],
    ("gsm8k.gsm8k_gen_1d7fe4", "gsm8k_datasets"): ["gsm8k"],
    ("race.race_gen_69ee4f", "race_datasets"): ["race-middle", "race-high"],
    ("SuperGLUE_WiC.SuperGLUE_WiC_ppl_312de9", "WiC_datasets"): ["WiC"],
    ("triviaqa.triviaqa_gen_2121ce", "triviaqa_datasets"): ["triviaqa"],
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules whose data sets lie in a folder of OpenCompass's own."""

    def put(name: str, **holds: Any) -> None:
        module = ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)

    put("mmengine")
    put("mmengine.config", read_base=nullcontext)
    put("opencompass")
    for name, classes in CLASSES.items():
        put(name, **{one: f"class {one}" for one in classes})
    for (name, given), sets in SETS.items():
        made = [
            {"abbr": abbr, "path": f"theirs/{abbr}", "data_files": "theirs", "eval_cfg": {"n": 1}}
            for abbr in sets
        ]
        put(f"opencompass.configs.datasets.{name}", **{given: made})


def read(asked: Iterable[str] | None) -> dict[str, Any]:
    """Return what the configuration defines, with its task filled in as a run does."""
    text, names = FILE.read_text(encoding="utf-8"), dict[str, Any]()
    if asked is not None:
        task = {"socket": "/s", "max_seq_len": 512, "batch": 3, "data": "/data",
                "datasets": [*asked]}  # fmt: skip
        line = next(one for one in text.splitlines() if one.startswith("task: dict = "))
        text = text.replace(line, f"task = {task!r}")
    exec(compile(text, str(FILE), "exec"), names)
    return names


@pytest.mark.usefixtures("installed")
def test_data_sets_that_are_asked_for_read_our_data_and_keep_their_details() -> None:
    found = read(["triviaqa", "WiC", "Gaokao II"])["datasets"]
    kept = {"n": 1, "dump_details": True}
    assert found == [
        {"abbr": "Gaokao II", "path": "/data", "data_files": "theirs", "eval_cfg": kept},
        {"abbr": "WiC", "path": "theirs/WiC", "data_files": "/data/WiC.jsonl", "eval_cfg": kept},
        {"abbr": "triviaqa", "path": "/data", "data_files": "theirs", "eval_cfg": kept},
    ]


@pytest.mark.usefixtures("installed")
def test_one_process_at_a_time_asks_our_model() -> None:
    found = read(["gsm8k"])
    assert found["models"] == [
        {"type": "class MoeBenchModel", "abbr": "moebench", "path": "/s", "max_seq_len": 512,
         "max_out_len": 64, "batch_size": 3, "run_cfg": {"num_gpus": 0}},
    ]  # fmt: skip
    for part, task in (("infer", "OpenICLInferTask"), ("eval", "OpenICLEvalTask")):
        assert found[part] == {
            "partitioner": {"type": "class NaivePartitioner"},
            "runner": {"type": "class LocalRunner", "max_num_workers": 1,
                       "task": {"type": f"class {task}"}},
        }  # fmt: skip


@pytest.mark.usefixtures("installed")
def test_nothing_is_asked_without_a_task() -> None:
    found = read(None)
    assert found["datasets"] == []
    (model,) = found["models"]
    assert (model["path"], model["max_seq_len"], model["batch_size"]) == ("", 2048, 1)


@pytest.mark.usefixtures("installed")
def test_it_has_a_data_set_for_each_task() -> None:
    """WiC's data are a file of its own; those of others a folder."""
    configs = {name.split(".")[1] for name, _ in SETS}
    assert {one.config for one in DATASETS.values()} == configs
    assert DATASETS["wic"].abbr == "WiC"
