"""What may be said of a composition: better, no better, and how surely."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.search import outcome as outcomes
from moebench.harness.search.composition import RUNTIME
from moebench.harness.search.evaluation import BLOCK, Measured, Refused, paired
from moebench.harness.search.outcome import Outcome, probability_faster, sets_of, validate
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place
from moebench.results.published_errors import ratio_error
from moebench.results.spec import RunSpec
from moebench.systems.registry import DECISIONS
from tests.harness.search.stages import S1, S3, Runs, Says, searching, trial

PLACE = Place(question=Question(name="S1", given={}), seeds=Seeds((0, 1), 2))


def row(place: str, ratio: float, clear: bool = True) -> dict[str, Any]:
    return {"place": place, "found_ms": 10 * ratio, "best": "lru", "best_ms": 10.0, "ratio": ratio,
            "clear": clear}  # fmt: skip


def outcome(*rows: dict[str, Any], **more: Any) -> Outcome:
    found = Candidate(name="trial 3", system="moe-ondemand", trial=3)
    best = Candidate(name="lru", system="lru")
    return Outcome(place=PLACE, found=found, best=best, places=list(rows), **more)


def test_faster_on_new_prompts_and_nowhere_slower_is_better() -> None:
    one = outcome(row("prompts", 0.9), row("workload arithmetic", 0.95))
    assert one.better
    assert one.verdict == "10.0% faster than lru on new prompts"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("prompts", 0.95, clear=False)], "no better than lru: not faster by 1% on new"),
        ([row("prompts", 0.995)], "no better than lru: not faster by 1% on new prompts"),
        ([row("prompts", 1.01)], "no better than lru: slower on prompts"),
        ([row("prompts", 0.9), row("workload arithmetic", 1.1)], "slower on workload arithmetic"),
        ([row("prompts", 0.9), row("recordings of the real model", 1.1)], "slower on recordings"),
        ([{"place": "prompts", "refused": "no"}], "no better"),
    ],
)
def test_otherwise_it_is_no_better(rows: list[dict[str, Any]], said: str) -> None:
    rows = [one | {"ratio": None, "clear": False} if "refused" in one else one for one in rows]
    one = outcome(*rows)
    assert not one.better
    assert said in one.verdict


def test_a_machine_where_it_is_slower_is_named() -> None:
    one = outcome(row("prompts", 0.9), row("machine a100", 1.2), row("link × 0.7", 0.8))
    assert one.better
    assert one.verdict == "10.0% faster than lru on new prompts; not with machine a100"


def test_tokens_that_are_not_the_models_own_are_no_better() -> None:
    assert outcome(row("prompts", 0.9), live={"agreement": 1.0}).better
    one = outcome(row("prompts", 0.9), live={"agreement": 0.99})
    assert not one.better
    assert "its tokens are not the model's own" in one.verdict


def test_the_probability_follows_from_the_error_of_ratios() -> None:
    """A ratio as far below 1 as 80 % of errors reach is below 1 with 90 %."""
    assert probability_faster(1) == pytest.approx(0.5)
    assert probability_faster(1 / ratio_error()) == pytest.approx(0.9)
    assert probability_faster(ratio_error()) == pytest.approx(0.1)


def measured(token_ns: np.ndarray) -> Measured:
    return Measured({}, token_ns)


def test_paired_differences_see_what_noise_of_prompts_hides() -> None:
    draws = np.random.default_rng(0)
    tokens = draws.lognormal(17, 0.5, 40 * BLOCK)
    slower = tokens * 1.02
    found = paired([measured(slower)], [measured(tokens)])
    assert found.clear
    assert found.mean_ms == pytest.approx((slower - tokens).mean() / 1e6)
    other = draws.permutation(tokens)
    assert not paired([measured(other)], [measured(tokens)]).clear
    with pytest.raises(ValueError, match="different lengths"):
        paired([measured(tokens[:5])], [measured(tokens)])


# ------------------------------------------------------------------------------ validation


def says(spec: RunSpec) -> tuple[float, float] | str:
    """The base takes 10 ms; a prefetch saves 1 and a layer's scope 0.5; LFRU takes 11.

    Elsewhere, with four texts, all is 1 ms slower, and the base cannot run.
    """
    ms = 11.0 if spec.system == "lfru" else 10.0
    ms -= (spec.overrides.get("prefetch", "none") != "none") + 0.5 * (
        spec.overrides.get("scope") == "layer"
    )
    if spec.batch == 4:
        return "no room" if spec.system == "moe-ondemand" and not spec.overrides else (ms + 1, 0.0)
    return ms + 0.25 * (spec.routing == "model"), 0.0


KNOWN = ("lfru", "moe-ondemand")
SYSTEMS = [Candidate(name=one, system=one) for one in KNOWN]
SETS = {"prefetch": "next-gate", "scope": "layer"}


def validated(
    monkeypatch: pytest.MonkeyPatch, trials: list[Any], places: Sequence[Place] = (S1,),
    limit: float | None = None, says: Says = says, held_out: Sequence[str] = ("four",),
) -> tuple[Outcome, Runs, list[str]]:  # fmt: skip
    """Return the outcome in S1, all runs, and what was counted."""
    monkeypatch.setattr(
        outcomes, "held_out",
        lambda question, model, machine, chosen, possible: [
            question.with_(name, batch=4) for name in held_out
        ],
    )  # fmt: skip
    search, runs, _ = searching(says, places, limit)
    runs.ran.clear()
    counted: list[str] = []

    def progress(what: str) -> Any:
        counted.append(what)
        return lambda done, total: counted.append(f"{done} of {total}")

    known = SimpleNamespace(done=lambda: trials)
    return validate(search, known, S1, SYSTEMS, progress), runs, counted  # type: ignore[arg-type]


def test_all_that_comes_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, counted = validated(monkeypatch, [
        trial(0, [0.85], SETS), trial(1, [0.95], {"scope": "layer"}),
        trial(3, [1.0], {}, system="moe-ondemand"),
    ])  # fmt: skip
    assert counted == [
        "fewer decisions", "validation", "held-out places", "1 of 1", "ablation", "bounds",
        "live run",
    ]  # fmt: skip
    composition = Candidate(name="trial 0", system="moe-ondemand", sets=SETS, trial=0)
    assert (found.found, found.best) == (composition, SYSTEMS[1])
    usual = {"kl": 0.0, "kl_interval": None, "allowed": True, "memory_gb": 3.0}
    assert found.rows == [
        {"name": name, "published": published, "tpot_ms": ms, "run": f"S1-2-{ms:g}", **usual}
        for name, published, ms in (
            ("trial 0", False, 8.5), ("trial 1", False, 9.5), ("moe-ondemand", True, 10.0),
            ("lfru", True, 11.0),
        )
    ]  # fmt: skip
    here, there = found.places
    assert here | {"error_ms": 0} == {
        "place": "prompts", "found_ms": 8.5, "best": "moe-ondemand", "best_ms": 10.0,
        "ratio": 0.85, "difference_ms": pytest.approx(-1.5), "error_ms": 0, "clear": True,
        "run": "S1-2-8.5",
    }  # fmt: skip
    assert there | {"error_ms": 0} == {
        "place": "four", "found_ms": 9.5, "best": "lfru", "best_ms": 12.0,
        "ratio": 9.5 / 12, "difference_ms": pytest.approx(-2.5), "error_ms": 0, "clear": True,
        "run": "S1-2-9.5",
    }  # fmt: skip
    assert [row["decision"] for row in found.ablation] == [*DECISIONS, *RUNTIME]
    assert [row for row in found.ablation if row["change"]] == [
        {"decision": "prefetch", "found": "next-gate", "published": "none", "tpot_ms": 9.5,
         "change": 9.5 / 8.5 - 1},
        {"decision": "scope", "found": "layer", "published": "global", "tpot_ms": 9.0,
         "change": 9.0 / 8.5 - 1},
    ]  # fmt: skip
    assert found.ablation[0] == {"decision": "place", "found": "by-id", "published": "by-id",
                                 "tpot_ms": 8.5, "change": 0.0}  # fmt: skip
    assert found.bounds == {"of": 8.5}
    assert found.live == {
        "tpot_ms": 8.75, "kl": 0.0, "run": "S1-2-8.75", "agreement": 1.0, "as_replayed": False,
    }  # fmt: skip
    assert found.verdict == ("15.0% faster than moe-ondemand on new prompts")
    assert found.probability == probability_faster(0.85)
    assert found.ratio == 0.85


def test_held_out_places_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = ("four", "more", "again")
    found, _, counted = validated(monkeypatch, [trial(0, [0.85], SETS)], held_out=held_out)
    assert [row["place"] for row in found.places[1:]] == [*held_out]
    assert [one for one in counted if " of " in one] == ["1 of 3", "2 of 3", "3 of 3"]


def test_without_a_composition_there_is_only_a_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    found, runs, counted = validated(monkeypatch, [])
    assert counted == ["fewer decisions", "validation"]
    assert (found.found, found.best, found.places, found.ratio) == (None, SYSTEMS[1], [], None)
    assert [spec.system for spec in runs.ran] == ["moe-ondemand", "lfru"]
    assert found.verdict == "no better than moe-ondemand: no composition was faster"
    assert found.probability is None


@pytest.mark.parametrize(("places", "own"), [((S1,), 6), ((S1, S3), 1)])
def test_six_compositions_are_validated_or_one_rule(
    monkeypatch: pytest.MonkeyPatch, places: Sequence[Place], own: int
) -> None:
    windows = [
        trial(n, [0.9 + n / 100], {"prefetch": "next-gate", "prefetch.experts": str(n + 1)})
        for n in range(8)
    ]
    found, _, _ = validated(monkeypatch, windows, places)
    names = [row["name"] for row in found.rows if not row["published"]]
    assert names == ["trial 0, simplified", *(f"trial {n}" for n in range(1, own))]
    assert bool(found.regret) is (len(places) > 1), "of one rule alone"


def test_what_is_beyond_the_limit_on_new_prompts_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On new prompts the prefetch's KL is 0.2, and a system without loss stays the best."""

    def lossy(spec: RunSpec) -> tuple[float, float] | str:
        said = says(spec)
        if isinstance(said, str):
            return said
        return said[0], 0.2 if spec.overrides.get("prefetch") and spec.seed == 2 else 0.1

    found, _, _ = validated(
        monkeypatch, [trial(0, [0.85, 0.1], SETS), trial(1, [0.95, 0.1], {"scope": "layer"})],
        limit=0.15, says=lossy,
    )  # fmt: skip
    assert [(row["name"], row["allowed"]) for row in found.rows] == [
        ("trial 0", False), ("trial 1", True), ("moe-ondemand", True), ("lfru", True),
    ]  # fmt: skip
    assert found.found is not None
    assert found.found.name == "trial 1"


