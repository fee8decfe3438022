"""SMoE's Algorithm 2 in both versions, by hand; C is the time of one load or host computation."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane
from moebench.systems.policies.assign import Balanced, HostAll, LoadAll, Optimal
from tests.systems.policies.exact import exact_ends  # noqa: F401
from tests.systems.views import Backlog, active, costs, fetched, view


class Missing(NamedTuple):
    """An active expert that is off the device."""

    expert: int
    score: float
    rows: int


#: By score: 7 2 5 1.  By rows: 2 1 5 7.
FOUR = [Missing(1, 0.2, 3), Missing(2, 0.4, 4), Missing(5, 0.3, 2), Missing(7, 0.5, 1)]


def plan(policy, missing, on_device=(), in_flight=(), phase="decode", measured=None, lanes=None):
    """Return a policy's plan for missing experts; the device's active experts score less."""
    scores = [0.01] * 32
    for expert, score, _ in missing:
        scores[expert] = score
    seen = view(
        [scores], resident=on_device, in_flight=in_flight, phase=phase, measured=measured,
        lanes=lanes,
    )  # fmt: skip
    rows = {m.expert: m.rows for m in missing} | dict.fromkeys([*on_device, *in_flight], 1)
    return policy.assign(seen, active(seen, dict(sorted(rows.items()))))


def loaded(found):
    """Return the experts that a plan loads, in order."""
    return fetched(0, found.load)


def split(
    missing, load, host=(1,), per_row=(1,), phase="decode", kind=Balanced, lanes=None, **options
):
    """Return loaded and host experts, each in their order."""
    measured = costs(load, host, per_row)
    found = plan(kind(**options), missing, phase=phase, measured=measured, lanes=lanes)
    assert list(found.device) == loaded(found)  # computed in order of arrival
    assert found.deferred == ()
    return loaded(found), list(found.host)


def test_division_for_equal_load_and_host_costs():
    # C = 10 and 10:  0≤0 load 7 (10|0), 10>0 host 1 (10|10), 10≤10 load 2 (20|10), host 5 (20|20).
    assert split(FOUR, [10], [10]) == ([7, 2], [1, 5])


def test_a_host_three_times_faster():
    # C = 30 and 10:  load 7 (30|0), host 1 (30|10), host 5 (30|20), host 2 (30|30).
    assert split(FOUR, [30], [10]) == ([7], [1, 5, 2])
    # A fifth, the best: load 3 (30|0), host 1 5 2 (30|30), and at the tie the link takes 7.
    assert split([*FOUR, Missing(3, 0.9, 1)], [30], [10]) == ([3, 7], [1, 5, 2])


def test_a_link_three_times_faster():
    # C = 10 and 30:  load 7 (10|0), host 1 (10|30), load 2 (20|30), load 5 (30|30).
    assert split(FOUR, [10], [30]) == ([7, 2, 5], [1])


def test_a_very_slow_link_still_gets_the_best_expert():
    # C = 1000 and 10:  0≤0 load 7 (1000|0); the host never reaches 1000.
    assert split(FOUR, [1000], [10]) == ([7], [1, 5, 2])


def test_division_of_one_and_no_missing_expert():
    one = [Missing(4, 0.3, 2)]
    assert split(one, [10], [10]) == ([4], [])
    assert split(one, [1000], [1]) == ([4], [])  # as printed: T_load = T_cpu = 0 loads
    assert split(one, [10], [10], tie="host") == ([], [4])
    assert split([], [10], [10]) == ([], [])


def test_ties_to_the_host():
    three = [FOUR[0], FOUR[1], FOUR[3]]  # by score 7 2 1
    # tie=load: load 7 (10|0), host 1 (10|10), load 2.
    assert split(three, [10], [10]) == ([7, 2], [1])
    # tie=host: host 1 (0|10), 0<10 load 7 (10|10), host 2.
    assert split(three, [10], [10], tie="host") == ([7], [1, 2])


def test_only_the_last_p_durations_count():
    # The last two of each: 10 and 10.  All three of the link's: (1000+10+10)/3 = 340 > 3·10.
    load, host = [1000, 10, 10], [10, 10, 10]
    assert split(FOUR, load, host, history=2) == ([7, 2], [1, 5])
    assert split(FOUR, load, host, history=3) == ([7], [1, 5, 2])
    # The mean, not the last or the first: (40+20)/2 = 30 against (5+15)/2 = 10 is three to one:
    # load 7 (30|0), host 1 5 2 (30|30).  By the last alone, 20 to 15: load 7 (20|0), host 1 5
    # (20|30), load 2.
    assert split(FOUR, [40, 20], [5, 15], history=2) == ([7], [1, 5, 2])
    assert split(FOUR, [40, 20], [5, 15], history=1) == ([7, 2], [1, 5])
    # The default p is ten: an eleventh, oldest one is forgotten.
    assert split(FOUR, [10_000] + [10] * 10, [10]) == ([7, 2], [1, 5])
    assert split(FOUR, [10_000] + [10] * 9, [10]) == ([7], [1, 5, 2])


def test_division_by_batch_rows_and_by_score():
    # First version: by rows 2(4) 1(3) 5(2) 7(1); t_load = 20, t_cpu = 10 a row.
    # load 2 (20|0), host 7 (20|10), host 5 (20|30), load 1 (40|30).
    assert split(FOUR, [20], [999], [10], by="batch") == ([2, 1], [7, 5])
    # t_cpu = 5 a row: load 2 (20|0), host 7 (20|5), host 5 (20|15), host 1 (20|30).
    assert split(FOUR, [20], [999], [5], by="batch") == ([2], [7, 5, 1])
    # Second version with the same: by score 7 2 5 1; C_cpu = 10 whatever the rows.
    # load 7 (20|0), host 1 (20|10), host 5 (20|20), load 2.
    assert split(FOUR, [20], [10], [999], by="score") == ([7, 2], [1, 5])


def test_equal_ranks_are_ordered_by_rows_score_and_id():
    # By score: the one with more rows first, then the lower id.
    same = [Missing(1, 0.5, 1), Missing(2, 0.5, 3), Missing(3, 0.5, 1)]
    assert split(same, [1], [1000]) == ([2, 1], [3])  # load 2 (1|0), host 3 (1|1000), load 1
    # By rows: the higher score first, then the lower id.
    same = [Missing(1, 0.1, 2), Missing(2, 0.1, 2), Missing(3, 0.9, 2)]
    assert split(same, [1], [1], [1000], by="batch") == ([3, 1], [2])


def test_prefill_is_divided_as_decode_or_loaded_by_id():
    for options in ({}, {"by": "batch"}, {"tie": "host"}, {"kind": Optimal}):
        divided = split(FOUR, [20], [5], [3], **options)
        assert split(FOUR, [20], [5], [3], phase="prefill", **options) == divided
        loaded = split(FOUR, [1000], [1], phase="prefill", prefill="load", **options)
        assert loaded == ([1, 2, 5, 7], [])


def test_load_all_and_host_all_use_one_side():
    def sides(policy, phase):
        found = plan(policy, FOUR, phase=phase)
        return loaded(found), list(found.host)

    ids = [1, 2, 5, 7]
    assert sides(LoadAll(), "decode") == sides(LoadAll(), "prefill") == (ids, [])
    assert sides(HostAll(), "decode") == ([], ids)
    assert sides(HostAll(), "prefill") == (ids, [])
    assert [p.uses_host for p in (LoadAll(), HostAll(), Balanced(), Optimal())] == [
        False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [LoadAll(), HostAll(), Balanced(), Optimal()])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_what_is_on_the_device_or_on_its_way_is_computed_there(policy, phase):
    measured = costs([10], [10], [10])
    found = plan(policy, FOUR, on_device=(0, 6), in_flight=(3,), phase=phase, measured=measured)
    assert list(found.device[:3]) == [0, 6, 3]
    assert list(found.device[3:]) == loaded(found)
    assert sorted([*loaded(found), *found.host]) == [1, 2, 5, 7]
    nothing = plan(policy, [], on_device=(0, 6), in_flight=(3,), phase=phase, measured=measured)
    assert (list(nothing.device), list(nothing.load), list(nothing.host)) == ([0, 6, 3], [], [])


def test_as_printed_the_link_is_free_whatever_was_submitted_before():
    busy = Backlog({Lane.H2D: 10_000, Lane.DISK: 10_000}, (Lane.DISK, Lane.H2D))
    assert split(FOUR, [10], [10], lanes=busy, link="printed") == ([7, 2], [1, 5])
    # Eq. 4 with a free link: at C = 10 and 10, two and two end at 20.
    found = split(FOUR, [10], [10], kind=Optimal, lanes=busy, link="printed")
    assert found == ([7, 2], [1, 5])


def test_the_links_backlog_comes_before_a_load():
    # C = 10 and 10, S = 7 2 5 1.  The link is free at 5: host 1 (5|10), load 7 (15|10), host 5
    # (15|20), load 2 (25|20).
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 5})) == ([7, 2], [1, 5])
    # At 15: host 1 (15|10), host 5 (15|20), load 7 (25|20), host 2 (25|30).
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 15})) == ([7], [1, 5, 2])
    # At 20: host 1 5 (20|20), at the tie the link takes 7 (30|20), host 2.
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 20})) == ([7], [1, 5, 2])
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 20}), tie="host") == (
        [7], [1, 5, 2],
    )  # fmt: skip
    # At 31 the host does it all before the link is free; at 30 the tie is the link's.
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 31})) == ([], [1, 5, 2, 7])
    assert split(FOUR, [10], [10], lanes=Backlog({Lane.H2D: 30})) == ([7], [1, 5, 2])
    # What other lanes still have to do is no matter of the link's.
    others = dict.fromkeys({*Lane} - {Lane.H2D}, 10_000)
    assert split(FOUR, [10], [10], lanes=Backlog(others)) == ([7, 2], [1, 5])


def test_from_the_disk_a_load_waits_for_both_lanes():
    path = (Lane.DISK, Lane.H2D)
    for busy in ({Lane.DISK: 15}, {Lane.DISK: 15, Lane.H2D: 5}, {Lane.H2D: 15}):
        assert split(FOUR, [10], [10], lanes=Backlog(busy, path)) == ([7], [1, 5, 2])


def test_the_optimum_by_hand():
    # One missing expert, C = 30 and 10: Algorithm 2 loads it as T_load = T_cpu = 0 (ends at 30);
    # the host has it at 10.
    one = [Missing(4, 0.3, 2)]
    assert split(one, [30], [10]) == ([4], [])
    assert split(one, [30], [10], kind=Optimal) == ([], [4])
    # Two, C = 30 and 10: 0 loads end at 20, 1 at 30, 2 at 60.
    assert split(FOUR[:2], [30], [10], kind=Optimal) == ([], [1, 2])
    # Four, C = 30 and 10: 0 loads end at 40, 1 at max(30, 30) = 30, 2 at 60.
    assert split(FOUR, [30], [10], kind=Optimal) == ([7], [1, 5, 2])
    # The same with a link that is free at 5: 1 load ends at 35; at 10 both splits end at 40 and
    # more are loaded; at 11 the link is left alone.
    busy = [Backlog({Lane.H2D: ns}) for ns in (5, 10, 11)]
    assert split(FOUR, [30], [10], kind=Optimal, lanes=busy[0]) == ([7], [1, 5, 2])
    assert split(FOUR, [30], [10], kind=Optimal, lanes=busy[1]) == ([7], [1, 5, 2])
    assert split(FOUR, [30], [10], kind=Optimal, lanes=busy[2]) == ([], [1, 5, 2, 7])
    # A host that is slower than everything: all are loaded, the best first.
    assert split(FOUR, [10], [1000], kind=Optimal) == ([7, 2, 5, 1], [])


@pytest.mark.parametrize("kind", [Balanced, Optimal])
@pytest.mark.parametrize("history", [0, 65])
def test_history_out_of_range(kind, history):
    with pytest.raises(UsageError, match=r"assign\.history"):
        kind(history=history)


missing_sets = st.dictionaries(
    st.integers(0, 31), st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.integers(1, 4)), max_size=12
).map(lambda d: [Missing(e, score, rows) for e, (score, rows) in sorted(d.items())])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    missing_sets,
    st.integers(1, 100),
    st.integers(1, 100),
    st.sampled_from(["score", "batch"]),
    st.sampled_from(["load", "host"]),
)
def test_division_covers_each_expert_once_in_rank_order(missing, load, host, by, tie):
    loads, hosts = split(missing, [load], [host], [host], by=by, tie=tie)
    assert sorted(loads + hosts) == [m.expert for m in missing]
    # One descending queue, eaten from both ends: loads forwards, host backwards.
    rank = {m.expert: m.score if by == "score" else m.rows for m in missing}
    queue = [rank[e] for e in loads + hosts[::-1]]
    assert queue == sorted(queue, reverse=True)
    # Neither side started an expert while it was the busier one.
    rows = {m.expert: m.rows if by == "batch" else 1 for m in missing}
    t_load, t_cpu = load * len(loads), host * sum(rows[e] for e in hosts)
    if loads:
        assert t_load - load <= t_cpu
    if hosts:
        assert t_cpu - host * rows[hosts[-1]] <= t_load


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(missing_sets, st.integers(1, 100), st.integers(1, 100), st.integers(0, 200))
def test_no_division_by_algorithm_2_ends_before_the_optimum(missing, load, host, free):
    def end(division):
        loads, hosts = map(len, division)
        return max(free + loads * load if loads else 0, hosts * host)

    lanes = Backlog({Lane.H2D: free})
    best = split(missing, [load], [host], kind=Optimal, lanes=lanes)
    assert end(best) <= end(split(missing, [load], [host], lanes=lanes))
    # Nor any other number of loads.
    ends = [end((["load"] * n, ["host"] * (len(missing) - n))) for n in range(len(missing) + 1)]
    assert end(best) == min(ends)
    assert sorted(best[0] + best[1]) == [m.expert for m in missing]
    scores = {m.expert: m.score for m in missing}
    ranked = [scores[e] for e in best[0] + best[1][::-1]]
    assert ranked == sorted(ranked, reverse=True)
