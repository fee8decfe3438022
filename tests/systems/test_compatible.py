"""Which policies make sense together, against what happens when they run."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from moebench.harness import one_run
from moebench.harness.run.rules import resolve
from moebench.substrate.errors import MoeBenchError
from moebench.systems.compatible import why_not
from moebench.systems.options import build
from moebench.systems.registry import POLICIES, VARIANTS
from moebench.systems.space import policies

#: Policies that a drawn trace cannot supply, or that train for long: they are left out.
NOT_HERE = {"the future", "losses", "sensitivities", "hidden states", "prompt embeddings",
            "token embeddings", "weight norms", "predictions"}  # fmt: skip

NAMES = {
    decision: [one.name for one in policies()
               if one.decision == decision and not NOT_HERE & {*one.needs}]
    for decision in POLICIES if decision != "route"
}  # fmt: skip


def outcome(sets: Mapping[str, str], scratch: Path) -> str:
    """Run a composition where a quarter of the experts fit; "" if it can be run."""
    spec = resolve(
        None, system="moe-ondemand", model="deepseek-moe-16b", machine="a6000", cache_ratio=0.25,
        routing="drawn", prompts=1, new_tokens=3, calibrate_texts=2, overrides=dict(sets),
    )  # fmt: skip
    with one_run.opened(spec, None) as session:
        try:
            one_run.run(session, scratch)
        except MoeBenchError as error:
            return str(error)
    return ""


def drawn(seed: int) -> dict[str, str]:
    draws = random.Random(seed)
    return {decision: draws.choice(names) for decision, names in NAMES.items()} | {
        "scope": draws.choice(["global", "layer"])
    }


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for variant in VARIANTS for name in VARIANTS[variant]]
)
def test_every_system_makes_sense(name: str, variant: str) -> None:
    assert why_not(build(name, variant=variant)) is None  # type: ignore[arg-type]


def test_policies_that_place_by_the_whole_model_need_shared_slots() -> None:
    """They state which experts of which layers are on the device, or evict across layers."""
    found = set()
    every = [(decision, name) for decision, names in POLICIES.items() for name in names]
    for decision, name in every:
        made = build("moe-ondemand", {"assign": "host", "scope": "layer", decision: name})
        if "need slots that all layers share" in (why_not(made) or ""):
            found.add(f"{decision}={name}")
    places = (
        "device-map", "kt-uniform", "kt-frequency", "kt-front-loading", "kt-random",
        "tail-on-host", "cold-on-host", "n-cpu-moe", "ngl", "fit", "override", "pinned-profile",
    )  # fmt: skip
    prefetches = ("whole-layer", "block-schedule", "paged-layers")
    assert found == {
        *(f"place={name}" for name in places), *(f"prefetch={name}" for name in prefetches),
        "evict=mrs-shipped", "evict=dispatch-lru",
    }  # fmt: skip


@pytest.mark.slow
def test_what_makes_sense_runs(tmp_path: Path) -> None:
    """At least 19 of 20 compositions of all policies that are not refused run."""
    found: Counter[str] = Counter()
    for seed in range(70):
        sets = drawn(seed)
        try:
            refused = why_not(build("moe-ondemand", sets))
        except MoeBenchError as error:
            refused = str(error)
        if refused is None:
            found[outcome(sets, tmp_path)[:60]] += 1
    ran = found.pop("")
    assert ran >= 15
    assert sum(found.values()) <= max(1, ran // 19), found


@pytest.mark.parametrize(
    ("sets", "said", "error"),
    [
        ({"place": "n-cpu-moe", "scope": "layer"}, "place need slots that all layers share",
         "scope=global"),
        ({"prefetch": "whole-layer", "scope": "layer"}, "prefetch need slots", "scope=layer"),
        ({"evict": "dispatch-lru", "scope": "layer"}, "evict need slots", "scope=global"),
        ({"prefetch": "whole-layer", "evict": "placeholder", "assign": "by-sequence-shipped",
          "admit": "capped"},
         "make room for whole layers",
         "no expert to evict"),
        ({"evict": "only-named"}, "for no expert that a layer loads", "no expert to evict"),
        ({"evict": "only-named", "assign": "host"}, "for no expert", "no expert to evict"),
        ({"evict": "only-named", "assign": "host-or-copy"}, "place leaves none",
         "no expert to evict"),
        ({"evict": "placeholder", "assign": "host"}, "one expert at a time", "no expert to evict"),
    ],
)  # fmt: skip
def test_what_is_refused_cannot_run(
    sets: dict[str, str], said: str, error: str, tmp_path: Path
) -> None:
    assert said in str(why_not(build("moe-ondemand", sets)))
    assert error in outcome(sets, tmp_path)


@pytest.mark.parametrize(
    "sets",
    [
        {"evict": "only-named", "assign": "host-or-copy", "place": "n-cpu-moe"},
        {"evict": "only-named", "assign": "hybrid"},
        {"evict": "placeholder", "assign": "load-or-compute"},
        {"evict": "static", "assign": "host"},
    ],
)
def test_their_neighbours_run(sets: dict[str, str], tmp_path: Path) -> None:
    assert why_not(build("moe-ondemand", sets)) is None
    assert outcome(sets, tmp_path) == ""


def test_an_admission_without_a_host_changes_nothing(tmp_path: Path) -> None:
    """Uploads are of experts that the host computed: `why_not` refuses what has no effect."""
    assert "admit uploads" in str(why_not(build("moe-ondemand", {"admit": "capped"})))

    def latency(**sets: str) -> float:
        spec = resolve(
            None, system="moe-ondemand", model="deepseek-moe-16b", machine="a6000",
            cache_ratio=0.25, routing="drawn", prompts=1, new_tokens=3, overrides=sets,
        )  # fmt: skip
        with one_run.opened(spec, None) as session:
            return float(one_run.run(session, tmp_path).document["metrics"]["tpot_ms"]["mean"])

    assert latency(admit="capped") == latency()
    assert why_not(build("moe-ondemand", {"admit": "capped", "assign": "host"})) is None
    assert latency(admit="capped", assign="host") != latency(assign="host")


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ({}, None),
        ({"place": "threshold-ilp", "assign": "host"}, None),
        ({"evict": "layer-lru"},
         "evict leaves experts to the host, but assign computes none there"),
        ({"evict": "layer-lru", "assign": "host"}, None),
        ({"evict": "placeholder"},
         "evict makes room for one expert at a time, but assign loads experts that stay"),
        ({"evict": "placeholder", "route": "masked"}, None),
        ({"evict": "placeholder", "assign": "one-use"}, None),
        ({"evict": "only-named"},
         "evict makes room for no expert that a layer loads, but assign loads such ones"),
        ({"evict": "only-named", "route": "masked"}, None),
        ({"evict": "only-named", "assign": "one-use"},
         "evict makes no room and place leaves none, but assign loads experts for one use"),
        ({"evict": "only-named", "assign": "one-use", "place": "none"}, None),
        ({"evict": "only-named", "route": "masked", "prefetch": "whole-layer"},
         "evict does not make room for whole layers, but prefetch fetches such ones"),
        ({"evict": "only-named", "route": "masked", "prefetch": "whole-layer", "place": "none"},
         None),
        ({"prefetch": "whole-layer"}, None),
        ({"prefetch": "whole-layer", "scope": "layer"},
         "prefetch need slots that all layers share, but scope is layer"),
        ({"prefetch": "whole-layer", "place": "ngl", "evict": "mrs-shipped", "scope": "layer"},
         "place and prefetch and evict need slots that all layers share, but scope is layer"),
        ({"admit": "hit-sweep"},
         "admit uploads experts that the host computed, but assign computes none there"),
        ({"admit": "hit-sweep", "assign": "hybrid"}, None),
        ({"admit": "hit-sweep", "route": "masked"}, None),
        ({"admit": "after-misses"}, None),
    ],
)  # fmt: skip
def test_each_reason_has_its_words(sets: dict[str, str], reason: str | None) -> None:
    assert why_not(build("moe-ondemand", sets)) == reason
