"""Which traces are recorded, without recording them."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.api import trace
from moebench.harness.api.run import console_progress, silent
from moebench.harness.run.recording import MACHINE, Recorded
from moebench.harness.settings import settings
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.catalogue import scale_names

KEPT = Recorded("float32", True)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traces that were to be recorded: each becomes a folder with a file of 1.26 MB."""
    given: list[Any] = []

    def record(spec: Any, data_dir: Any, out: Path, kept: Any, shown: Any) -> None:
        out.mkdir(parents=True)
        (out / "ids.npy").write_bytes(b"0" * 1_260_000)
        given.append((spec, data_dir, out, kept, shown))

    monkeypatch.setattr(trace, "_record", record)
    monkeypatch.setattr(trace, "open_trace", lambda folder: f"opened {folder}")
    return given


def record(
    out: str = "out", workloads: Any = (None,), every: bool = False, **given: Any
) -> list[str]:
    said: list[str] = []
    given = {"system": "gpu-only", **given}
    trace.record(given, workloads, None, Path(out), every, KEPT, silent, said.append)
    return said


def test_one_trace_is_its_folder(recorded: list[Any]) -> None:
    said = record(setting="S3", workload="facts", prompts=3)
    ((spec, data_dir, out, kept, shown),) = recorded
    assert (spec.setting, spec.prompts, spec.allow_overcommit) == ("S3", 3, True)
    assert (data_dir, out, kept, shown) == (None, Path("out"), KEPT, silent)
    assert said == ["out: 3 sequences, 1.3 MB"]
    with pytest.raises(UsageError, match="out: exists"):
        record(setting="S3")


def test_of_several_traces_those_that_exist_stay(recorded: list[Any]) -> None:
    said = record(workloads=("facts", "passages"), setting="S3")
    model = settings()["S3"].model
    assert [line.split(":")[0] for line in said] == [
        f"out/{model}__facts", f"out/{model}__passages"
    ]  # fmt: skip
    assert [spec.workload for spec, *_ in recorded] == ["facts", "passages"]
    again = record(workloads=("facts", "passages", "arithmetic"), setting="S3")
    assert again[:2] == [f"out/{model}__facts exists", f"out/{model}__passages exists"]
    assert len(recorded) == 3
    Path("file").write_text("")
    with pytest.raises(InputError, match="--out file: file is not a folder"):
        record("file", workloads=("facts", "passages"), setting="S3")


def test_every_scale_model_is_recorded_in_its_first_setting(recorded: list[Any]) -> None:
    record(every=True, workloads=("facts",))
    specs = [spec for spec, *_ in recorded]
    assert [spec.model for spec in specs] == scale_names()
    for spec in specs:
        own = [one.name for one in settings().values() if one.model == spec.model]
        assert spec.setting == (own[0] if own else None)
        if not own:
            assert spec.machine == MACHINE
    for more in ({"setting": "S3"}, {"model": "mixtral-8x7b"}, {"weights": "w"}):
        with pytest.raises(UsageError, match="--all: every shipped scale model; leave --setting"):
            record("other", every=True, **more)


def test_a_model_alone_is_recorded_on_the_usual_machine(recorded: list[Any]) -> None:
    record(model="mixtral-8x7b")
    assert recorded[0][0].machine == MACHINE
    record("b", model="mixtral-8x7b", machine="h100", system="smoe")
    spec = recorded[1][0]
    assert (spec.machine, spec.allow_overcommit) == ("h100", False)
    with pytest.raises(UsageError, match="recording runs on a simulated machine"):
        record("c", model="mixtral-8x7b", machine="local")


def test_a_trace_is_recorded_by_its_options_and_opened(recorded: list[Any]) -> None:
    found: Any = trace.trace("a", model="mixtral-8x7b", workload="facts", prompts=2)
    assert found == "opened a"
    spec, data_dir, out, kept, shown = recorded[0]
    assert (spec.system, spec.workload, spec.prompts) == ("gpu-only", "facts", 2)
    assert (data_dir, out, kept, shown) == (None, Path("a"), Recorded("float16", None), silent)
    trace.trace("b", system="smoe", scores="float32", states=False, progress=True, data_dir=".",
                setting="S3")  # fmt: skip
    spec, data_dir, _, kept, shown = recorded[1]
    assert (spec.system, data_dir, kept) == ("smoe", Path(), Recorded("float32", False))
    assert shown is console_progress
    with pytest.raises(UsageError, match="a: exists"):
        trace.trace("a", model="mixtral-8x7b")
