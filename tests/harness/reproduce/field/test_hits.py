"""Pairs of systems that differ in hits and in time: limits, costs of misses, and words."""

from pathlib import Path

from moebench.harness.reproduce.evidence import Runs
from moebench.harness.reproduce.field import hits
from tests.harness.reproduce.test_field import evidence, run


def test_pairs_differ_by_two_points_of_hits_and_two_percent_of_time() -> None:
    """Of five systems, those with 3 points and 2.5 % more than another are pairs with it."""
    first = run(100, hits=0.5)
    others = {"hits alone": (100.5, 0.6), "time alone": (120, 0.51), "both": (102.5, 0.53)}
    for name, (tpot, share) in others.items():
        other = run(tpot, hits=share, overrides={"evict": name})
        found = list(hits._differing(map(hits._cell, (first, other))))
        assert len(found) == (name == "both"), name
        assert found == list(hits._differing(map(hits._cell, (other, first))))
    ((many, few),) = found
    assert (many.tpot, few.tpot) == (102.5, 100)


def test_a_miss_costs_what_is_waited_but_for_control() -> None:
    """50 misses of 100: 200 ms of loads and 50 ms of the host are 5 ms each."""
    cell = hits._cell(run(7, hits=0.25, found=50, stalls={"load": 200.0, "host": 50.0}))
    assert cell == hits.Cell("moe-ondemand", 0.25, 7, 5)
    every = hits._cell(run(7, found=100, stalls={"load": 9.0}, overrides={"a": "1", "b": "2"}))
    assert (every.system, every.cost) == ("moe-ondemand (a=1, b=2)", 0)


def test_the_rule_of_costs_tells_which_is_slower() -> None:
    """Ten misses of 1 ms are less than forty of 0.5 ms, and more than forty of 0.2."""
    many = hits.Cell("many", 0.9, 20, 1.0)
    for cost, slower in ((0.5, False), (0.2, True)):
        few = hits.Cell("few", 0.6, 10, cost)
        pair = hits.Contrast("here", many, few)
        assert (pair.reversed, pair.ratio) == (True, 2)
        assert pair.told == slower
        turned = hits.Contrast("here", many._replace(tpot=5), few)
        assert (turned.reversed, turned.told) == (False, not slower)


def test_shares_and_words_of_several_places(tmp_path: Path) -> None:
    """Seed 0 has one pair, which is reversed; seed 1 one of its two places."""

    def two(tpot: float, **place: object) -> list[object]:
        return [run(tpot, hits=0.75, found=75, stalls={"load": 250.0}, **place),
                run(10, hits=0.5, found=50, stalls={"load": 50.0}, overrides={"evict": "fifo"},
                    **place)]  # fmt: skip

    of = evidence(tmp_path, *two(15, cache_ratio=0.25), *two(20, seed=1, machine="b"),
                  *two(5, seed=1))  # fmt: skip
    found = hits.reversals(of)
    assert found.samples == (100, 50)
    assert found.badge == "estimate"
    assert found.conditions == (
        "3 pairs at equal memory that differ by 2 points of hits and 2 % of TPOT or more"
    )
    most = hits.greatest(of)
    assert (most.samples, most.badge) == ((1.5, 2), "estimate")
    assert most.conditions == (
        "moe-ondemand (evict=fifo) with 50% hits, moe-ondemand with 75%; olmoe-1b-7b, b, 50% of "
        "the experts"
    )
    # The edge is .25 / .5; misses cost 1 against 10 ms; the rule is wrong where the pair is not.
    assert hits.turns(of) == (
        "Fewer hits are faster where a miss costs less than (1 - h_many) / (1 - h_few) of what it "
        "costs the other system. moe-ondemand (evict=fifo) with 50% hits in 10 ms, moe-ondemand "
        "with 75% in 20 ms (olmoe-1b-7b, b, 50% of the experts): the edge is 0.50, and its misses "
        "cost 0.10. This rule tells the faster system in 67% of 3 pairs."
    )
    assert [pair.place for pair in hits.contrasts(Runs(of.given))] == [
        "olmoe-1b-7b, a, 25% of the experts", "olmoe-1b-7b, a, 50% of the experts",
        "olmoe-1b-7b, b, 50% of the experts",
    ]  # fmt: skip


def test_misses_that_cost_the_other_system_nothing(tmp_path: Path) -> None:
    runs = [run(20, hits=0.75, found=75), run(10, hits=0.5, overrides={"evict": "fifo"})]
    assert "its misses cost inf." in hits.turns(evidence(tmp_path, *runs))
