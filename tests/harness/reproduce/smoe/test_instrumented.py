"""What instrumented runs note, which of them are kept, and what they share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import instrumented
from moebench.results.store import Store


def test_the_tokens_of_each_batch_are_a_sequence_of_their_own() -> None:
    """Two tokens of two layers, then one: gate scores of three experts and the chosen one."""

    def layer(*scores: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array(scores), np.array([int(np.argmax(scores))])

    tokens = [[layer(0.7, 0.2, 0.1), layer(0.1, 0.1, 0.8)], [layer(0.2, 0.5, 0.3)] * 2]
    first = instrumented._sequence(tokens)
    assert first.ids_TLK.tolist() == [[[0], [2]], [[1], [1]]]
    assert first.scores_TLE is not None
    assert first.scores_TLE[0].tolist() == [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]
    assert first.prefill == 0
    assert tokens == []
    tokens.append([layer(0.3, 0.3, 0.4), layer(0.6, 0.4, 0.0)])
    second = instrumented._sequence(tokens)
    assert second.ids_TLK.tolist() == [[[2], [0]]]


class FakeRun:
    """A prepared cell whose weights are shared with the cells of its group."""

    def __init__(self, spec: Any, given: list[Any]) -> None:
        self.spec, self.run_id, self._given = spec, f"id-{spec.name}", given

    def share(self, earlier: Any) -> str:
        self._given.append(("share", self.spec.name, earlier))
        return f"weights of {self.spec.name}"


def test_cells_of_a_group_share_weights_and_kept_ones_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(instrumented, "group_of", lambda spec: spec.group)
    monkeypatch.setattr(instrumented, "code_hash", lambda: "code")

    def prepare(spec: Any, data_dir: Any) -> FakeRun:
        assert data_dir is None
        return FakeRun(spec, given)

    monkeypatch.setattr(instrumented, "prepare", prepare)

    def see(run: Any) -> dict[str, Any]:
        given.append(("see", run.spec.name))
        return {"name": run.spec.name}

    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    specs: Any = [SimpleNamespace(name=name, group=group) for name, group in ("ay", "bx", "cx")]
    found = instrumented.each_seen(evidence, specs, "kind", see)
    assert [one["name"] for one in found] == ["b", "c", "a"]
    assert given == [
        ("share", "b", None), ("see", "b"), ("share", "c", "weights of b"), ("see", "c"),
        ("share", "a", None), ("see", "a"),
    ]  # fmt: skip
    kept = tmp_path / "kind" / "id-b-code.json"
    assert json.loads(kept.read_text()) == {"name": "b"}
    given.clear()
    kept.write_text('{"name": "kept"}')
    (tmp_path / "kind" / "id-c-code.json").unlink()
    again = instrumented.each_seen(evidence, specs, "kind", see)
    assert [one["name"] for one in again] == ["kept", "c", "a"]
    # What shared with the kept cell is not there.
    assert given == [("share", "c", None), ("see", "c")]


def test_watched_cells_are_those_with_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """α is no option that tells cells apart."""
    specs = [SimpleNamespace(overrides=options) for options in (
        {"assign": "load", "alpha": "0.3"}, {"assign": "load", "evict": "lru"}, {"assign": "load"},
    )]  # fmt: skip
    monkeypatch.setattr(Evidence, "specs", lambda self, experiment: specs)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    watched = {
        "run_id": "a", "setting": "S1", "options": {}, "seed": 3, "top_k": 2,
        "importance": {"top": 5, "low_absent": 1}, "score_by_rank": [1.0], "reuse_by_rank": [0.5],
    }  # fmt: skip

    def each_seen(evidence: Any, asked: Any, kind: str, see: Any) -> Any:
        assert asked == [specs[0], specs[2]]
        assert kind == "watched"
        return [watched]

    monkeypatch.setattr(instrumented, "each_seen", each_seen)
    (found,) = instrumented.watch(evidence, None, assign="load")  # type: ignore[arg-type]
    assert found.importance == instrumented.Importance(top=5, low_absent=1)
    assert (found.seed, found.score_by_rank, found.reuse_by_rank) == (3, [1.0], [0.5])


def test_experts_of_a_token_by_importance_and_place() -> None:
    """The best inactive score is 0.25: with α = 0.5, 0.375 is just important, and 0.36 is not."""
    counts = instrumented.Importance()
    counts.count([0.375, 0.36, 0.25, 0.3], [0, 1, 3], 0.5, {1, 2}, {0})
    assert counts == instrumented.Importance(top=1, low=2, low_absent=1, top_in_flight=1)
    counts.count([0.375, 0.36, 0.25, 0.3], [0, 1, 3], 0.4, {0, 3}, {1, 2})
    assert counts == instrumented.Importance(
        top=3, low=3, low_absent=2, top_absent=1, top_in_flight=2
    )
    # Without an inactive expert all are important.
    counts = instrumented.Importance()
    counts.count([0.1, 0.0], [0, 1], 0.5, set(), set())
    assert (counts.top, counts.low) == (2, 0)


def test_decode_is_watched_and_prompts_are_not() -> None:
    """Of two MoE layers the first begins a token; the assignment still answers."""
    answered: list[Any] = []

    def assign(view: Any, active: Any) -> str:
        answered.append((view.layer, view.phase))
        return "plan"

    assignment = SimpleNamespace(assign=assign)
    session: Any = SimpleNamespace(
        system=SimpleNamespace(assign=assignment), full=SimpleNamespace(moe_layers=(1, 2))
    )
    counts = instrumented.Importance()
    tokens = instrumented._hook(session, counts, 0.5)
    active = SimpleNamespace(absent=[1], in_flight=[0])
    scores = np.array([[0.5, 0.4, 0.2]])
    for phase in ("prefill", "decode"):
        for layer in (1, 2):
            seen = SimpleNamespace(
                layer=layer, phase=phase, scores_TE=scores, scores=scores.tolist(),
                topk_ids_TK=np.array([[0, 1]]),
            )  # fmt: skip
            assert assignment.assign(seen, active) == "plan"
    assert len(answered) == 4
    assert counts == instrumented.Importance(top=4, top_absent=2, top_in_flight=2)
    ((first, second),) = tokens
    for kept, chosen in (first, second):
        assert (kept.tolist(), chosen.tolist()) == ([0.5, 0.4, 0.2], [0, 1])


def test_batches_of_texts_are_answered_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven texts in batches of three."""
    told: list[Any] = []

    @contextmanager
    def started(session: Any, scratch: Path, progress: Any) -> Iterator[Any]:
        progress(1, 2)
        yield SimpleNamespace(stage="stage")
        told.append("closed")

    monkeypatch.setattr(instrumented, "started", started)
    session: Any = SimpleNamespace(
        spec=SimpleNamespace(prompts=7, batch=3),
        answer=lambda stage, texts: told.append((stage, texts.start, texts.stop)),
    )
    instrumented.answer(session, tmp_path, lambda: told.append("after"))
    assert told == [
        ("stage", 0, 3), "after", ("stage", 3, 6), "after", ("stage", 6, 9), "after", "closed",
    ]  # fmt: skip
