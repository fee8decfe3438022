"""How llama-cpp-python is called, with a fake package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import shape_of
from moebench.systems.native import gguf_file
from moebench.systems.native.llamacpp import NativeLlamaCpp, runner
from tests.substrate.models.checkpoints import REMOTE_CONFIGS, make_checkpoint
from tests.systems.native.modules import Calls, job, put_in_place
from tests.systems.native.test_gguf_file import CHANGES


class FakeLlama:
    """A model that continues with the numbers after a prompt's last one."""

    calls: Calls

    def __init__(self, model: str, **options: Any) -> None:
        self.calls.append((model, options))

    def reset(self) -> None:
        self.calls.append(("reset",))

    def generate(self, prompt: list[int], temp: float) -> Iterator[int]:
        self.calls.append(("generate", prompt, temp))
        token = prompt[-1]
        while True:
            token += 1
            yield token


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found: Calls = []
    put_in_place(monkeypatch, "llama_cpp", Llama=type("Llama", (FakeLlama,), {"calls": found}))
    return found


@pytest.mark.parametrize(("kv", "kind"), [("f32", 0), ("f16", 1)])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_is_opened_with_the_options(
    kv: str, kind: int, mmap: bool, calls: Calls, tmp_path: Path
) -> None:
    made = runner(job(tmp_path, batch=1, kv=kv, mmap=mmap, threads=3))
    assert calls == [(str(tmp_path / "model"), {
        "n_ctx": 96, "n_gpu_layers": 0, "use_mmap": mmap, "n_threads": 3, "n_threads_batch": 3,
        "type_k": kind, "type_v": kind,
    })]  # fmt: skip
    assert made.facts == ()


def test_a_text_ends_with_its_length_or_its_end(calls: Calls, tmp_path: Path) -> None:
    made = runner(job(tmp_path, batch=1, kv="f32", mmap=True, threads=1))
    calls.clear()
    steps: list[Any] = []
    made.generate([(4, 5)], 3, None, steps.append)
    assert steps == [[6], [7], [8]]
    assert calls == [("reset",), ("generate", [4, 5], 0.0)]
    steps.clear()
    made.generate([(4, 5)], 9, 7, steps.append)
    assert steps == [[6], [7]], "the end itself is the last"
    with pytest.raises(ValueError, match="too many values"):
        made.generate([(1,), (2,)], 1, None, steps.append)


def test_a_system_of_one_sequence_and_full_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (NativeLlamaCpp().lossless, NativeLlamaCpp(kv="f16").lossless) == (True, False)
    assert NativeLlamaCpp().libraries == ("llama_cpp",)
    assert NativeLlamaCpp().remarks() == ["llama.cpp maps its file"]
    assert "reads all" in NativeLlamaCpp(mmap=False).remarks()[0]
    checkpoint = Checkpoint(make_checkpoint(tmp_path, "olmoe", **CHANGES["olmoe"]))
    assert NativeLlamaCpp().why_not(checkpoint.shape, 1) is None
    assert NativeLlamaCpp().why_not(checkpoint.shape, 2) == (
        "at most 1 sequence at once, 2 were asked for"
    )
    other = NativeLlamaCpp().why_not(shape_of(REMOTE_CONFIGS["xverse"]), 2)
    assert other == "no GGUF file: llama.cpp's xverse has no experts"
    monkeypatch.setattr(gguf_file, "write_gguf", lambda checkpoint, path: path)
    assert NativeLlamaCpp().model_file(checkpoint, "abc", tmp_path) == tmp_path / "abc-f32.gguf"
