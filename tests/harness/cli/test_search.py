"""`moebench search`: a small search from the command to the class, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

PLACE = ("search", "--setting", "S3", "--workload", "arithmetic", "--new-tokens", "10",
         "--jobs", "0", "--systems", "moe-ondemand,fiddler", "--calibrate-texts", "2")  # fmt: skip


@pytest.mark.slow
def test_a_search_ends_with_a_verdict_and_goes_on_from_its_store(here: Path) -> None:
    called = call(*PLACE, "--trials", "3", "--json")
    assert called.code in (0, 1), called.err
    document = called.json
    (place,) = document["places"]
    assert document["trials"]["evaluated"] + document["trials"]["refused_by_run"] == 3
    assert {one["name"] for one in document["systems"]} == {"moe-ondemand", "fiddler"}
    published = [one for one in place["validation"] if one["published"]]
    best = min(published, key=lambda one: one["tpot_ms"])
    assert place["best_published"] == best["name"]
    assert place["better"] == (called.code == 0)
    assert (here / "found.py").exists() == place["better"]
    if place["found"] is not None:
        assert place["held_out"][0]["place"] == "prompts"
        assert place["live"]["agreement"] == 1
        assert place["bound"]["clairvoyant_ms"] <= place["live"]["tpot_ms"]
    kept = here / ".moebench" / "search" / f"{document['search']}.json"
    assert json.loads(kept.read_text()) == document
    # The same search again: every trial is known.
    again = call(*PLACE, "--trials", "3", "--json").json
    assert again["history"] == document["history"]
    more = call(*PLACE, "--trials", "5", "--json").json
    assert more["history"][: len(document["history"])] == document["history"]
    assert len(more["history"]) >= len(document["history"])


@pytest.mark.slow
def test_it_is_shown_as_tables_with_a_system_of_ones_own(here: Path) -> None:
    (here / "mine_too.py").write_text(
        "from moebench.systems.baselines import MoEOnDemand\n\nclass Mine(MoEOnDemand):\n    pass\n"
    )
    called = call(*PLACE, "--trials", "2", "--own", "mine_too:Mine")
    assert called.code in (0, 1)
    assert "candidate\tTPOT\tKL" in called.out
    assert "moe-ondemand\t" in called.out
    assert "mine_too:Mine\t" in called.out
    assert "S3: " in called.err


@pytest.mark.slow
def test_one_rule_is_looked_for_in_several_places(here: Path) -> None:
    place = [one for one in PLACE if one not in ("--setting", "S3")]
    found = call(*place, "--settings", "S3,S1", "--one-rule", "--trials", "1", "--json")
    assert found.code in (0, 1), found.err
    assert [one["place"] for one in found.json["places"]] == ["S3", "S1"]
    assert len({json.dumps(one["found"], sort_keys=True) for one in found.json["places"]}) == 1
    for one in found.json["places"]:  # of one trial: it is the fastest everywhere
        if "found_ms" in one["regret"]:
            assert one["regret"]["found_ms"] == one["held_out"][0]["found_ms"]
            assert 1 <= one["regret"]["ratio"] < 1.05
        else:  # no run of it on the prompts of validation
            assert one["held_out"] == [] or "refused" in one["held_out"][0]


@pytest.mark.slow
def test_lossy_compositions_are_computed(here: Path) -> None:
    place = [one if one != "moe-ondemand,fiddler" else "moe-ondemand,smoe" for one in PLACE]
    found = call(*place, "--kl", "1", "--trials", "1", "--json")
    assert found.code in (0, 1), found.err
    rows = {one["name"]: one for one in found.json["places"][0]["validation"]}
    assert rows["moe-ondemand"]["kl"] == 0
    low, high = rows["smoe"]["kl_interval"]
    assert low < rows["smoe"]["kl"] < high
    assert all(len(one["values"]) == 2 for one in found.json["history"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trials", "0"), "--trials"),
        (("--hours", "-1"), "--hours"),
        (("--kl", "-1"), "--kl"),
        (("--name", "1st"), "--name 1st: allowed: a name of a Python class"),
        (("--systems", "moe-ondemand,"), "allowed: values separated by single commas"),
        (("--systems", "nosuch"), "nosuch"),
        (("--own", "nosuch:X"), "nosuch"),
        (("--settings", "S1,S3"), "--settings and --setting: give one of them"),
        (("--one-rule",), "give --settings"),
        (("--out", "."), "this is a folder"),
        (("--data-dir", "nowhere"), "no such folder"),
        (("--machine", "local"), "--machine local"),
        (("--batch", "4096"), "batch"),
        (("--workload", "nosuch"), "nosuch"),
        (("--systems", "belady"), "belady"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str, here: Path
) -> None:
    assert said in refused(*PLACE, *arguments)


def test_several_settings_need_one_rule(here: Path) -> None:
    place = [one for one in PLACE if one not in ("--setting", "S3")]
    assert "give --one-rule" in refused(*place, "--settings", "S1,S3")


def test_a_lossy_system_needs_a_limit(here: Path) -> None:
    place = [one if one != "moe-ondemand,fiddler" else "smoe" for one in PLACE]
    assert "give --kl" in refused(*place, "--trials", "1")
