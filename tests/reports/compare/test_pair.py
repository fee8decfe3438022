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


def test_sums_of_a_batch_are_what_times_are_means_of() -> None:
    times = [TokenSample(0, 0, 5 * 10**6, None), TokenSample(0, 1, 2 * 10**6, None),
             TokenSample(1, 1, 3 * 10**6, None), TokenSample(0, 2, 4 * 10**6, None)]  # fmt: skip
    first, _ = both()
    assert pair.shares("tpot_ms", first, times) == [(6, 2), (3, 1)]
    assert pair.shares("ttft_ms", first, times) == [(5, 1)]
    assert pair.shares("tpot_ms", first, times[:1]) is None
    assert pair.shares("tpot_ms", first, None) is None
    # Of questions: KL of decoded tokens, tokens that agree in percent, and scores of one each.
    assert pair.shares("kl", first) == [(0.2, 2), (0.4, 2), (0.0, 2)]
    assert pair.shares("agreement", first) == [(200, 2), (100, 2), (200, 2)]
    assert pair.shares("score", first) == [(100, 1), (0, 1), (100, 1)]
    assert pair.shares("energy_j", first) is None
    first["accuracy"]["items"]["kl"][1] = None
    assert pair.shares("kl", first) is None
    del first["accuracy"]["items"]
    assert pair.shares("score", first) is None


def test_one_question_has_no_interval() -> None:
    first, second = both()
    for one in (first, second):
        one["spec"]["prompts"] = 1
    found = pair.compare(first, second, (samples(TIMES[:1]), samples(TIMES[:1], later=2)))
    change = found.figures[0].change
    assert (change.value, change.low, change.n) == (2, None, 1)
    assert pair.lines(found)[0] == ["TPOT (ms)", "5.00", "7.00", "+2", "one question"]
    assert pair.over(found) == "95 % t intervals over questions: the 1 that both read, in pairs"
    for one in (first, second):
        one["spec"]["batch"] = 2
    found = pair.compare(first, second, (None, None))
    assert "over questions (of times, over batches): " in pair.over(found)


def test_rows_are_figures_then_parts_of_a_step_then_counts_of_a_token() -> None:
    first, second = both(evict="score")
    second["metrics"]["experts"]["decode"]["in_flight"] = 12
    second["metrics"]["decode"]["bytes_disk"] = 3_000_000
    found = pair.compare(first, second, (samples(), samples(later=3)))
    rows = {line[0]: line[1:] for line in pair.lines(found)}
    assert rows["device waits for load (ms a step)"] == ["1", "4", "+3", ""]
    assert rows["active experts (a token)"] == ["10", "10", "+0", ""]
    # A run without the count has a dash, and counts as nothing.
    assert rows["on their way in time (a token)"] == ["–", "2", "+2", ""]
    assert rows["MB from the disk (a token)"] == ["0", "0.5", "+0.5", ""]
    assert rows["MB over the link (a token)"] == ["10", "10", "+0", ""]
    assert rows["ms of the link (a token)"] == ["2", "2", "+0", ""]
    assert "prefetches (a token)" not in rows
    order = [title.rpartition(" (")[2] for title in rows]
    assert order.index("ms a step)") < order.index("a token)")
    assert order[-1] == "a token)"
    plain = pair.document(found)
    parts = {part["title"]: part for part in plain["ms_a_step"]}
    assert parts["device waits for load"] == {
        "title": "device waits for load", "first": 1, "second": 4, "change": 3,
    }  # fmt: skip
    assert plain["a_token"][0] == {
        "title": "active experts", "first": 10, "second": 10, "change": 0,
    }  # fmt: skip
    assert (plain["first"], plain["second"], plain["paired"]) == ("id-a", "id-b", True)
    assert plain["over"] == pair.over(found)
    assert plain["decisions"] == {"evict": ["lru", "score"]}
    assert plain["differing"] == {}
    assert plain["workload"] == first["spec"]["workload"]
    assert len(plain["badges"]) == 2


def test_steps_without_samples_are_tokens_over_the_batch() -> None:
    """Twelve tokens in batches of two are six steps, and six in one batch."""
    first, second = both()
    assert pair._steps(first, None) == 6
    assert pair._steps(first, samples()) == 6
    second["spec"]["batch"] = 2
    assert pair._steps(second, None) == 3
    second["spec"]["batch"] = None
    assert pair._steps(second, None) == 6
    del second["metrics"]["decoded_tokens"]
    assert pair._steps(second, None) == 0
    found = pair.compare(first, second, (None, None), ["batch"])
    parts = {part.title: (part.first, part.second) for part in found.times}
    assert parts["device computes"] == (4, None)


def test_a_run_that_decoded_nothing_has_no_sentence_about_time() -> None:
    first, second = both()
    second["metrics"]["tpot_ms"] = None
    found = pair.compare(first, second, (None, None))
    assert pair.sentence(found) == "a [id-a] and b [id-b]: one of them decoded nothing."


def test_small_parts_are_no_cause_and_the_largest_comes_first() -> None:
    """Of 3 ms more, 0.25 ms are less than a tenth; control takes less time, not more."""
    first = document("a", {"load": 6.0, "disk": 6.0, "host": 6.0, "control": 6.0})
    second = document("b", {"load": 12.0, "disk": 18.0, "host": 7.5, "control": 0.0},
                      evict="score", place="by-use")  # fmt: skip
    second["spec"]["overrides"] = {"b": "2", "a": "1"}
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert pair.sentence(found) == (
        "b a=1 b=2 [id-b] takes 3 ms more a token than a [id-a] (1.50×): device waits for disk "
        "+2 ms; device waits for load +1 ms.  They differ in place (by-id → by-use), evict (lru → "
        "score)."
    )
    # The other way round the first run is the slow one.
    turned = pair.compare(second, first, (samples(later=3), samples()))
    assert (
        "takes 3 ms more a token than a [id-a] (1.50×): device waits for disk +2 ms; device "
        in (pair.sentence(turned))
    )


def test_options_that_are_no_decisions_are_told_if_nothing_else_differs() -> None:
    first, second = both(alpha="0.3", window="2")
    found = pair.compare(first, second, (samples(), samples(later=3)))
    assert pair.sentence(found).endswith("  They differ in alpha (- → 0.3), window (- → 2).")
    other = pair.compare(*both(alpha="0.3", evict="score"), (samples(), samples(later=3)))
    assert pair.sentence(other).endswith("  They differ in evict (lru → score).")


def test_a_title_names_the_place() -> None:
    first, second = both()
    found = pair.compare(first, second, (None, None))
    assert pair.place_of(found) == "S3, gsm8k, batch 1"
    for one in (first, second):
        one["spec"]["setting"] = None
    found = pair.compare(first, second, (None, None))
    assert pair.place_of(found) == "qwen2-57b-a14b on a6000, gsm8k, batch 1"
    assert pair.markdown(found).startswith("### qwen2-57b-a14b on a6000, gsm8k, batch 1\n\na ")
