"""Errors by kind of machine and system, and which scores have moved."""

import math

import pytest

from moebench.harness.published import errors
from moebench.harness.published.rows import Row
from tests.harness.published.made import CELLS, predicted


def rows(count: int, cpus: tuple[str, ...] = ("Ryzen 9 5950X", "Ryzen 7 5800X")) -> list[Row]:
    return [Row(**CELLS | {"id": f"r{n}", "cpu": cpus[n % len(cpus)]}) for n in range(count)]


def test_a_kind_is_known_from_enough_figures_of_several_machines() -> None:
    many, few, one = rows(8), rows(7), rows(9, ("Ryzen 9 5950X",))
    found = errors.document(many, predicted(many), predicted(many, 1.5))["kinds"]
    (name,) = found
    assert name == "llamacpp, ggml, desktop"
    assert found[name]["decode"]["median_error"] == pytest.approx(0.5)
    assert found[name]["decode"]["within_80"] == pytest.approx(1.5)
    assert (found[name]["decode"]["figures"], found[name]["decode"]["machines"]) == (8, 2)
    for too_few in (few, one):
        assert errors.document(too_few, predicted(too_few), predicted(too_few))["kinds"] == {}


def scores(**changed: float) -> dict[str, dict[str, float | None]]:
    plain = dict.fromkeys((*errors.LOWER, *errors.HIGHER), 0.5)
    return {"left_out": {**plain, **changed}, "in_sample": dict(plain)}


def test_what_moved_is_better_or_worse() -> None:
    assert errors.moved(scores(), scores()) == []
    assert errors.moved(scores(), scores(median_error=0.5001)) == []
    (worse,) = errors.moved(scores(), scores(median_error=0.51))
    assert worse == ("left_out.median_error", 0.5, 0.51, True)
    (better,) = errors.moved(scores(), scores(pairs_in_order=0.6))
    assert not better.worse
    (less,) = errors.moved(scores(), scores(kendall_tau=0.4))
    assert less.worse


def pair(group: str, first: float, second: float, system: str = "ik_llama.cpp") -> list[Row]:
    """Return two rows of one group: llama.cpp and another system, with measured rates."""
    ids = f"{group}-1", f"{group}-2"
    of = {"group": group, "prefill_tok_s": ""}
    other = {"id": ids[1], "decode_tok_s": str(second), "system": system}
    return [Row(**CELLS | of | {"id": ids[0], "decode_tok_s": str(first)}),
            Row(**CELLS | of | other)]  # fmt: skip


def test_the_error_of_ratios_is_of_two_engines_and_groups_count_equally() -> None:
    """All are predicted at 10: the ratios are 1, measured 2, 1.5 and, five times, 1.1."""
    of = [*pair("a", 20, 10), *pair("b", 15, 10), *pair("c", 11, 10)]
    of += [one.model_copy(update={"id": f"{one.id}{n}"}) for n in range(4) for one in of[5:6]]
    at_ten = [one._replace(predicted=10.0) for one in predicted(of)]
    found = errors.document(of, at_ten, at_ten)["ratios"]["decode"]
    assert (found["pairs"], found["groups"], found["machines"]) == (7, 3, 1)
    assert found["median_error"] == pytest.approx(0.5), "a third of the weight is below 1.5"
    assert found["within_80"] == pytest.approx(2.0)
    alike = pair("a", 20, 10, "ollama")
    assert errors.document(alike, predicted(alike), predicted(alike))["ratios"] == {}


def test_scores_that_appear_or_vanish_have_moved() -> None:
    (gone,) = errors.moved(scores(), scores(median_error=None))
    assert gone == ("left_out.median_error", 0.5, None, True)
    (found,) = errors.moved(scores(kendall_tau=None), scores())
    assert found == ("left_out.kendall_tau", None, 0.5, False)
    assert errors.moved(scores(kendall_tau=None), scores(kendall_tau=None)) == []


def test_errors_of_a_kind_are_pooled_with_those_of_all() -> None:
    """Six machines and the prior's: the squares' mean, each with its number of machines."""
    ones = [errors._Error("m", 1.2816 * 0.5, 0.0)] * 10
    machines, prior = 6, errors.PRIOR_MACHINES
    mean = (machines * 0.25 + prior * 0.04) / (machines + prior)
    assert errors._pooled(ones, machines, 0.2) == pytest.approx(math.sqrt(mean), rel=2e-3)


def test_a_weighted_share_is_reached_by_the_least_value() -> None:
    values = [(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
    assert [errors._weighted(values, share) for share in (0.25, 0.26, 0.75, 0.76, 1.0)] == [
        1.0, 2.0, 2.0, 3.0, 3.0,
    ]  # fmt: skip


def test_a_row_that_cannot_be_predicted_has_no_case() -> None:
    assert errors._case(Row(**CELLS)) is not None
    assert errors._case(Row(**CELLS | {"model": "Unheard-9B"})) is None
