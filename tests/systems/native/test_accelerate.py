"""How Accelerate is called for each option, with a fake package, and what its hooks bring."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.errors import UsageError
from moebench.systems.native import accelerate
from moebench.systems.native.accelerate import NativeAccelerate, hooks, runner
from moebench.systems.native.hugging_face import Streaming
from tests.systems.native.modules import Calls, FakeModel, Parameter, job, noting, put_in_place

CPU = torch.device("cpu")
DISK = {"offload": "disk", "read": "copy", "max_memory": None}


def module(hook: Any, *elements: int) -> Any:
    return SimpleNamespace(
        _hf_hook=hook, parameters=lambda recurse: [] if recurse else [*map(Parameter, elements)]
    )


#: Two modules whose hook loads weights, of 100 and 200 MB; one has none of its own.
MODULES = (
    module(SimpleNamespace(offload=True), 10_000_000, 15_000_000),
    module(SimpleNamespace(hooks=[SimpleNamespace(offload=False), SimpleNamespace(offload=True)]),
           50_000_000),
    module(SimpleNamespace(offload=True)), module(SimpleNamespace(offload=False), 7),
    SimpleNamespace(parameters=lambda recurse: [Parameter(9)]),
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found: Calls = []
    put_in_place(
        monkeypatch, "accelerate",
        **{name: noting(found, name, f"answer of {name}") for name in (
            "cpu_offload", "disk_offload", "infer_auto_device_map", "dispatch_model",
        )},
    )  # fmt: skip
    model = FakeModel(found, MODULES)
    load = SimpleNamespace(from_pretrained=noting(found, "load", model))
    put_in_place(monkeypatch, "transformers", AutoModelForCausalLM=load)
    return found


def model_of(streaming: Any) -> FakeModel:
    assert isinstance(streaming, Streaming)
    return streaming._model


def test_hooks_that_load_are_counted_with_their_modules_own_weights() -> None:
    assert hooks(FakeModel([], MODULES)) == (2, 300_000_000)


def test_a_copy_from_the_disk_for_each_use(calls: Calls, tmp_path: Path) -> None:
    found = runner(job(tmp_path, **DISK))
    model = model_of(found)
    assert calls == [
        ("load", str(tmp_path / "model"), {"dtype": torch.float32}), ("eval",),
        ("disk_offload", model, str(tmp_path), {"execution_device": CPU}), ("eval",),
    ]  # fmt: skip
    assert found.facts == ["2 hooks bring 300 MB of weights for each pass"]


def test_files_that_are_mapped(calls: Calls, tmp_path: Path) -> None:
    runner(job(tmp_path, **DISK | {"read": "mmap"}))
    runner(job(tmp_path, **DISK | {"read": "mmap", "max_memory": "60MB"}))
    given = [more for name, *_, more in (one for one in calls if one[0] == "load")]
    common = {"dtype": torch.float32, "offload_folder": str(tmp_path)}
    assert given == [
        {**common, "device_map": {"": "disk"}, "max_memory": None},
        {**common, "device_map": "auto", "max_memory": {"cpu": 60_000_000, "disk": 2**62}},
    ]
    assert {name for name, *_ in calls} == {"load", "eval"}


def test_some_whole_layers_stay_in_memory(calls: Calls, tmp_path: Path) -> None:
    model = model_of(runner(job(tmp_path, **DISK | {"max_memory": "1.5GB"})))
    most = {"cpu": 1_500_000_000, "disk": 2**62}
    assert calls[2:4] == [
        ("infer_auto_device_map", model,
         {"max_memory": most, "no_split_module_classes": ("Layer",)}),
        ("dispatch_model", model,
         {"device_map": "answer of infer_auto_device_map", "main_device": "cpu",
          "offload_dir": str(tmp_path), "force_hooks": True}),
    ]  # fmt: skip


def test_weights_that_stay_in_memory(calls: Calls, tmp_path: Path) -> None:
    found = runner(job(tmp_path, **DISK | {"offload": "cpu", "read": "mmap"}))
    assert calls[2] == ("cpu_offload", model_of(found), {"execution_device": CPU})
    assert len(found.facts) == 1
    calls.clear()
    alone = runner(job(tmp_path, **DISK | {"offload": "none"}))
    assert [name for name, *_ in calls] == ["load", "eval"]
    assert alone.facts == []


def test_notes_name_the_way_of_offloading() -> None:
    said = {
        what: NativeAccelerate(**options).remarks()[0]
        for what, options in {
            "copies all experts": {}, "maps each tensor's file": {"read": "mmap"},
            "moves nothing": {"offload": "cpu"}, "Transformers alone": {"offload": "none"},
        }.items()
    }  # fmt: skip
    assert all(what in text for what, text in said.items())
    assert NativeAccelerate().libraries == ("torch", "transformers", "accelerate")
    assert NativeAccelerate.requires == {"accelerate": "accelerate"}
    assert accelerate.NativeAccelerate().lossless


def test_options_that_contradict_each_other_are_refused() -> None:
    NativeAccelerate(max_memory="60MB")
    for offload in ("cpu", "none"):
        with pytest.raises(UsageError, match=f"max_memory and offload={offload}: all weights"):
            NativeAccelerate(max_memory="60MB", offload=offload)
    with pytest.raises(UsageError, match="max_memory is much; allowed: a size such as"):
        NativeAccelerate(max_memory="much")
