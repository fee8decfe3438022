"""``--set``: swaps of policies, changes of options, and refusals."""

from dataclasses import dataclass

import pytest

from moebench.substrate.engine.system import AdmitAll
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.options import build, describe, options_of
from moebench.systems.policies.assign import Balanced, HostAll, LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed, LowestAverageScore, NeverEvict
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting
from moebench.systems.registry import POLICIES, policy_class
from moebench.systems.smoe import ExpertCacheRouter, SMoE, TopScorePrefetch


def test_defaults_are_the_papers():
    system = build("smoe")
    assert isinstance(system, SMoE)
    assert [type(p) for p in system.policies.values()][1:] == [
        ExpertCacheRouter,
        Balanced,
        TopScorePrefetch,
        AdmitAll,
        LowestAverageScore,
    ]
    assert (system.assign.by, system.assign.tie) == ("score", "load")  # second version
    assert (system.route.pick, system.route.weight) == ("best", "own")
    assert not system.route.refine
    assert system.prefetch.predict == "layer"


def test_swap_and_change():
    system = build(
        "smoe",
        {
            "evict": "lru",
            "alpha": "0.3",
            "route.pick": "id",
            "route.refine": "true",
            "assign.history": "4",
            "scope": "layer",
        },
    )
    assert isinstance(system.evict, LeastRecentlyUsed)
    assert system.route == ExpertCacheRouter(pick="id", refine=True)
    assert system.assign == Balanced(history=4)
    assert (system.scope, system.alpha, system.alpha_in_use) == ("layer", 0.3, 0.3)


def test_an_option_of_the_policy_that_was_swapped_in():
    system = build("moe-ondemand", {"evict": "score", "evict.window": "16"})
    assert system.evict == LowestAverageScore(window=16)
    # The window belongs to the score, which LRU has not.
    with pytest.raises(UnknownNameError, match=r"evict\.window"):
        build("moe-ondemand", {"evict.window": "16"})


def test_systems_do_not_share_policies():
    first, second = build("smoe"), build("smoe")
    for name, policy in first.policies.items():
        assert second.policies[name] is not policy


@pytest.mark.parametrize(
    ("settings", "kind", "nearest"),
    [
        ({"alfa": "0.3"}, "option", "alpha"),
        ({"route.pik": "id"}, "option", "route.pick"),
        ({"evikt": "lru"}, "option", "evict"),
        ({"evict.windw": "3"}, "option", "evict.window"),
        ({"scpe": "layer"}, "option", "scope"),
        ({"route.alpha": "0.3"}, "option", "prefetch.alpha"),  # as it was spelled once
        ({"evict": "lruu"}, "evict policy", "lru"),
        ({"prefetch": "topscore"}, "prefetch policy", "top-score"),
    ],
)
def test_unknown_names_offer_the_nearest(settings, kind, nearest):
    with pytest.raises(UnknownNameError) as error:
        build("smoe", settings)
    message = str(error.value)
    assert message.startswith(f"unknown {kind} ")
    assert nearest in message.split("nearest:")[1]


def test_an_unknown_system():
    with pytest.raises(UnknownNameError, match="nearest: smoe"):
        build("smoee")


@pytest.mark.parametrize(
    "setting",
    [
        ("evict.window", "big"),
        ("evict.window", "2.5"),
        ("evict.window", "-1"),
        ("alpha", "high"),
        ("alpha", "2"),
        ("alpha", "nan"),
        ("alpha", ""),
        ("route.pick", "worst"),
        ("route.refine", "perhaps"),
        ("assign.history", "0"),
        ("prefetch.predict", "none"),
        ("prefetch.alpha", "x"),
        ("scope", "everywhere"),
        ("all_resident", "maybe"),
    ],
)
def test_wrong_values_name_the_option(setting):
    key, text = setting
    with pytest.raises(UsageError, match=key.replace(".", r"\.")):
        build("smoe", {key: text})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("smoe", {}),
        ("smoe", {"alpha": "0.6", "prefetch.alpha": "0.2", "evict.window": "3"}),
        ("smoe", {"route.refine": "true", "prefetch.prefill": "false", "scope": "layer"}),
        ("smoe", {"route": "exact"}),  # has no α
        ("smoe", {"evict": "lfu", "evict.survive": "yes", "evict.tie": "id"}),
        ("smoe", {"assign.by": "batch", "assign.tie": "host"}),
        ("moe-ondemand", {"prefetch": "top-score"}),
        ("moe-ondemand", {"place": "popular", "place.popularity": "[[3, 1.5], [0, 2]]"}),
        ("gpu-only", {}),
    ],
)
def test_a_description_builds_the_same_system(name, settings):
    system = build(name, settings)
    described = describe(system)
    assert all(isinstance(text, str) for text in described.values())
    again = build(name, described)
    assert again == system
    assert describe(again) == described


