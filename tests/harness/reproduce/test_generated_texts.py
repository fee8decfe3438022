"""Routing of texts: recordings in place of the scale model, kinds of text, and mean figures."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce import generated_texts
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.run.learn import LosslessModel
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import InputError
from moebench.substrate.terms import LOOKAHEADS, RoutedSequence
from moebench.workloads.workload import Workload


def recording(name: str, ids: Any, *texts: tuple[int, int, int, int]) -> Any:
    """Return a recording; a text's first and last row, its tokens before a loop and its prompt."""
    trace = SimpleNamespace(
        path=Path("traces") / name, ids_TLK=np.array(ids).reshape(-1, 1, 1),
        sequences=[np.arange(first, last) for first, last, _, _ in texts],
        prompts=[prompt for *_, prompt in texts],
    )  # fmt: skip
    return SimpleNamespace(trace=trace, ends=[end for _, _, end, _ in texts])


def test_recorded_texts_of_some_kinds_end_where_they_loop(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    found = [
        recording("m__math-theme", [0, 1, 2, 3, 4, 5], (0, 4, 3, 2), (4, 6, 2, 1)),
        recording("m__prose", [7, 8], (0, 2, 2, 1)), recording("m__dialogue", [9], (0, 1, 1, 0)),
    ]  # fmt: skip

    def recordings(self: Evidence, model: str) -> Any:
        asked.append(model)
        return found

    monkeypatch.setattr(Evidence, "recordings", recordings)
    maths = generated_texts.recorded(evidence, "m", "math")
    assert [(one.ids_TLK.ravel().tolist(), one.prefill) for one in maths] == [
        ([0, 1, 2], 2), ([4, 5], 1),
    ]  # fmt: skip
    both = generated_texts.recorded(evidence, "m", "dialogue", "prose")
    assert [one.ids_TLK.ravel().tolist() for one in both] == [[7, 8], [9]]
    with pytest.raises(MissingEvidenceError, match="no code or text was recorded of m"):
        generated_texts.recorded(evidence, "m", "code", "text")
    assert asked == ["m"] * 3


def test_real_routing_is_that_of_all_recordings(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evidence, "recordings", lambda self, model: [
        SimpleNamespace(trace=[model, "a"]), SimpleNamespace(trace=["b"]),
    ])  # fmt: skip
    monkeypatch.setattr(generated_texts, "routings", lambda trace: list(trace))
    real = evidence.changed({"routing": "real"})
    found: Any = generated_texts.routed(real, "m", "c4")
    assert found == ["m", "a", "b"]


def test_texts_are_sixty_four_or_sixteen(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def load(*of: Any, **more: Any) -> str:
        asked.append((of[0].name, *of[1:], more))
        return "texts"

    monkeypatch.setattr(generated_texts, "load", load)
    full = Evidence(Store(tmp_path), tmp_path, tmp_path, quick=False)
    assert str(generated_texts._sample(evidence, "facts")) == "texts"
    generated_texts._sample(full, "c4")
    assert asked == [
        ("facts", "test", 16, 0, None, {"or_fewer": True}),
        ("c4", "test", 64, 0, tmp_path, {"or_fewer": True}),
    ]
    with pytest.raises(MissingEvidenceError, match="c4 lies in a data folder; give --data-dir DIR"):
        generated_texts._sample(evidence, "c4")


@pytest.mark.parametrize("fails", [False, True])
def test_texts_are_written_by_the_whole_model_with_all_predictions(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The model need not fit into memory, and its file is closed in any case."""
    seen: list[Any] = []
    checkpoint = SimpleNamespace(close=lambda: seen.append("closed"))

    def open_weights(spec: RunSpec) -> Any:
        seen.append((spec.system, spec.model, spec.machine, spec.allow_overcommit))
        texts = SimpleNamespace(tokenizer="the tokenizer")
        return SimpleNamespace(checkpoint=checkpoint, hashes={"weights": "abc"}, texts=texts)

    def written(asked: Workload, sample: Any, model: Any, *rest: Any) -> Any:
        seen.append((asked.name, sample, model, *rest[:1], *rest[2:]))
        if fails:
            raise InputError("no more memory")
        return SimpleNamespace(sequences=iter(["first", "second"]))

    monkeypatch.setattr(generated_texts, "open_weights", open_weights)
    monkeypatch.setattr(generated_texts, "written", written)
    monkeypatch.setattr(generated_texts, "load", lambda *of, **more: "the texts")
    work = SimpleNamespace(decoder="d", differentiable="g", rounding="r")
    monkeypatch.setattr(
        generated_texts, "SharedWork", lambda given: {id(checkpoint): work}[id(given)]
    )
    if fails:
        with pytest.raises(InputError, match="no more memory"):
            generated_texts.routed(evidence, "mixtral-8x22b", "facts")
    else:
        found: Any = generated_texts.routed(evidence, "mixtral-8x22b", "facts")
        assert found == ["first", "second"]
    parts: Any = ("d", "g", "r", "abc", "the tokenizer", None)
    model = LosslessModel(*parts)
    assert seen == [
        ("gpu-only", "mixtral-8x22b", "h200", True),
        ("facts", "the texts", model, evidence.scratch / "calibration",
         frozenset({"predictions"}), LOOKAHEADS),
        "closed",
    ]  # fmt: skip


def test_a_mean_is_over_texts_on_which_a_figure_is_defined(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [RoutedSequence(np.zeros((n, 1, 1), int), 0) for n in (1, 2, 3)]
    asked: list[Any] = []

    def routed(evidence: Evidence, model: str, dataset: str) -> Any:
        asked.append((model, dataset))
        return texts

    monkeypatch.setattr(generated_texts, "routed", routed)

    def length(text: RoutedSequence) -> float:
        return math.nan if len(text.ids_TLK) == 2 else float(len(text.ids_TLK))

    found = generated_texts.over_texts(evidence, "m", "c4", length, "said")
    assert asked == [("m", "c4")]
    assert (found.samples, found.over, found.badge) == ((1, 3), "texts", "counted")
    assert found.conditions == "2 texts, the scale model's routing; said"
    real = evidence.changed({"routing": "real"})
    again = generated_texts.over_texts(real, "m", "c4", length, "said")
    assert again.conditions == "2 texts, recordings of the model; said"
    with pytest.raises(MissingEvidenceError, match="no text of c4 is long enough"):
        generated_texts.over_texts(evidence, "m", "c4", lambda text: math.nan, "")
