"""`moebench search`: a small search from the command to the class, and what is refused."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import search
from moebench.harness.search import search as searching
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


# ------------------------------------------------------------------------------ words


def outcome(name: str, better: bool = True, **more: Any) -> Any:
    """An outcome of a search with made-up figures."""
    prompts = {"place": "prompts", "found_ms": 8.123, "best": "fiddler", "best_ms": 10.0,
               "ratio": 0.8123, "clear": True}  # fmt: skip
    fields = {
        "place": SimpleNamespace(question=SimpleNamespace(name=name)),
        "found": SimpleNamespace(name="trial 7"), "best": SimpleNamespace(name="fiddler"),
        "rows": [{"name": "trial 7", "tpot_ms": 8.5, "kl": 0.0123, "kl_interval": [0.01, 0.02]},
                 {"name": "own:X", "refused": "no memory"}, {"name": "y", "kl": 0.5}],
        "places": [prompts, {"place": "host × 0.7", "refused": "cannot run"},
                   {**prompts, "place": "machine b", "clear": False}],
        "ablation": [{"decision": "evict", "found": "lru", "published": "lfu", "change": 0.0125},
                     {"decision": "place", "found": "a", "published": "b", "refused": "no"}],
        "regret": {}, "live": {}, "bounds": {}, "better": better, "verdict": f"{name} is said",
        "probability": 0.754,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **more})


def result(*outcomes: Any, rule: Any = None) -> Any:
    counts = {"evaluated": 30, "stopped": 4, "refused_before": 2, "refused_by_run": 1}
    return SimpleNamespace(counts=counts, outcomes=outcomes, rule=lambda: rule)


def test_the_outcome_in_each_place_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    search._show(result(outcome("S3")), None, "Found")
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["candidate", "TPOT", "KL", ""],
        ["trial 7", "8.50 ms", "0.012 (0.01 to 0.02)", ""],
        ["own:X", "", "", "no memory"],
        ["y", "", "0.5", ""],
        ["place", "trial 7", "best published", "", "ratio"],
        ["prompts", "8.12 ms", "fiddler", "10.00 ms", "0.812"],
        ["host × 0.7", "", "cannot run", "", ""],
        ["machine b", "8.12 ms", "fiddler", "10.00 ms", "0.812 (not clear)"],
        ["decision", "found", "published", "TPOT"],
        ["evict", "lru", "lfu", "+1.2%"],
        ["place", "a", "b", "no"],
    ]
    assert err.splitlines() == [
        "30 compositions evaluated, 4 of them stopped early; 2 refused before a run, 1 by one",
        "S3: S3 is said",
        "S3: probability that it is faster on a real machine, by the error of predicted ratios: "
        "75%",
    ]


def test_regret_bounds_and_computed_tokens_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    more = outcome(
        "D1", regret={"ratio": 1.034, "best": "trial 2", "best_ms": 7.5},
        live={"agreement": 0.995, "tpot_ms": 9.0},
        bounds={"clairvoyant_ms": 3.14, "information_ms": 5.0},
    )  # fmt: skip
    none = outcome("S1", found=None)
    search._show(result(none, more), "mine/found.py", "Best")
    _, err = capsys.readouterr()
    assert err.splitlines()[1:] == [
        "S1: S1 is said",
        "D1: regret of one rule 3.4%: the fastest of all trials here is trial 2, 7.50 ms on new "
        "prompts",
        "D1: computed, 99.5% of its tokens are the model's, at 9.00 ms a token",
        "D1: bounds 3.1 ms (clairvoyant), 5.0 ms (once each gate is known)",
        "D1: D1 is said",
        "D1: probability that it is faster on a real machine, by the error of predicted ratios: "
        "75%",
        "wrote mine/found.py; moebench run --system found:Best runs it",
    ]


def test_a_better_composition_is_written_with_its_provenance(here: Path) -> None:
    rule = SimpleNamespace(sets={"evict": "lfu"})
    one, other = outcome("S3"), outcome("D1", better=False)
    assert search._write(result(one, rule=None), "Mine", Path("a.py")) is None
    assert search._write(result(other, rule=rule), "Mine", Path("a.py")) is None
    assert list(here.iterdir()) == []
    assert search._write(result(one, other, rule=rule), "Mine", Path("a.py")) == "a.py"
    text = Path("a.py").read_text()
    assert "class Mine(" in text
    assert '"""Found in 30 trials for S3, D1.\n' in text
    assert (
        "    S3: 8.1 ms a decoded token on new prompts,\n    fiddler 10.0 ms (simulated).\n"
        "    S3 is said.\n\n    D1: 8.1 ms"
    ) in text
    search._keep({"search": "name", "b": 1, "a": 2}, Path("store"))
    (kept,) = (here / "store").rglob("*.json")
    assert kept.name == "name.json"
    assert kept.read_text() == '{"a": 2, "b": 1, "search": "name"}'


def test_places_are_asked_for_once_each() -> None:
    given = {"setting": "S3", "seed": 4, "batch": 2}
    (one,) = search._questions(given, None, False, None, Path("data"))
    assert (one.name, one.given, one.live, one.data_dir) == (
        "S3", {"setting": "S3", "batch": 2}, False, Path("data"),
    )  # fmt: skip
    on = {"model": "mixtral-8x7b", "machine": "a6000"}
    (one,) = search._questions(on, None, False, 0.0, None)
    assert (one.name, one.live) == ("mixtral-8x7b on a6000", True)
    found = search._questions({"batch": 2, "seed": 1}, "S3,D1,S3", True, None, None)
    assert [(one.name, one.given, one.live) for one in found] == [
        (name, {"batch": 2, "setting": name}, False) for name in ("S3", "D1")
    ]
    (one,) = search._questions({}, "S3,S3", False, 0.1, None)
    assert (one.name, one.live) == ("S3", True)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of searches, which find nothing."""
    requests: list[Any] = []

    def carry_out(request: Any, *rest: Any) -> Any:
        requests.append(request)
        found = result(outcome("S3", found=None, better=False))
        found.document = lambda: {"search": "x"}
        return found

    monkeypatch.setattr(searching, "search", carry_out)
    return requests


def test_a_search_has_two_hundred_trials_or_ends_by_time(carried: list[Any], here: Path) -> None:
    for more in ((), ("--hours", "0.5"), ("--hours", "2", "--trials", "9", "--seed", "3")):
        called = call(*PLACE, *more, "--json")
        assert (called.code, called.json) == (1, {"search": "x", "file": None})
    assert [(one.trials, one.hours, one.seed) for one in carried] == [
        (200, math.inf, 0), (10**9, 0.5, 0), (9, 2.0, 3),
    ]  # fmt: skip
    assert carried[0].systems == ["moe-ondemand", "fiddler"]
    assert (carried[0].limit, carried[0].learned) == (None, False)
    assert call(*PLACE, "--kl", "0.5", "--learned").out.startswith("candidate\t")
    assert (carried[-1].limit, carried[-1].learned) == (0.5, True)
    assert not Path("found.py").exists()
