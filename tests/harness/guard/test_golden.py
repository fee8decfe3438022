"""Golden outputs of scale models: what is computed, and how far it may be from what is kept."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moebench.harness.guard import golden
from moebench.harness.guard.golden import (
    LENGTHS,
    STEPS,
    TOLERANCE_FP32,
    TOLERANCE_FP64,
    _farthest,
    check_golden,
    fingerprint,
    golden_of,
    outputs,
    write_golden,
)
from moebench.harness.guard.verdicts import Finding, Verdict
from moebench.substrate.errors import InputError


class Shape:
    vocab_size, num_layers, dense_layers, moe_layers = 97, 3, (1,), (0, 2)
    num_experts, shared_width = 5, 0


class Decoder:
    """Notes its calls; in each pass two experts of a row are chosen, by the layer."""

    def __init__(self, shared_width: int = 0) -> None:
        self.shape: Any = Shape()
        self.shape.shared_width = shared_width
        self.calls: list[Any] = []
        self.history: list[torch.Tensor] = []
        self.rows = 0

    def begin(self, texts: Any, steps: int, later: Any) -> None:
        self.begun = (texts, steps, later)

    def embed(self, phase: str) -> None:
        self.rows = 4 if phase == "prefill" else 2
        self.calls.append(phase)

    def gate(self, layer: int) -> Any:
        ids = np.full((self.rows, 2), layer) + np.array([0, 1])
        return type("Routed", (), {"ids_TK": ids})

    def dispatch(self, layer: int, ids: Any, own: Any) -> Any:
        self.calls.append(("dispatch", layer, ids.tolist(), own.tolist()))
        return dict.fromkeys(sorted({*ids.ravel().tolist()}))

    def head(self) -> None:
        self.history.append(torch.full((2, 3), float(len(self.history))))

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


@pytest.mark.parametrize(("forced", "shared_width"), [(False, 0), (True, 8)])
def test_texts_are_fixed_and_experts_chosen_or_taken_in_turn(
    forced: bool, shared_width: int
) -> None:
    decoder: Any = Decoder(shared_width)
    logits, routed = outputs(decoder, forced)
    texts, steps, later = decoder.begun
    assert texts == [[(i + 1) ** 2 * 7 % 97 for i in range(n)] for n in LENGTHS]
    assert later == [[125 % 97, 216 % 97, 343 % 97, 512 % 97, 729 % 97]] * 2
    assert steps == STEPS == 5
    assert logits.tolist() == [[[float(n)] * 3] * 2 for n in range(5)]
    assert routed.dtype == np.uint8
    assert routed.tolist() == [[[0, 1]] * (4 + 4 * 2), [[2, 3]] * (4 + 4 * 2)]
    turn = [[0, 1], [2, 3], [4, 0], [1, 2]]
    first = turn if forced else [[0, 1]] * 4
    one = [("attend", 0), ("dispatch", 0, first, [[0, 1]] * 4),
           ("compute", 0, [0, 1, 2, 3, 4] if forced else [0, 1]),
           *([("shared", 0)] if shared_width else []), ("combine", 0), ("attend", 1), ("dense", 1),
           ("attend", 2)]  # fmt: skip
    assert decoder.calls[: 1 + len(one)] == ["prefill", *one]
    assert [call for call in decoder.calls if isinstance(call, str)] == ["prefill"] + ["decode"] * 4
    # The second pass has two rows: its turn begins where four values have been.
    later_ids = [call[2] for call in decoder.calls if call[:2] == ("dispatch", 0)][1:3]
    assert later_ids == ([[[4, 0], [1, 2]], [[3, 4], [0, 1]]] if forced else [[[0, 1]] * 2] * 2)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Models whose outputs are known by precision and pass, and may be changed."""
    known = {"fp64 natural": np.array([1.0, 2.0]), "fp64 forced": np.array([3.0, 4.0]),
             "fp32 forced": np.array([3.0, 4.0]), "fp32 natural": np.array([1.0, 2.0]),
             "routing": np.array([[1, 2], [3, 4]])}  # fmt: skip

    def outputs_(decoder: str, forced: bool) -> Any:
        return known[f"{decoder} {'forced' if forced else 'natural'}"], known["routing"]

    def decoder_(weights: Path, dtype: torch.dtype) -> str:
        assert weights == Path("scale/m")
        return {torch.float32: "fp32", torch.float64: "fp64"}[dtype]

    monkeypatch.setattr(golden, "scale_path", lambda name: Path("scale") / name)
    monkeypatch.setattr(golden, "scale_names", lambda: ["m"])
    monkeypatch.setattr(golden, "_decoder", decoder_)
    monkeypatch.setattr(golden, "outputs", outputs_)
    return known


