"""Fiddler's shipped code: which side an expert goes to by its constants, by hand."""

import pytest

from moebench.systems.fiddler_shipped import LoadOrComputeAsShipped, ShippedFiddler
from tests.systems.views import active, shape, view


def planned(
    rows: dict[int, int], resident: tuple[int, ...] = (), **options: object
) -> tuple[list[int | None], list[int]]:
    seen = view([[0.1] * 8], 1, resident=resident)
    policy = LoadOrComputeAsShipped(**options)  # type: ignore[arg-type]
    plan = policy.assign(seen, active(seen, rows))
    assert all(fetch.layer == 0 and not fetch.keep for fetch in plan.load), "for one use"
    return [fetch.expert for fetch in plan.load], list(plan.host)


@pytest.mark.parametrize(
    ("rows", "loads"), [(1, False), (9, False), (10, True), (11, True), (500, True)]
)
def test_an_absent_expert_is_copied_from_ten_tokens_on(rows: int, loads: bool) -> None:
    """Seven a token on the host, 70 a copy: at ten both are equal, and it is copied."""
    assert planned({3: rows}) == (([3], []) if loads else ([], [3]))


def test_a_resident_expert_costs_nothing() -> None:
    assert planned({3: 500, 4: 9}, resident=(3,)) == ([], [4])


def test_the_constants_are_options() -> None:
    assert planned({3: 9}, token_cost=8.0) == ([3], [])
    assert planned({3: 10}, load_cost=71.0) == ([], [3])


def test_the_system_copies_alone_and_says_by_what_it_divides() -> None:
    system = ShippedFiddler()
    assert (system.overlap, system.blocking_copies, system.pinned_copies) == (False, True, False)
    assert system.assign == LoadOrComputeAsShipped(minimise="sum", token_cost=7.0, load_cost=70.0)
    assert system.assign.loads == "passing"
    (said,) = system.remarks(shape(8, 2, 2), 4)
    assert said == (
        "its division goes by the constants of its code, 7 a token on the host and 70 a copy, "
        "whatever these take here"
    )
    system.assign = LoadOrComputeAsShipped(token_cost=2.5)
    assert "2.5 a token on the host and 70 a copy" in system.remarks(shape(8, 2, 2), 4)[0]
