"""Comparisons by hand: what stands apart, what is refused, what is marked, what is averaged."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.reports.compare.conditions import (
    COMMON_SHARE,
    COMMON_SHARE_QUANTISED,
    CONDITIONS,
    conditions_of,
)
from moebench.reports.compare.tables import Comparison, comparisons, matrix, refuse_mixtures
from moebench.reports.compare.text import MARK, document, said, text_table
from moebench.reports.text import markdown
from moebench.results.spec import OPTIONS
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import model_names, model_shape
from tests.reports.samples import run

GB = 10**9
MEMORY = {
    "offered_device_bytes": 44 * GB, "offered_host_bytes": 256 * GB,
    "expert_bytes": 55_000_000, "slot_bytes": 22 * GB,
}  # fmt: skip


def ran(system: str, tpot_ms: float, memory: dict[str, int] | None = None, **spec: Any):
    """A run of S3 with the figures that a comparison shows."""
    one = run(f"{system}-{sorted(spec.items())}-{tpot_ms}", system=system, overrides={}, **spec)
    one["spec"]["options"] = {"expert_precision": "null"}
    one["metrics"] |= {
        "tpot_ms": {"mean": tpot_ms},
        "decoded_tokens": 2000,
        "decode": {
            "lanes": {"device": 300.0}, "stall_ms": {"load": 80.0, "control": 20.0},
            "bytes_h2d": 500 * GB, "bytes_disk": 0,
        },
    }  # fmt: skip
    one["interval"]["tpot_ms"] = {"low": 0.85 * tpot_ms, "high": 1.15 * tpot_ms}
    return one | {"memory": MEMORY | (memory or {})}


def tables(runs: list[Any], **how: Any) -> list[Comparison]:
    return list(comparisons(runs, **how).tables)


def means(table: Comparison, key: str) -> dict[str, float]:
    return {row.system: row.values[key].mean for row in table.rows if key in row.values}


def test_figures_are_means_over_workloads_and_the_fastest_comes_first() -> None:
    runs = [
        ran("slow", 90.0, workload="gsm8k"), ran("slow", 110.0, workload="facts"),
        ran("fast", 50.0, workload="gsm8k"), ran("fast", 60.0, workload="facts"),
    ]  # fmt: skip
    (table,) = tables(runs)
    assert [row.system for row in table.rows] == ["fast", "slow"]
    assert means(table, "tpot_ms") == {"fast": 55.0, "slow": 100.0}
    assert means(table, "ratio_best") == {"fast": 1.0, "slow": pytest.approx(100 / 55)}
    slow = table.rows[1].values
    # 500 GB for 2000 tokens; the device stood idle for 100 of 400 ms; slots of 22 GB.
    assert [slow[key].mean for key in ("gb_per_token", "device_idle", "slots_gb")] == [
        0.25, 0.25, 22.0,
    ]  # fmt: skip
    assert table.common["device-memory"] == "44.00 GB"
    assert table.common["workloads"] == "facts, gsm8k"
    # 100 ± t(1 degree, 95 %) · 14.14 / √2
    assert slow["tpot_ms"].interval == pytest.approx((100 - 127.062, 100 + 127.062), abs=1e-3)


def test_an_interval_is_over_workloads_by_seeds() -> None:
    runs = [
        ran("a", float(value), workload=name, seed=seed)
        for value, (name, seed) in enumerate(
            [(w, s) for w in ("gsm8k", "facts", "passages") for s in (0, 1)], 1
        )
    ]
    (table,) = tables(runs)
    value = table.rows[0].values["tpot_ms"]
    assert (value.mean, value.n) == (3.5, 6)
    # The standard deviation of 1 to 6 is √3.5; t(5 degrees, 95 %) = 2.5706.
    assert value.interval == pytest.approx((3.5 - 1.9633, 3.5 + 1.9633), abs=1e-3)


def test_a_table_for_each_setting_batch_and_precision() -> None:
    runs = [
        ran("a", 1.0), ran("a", 2.0, batch=3), ran("a", 3.0, setting="S1"),
        ran("a", 4.0, setting="S1", precision="4bit"),
    ]  # fmt: skip
    assert [table.title for table in tables(runs)] == [
        "S1, batch 1, precision 4bit", "S1, batch 1, precision bf16", "S3, batch 1", "S3, batch 3",
    ]  # fmt: skip


DIFFERENT = [
    ("device-memory", {"memory": {"offered_device_bytes": 48 * GB}}),
    ("host-memory", {"memory": {"offered_host_bytes": 64 * GB}}),
    ("expert-precision", {"expert_dtype": "int4"}),
    ("prompts", {"prompts": 8}),
    ("new-tokens", {"new_tokens": 8}),
    ("seed", {"seed": 1}),
    ("few-shot", {"few_shot": 5}),
    ("plain-prompts", {"plain_prompts": True}),
    ("scoring", {"scoring": "generation"}),
    ("software", {"software": "hf-eager"}),
    ("workloads", {"workload": "facts"}),
    ("page-cache", {"page_cache": "keep"}),
    ("emulated-link", {"emulated_link_gb_s": 4.0}),
]


@pytest.mark.parametrize(("name", "other"), DIFFERENT)
def test_what_differs_stands_apart_is_refused_or_marked(name: str, other: dict[str, Any]) -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("odd", 3.0, **other)]
    main, apart = tables(runs)
    assert [row.system for row in main.rows] == ["a", "b"]
    assert [row.system for row in apart.rows] == ["odd"]
    assert apart.reason.startswith(f"not comparable with the table above: {name} ")
    assert main.reason == ""
    assert main.title != apart.title
    with pytest.raises(UsageError, match=rf"S3, batch 1: odd has {name} .*--mixed {name}"):
        refuse_mixtures([main, apart])
    (table,) = tables(runs, mixed=[name])
    refuse_mixtures([table])
    marked = [row for row in text_table(table).rows if MARK in row[0]]
    assert [row[0] for row in marked] == ["odd" + MARK]
    assert marked[0][-1].startswith(name)
    assert marked[0][-1].endswith(MARK)


def test_a_precision_of_the_systems_own_is_another_condition() -> None:
    own = ran("quantised", 1.0)
    own["spec"]["options"]["expert_precision"] = "4bit"
    with pytest.raises(UsageError, match="quantised has expert-precision 4bit, the others bf16"):
        refuse_mixtures(tables([ran("a", 1.0), ran("b", 1.0), own]))


def test_only_known_conditions_may_be_mixed() -> None:
    with pytest.raises(UsageError, match=r"--mixed fonts: allowed: device-memory, .*workloads"):
        tables([ran("a", 1.0)], mixed=["fonts"])


def test_a_system_that_read_more_is_compared_on_what_all_read() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("a", 100.0, workload="facts")]
    main, more = tables(runs)
    assert means(main, "tpot_ms") == {"a": 1.0, "b": 2.0}
    assert means(more, "tpot_ms") == {"a": 50.5}
    assert more.apart == {"workloads": ("facts, gsm8k", "gsm8k")}


def test_replays_of_several_workloads_are_averaged() -> None:
    runs = [
        ran(system, 1.0, workload=workload, trace=f"traces/model__{workload}")
        for system in ("a", "b") for workload in ("gsm8k", "facts")
    ]  # fmt: skip
    for one in runs:
        name = one["spec"]["workload"]
        one["provenance"] |= {
            "weights": f"none: routing replayed from model__{name}", "trace_hash": name,
        }  # fmt: skip
    (table,) = tables(runs)
    assert table.title == "S3, batch 1, routing replayed"
    assert len(table.cells) == 2


def test_other_weights_are_not_compared() -> None:
    other = ran("b", 2.0)
    other["provenance"]["weights_hash"] = "dd" * 32
    _, apart = tables([ran("a", 1.0), other])
    assert apart.apart == {"weights": ("dddddddd", "bbbbbbbb")}


def test_other_questions_of_one_workload_are_not_compared() -> None:
    other = ran("b", 2.0)
    other["provenance"]["data_hash"] = "dd" * 32
    one, two = tables([ran("a", 1.0), other])
    assert "questions other ones" in two.reason
    assert one.title != two.title
    with pytest.raises(UsageError, match=r"b has questions other ones"):
        refuse_mixtures([one, two])


def test_of_runs_with_one_spec_those_of_the_newest_code_count() -> None:
    old, new = ran("a", 1.0), ran("a", 2.0)
    new["run_id"] = "new"
    new["provenance"] |= {"code_hash": "other", "created": "2027-01-01T12:00:00+00:00"}
    found = comparisons([old, new])
    assert found.tables[0].rows[0].run_ids == ("new",)
    assert len(found.left_out) == 1
    assert old["run_id"] in found.left_out[0]


def test_measurements_that_were_repeated_are_averaged_within_their_cell() -> None:
    runs = [ran("a", value) | {"simulated": False, "run_id": str(value)} for value in (1.0, 3.0)]
    (table,) = tables(runs)
    value = table.rows[0].values["tpot_ms"]
    assert (value.mean, value.n, value.interval) == (2.0, 1, None)
    assert table.rows[0].run_ids == ("1.0", "3.0")


def test_a_run_of_another_version_is_said_and_left_out() -> None:
    broken = ran("b", 1.0)
    del broken["metrics"], broken["spec"]["model"]
    found = comparisons([ran("a", 1.0), broken])
    assert [row.system for row in found.tables[0].rows] == ["a"]
    assert "lacks spec.model, metrics" in found.left_out[0]


def test_a_system_that_does_not_exist_here_says_why() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("a", 4.0, batch=3)]

    def why_not(place: dict[str, Any], system: str) -> str | None:
        return "one at a time" if system == "b" and place["spec"]["batch"] == 3 else None

    one, three = map(text_table, tables(runs, why_not=why_not))
    assert [line[:2] for line in one.rows] == [("a", "1.00"), ("b", "2.00")]
    assert three.rows[1][:2] == ("b", "n/a")
    assert "| b | n/a |" in markdown(three)
    assert "one at a time" in markdown(three)


def test_rows_show_what_was_set() -> None:
    runs = [ran("a", 1.0), ran("a", 2.0), ran("a", 3.0)]
    runs[1]["spec"]["overrides"] = {"evict": "lru"}
    runs[2]["spec"] |= {"alpha": 0.35, "calibrate_from": "facts"}
    (table,) = tables(runs)
    assert [row.system for row in table.rows] == [
        "a", "a evict=lru", "a alpha=0.35 calibrate_from=facts",
    ]  # fmt: skip


def test_bounds_compete_with_nobody() -> None:
    oracle = ran("belady", 2.0) | {"oracle": True}
    (table,) = tables([oracle, ran("a", 4.0), ran("b", 8.0)])
    assert means(table, "ratio_best") == {"belady (oracle)": 0.5, "a": 1.0, "b": 2.0}
    assert table.marks["tpot_ms"].best == {"a"}
    remarks = [row[-1] for row in text_table(table).rows]
    assert remarks == ["a bound: knows the future", "", ""]


def test_who_is_given_a_larger_device_stands_apart() -> None:
    resident = ran("gpu-only", 1.0, memory={"offered_device_bytes": 113 * GB})
    main, apart = tables([resident, ran("a", 4.0), ran("b", 8.0)])
    assert min(means(main, "ratio_best").values()) == 1.0
    assert "device-memory 113.00 GB, not 44.00 GB" in apart.reason


def test_best_and_second_best_are_marked_and_ties_share() -> None:
    (table,) = tables(
        [ran(name, tpot) for name, tpot in [("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 3.0)]]
    )
    assert table.marks["tpot_ms"] == ({"b", "c"}, {"a"})
    assert "agreement" not in table.marks  # the same for all
    text = text_table(table)
    column = text.headers.index("TPOT (ms)")
    assert [text.marks.get((0, row, column)) for row in range(4)] == [
        "best", "best", "second", None,
    ]  # fmt: skip
    assert "| **1.00** |" in markdown(text)


def test_scores_within_their_errors_are_not_ranked() -> None:
    near, far = ran("near", 1.0), ran("far", 1.0)
    near["accuracy"] |= {"score": 50.0, "stderr": 8.0}
    (table,) = tables([near, far])
    assert "score" not in table.marks
    far["accuracy"] |= {"score": 20.0, "stderr": 8.0}
    (table,) = tables([near, far])
    assert table.marks["score"].best == {"near"}


def test_a_perplexity_is_no_score() -> None:
    read = ran("a", 1.0)
    read["accuracy"] |= {"metric": "perplexity", "score": 12.5}
    (table,) = tables([read])
    assert "score" not in table.rows[0].values
    assert means(table, "perplexity") == {"a": 12.5}


def test_a_small_divergence_is_not_zero() -> None:
    read = ran("a", 1.0)
    read["accuracy"] |= {"kl": 5e-06, "agreement": 0.99996}
    text = text_table(tables([read])[0])
    cells = dict(zip(text.headers, text.rows[0], strict=True))
    assert cells["KL (nats/token)"] == "5e-06"
    assert cells["agreement (%)"] == "99.996"


def test_what_all_rows_share_is_said_once() -> None:
    (table,) = tables([ran("a", 1.0), ran("b", 2.0)])
    line = said(table)
    assert "device-memory 44.00 GB" in line
    assert "all estimate" in line
    assert "badge" not in text_table(table).headers
    measured = ran("b", 2.0) | {"badge": "datasheet"}
    assert "badge" in text_table(tables([ran("a", 1.0), measured])[0]).headers


def test_as_values_for_json() -> None:
    (table,) = tables([ran("a", 1.0), ran("b", 2.0)])
    first = document(table)["systems"][0]
    assert first["figures"]["tpot_ms"]["mean"] == 1.0
    assert first["runs"] == [table.rows[0].run_ids[0]]


def test_the_heat_map_holds_every_ratio() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("a", 9.0, batch=3), ran("c", 3.0, batch=3)]
    alone = ran("a", 1.0, setting="S1")
    found = matrix(tables([*runs, alone]))
    assert found.titles == ("S3, batch 1", "S3, batch 3")
    assert found.systems == ("c", "a", "b")  # geometric means 1, √3 and 2
    assert found.ratios == ((None, 1.0, 2.0), (1.0, 3.0, None))


S3 = {"S3": {"device_memory_gib": 41.5, "software": "lean"}}


@pytest.mark.parametrize(
    ("chosen", "settings"), [("10.63 GB", {"S3": {"device_memory_gib": 9.9}}), ("44.00 GB", S3),
                             ("44.00 GB", {}), ("2.24 GB", {"S3": {"cache_ratio": 0.05}})],
)  # fmt: skip
def test_the_main_table_is_the_one_nearest_to_the_paper_s_setting(
    chosen: str, settings: dict[str, Any]
) -> None:
    runs = [
        ran(system, tpot, {"offered_device_bytes": int(gb * GB)}, cache_ratio=gb / 44.8)
        for gb in (10.63, 2.24, 44.0)
        for system, tpot in (("smoe", 1.0), ("daop", gb))
    ]
    main, *others = tables(runs, settings=settings)
    assert main.common["device-memory"] == chosen
    assert main.reason == ""
    assert len(others) == 2


def test_a_stated_option_goes_before_the_size_of_memory() -> None:
    runs = [
        ran(system, 1.0, {"offered_device_bytes": gb * GB}, software=software)
        for gb, software in ((44, "hf-eager"), (10, "lean"))
        for system in ("a", "b")
    ]
    main, _ = tables(runs, settings=S3)
    assert main.common["software"] == "lean"


CELLS = st.tuples(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["gsm8k", "facts"]), st.sampled_from([0, 1]),
    st.sampled_from(["lean", "hf-eager"]), st.sampled_from([1, 3]),
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None)
@given(st.sets(CELLS, min_size=1))
def test_every_run_is_shown_and_every_table_is_complete(cells: set[Any]) -> None:
    runs = [
        ran(system, float(n + 1), workload=workload, seed=seed, software=software, batch=batch)
        for n, (system, workload, seed, software, batch) in enumerate(sorted(cells))
    ]
    found = tables(runs)
    shown = {run_id for table in found for row in table.rows for run_id in row.run_ids}
    assert shown == {one["run_id"] for one in runs}
    assert len({table.title for table in found}) == len(found)
    for table in found:
        for row in table.rows:
            assert len(row.run_ids) == len(table.cells)
        assert min(means(table, "ratio_best").values()) == 1.0
    mains = [table for table in found if not table.apart]
    assert len(mains) == len({table.place for table in found})


def test_every_option_that_is_a_condition_is_compared() -> None:
    compared = [one.instead_of or one.name for one in CONDITIONS if one.name != "profile"]
    options = [one for one in OPTIONS.values() if one.part == "condition"]
    found = {one.name if one.name in compared else one.flag.removeprefix("--") for one in options}
    assert found == set(compared)
    assert len(compared) == len(options)


@pytest.mark.parametrize(
    ("host_gb", "expert_dtype", "text"),
    [
        # 1792 experts of 55.05 MB are 98.65 GB, and the other weights a quarter of that at most.
        (124, None, "all weights"),
        (123, None, "123.00 GB"),
        # Of quantised experts, as much as that.
        (198, "int4", "all weights"),
        (197, "int4", "197.00 GB"),
    ],
)
def test_host_memory_is_a_condition_where_weights_might_not_fit(
    host_gb: int, expert_dtype: str | None, text: str
) -> None:
    memory = {"expert_bytes": 55_050_240, "offered_host_bytes": host_gb * GB}
    one = ran("a", 1.0, memory, expert_dtype=expert_dtype, slots=516, cache_ratio=0.287946)
    assert conditions_of(one)["host-memory"] == text
    assert conditions_of({**one, "memory": {}})["host-memory"] == "?"


@pytest.mark.parametrize("name", model_names())
def test_non_expert_weights_are_a_small_share_in_every_model(name: str) -> None:
    shape = model_shape(name)
    count = len(shape.moe_layers) * shape.num_experts
    common = shape.common_bytes("bf16")
    assert common <= COMMON_SHARE * count * shape.expert_bytes("bf16")
    assert common <= COMMON_SHARE_QUANTISED * count * shape.expert_bytes("int4")


@pytest.mark.parametrize(
    ("older", "said", "more"),
    [(1, "1 run is", ""), (5, "5 runs are", ""), (6, "6 runs are", ", ...")],
)
def test_at_most_five_older_runs_are_named(older: int, said: str, more: str) -> None:
    runs = [ran("lru", 50.0) for _ in range(older + 1)]
    for at, one in enumerate(runs):
        one["run_id"] = f"r{at}"
        one["provenance"] |= {"created": f"2026-01-0{at + 1}", "code_hash": f"c{at}"}
    found = comparisons(runs)
    names = ", ".join(f"r{at}" for at in range(min(5, older)))
    assert found.left_out == (
        f"{said} left out, as a newer run of the same spec used other code, weights, "
        f"prompts or hardware figures: {names}{more}",
    )
    (table,) = found.tables
    assert [row.run_ids for row in table.rows] == [(f"r{older}",)]


def test_refusals_name_what_else_to_allow() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("odd", 3.0, few_shot=5)]
    both = tables(runs)
    with pytest.raises(UsageError) as caught:
        refuse_mixtures(both, mixed=["software"])
    assert str(caught.value) == (
        "S3, batch 1: odd has few-shot 5, the others 0: not a fair comparison; leave it out "
        "(--systems), or allow it and see it marked: --mixed few-shot,software"
    )
    other = ran("b", 2.0)
    other["provenance"]["data_hash"] = "dd" * 32
    with pytest.raises(UsageError) as caught:
        refuse_mixtures(tables([ran("a", 1.0), other]))
    assert str(caught.value) == (
        "S3, batch 1: b has questions other ones of the same workloads, the others these: not a "
        "fair comparison; leave it out (--systems)"
    )


def test_tables_of_one_title_are_numbered() -> None:
    """Other prompts of one workload have no name of their own."""
    others = [ran(system, 2.0) for system in "bc"]
    for one, data in zip(others, ("dd", "ee"), strict=True):
        one["provenance"]["data_hash"] = data * 32
    found = tables([ran("a", 1.0), *others])
    assert sorted(table.title for table in found) == [
        "S3, batch 1", "S3, batch 1 (2)", "S3, batch 1 (3)",
    ]  # fmt: skip
    assert [table.reason == "" for table in found] == [True, False, False]


def test_systems_without_a_time_come_last_by_name() -> None:
    runs = [ran("b", 2.0), ran("z", 1.0), ran("y", 3.0), ran("x", 3.0)]
    for one in runs[2:]:
        one["metrics"]["tpot_ms"] = None
    (table,) = tables(runs)
    assert [row.system for row in table.rows] == ["z", "b", "x", "y"]
