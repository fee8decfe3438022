"""Two runs beside each other, by hand."""

from typing import Any

import pytest

from moebench.reports.compare import pair
from moebench.results.samples import TokenSample
from moebench.substrate.errors import UsageError
from tests.reports.compare.test_tables import ran

#: Three questions, three tokens each: TTFT in ms, then two decoded steps.
TIMES = ((10, 4, 6), (12, 5, 5), (11, 8, 8))


def samples(times: Any = TIMES, later: int = 0) -> list[TokenSample]:
    return [
        TokenSample(batch, step, (ms + (later if step else 0)) * 10**6, None)
        for batch, row in enumerate(times)
        for step, ms in enumerate(row)
    ]


def document(system: str, stalls: dict[str, float], **options: str) -> dict[str, Any]:
    """A run of three questions, of two decoded tokens each."""
    run = ran(system, 6.0, prompts=3)
    run["run_id"] = f"id-{system}"
    run["spec"]["options"] = {"place": "by-id", "evict": "lru", **options}
    run["metrics"] |= {
        "decoded_tokens": 6,
        "ttft_ms": {"mean": 11.0},
        "decode": {
            "lanes": {"device": 24.0, "h2d": 12.0, "host": 0.0}, "stall_ms": stalls,
            "bytes_h2d": 60_000_000, "bytes_disk": 0,
        },
        "experts": {"decode": {"active": 60, "hits": 30, "loads": 30, "host": 0}},
        "prefetch": {"issued": 0, "used": 0},
    }  # fmt: skip
    run["accuracy"] |= {"items": {"kl": [0.2, 0.4, 0.0], "decoded": [2, 2, 2], "agreed": [2, 1, 2],
                                  "value": [1.0, 0.0, 1.0]}}  # fmt: skip
    run["provenance"] = run.get("provenance", {}) | {"data_hash": "questions"}
    return run


