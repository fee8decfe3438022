"""DeepSpeed's compiled operators: where they are, which are missing, and locks of builds."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.substrate.errors import MoeBenchError
from moebench.systems.native import operators
from tests.systems.native.modules import Calls, noting, put_in_place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for name in ("PATH", "DS_ACCELERATOR", "MAX_JOBS"):
        monkeypatch.setenv(name, "before")
    return tmp_path


def compile_it(folder: Path, name: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{name}.so").touch()


def test_operators_lie_in_a_given_folder_or_beside_the_interpreter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert operators.extensions() == folder
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
        else:
            monkeypatch.setenv("TORCH_EXTENSIONS_DIR", unset)
        assert operators.extensions() == Path(sys.prefix) / "torch_extensions"


def test_the_interpreters_own_programs_come_first(folder: Path) -> None:
    operators.use()
    beside = str(Path(sys.executable).parent)
    assert os.environ["PATH"] == f"{beside}{os.pathsep}before"
    operators.use()
    assert os.environ["PATH"] == f"{beside}{os.pathsep}before", "once"
    assert os.environ["TORCH_EXTENSIONS_DIR"] == str(folder)


def test_an_operator_that_is_not_compiled_is_named(folder: Path) -> None:
    assert operators.built([])
    assert not operators.built(["pin_memory"])
    with pytest.raises(MoeBenchError) as missing:
        operators.check(operators.ALWAYS)
    assert str(missing.value) == (
        f"DeepSpeed's operator deepspeed_shm_comm is not compiled in {folder}; type: "
        "python -m moebench.systems.native.operators"
    )
    for name in operators.ALWAYS:
        compile_it(folder, name)
    operators.check(operators.ALWAYS)
    assert operators.built(operators.ALWAYS)
    assert not operators.built([*operators.ALWAYS, "async_io"])
    with pytest.raises(MoeBenchError, match="type: apt-get install libaio-dev; python -m"):
        operators.check(operators.FROM_NVME)


def test_an_old_lock_is_of_a_build_that_goes_on_or_was_killed(folder: Path) -> None:
    compile_it(folder, "pin_memory")
    lock = folder / "pin_memory" / "lock"
    lock.touch()
    operators.check(["pin_memory"])
    old = time.time() - 90
    os.utime(lock, (old, old))
    with pytest.raises(MoeBenchError, match="one was killed while it built them: then delete this"):
        operators.check(["pin_memory"])
    recent = time.time() - 40
    os.utime(lock, (recent, recent))
    operators.check(["pin_memory"])


@pytest.mark.parametrize("headers", [True, False])
def test_a_build_leaves_out_what_lacks_headers(
    folder: Path, headers: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    calls: Calls = []
    monkeypatch.delenv("DS_ACCELERATOR")
    monkeypatch.delenv("MAX_JOBS")
    put_in_place(monkeypatch, "deepspeed.ops.op_builder.cpu", ShareMemCommBuilder=lambda: (
        SimpleNamespace(load=noting(calls, "shared"))))  # fmt: skip
    put_in_place(monkeypatch, "deepspeed.ops.op_builder", AsyncIOBuilder=lambda: SimpleNamespace(
        load=noting(calls, "asynchronous"), is_compatible=lambda: headers))  # fmt: skip
    operators.build()
    assert [name for name, _ in calls] == ["shared", "asynchronous"][: 1 + headers]
    said = "" if headers else "no libaio headers: DeepSpeed's NVMe offload is not compiled\n"
    assert capsys.readouterr().out == said
    assert os.environ["DS_ACCELERATOR"] == "cpu"
    assert os.environ["MAX_JOBS"] == str(os.cpu_count() or 1)
    (folder / "async_io").mkdir()
    lock = folder / "async_io" / "lock"
    lock.touch()
    os.utime(lock, (1, 1))
    calls.clear()
    with pytest.raises(MoeBenchError, match="lock: DeepSpeed's operators are being built"):
        operators.build()
    assert calls == []
