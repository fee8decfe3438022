"""`moebench compare` from the outside, on tiny models."""

import pytest

from moebench.harness.stage import local
from tests.harness.commands import call, refused, run

pytestmark = pytest.mark.usefixtures("tiny_models")

TWO = ("--prompts", "2", "--new-tokens", "4")


def test_two_runs() -> None:
    one, other = run("smoe", *TWO), run("smoe", *TWO, "--set", "evict=lru")
    called = call("compare", one["run_id"], other["run_id"], "--json")
    assert called.code == 0, called.err
    (found,) = called.json
    assert found["paired"]
    assert found["decisions"] == {"evict": ["score", "lru"]}
    tpot = found["figures"][0]
    assert tpot["first"] == pytest.approx(one["metrics"]["tpot_ms"]["mean"], abs=1e-5)
    assert tpot["n"] == 2
    # The device's time line is all of TPOT.
    parts = sum(part["first"] or 0 for part in found["ms_a_step"])
    assert parts == pytest.approx(tpot["first"], rel=1e-3)
    assert sum(part["change"] or 0 for part in found["ms_a_step"]) == pytest.approx(
        tpot["value"], abs=0.01
    )
    shown = call("compare", one["run_id"][:8], other["run_id"][:8])
    assert shown.out.splitlines()[0].startswith("figure\tsmoe alpha=0.25 [")
    assert "95 % t intervals over questions" in shown.err
    assert "### S3, arithmetic, batch 1" in call(
        "compare", one["run_id"], other["run_id"], "--markdown"
    ).out  # fmt: skip


def test_two_systems_workload_by_workload() -> None:
    for workload in ("arithmetic", "facts"):
        for system in ("moe-ondemand", "smoe"):
            run(system, *TWO, "--workload", workload)
    run("smoe", "--prompts", "1")
    found = call("compare", "moe-ondemand", "smoe", "--json").json
    assert [each["workload"] for each in found] == ["arithmetic", "facts"]
    found = call("compare", "moe-ondemand", "smoe", "--workloads", "facts", "--json").json
    assert [each["workload"] for each in found] == ["facts"]


def test_what_is_not_fair_is_refused_with_the_flag_that_allows_it() -> None:
    one, other = run("smoe", *TWO), run("smoe", *TWO, "--software", "lean")
    line = refused("compare", one["run_id"], other["run_id"])
    assert "differ in software hf-eager and lean; profile " in line
    flag = line.rpartition("--mixed ")[2]
    called = call("compare", one["run_id"], other["run_id"], "--mixed", flag)
    assert called.code == 0
    assert "differs: software hf-eager and lean" in called.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("smoe",), "give two runs or two systems, or neither"),
        (("smoe", "smoe", "smoe"), "give two runs or two systems, or neither"),
        (("smoe", "nothing"), "no runs in"),
    ],
)
def test_bad_input_gets_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("compare", *arguments)


def test_an_unknown_run_names_the_nearest() -> None:
    known = run("smoe", *TWO)["run_id"]
    assert known in refused("compare", known, "000000")
    assert "they are one run" in refused("compare", "smoe", "smoe")
    assert "has these settings" in refused("compare", "smoe", known, "--workloads", "facts")


def test_compare_puts_systems_beside_each_other_and_refuses_what_is_not_fair():
    for system, prompts in (("smoe", "1"), ("moe-ondemand", "1"), ("gpu-only", "2")):
        run(system, "--prompts", prompts, "--allow-overcommit")
    refused_line = refused("compare", "--mixed", "device-memory")
    assert "gpu-only has prompts 2, the others 1" in refused_line
    assert "--mixed device-memory,prompts" in refused_line
    shown = call("compare", "--mixed", "device-memory,prompts")
    assert shown.code == 0
    header, *lines = shown.out.splitlines()
    assert header.split("\t")[:2] == ["system", "TPOT (ms)"]
    assert {line.split("\t")[0] for line in lines} == {
        "smoe alpha=0.25",
        "moe-ondemand",
        "gpu-only ≠",
    }
    (table,) = call("compare", "--systems", "smoe,moe-ondemand", "--json").json
    assert {row["system"] for row in table["systems"]} == {"smoe alpha=0.25", "moe-ondemand"}
    assert "no such runs" in refused("compare", "--settings", "S1")


def test_free_memory_of_this_computer_is_no_condition_while_all_weights_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = ("--machine", "local", "--capacity", "0.5", *TWO)
    for system, free in (("smoe", 20.24e9), ("moe-ondemand", 20.56e9)):
        monkeypatch.setattr(local, "available_bytes", lambda free=int(free): free)
        run(system, *ours)
    found = call("compare", "smoe", "moe-ondemand", "--json")
    assert found.code == 0, found.err
    assert [each["workload"] for each in found.json] == ["arithmetic"]
    (table,) = call("compare", "--json").json
    assert {row["system"].split(" ")[0] for row in table["systems"]} == {"smoe", "moe-ondemand"}
    assert table["conditions"]["host-memory"] == "all weights"


def test_memory_in_which_not_all_weights_fit_is_a_condition() -> None:
    run("smoe", *TWO, "--free-host-gb", "64")
    run("moe-ondemand", *TWO, "--free-host-gb", "48")
    line = refused("compare", "smoe", "moe-ondemand")
    assert "differ in host-memory 64.00 GB and 48.00 GB" in line
