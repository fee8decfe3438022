"""Readers of run documents: paths, names of what was run, effects, and scores above guessing."""

import math
from typing import Any

import pytest

from moebench.results import document
from moebench.results.document import (
    at_floor,
    badge_of,
    basis,
    dig,
    effects_on,
    is_lossless,
    is_run_id,
    model_of,
    perplexity_of,
    routing_of,
    score_at_floor,
    score_of,
    software_of,
    system_of,
    without_details,
)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("3fa9c04be712", True), ("A", True), ("a" * 64, True), ("a" * 65, False), ("", False),
        ("../x", False), ("a-b", False), ("a\n", False), ("é", False), (12, False), (None, False),
    ],
)  # fmt: skip
def test_a_runs_id_is_letters_and_digits(text: object, valid: bool) -> None:
    assert is_run_id(text) is valid


def test_a_path_leads_to_a_value_or_to_nothing() -> None:
    run = {"metrics": {"tpot_ms": {"mean": 3.5}, "e2e_ms": 0}, "notes": ["a"]}
    assert dig(run, "metrics.tpot_ms.mean") == 3.5
    assert dig(run, "metrics.e2e_ms") == 0
    assert dig(run, "metrics") is run["metrics"]
    for path in ("metrics.none", "none.none", "metrics.e2e_ms.mean", "notes.0", ""):
        assert dig(run, path) is None


def test_effects_are_shares_by_the_names_of_numbers() -> None:
    run: dict[str, Any] = {
        "interval": {
            "fields": [
                {"field": "link.pinned_h2d", "tpot_ms": [6.0, -10.0], "ttft_ms": [1.0, -2.0]},
                {"field": "host.cores", "ttft_ms": [50.0, 0.0]},
            ]
        }
    }
    assert effects_on(run) == {"link.pinned_h2d": (0.06, -0.1)}
    assert effects_on(run, "ttft_ms") == {
        "link.pinned_h2d": (0.01, -0.02), "host.cores": (0.5, 0.0)
    }  # fmt: skip
    kept = without_details(run)
    assert kept is run
    assert "fields" not in run["interval"]
    assert effects_on(run) == {"link.pinned_h2d": (0.06, -0.1)}
    assert effects_on(run, "ttft_ms") == {}, "only those on TPOT are kept"
    assert effects_on({}) == effects_on({"interval": None}) == {}
    assert without_details({"interval": None}) == {"interval": None}


def test_details_are_removed_and_nothing_else() -> None:
    run = {
        "interval": {"fields": [], "tpot_ms": 1}, "accuracy": {"items": {}, "score": 2},
        "metrics": {"experts": 1, "prefetch": 2, "routed_ahead": 3, "energy": 4, "e2e_ms": 5},
    }  # fmt: skip
    assert without_details(run) == {
        "interval": {"tpot_ms": 1, "effects": {}}, "accuracy": {"score": 2},
        "metrics": {"e2e_ms": 5},
    }  # fmt: skip
    assert all(path.count(".") == 1 for path in document.DETAILS)


def test_names_of_what_was_run_and_what_earlier_documents_leave_out() -> None:
    assert system_of({"system": "smoe"}) == "smoe"
    assert system_of({"system": "smoe", "variant": "published"}) == "smoe"
    assert system_of({"system": "smoe", "variant": "shipped"}) == "smoe (shipped)"
    assert routing_of({}) == "model"
    assert routing_of({"routing": "drawn"}) == "drawn"
    assert routing_of({"routing": "drawn", "trace": "data/traces/one"}) == "trace one"
    assert software_of({}) == "lean"
    assert software_of({"software": "kt"}) == "kt"
    assert model_of({"spec": {"model": "mixtral"}}) == "mixtral"
    assert model_of({"spec": {}}) is None
    ran = {"spec": {"model": "mixtral"}, "measured": {"model": "its scale model"}}
    assert model_of(ran) == "its scale model"


def test_a_badge_says_what_is_noisy_or_checked_and_on_what() -> None:
    run: dict[str, Any] = {"badge": "measured"}
    assert badge_of(run) == basis(run) == "measured"
    run["measured"] = {"noisy": True, "model": "tiny"}
    assert badge_of(run) == "measured, noisy"
    assert basis(run) == "measured, noisy on tiny"
    run |= {"badge": "estimate", "measured": {"noisy": False}, "interval": {"checked": {"n": 1}}}
    assert badge_of(run) == basis(run) == "estimate, checked"


def test_a_run_is_lossless_by_its_word_or_by_its_kl() -> None:
    assert is_lossless({"lossless": True, "accuracy": {"kl": 0.1}}) is True
    assert is_lossless({"lossless": False}) is False
    assert is_lossless({}) is True
    assert is_lossless({"accuracy": {"kl": 0}}) is True
    assert is_lossless({"accuracy": {"kl": 1e-9}}) is False


def test_a_score_is_no_perplexity() -> None:
    score = {"accuracy": {"score": 40.5, "metric": "exact"}}
    assert (score_of(score), perplexity_of(score)) == (40.5, None)
    text = {"accuracy": {"score": 7.25, "metric": "perplexity"}}
    assert (score_of(text), perplexity_of(text)) == (None, 7.25)
    assert (score_of({}), perplexity_of({})) == (None, None)


def test_a_score_above_guessing_exceeds_it_by_two_standard_errors() -> None:
    # Guessing among four: its own standard error of 48 answers is sqrt(3/16/48) = 1/16.
    assert math.sqrt(0.25 * 0.75 / 48) == 0.0625
    assert at_floor(0.374, 0.01, 48, 0.25)
    assert not at_floor(0.375, 0.01, 48, 0.25)
    # A larger error of the score counts in its place.
    assert at_floor(0.375, 0.0626, 48, 0.25)
    assert at_floor(0.25, 0.0, 48, 0.25)
    assert at_floor(0.2, 0.0, 48, 0.25)
    # Without guessing, a score of 0 is at the floor and any other without error is not.
    assert at_floor(0.0, 0.0, 10, None)
    assert not at_floor(0.1, 0.0, 10, None)
    assert at_floor(0.1, 0.06, 10, None)
    # In percent.
    assert at_floor(37.4, 1.0, 48, 25.0, whole=100)
    assert not at_floor(37.5, 1.0, 48, 25.0, whole=100)


def test_a_runs_score_at_the_floor() -> None:
    scored = {"score": 26.0, "n": 48, "stderr": 1.0, "chance": 25.0, "metric": "exact"}
    assert score_at_floor({"accuracy": scored}) is True
    assert score_at_floor({"accuracy": scored | {"score": 60.0}}) is False
    assert score_at_floor({"accuracy": scored | {"n": 0}}) is False
    assert score_at_floor({"accuracy": scored | {"metric": "perplexity"}}) is False
    assert score_at_floor({}) is False
    # Without an error or a chance both are 0.
    assert score_at_floor({"accuracy": {"score": 0.0, "n": 5}}) is True
    assert score_at_floor({"accuracy": {"score": 1.0, "n": 5}}) is False
