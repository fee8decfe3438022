"""Rows and runs of an accuracy table, by hand."""

from typing import Any

from moebench.results.accuracy_table import AccuracyRow

HEADER = (
    "setting,model,system,workload,generated,category,alpha,scoring,n,score,stderr,chance,"
    "agreement,kl,cache_ratio,seed,data_hash,weights_hash,code_hash,run_id,torch,cut"
)
LINE = (
    "S1,deepseek-moe-16b,smoe,gsm8k,false,reasoning,0.2500,generation,200,45.0000,3.5178,,"
    "0.981234,0.012300,0.712300,0,data,weights,code,run1,2.13.0,0"
)


def row(**changes: Any) -> AccuracyRow:
    """The row of `LINE`, with changes."""
    values: dict[str, Any] = {
        "setting": "S1", "model": "deepseek-moe-16b", "system": "smoe", "workload": "gsm8k",
        "generated": False, "category": "reasoning", "alpha": 0.25, "scoring": "generation",
        "n": 200, "score": 45.0, "stderr": 3.5178, "chance": None, "agreement": 0.981234,
        "kl": 0.0123, "cache_ratio": 0.7123, "seed": 0, "data_hash": "data",
        "weights_hash": "weights", "code_hash": "code", "run_id": "run1", "torch": "2.13.0",
        "cut": 0,
    }  # fmt: skip
    return AccuracyRow(**(values | changes))


def scored_run(**accuracy: Any) -> dict[str, Any]:
    """A run's document in the parts that a row is made of; they give the row of `LINE`."""
    return {
        "run_id": "run1",
        "spec": {
            "system": "smoe", "setting": "S1", "model": "deepseek-moe-16b", "machine": "rtx3080ti",
            "workload": "gsm8k", "batch": 1, "prompts": 200, "new_tokens": 64,
            "scoring": "generation", "alpha": 0.25, "seed": 0, "cache_ratio": 0.3,
        },
        "metrics": {"cache_ratio": 0.7123},
        "accuracy": {"score": 45.0, "n": 200, "stderr": 3.5178, "metric": "exact_number",
                     "chance": None, "cut": 0, "agreement": 0.981234, "kl": 0.0123} | accuracy,
        "provenance": {"versions": {"torch": "2.13.0"}, "data_hash": "data",
                       "weights_hash": "weights", "code_hash": "code"},
    }  # fmt: skip