def both(**other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    first = document("a", {"load": 6.0, "control": 6.0})
    second = document("b", {"load": 24.0, "control": 6.0}, **other)
    return first, second


def test_the_difference_of_times_is_paired_by_question() -> None:
    first, second = both(evict="score")
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert found.paired
    tpot = found.figures[0]
    # Every step takes 3 ms more: whatever the questions are, nothing else is uncertain.
    assert (tpot.title, tpot.first, tpot.second) == ("TPOT (ms)", 6.0, 9.0)
    assert tuple(tpot.change) == pytest.approx((3.0, 3.0, 3.0, 3))
    ttft = found.figures[1]
    assert (ttft.first, ttft.change.value) == (11.0, 0.0)
    assert pair.over(found).endswith("the 3 that both read, in pairs")


def test_parts_of_a_step_add_up_to_its_time_and_say_why() -> None:
    first, second = both(evict="score")
    found = pair.compare(first, second, (samples(), samples(later=3)))
    parts = {part.title: (part.first, part.second, part.change) for part in found.times}
    assert parts == {
        "device computes": (4.0, 4.0, 0.0),
        "device waits for control": (1.0, 1.0, 0.0),
        "device waits for load": (1.0, 4.0, 3.0),
    }
    assert sum(part.change for part in found.times) == found.figures[0].change.value
    counts = {part.title: part.first for part in found.counts}
    assert counts["loads after the gate"] == 5
    assert counts["MB over the link"] == 10
    assert "computed on the host" not in counts, "neither did"
    assert pair.sentence(found) == (
        "b [id-b] takes 3 ms more a token than a [id-a] (1.50×): device waits for load +3 ms.  "
        "Only this differs: evict (lru → score)."
    )


def test_without_another_decision_nothing_is_said_of_any() -> None:
    first, second = both()
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert pair.sentence(found) == (
        "b [id-b] takes 3 ms more a token than a [id-a] (1.50×): device waits for load +3 ms."
    )


def test_a_run_that_leaves_most_of_its_memory_empty_is_named() -> None:
    first, second = both()
    first["memory"] = first["memory"] | {"slot_bytes": 9 * 10**9, "room_bytes": 36 * 10**9}
    second["memory"] = second["memory"] | {"slot_bytes": 36 * 10**9, "room_bytes": 36 * 10**9}
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert pair.sentence(found).endswith(" +3 ms.  a [id-a]: its experts take 9 of 36 GB.")


def test_the_other_way_round_it_is_said_of_the_same_run() -> None:
    second, first = both(evict="score")
    found = pair.compare(first, second, (samples(later=3), samples()))
    assert found.figures[0].change.value == -3
    assert pair.sentence(found).startswith("b [id-b] takes 3 ms more a token than a [id-a]")


def test_a_difference_that_questions_explain_is_none() -> None:
    first, second = both()
    times = ((10, 4, 9), (12, 7, 5), (11, 6, 6))
    found = pair.compare(first, second, (samples(), samples(times)))
    assert not found.figures[0].change.excludes_zero
    assert "by no more than these questions explain" in pair.sentence(found)


def test_other_questions_are_no_pairs() -> None:
    first, second = both()
    second["provenance"]["data_hash"] = "others"
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert not found.paired
    change = found.figures[0].change
    assert change.value == 3
    assert change.low < 3 < change.high
    assert "no pairs" in pair.over(found)


def test_without_samples_there_is_no_interval() -> None:
    first, second = both()
    second["metrics"]["tpot_ms"] = {"mean": 9.0}
    found = pair.compare(first, second, (None, samples(later=3)))
    assert tuple(found.figures[0].change) == (3.0, None, None, 0)
    assert pair.lines(found)[0][-1] == "no samples were kept"
    assert pair.sentence(found).startswith("b [id-b] takes 3 ms more")


def test_accuracy_is_compared_question_by_question() -> None:
    first, second = both()
    second["accuracy"]["items"] |= {"kl": [0.4, 0.6, 0.2], "agreed": [1, 1, 2]}
    figures = {f.title: f for f in pair.compare(first, second, (None, None)).figures}
    assert figures["KL (nats/token)"].change.value == pytest.approx(0.1)
    assert figures["KL (nats/token)"].change.excludes_zero
    assert figures["agreement (%)"].first == pytest.approx(100 * 5 / 6)
    assert figures["score (%)"].change == (0, 0, 0, 3)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"prompts": 4}, "prompts 3 and 4"),
        ({"software": "hf-eager"}, "software"),
        ({"workload": "facts"}, "workload"),
        ({"machine": "h100"}, "machine"),
        ({"batch": 2}, "batch 1 and 2"),
    ],
)
def test_what_is_not_fair_is_refused_and_can_be_allowed(spec: dict[str, Any], named: str) -> None:
    first, second = both()
    second["spec"] |= spec
    with pytest.raises(UsageError, match=named) as refused:
        pair.compare(first, second, (None, None))
    (name,) = spec
    assert f"--mixed {name}" in str(refused.value)
    found = pair.compare(first, second, (None, None), [name])
    assert list(found.differing) == [name]


def test_an_unknown_condition_is_refused() -> None:
    with pytest.raises(UsageError, match="--mixed taste: allowed: model, machine"):
        pair.compare(*both(), (None, None), ["taste"])


def test_options_of_a_swapped_policy_are_not_told_twice() -> None:
    first, second = both(evict="score", **{"evict.window": "8", "alpha": "0.3"})
    assert pair.compare(first, second, (None, None)).decisions == {
        "evict": ("lru", "score"), "alpha": ("-", "0.3"),
    }  # fmt: skip


def test_a_document_and_a_table() -> None:
    found = pair.compare(*both(evict="score"), (samples(), samples(later=3)))
    plain = pair.document(found)
    assert plain["sentence"] == pair.sentence(found)
    assert plain["figures"][0]["low"] == pytest.approx(3)
    text = pair.markdown(found)
    assert "| TPOT (ms) | 6.00 | 9.00 | +3 | +3 to +3 |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {6}