def test_golden_outputs_are_of_fp64_passes_and_written_for_all_models(
    models: dict[str, np.ndarray], tmp_path: Path
) -> None:
    found = golden_of("m")
    assert [*found] == ["m.natural", "m.forced", "m.routing"]
    assert [found[name].tolist() for name in found] == [[1, 2], [3, 4], [[1, 2], [3, 4]]]
    write_golden(tmp_path / "g.npz")
    with np.load(tmp_path / "g.npz") as kept:
        assert {name: kept[name].tolist() for name in kept} == {
            name: one.tolist() for name, one in found.items()
        }
    (ok,) = check_golden(["m"], tmp_path / "g.npz")
    assert ok == Finding(
        "m: model", Verdict.PASS,
        "logits differ from the golden ones by 0.0e+00 in fp64 and 0.0e+00 in fp32 (allowed 1e-05 "
        "and 3e-05), 0 of 4 choices of experts differ", "model",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "value", "verdict", "says"),
    [
        ("fp64 natural", [1.0, 2.0 + 0.9 * TOLERANCE_FP64], Verdict.PASS, "by 9.0e-06 in fp64"),
        ("fp64 natural", [1.0, 2.0 - 2 * TOLERANCE_FP64], Verdict.REGRESSED, "by 2.0e-05 in fp64"),
        ("fp64 forced", [3.0 + 2 * TOLERANCE_FP64, 4.0], Verdict.REGRESSED, "by 2.0e-05 in fp64"),
        ("fp32 forced", [3.0, 4.0 - 0.9 * TOLERANCE_FP32], Verdict.PASS, "and 2.7e-05 in fp32"),
        ("fp32 forced", [3.0, 4.0 + 2 * TOLERANCE_FP32], Verdict.REGRESSED, "and 6.0e-05 in fp32"),
        ("fp64 natural", [1.0], Verdict.REGRESSED, "by inf in fp64"),
        ("fp64 natural", [1.0, float("nan")], Verdict.REGRESSED, "by inf in fp64"),
        ("routing", [[1, 2], [4, 3]], Verdict.REGRESSED, "2 of 4 choices of experts differ"),
        ("routing", [[1, 2]], Verdict.REGRESSED, "4 of 4 choices of experts differ"),
        ("routing", [[1, 2, 3]] * 2, Verdict.REGRESSED, "6 of 4 choices of experts differ"),
    ],
)
def test_a_model_is_held_to_its_golden_outputs(
    changed: str, value: Any, verdict: Verdict, says: str, models: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:  # fmt: skip
    write_golden(tmp_path / "g.npz")
    models[changed] = np.array(value)
    (found,) = check_golden(["m"], tmp_path / "g.npz")
    assert (found.verdict, says in found.reason) == (verdict, True), found.reason


def test_golden_numbers_that_are_none_are_refused(
    models: dict[str, np.ndarray], tmp_path: Path
) -> None:
    models["fp64 forced"] = np.array([3.0, np.inf])
    write_golden(tmp_path / "g.npz")
    with pytest.raises(InputError, match="m has a logit that is not a number; restore the file"):
        check_golden(["m"], tmp_path / "g.npz")


def test_a_fingerprint_is_of_both_passes_in_fp32(
    models: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    whole = models["fp32 natural"].tobytes() + models["fp32 forced"].tobytes()
    assert fingerprint(Path("scale/m"), 3) == hashlib.sha256(whole).hexdigest()[:16]
    assert threads == [3]


def test_the_farthest_logit_counts() -> None:
    one = np.array([1.0, 2.0, 3.0])
    assert _farthest(one, np.array([1.0, 2.5, 2.75])) == 0.5
    assert _farthest(one, one) == 0
    assert _farthest(one, one[:2]) == float("inf")
