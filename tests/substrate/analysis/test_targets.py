"""Routing targets: shipped ones, combination of evidence, and judgement of values."""

from pathlib import Path

import numpy as np
import pytest

from moebench.substrate.analysis.statistics import summary
from moebench.substrate.analysis.targets import Target, judge, read_routing, targets, value_at
from moebench.substrate.errors import InputError
from moebench.substrate.terms import RoutedSequence

SHIPPED = (
    "deepseek-moe-16b", "mixtral-8x22b", "mixtral-8x7b", "olmoe-1b-7b", "phi-3.5-moe",
    "qwen2-57b-a14b", "qwen3-30b-a3b", "xverse-moe-a4.2b",
)  # fmt: skip


@pytest.mark.parametrize("model", SHIPPED)
def test_each_shipped_model_has_targets_that_are_statistics(model: str) -> None:
    # A text of 256 tokens, half of it decoded, with a prediction.
    ids_TLK = np.arange(256)[:, None, None] % 4 + np.arange(2)[None, :, None]
    scores_TLE = np.ones((256, 2, 8))
    found = summary([RoutedSequence(ids_TLK, 128, scores_TLE, {"gate": scores_TLE})] * 2, 8)
    known = targets(model)
    assert {"used.32", "lag_overlap.1", "hit_rates.quarter.lru", "prediction.gate"} < set(known)
    for key, target in known.items():
        assert value_at(found, key) is not None, key
        assert 0 <= target.low <= target.high
        assert target.source


def test_a_model_of_another_name_has_no_targets() -> None:
    assert targets("my-model") == {}


def test_a_target_spans_what_was_published_and_what_was_measured() -> None:
    routing = read_routing()
    said = [
        evidence.ranges["lag_overlap.1"]
        for evidence in (*routing.published, *routing.measured)
        if "mixtral-8x7b" in evidence.models and "lag_overlap.1" in evidence.ranges
    ]
    assert len(said) == 2
    target = targets("mixtral-8x7b")["lag_overlap.1"]
    assert (target.low, target.high) == (min(low for low, _ in said), max(high for _, high in said))
    assert "Table 5" in target.source
    assert "humaneval" in target.source


def test_a_value_is_judged_by_the_nearer_bound() -> None:
    target = Target(0.4, 0.6, "")
    for value, judgement in (
        (0.4, "in range"),
        (0.6, "in range"),
        (0.399, "near"),
        (0.341, "near"),  # 15 % below 0.4 is 0.34
        (0.339, "off"),
        (0.689, "near"),  # 15 % above 0.6 is 0.69
        (0.691, "off"),
    ):
        assert judge(value, target) == judgement, value


def test_value_at_returns_the_value_of_a_dotted_path_or_none() -> None:
    summary_ = {"used": {"32": 0.5}, "gini": 0.1}
    assert value_at(summary_, "used.32") == 0.5
    assert value_at(summary_, "used.64") is None
    assert value_at(summary_, "gini.32") is None


@pytest.mark.parametrize(
    "text",
    [
        "published: [",
        "- 1",
        "published: []",
        "published: []\nmeasured: [{models: [a], source: b, ranges: {c: [0.5, 0.4]}}]",
        "published: []\nmeasured: [{models: [a], source: b, ranges: {c: 1}}]",
        None,
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "routing.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_routing(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