def test_what_cannot_run_is_refused_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """On new prompts the scope of layers alone has no room, and nothing has with four texts."""

    def full(spec: RunSpec) -> tuple[float, float] | str:
        if spec.batch == 4 or spec.clairvoyant or spec.routing == "model":
            return "no room"
        if (
            spec.seed == 2
            and spec.overrides.get("prefetch", "none") == "none"
            and (spec.overrides.get("scope") == "layer")
        ):
            return "no room for layers"
        return says(spec)

    found, _, _ = validated(
        monkeypatch, [trial(0, [0.85], SETS), trial(1, [0.95], {"scope": "layer"})],
        says=full,
    )  # fmt: skip
    assert found.rows[-1] == {"name": "trial 1", "published": False,
                              "refused": "no room for layers"}  # fmt: skip
    assert found.places[1] == {"place": "four", "refused": "no room"}
    assert found.bounds == found.live == {"refused": "no room"}
    assert found.ablation[[*DECISIONS].index("prefetch")] == {
        "decision": "prefetch", "found": "next-gate", "published": "none",
        "refused": "no room for layers",
    }  # fmt: skip
    assert found.better

    def published_full(spec: RunSpec) -> tuple[float, float] | str:
        return "no" if spec.batch == 4 and not spec.overrides else says(spec)

    found, _, _ = validated(monkeypatch, [trial(0, [0.85], SETS)], says=published_full)
    assert found.places[1] == {
        "place": "four", "refused": "no published system can be run there",
    }  # fmt: skip


