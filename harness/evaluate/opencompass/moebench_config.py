"""OpenCompass configuration: SMoE's five workloads, with OpenCompass's own prompts and scoring.

The process that starts OpenCompass passes it a copy in which ``task`` is filled in: ``socket`` and
``max_seq_len`` of the model, ``batch``, ``data``, the folder of data files, and ``datasets``, the
abbreviations of the requested data sets.
"""

from mmengine.config import read_base
from moebench_model import MoeBenchModel
from opencompass.partitioners import NaivePartitioner
from opencompass.runners import LocalRunner
from opencompass.tasks import OpenICLEvalTask, OpenICLInferTask

with read_base():
    from opencompass.configs.datasets.GaokaoBench.GaokaoBench_gen_5cfe9e import GaokaoBench_datasets
    from opencompass.configs.datasets.gsm8k.gsm8k_gen_1d7fe4 import gsm8k_datasets
    from opencompass.configs.datasets.race.race_gen_69ee4f import race_datasets
    from opencompass.configs.datasets.SuperGLUE_WiC.SuperGLUE_WiC_ppl_312de9 import WiC_datasets
    from opencompass.configs.datasets.triviaqa.triviaqa_gen_2121ce import triviaqa_datasets

task: dict = {"socket": "", "max_seq_len": 2048, "batch": 1, "data": "", "datasets": []}  # type: ignore[type-arg]

datasets = []
for _one in [
    *GaokaoBench_datasets, *gsm8k_datasets, *race_datasets, *WiC_datasets, *triviaqa_datasets,
]:  # fmt: skip
    if _one["abbr"] in task["datasets"]:
        if _one["abbr"] == "WiC":
            _one["data_files"] = task["data"] + "/WiC.jsonl"
        else:
            _one["path"] = task["data"]
        _one["eval_cfg"]["dump_details"] = True
        datasets.append(_one)

models = [
    {
        "type": MoeBenchModel, "abbr": "moebench", "path": task["socket"],
        "max_seq_len": task["max_seq_len"], "max_out_len": 64, "batch_size": task["batch"],
        "run_cfg": {"num_gpus": 0},
    }
]  # fmt: skip

infer = {
    "partitioner": {"type": NaivePartitioner},
    "runner": {
        "type": LocalRunner, "max_num_workers": 1, "task": {"type": OpenICLInferTask},
    },
}  # fmt: skip
eval = {
    "partitioner": {"type": NaivePartitioner},
    "runner": {
        "type": LocalRunner, "max_num_workers": 1, "task": {"type": OpenICLEvalTask},
    },
}  # fmt: skip
