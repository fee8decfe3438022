"""What may be said of a composition: better, no better, and how surely."""

from typing import Any

import numpy as np
import pytest

from moebench.harness.search.evaluation import BLOCK, Measured, paired
from moebench.harness.search.outcome import Outcome, probability_faster
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place
from moebench.results.published_errors import ratio_error

PLACE = Place(question=Question(name="S1", given={}), seeds=Seeds((0, 1), 2))


def row(place: str, ratio: float, clear: bool = True) -> dict[str, Any]:
    return {"place": place, "found_ms": 10 * ratio, "best": "lru", "best_ms": 10.0, "ratio": ratio,
            "clear": clear}  # fmt: skip


def outcome(*rows: dict[str, Any], **more: Any) -> Outcome:
    found = Candidate(name="trial 3", system="moe-ondemand", trial=3)
    best = Candidate(name="lru", system="lru")
    return Outcome(place=PLACE, found=found, best=best, places=list(rows), **more)


def test_faster_on_new_prompts_and_nowhere_slower_is_better() -> None:
    one = outcome(row("prompts", 0.9), row("workload arithmetic", 0.95))
    assert one.better
    assert one.verdict == "10.0% faster than lru on new prompts"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("prompts", 0.95, clear=False)], "no better than lru: not faster by 1% on new"),
        ([row("prompts", 0.995)], "no better than lru: not faster by 1% on new prompts"),
        ([row("prompts", 1.01)], "no better than lru: slower on prompts"),
        ([row("prompts", 0.9), row("workload arithmetic", 1.1)], "slower on workload arithmetic"),
        ([row("prompts", 0.9), row("recordings of the real model", 1.1)], "slower on recordings"),
        ([{"place": "prompts", "refused": "no"}], "no better"),
    ],
)
def test_otherwise_it_is_no_better(rows: list[dict[str, Any]], said: str) -> None:
    rows = [one | {"ratio": None, "clear": False} if "refused" in one else one for one in rows]
    one = outcome(*rows)
    assert not one.better
    assert said in one.verdict


def test_a_machine_where_it_is_slower_is_named() -> None:
    one = outcome(row("prompts", 0.9), row("machine a100", 1.2), row("link × 0.7", 0.8))
    assert one.better
    assert one.verdict == "10.0% faster than lru on new prompts; not with machine a100"


def test_tokens_that_are_not_the_models_own_are_no_better() -> None:
    assert outcome(row("prompts", 0.9), live={"agreement": 1.0}).better
    one = outcome(row("prompts", 0.9), live={"agreement": 0.99})
    assert not one.better
    assert "its tokens are not the model's own" in one.verdict


def test_the_probability_follows_from_the_error_of_ratios() -> None:
    """A ratio as far below 1 as 80 % of errors reach is below 1 with 90 %."""
    assert probability_faster(1) == pytest.approx(0.5)
    assert probability_faster(1 / ratio_error()) == pytest.approx(0.9)
    assert probability_faster(ratio_error()) == pytest.approx(0.1)


def measured(token_ns: np.ndarray) -> Measured:
    return Measured({}, token_ns)


def test_paired_differences_see_what_noise_of_prompts_hides() -> None:
    draws = np.random.default_rng(0)
    tokens = draws.lognormal(17, 0.5, 40 * BLOCK)
    slower = tokens * 1.02
    found = paired([measured(slower)], [measured(tokens)])
    assert found.clear
    assert found.mean_ms == pytest.approx((slower - tokens).mean() / 1e6)
    other = draws.permutation(tokens)
    assert not paired([measured(other)], [measured(tokens)]).clear
    with pytest.raises(ValueError, match="different lengths"):
        paired([measured(tokens[:5])], [measured(tokens)])