def test_no_popularity_is_described_too():
    described = describe(build("moe-ondemand", {"place": "popular"}))
    assert described["place.popularity"] == "[]"
    assert describe(build("moe-ondemand", described)) == described


def test_a_description_names_every_decision_and_option():
    described = describe(build("smoe", {"alpha": "0.3", "pinned_copies": "yes"}))
    assert described == {
        "scope": "global",
        "alpha": "0.3",
        "all_resident": "False",
        "overlap": "True",
        "blocking_copies": "null",
        "parallel_reads": "True",
        "synchronises": "False",
        "reads_unfinished": "False",
        "pinned_copies": "True",
        "expert_precision": "null",
        "host_experts": "null",
        "module_hooks": "False",
        "host_kernels": "unpacking",
        "prediction_python": "True",
        "host_together": "False",
        "in_flight": "wait",
        "admit": "all",
        "place": "by-id",
        "route": "expert-cache",
        "route.pick": "best",
        "route.weight": "own",
        "route.refine": "False",
        "assign": "balanced",
        "assign.by": "score",
        "assign.history": "10",
        "assign.link": "backlog",
        "assign.prefill": "balanced",
        "assign.tie": "load",
        "prefetch": "top-score",
        "prefetch.alpha": "null",
        "prefetch.predict": "layer",
        "prefetch.prefill": "True",
        "prefetch.chunks": "1",
        "evict": "score",
        "evict.window": "8",
    }


EXACT = {"route": "exact"}
LOADED = {"evict": "score", "assign": "load"}
ABLATION = {
    "base": {**EXACT, "evict": "static", "assign": "host", "prefetch": "none"},
    "base2": {**EXACT, "evict": "static", "assign": "load", "prefetch": "none"},
    "+CE": {**EXACT, **LOADED, "prefetch": "none"},
    "+CR": {**LOADED, "prefetch": "none"},
    "+Pre": LOADED,
    "+BA": {},
}


@pytest.mark.parametrize(
    ("step", "types"),
    [
        ("base", (ExactRouting, HostAll, NoPrefetch, NeverEvict)),
        ("base2", (ExactRouting, LoadAll, NoPrefetch, NeverEvict)),
        ("+CE", (ExactRouting, LoadAll, NoPrefetch, LowestAverageScore)),
        ("+CR", (ExpertCacheRouter, LoadAll, NoPrefetch, LowestAverageScore)),
        ("+Pre", (ExpertCacheRouter, LoadAll, TopScorePrefetch, LowestAverageScore)),
        ("+BA", (ExpertCacheRouter, Balanced, TopScorePrefetch, LowestAverageScore)),
    ],
)
def test_the_ablation(step, types):
    system = build("smoe", ABLATION[step])
    found = (system.route, system.assign, system.prefetch, system.evict)
    assert tuple(type(policy) for policy in found) == types
    assert system.lossless == (step in ("base", "base2", "+CE"))


def test_the_ablation_is_the_one_that_the_system_documents():
    documented = {}
    for line in (SMoE.__doc__ or "").splitlines():
        words = line.split()
        if words and words[0] in ABLATION:
            documented[words[0]] = dict(w.split("=") for w in words[1:] if "=" in w)
    assert documented == ABLATION


SEEDS = [
    (decision, name) for decision in POLICIES for name in POLICIES[decision]
    if "seed" in options_of(policy_class(decision, name))
]  # fmt: skip


def test_several_policies_draw():
    assert len(SEEDS) > 5


@pytest.mark.parametrize(("decision", "name"), SEEDS)
def test_a_seed_is_not_negative(decision, name):
    kind = policy_class(decision, name)
    assert kind(seed=0).seed == 0
    with pytest.raises(UsageError, match=rf"{decision}\.seed is -1"):
        kind(seed=-1)


@dataclass(kw_only=True)
class Needy(MoEOnDemand):
    """A system with an option that has no default."""

    size: int


def test_a_system_whose_option_has_no_default_cannot_be_made_without_it() -> None:
    with pytest.raises(UsageError, match=r"Needy: cannot be made \(.*'size'\)"):
        build(f"{__name__}:Needy")
    assert build(f"{__name__}:Needy", {"size": "3"}).size == 3