#: A composition that routes with α, and the fastest published system with and without one.
ROUTED = {"route": "expert-cache", "alpha": "0.1", "scope": "layer"}


@pytest.mark.parametrize(("published", "alpha"), [("moe-ondemand", None), ("smoe", "0.35")])
def test_a_replaced_route_takes_its_alpha_with_it(
    published: str, alpha: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SMoE's is the setting's: 0.35 in S1."""
    ms = {"smoe": 10.0 if alpha else 13.0, "moe-ondemand": 11.0}
    ran: list[RunSpec] = []

    def by_system(spec: RunSpec) -> tuple[float, float] | str:
        ran.append(spec)
        if spec.overrides.get("scope") == "layer":
            return 8.0 if spec.overrides.get("alpha") == "0.1" else 9.0, 0.001
        return ms.get(spec.system, 12.0), 0.0

    search, _, _ = searching(by_system, (S1,), 0.1, systems=("moe-ondemand", "smoe"))
    monkeypatch.setattr(outcomes, "held_out", lambda *asked: [])
    trials = SimpleNamespace(done=lambda: [trial(0, [0.8, 0.001], ROUTED)])
    systems = [Candidate(name=one, system=one) for one in ("moe-ondemand", "smoe")]
    found = validate(search, trials, S1, systems, lambda what: lambda done, total: None)  # type: ignore[arg-type]
    assert found.best.name == published
    row = found.ablation[[*DECISIONS].index("route")]
    assert (row["found"], row["tpot_ms"], row["change"]) == ("expert-cache", 9.0, 9 / 8 - 1)
    (replaced,) = [
        one for one in ran if one.seed == S1.seeds.validation and not one.clairvoyant
        and one.overrides.get("scope") == "layer" and one.overrides.get("alpha") != "0.1"
    ]  # fmt: skip
    assert replaced.overrides.get("alpha") == alpha


def test_options_that_differ_from_their_defaults_are_said() -> None:
    plain = sets_of(Candidate(name="moe-ondemand", system="moe-ondemand"))
    assert plain.keys() == {
        "place", "route", "assign", "prefetch", "admit", "evict", "scope", "host_together",
        "host_kernels", "pinned_copies", "in_flight",
    }  # fmt: skip
    assert plain["evict"] == "lru"
    changed = Candidate(
        name="x",
        system="moe-ondemand",
        sets={"prefetch": "next-gate", "prefetch.experts": "3", "scope": "layer"},
    )
    different = dict(sets_of(changed).items() - plain.items())
    assert different == {"prefetch": "next-gate", "prefetch.experts": "3", "scope": "layer"}


def test_a_divergence_of_the_limit_itself_is_allowed() -> None:
    """Rows are in the order of their times; what cannot run comes last."""

    def ran(tpot: float, kl: float | None) -> Any:
        metrics = {"peak_device_bytes": 2_500_000_000}
        return SimpleNamespace(tpot_ms=tpot, kl=kl, kl_interval=None, run_id=f"r{tpot}",
                               document={"metrics": metrics})  # fmt: skip

    runs: Any = {"a": ran(9.0, 0.5), "b": ran(3.0, 0.51), "c": ran(5.0, None), "d": Refused("no")}
    candidates: Any = [SimpleNamespace(name=name, published=name == "c") for name in "dabc"]
    rows = outcomes._rows(candidates, runs, 0.5)
    assert [(row["name"], row.get("allowed"), row["published"]) for row in rows] == [
        ("b", False, False), ("c", True, True), ("a", True, False), ("d", None, False),
    ]  # fmt: skip
    assert rows[3] == {"name": "d", "published": False, "refused": "no"}
    assert rows[2] == {
        "name": "a", "published": False, "tpot_ms": 9.0, "kl": 0.5, "kl_interval": None,
        "allowed": True, "run": "r9.0", "memory_gb": 2.5,
    }  # fmt: skip
    assert all(row["allowed"] for row in outcomes._rows(candidates[1:], runs, None))
