"""How DeepSpeed is configured for each option, with a fake package, and where weights are."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.errors import UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.systems.native import deepspeed
from moebench.systems.native.deepspeed import NativeDeepSpeed, runner, swapped
from tests.substrate.models.checkpoints import make_checkpoint
from tests.systems.native.modules import Calls, FakeModel, Parameter, job, noting, put_in_place

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found: Calls = []
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    module = SimpleNamespace(
        parameters=lambda: [Parameter(1_000_000, "nvme"), Parameter(3_000_000)]
    )
    put_in_place(
        monkeypatch, "deepspeed", init_distributed=noting(found, "init"),
        initialize=noting(found, "initialize", (SimpleNamespace(module=module), None, None)),
    )  # fmt: skip
    model = FakeModel(found)
    load = SimpleNamespace(from_pretrained=noting(found, "load", model))
    integrations = SimpleNamespace(HfDeepSpeedConfig=noting(found, "config", "kept"))
    put_in_place(monkeypatch, "transformers", AutoModelForCausalLM=load, integrations=integrations)
    monkeypatch.setattr(deepspeed, "use", noting(found, "use"))
    monkeypatch.setattr(deepspeed, "check", noting(found, "check"))
    return found


def test_weights_in_memory(calls: Calls, tmp_path: Path) -> None:
    found: Any = runner(job(tmp_path, batch=3, offload="cpu", buffers=8))
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "zero_optimization": {
            "stage": 3, "offload_param": {"device": "cpu", "pin_memory": False},
        },
    }  # fmt: skip
    # The configuration exists before the model is loaded, which is loaded under it.
    assert [name for name, *_ in calls] == [
        "use", "check", "init", "config", "load", "eval", "initialize",
    ]  # fmt: skip
    assert calls[1][1] == ("deepspeed_shm_comm", "pin_memory")
    assert calls[2][1] == {"dist_backend": "gloo"}
    assert calls[3][1] == config
    assert calls[4][1:] == (str(tmp_path / "model"), {"dtype": torch.float32})
    assert calls[6][1]["config"] == config
    assert isinstance(calls[6][1]["model"], FakeModel)
    assert (found.facts, found.kept, found._options) == ([], "kept", {"synced_gpus": False})
    values = {name: os.environ[name] for name in VARIABLES}
    assert 1024 <= int(values.pop("MASTER_PORT")) < 65536, "a free one, chosen by the system"
    assert values == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip


def test_weights_on_a_disk_have_buffers_for_the_largest_tensor(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(deepspeed, "_largest_tensor", lambda path: asked.append(path) or 77)
    found = runner(job(tmp_path, offload="nvme", buffers=5))
    (given,) = (one[1] for one in calls if one[0] == "config")
    assert given["zero_optimization"]["offload_param"] == {
        "device": "nvme", "pin_memory": False, "nvme_path": str(tmp_path), "buffer_count": 5,
        "buffer_size": 77,
    }  # fmt: skip
    assert asked == [tmp_path / "model"]
    assert calls[1][1] == ("deepspeed_shm_comm", "pin_memory", "async_io")
    assert found.facts == [
        "4 of 16 MB of weights are on the disk (25.0%); tensors below 1 MiB stay in memory"
    ]


def test_where_weights_are_may_be_an_enumeration() -> None:
    parameters = [Parameter(250_000, SimpleNamespace(value="nvme")), Parameter(250_000, "cpu")]
    module = SimpleNamespace(parameters=lambda: parameters)
    assert swapped(module).startswith("1 of 2 MB of weights are on the disk (50.0%)")


@pytest.mark.parametrize(
    "changes",
    [{}, {"moe_intermediate_size": 4}, {"moe_intermediate_size": 4, "vocab_size": 512}],
    ids=["experts", "dense", "vocabulary"],
)
def test_the_largest_tensor_is_fused_experts_or_a_wide_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen2_moe", **changes)
    shape = Checkpoint(path).shape
    fused = shape.num_experts * 2 * shape.expert_width * shape.hidden_size
    others = [width * shape.hidden_size
              for width in (shape.dense_width, shape.shared_width, shape.vocab_size)]  # fmt: skip
    assert deepspeed._largest_tensor(path) == max([fused, *others])


def test_options_and_notes() -> None:
    assert NativeDeepSpeed().remarks() == ["DeepSpeed reads with libaio, past the page cache"]
    assert "by a copy within memory" in NativeDeepSpeed(offload="cpu").remarks()[0]
    assert (NativeDeepSpeed().offload, NativeDeepSpeed(buffers=1).buffers) == ("nvme", 1)
    with pytest.raises(UsageError, match="buffers is 0; allowed: 1 or more"):
        NativeDeepSpeed(buffers=0)
    with pytest.raises(UsageError, match="threads is 0; allowed: 1 or more"):
        NativeDeepSpeed(threads=0)
    assert NativeDeepSpeed().libraries == ("torch", "transformers", "deepspeed")
