"""Hits of pinned experts: which halves and texts count, conditions and words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import MissingEvidenceError
from moebench.harness.reproduce.field import profiles, recorded
from moebench.harness.reproduce.field.profiles import Pinned
from tests.harness.reproduce.test_field import evidence


def stream(model: str, workload: str, *sequences: list[int], experts: int = 8) -> recorded.Stream:
    """Return a stream of one layer, top-1."""
    return recorded.Stream(
        model, workload, experts, tuple(np.array(one).reshape(-1, 1, 1) for one in sequences)
    )


def test_uses_are_counted_by_layer() -> None:
    ids = np.array([[[0, 1], [2, 3]], [[0, 2], [3, 1]]])
    both = recorded.Stream("m", "a", 4, (ids, ids[:1]))
    assert profiles.counts(both).tolist() == [[3, 2, 1, 0], [0, 1, 2, 3]]


def test_an_lru_cache_that_starts_empty() -> None:
    """0 1 0 2 0 1 with two slots hits at the third and fifth of six."""
    assert profiles.lru_hits(stream("m", "a", [0, 1, 0, 2, 0, 1]), 2) == pytest.approx(2 / 6)
    two = np.stack([np.array([0, 1, 0, 2, 0, 1])] * 2, axis=1)[:, :, None]
    assert profiles.lru_hits(recorded.Stream("m", "a", 8, (two,)), 2) == pytest.approx(2 / 6)


def test_hits_are_of_the_second_half_with_profiles_of_the_first_and_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of eight experts are pinned: of the first sequence 0 and 1, of the others 4 and 0."""
    one = stream("m", "a", [0, 0, 0, 1, 1, 2], [0, 1, 4, 4])
    other = stream("m", "b", [4] * 5 + [0] * 3 + [1])
    third = stream("m", "c", [6, 7, 7])
    alone = stream("lone", "a", [0] * 9)
    asked: list[Any] = []

    def streams(evidence: Any, whole: bool) -> Any:
        asked.append(whole)
        return [one, other, third, alone]

    monkeypatch.setattr(profiles, "streams", streams)
    of = evidence(tmp_path)
    rows = profiles.of_streams(of, 0.25)
    assert asked == [True]
    assert [(row.model, row.workload) for row in rows] == [("m", "a"), ("m", "b"), ("m", "c")]
    # Others: 0, 4, 4 of four uses, and none.  LRU of 0 1 4 4: one hit.
    assert rows[0] == Pinned("m", "a", 0.25, 0.25, 0.5, 0.375, 0.25)
    # Half of nine tokens are 4 4 4 4, then 4 0 0 0 1 count: 4 and, by its number, 0 are pinned.
    assert rows[1].own == pytest.approx(4 / 5)
    # One of eight experts is chosen by each token: an eighth leaves one slot, which is enough.
    assert len(profiles.of_streams(of, 0.125)) == 3
    assert profiles.of_streams(of, 0.05) == []


def test_only_the_first_tokens_of_the_second_half_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stream("m", "a", [0] * 4, [0, 5, 5, 5]), stream("m", "b", [5, 5])
    monkeypatch.setattr(profiles, "streams", lambda evidence, whole: [one, other])
    monkeypatch.setattr(profiles, "most_tokens", lambda evidence: 2)
    row, _ = profiles.of_streams(evidence(tmp_path), 0.125)
    assert (row.own, row.other) == (0.5, 0.5)


def test_totals_are_compared_within_a_model_and_shape(tmp_path: Path) -> None:
    at = tmp_path / "traces" / "m__popularity"
    at.mkdir(parents=True)
    entries = {
        "x_reasoning_on": {"counts": [[8, 1, 1, 0]]}, "x_reasoning_off": {"counts": [[0, 1, 1, 8]]},
        "y": {"counts": [[2, 6, 1, 1]]}, "no counts": {"tokens": 5},
        "two layers": {"counts": [[1, 1, 1, 1]] * 2}, "small": {"counts": [[1, 2]]},
        "tiny": {"counts": [[2, 1]]},
    }  # fmt: skip
    (at / "popularity.json").write_text(json.dumps({"entries": entries}), "utf-8")
    of = evidence(tmp_path, data_dir=tmp_path)
    rows = {row.workload: row for row in profiles.of_totals(of, 0.25)}
    assert list(rows) == ["x_reasoning_on", "x_reasoning_off", "y"]
    # The other mode of x is no other text, so that y's most used expert, 1, is pinned.
    assert rows["x_reasoning_on"] == Pinned("m", "x_reasoning_on", 0.25, 0.25, 0.8, 0.1, None)
    # For y: expert 0 or 3, of which it uses 2 and 1 of ten.
    assert (rows["y"].own, rows["y"].other) == (0.6, pytest.approx(0.15))
    assert profiles.of_totals(of, 0.5)[-1].chance == 0.5


def test_a_share_is_kept_of_a_gain_of_three_points() -> None:
    one = Pinned("m", "a", 0.25, 0.25, 0.28125, 0.265625, None)
    assert profiles.keeps([one]) == pytest.approx(50)
    assert profiles.keeps([one._replace(own=0.279)]) is None
    both = [one._replace(own=0.75, other=0.5), one._replace(own=0.25, other=0.5)]
    assert profiles.keeps(both) == pytest.approx(100)


def test_a_figure_of_each_model_and_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text c keeps 75 % exactly, text d 74 %; both are beaten by LRU or equal it."""
    rows = [
        Pinned("m", "a", 0.25, 0.25, 0.75, 0.75, 0.65),
        Pinned("m", "b", 0.25, 0.25, 0.26, 0.2, 0.1),
        Pinned("n", "c", 0.25, 0.25, 0.75, 0.625, 0.625),
        Pinned("n", "d", 0.25, 0.25, 0.75, 0.62, 0.7),
    ]
    asked: list[float] = []

    def of_streams(evidence: Any, share: float) -> list[Pinned]:
        asked.append(share)
        return rows

    monkeypatch.setattr(profiles, "of_streams", of_streams)
    monkeypatch.setattr(
        profiles, "of_totals", lambda evidence, share: [rows[2]._replace(model="t")]
    )
    of = evidence(tmp_path)
    found = profiles.measured(profiles.against_lru)(of)
    assert found.samples == pytest.approx((10, -4))
    assert (found.badge, found.over) == ("counted", "models")
    assert found.conditions == "4 streams, 25% pinned: m 10, n -4"
    assert profiles.turns(of) == (
        "At 25% of a layer's experts, profiles of other texts keep of the gain of their own: 75 % "
        "or more on m a 100 %, n c 75 %; less on n d 74 %. In published totals: t 75 %. They beat "
        "an LRU cache of that size, in points, on m a +10, m b +10."
    )
    assert asked == [0.25, 0.25]
    rows.clear()
    monkeypatch.setattr(profiles, "of_totals", lambda evidence, share: [])
    assert profiles.turns(of).endswith(
        "75 % or more on no stream; less on no stream. In published totals: none. They beat an LRU "
        "cache of that size, in points, on no stream."
    )
    with pytest.raises(MissingEvidenceError, match="no model has recordings of two kinds"):
        profiles.measured(profiles.over_chance)(of)
