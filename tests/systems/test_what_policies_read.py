"""Policies read only what they declare: gate scores, states, embeddings, the system's α.

Every policy is shown views that note what is looked at: prefill and decode, one row and several,
experts everywhere and nowhere, layers that are routed ahead.  What learns is given what it says
that it learns from, and nothing else.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from pydantic import TypeAdapter

from moebench.substrate.engine.decisions import LayerView, Plan, Prompts, Routed
from moebench.substrate.engine.policies import Admission, Assignment, Eviction, Policy, Routing
from moebench.substrate.files_read import collect_reads
from moebench.substrate.memory.capacity import Budget
from moebench.systems.options import options_of
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.route import ExactRouting
from moebench.systems.registry import DECISIONS, POLICIES, make, policy_class
from tests.substrate.traces.texts import routed_text
from tests.systems.views import active, cache, costs, flags, shape, view

EXPERTS, K, LAYERS, SLOTS = 8, 2, 3, 10
MODEL = shape(EXPERTS, K, LAYERS)
EVERY_POLICY = [(decision, name) for decision in POLICIES for name in POLICIES[decision]]

#: Options that decide what a policy reads, beside the defaults.
VARIANTS = {
    ("assign", "balanced"): [{"by": "batch"}],
    ("assign", "bandwidth-split"): [{"mode": "hybrid"}, {"mode": "cpu"}],
    ("assign", "bandwidth-split-earlier"): [{"mode": "hybrid"}],
    ("assign", "hybrid"): [{"threshold": 1, "update": True}, {"defer": 1}],
    ("assign", "hybrid-chunked"): [
        {"threshold": 1, "update": True, "chunk": 2},
        {"defer": 1},
        {"threshold": 3, "chunk": 3},
    ],
    ("prefetch", "top-score"): [{"predict": "gate"}],
    ("route", "expert-cache"): [{"refine": True}],
}


class Watched(LayerView):
    """View that records the attributes read, except those that `Active` needs."""

    def __getattribute__(self, name):
        noted = object.__getattribute__(self, "__dict__").setdefault("noted", set())
        if not name.startswith("_"):
            noted.add(name)
        return super().__getattribute__(name)


class WatchedPrompts(Prompts):
    """Prompts of a batch that record the attributes read."""

    noted: set[str] = set()  # noqa: RUF012

    def __getattribute__(self, name):
        WatchedPrompts.noted.add(name)
        return super().__getattribute__(name)


class Answers:
    """Model whose predictions favour the highest ids."""

    def predict(self, layer, later, done, lookahead):
        return np.tile(np.arange(EXPERTS) / 28, (2, 1))


def views():
    """Return every kind of view that a policy may receive, in the order of a run's layers."""
    random = np.random.default_rng(0)
    for phase, rows, ahead in (
        ("prefill", 4, False), ("decode", 1, False), ("decode", 2, False), ("decode", 2, True),
    ):  # fmt: skip
        for resident in ((), range(4), range(EXPERTS)):
            for layer in range(LAYERS - 1):
                scores_TE = random.dirichlet(np.full(EXPERTS, 4.0), rows)
                yield view(
                    scores_TE, K, resident, phase=phase, layer=layer, layers=LAYERS,
                    alpha=0.5, ahead=ahead, measured=costs([2], [1], [1], [1]), kind=Watched,
                    hidden=random.standard_normal((rows, MODEL.hidden_size)),
                )  # fmt: skip


#: Options with which a policy fits into `SLOTS`.
FITTING = {"buffers": "1"}


def quick(decision, name):
    """Return options that make a policy of the registry small and quick to train."""
    known = options_of(policy_class(decision, name))
    given = dict(policy_class(decision, name).quick)
    given |= {option: value for option, value in FITTING.items() if option in known}
    return {option: TypeAdapter(known[option]).validate_strings(given[option]) for option in given}


def looks_at(policy: Policy) -> set[str]:
    """Return the attributes that a policy reads, from training to the last layer."""
    if policy.calibrates:
        with TemporaryDirectory() as folder:
            text = routed_text(MODEL, 12, 2, policy.learns_from, seed=1)
            policy.calibrate([text], MODEL, Path(folder), lambda done, total: None)
    if isinstance(policy, Eviction) and policy.clairvoyant:
        policy.set_future([(seen.layer, list(active(seen).rows)) for seen in views()])
    policy.start(MODEL, cache(MODEL, SLOTS))
    WatchedPrompts.noted = set()
    policy.begin_sequences(WatchedPrompts((4, 3), np.ones((2, 8))))
    found, inside = set(WatchedPrompts.noted), set()
    for seen in views():
        rows = active(seen).rows
        seen.__dict__["noted"] = set()
        policy.observe(seen)
        asked(policy, seen, rows, inside)
        found |= seen.__dict__["noted"]
    policy.end_sequences()
    return found


def evicting(policy: Eviction, keys: list[int], inside: set[int]) -> None:
    """Load keys into a cache of `SLOTS`, so that the policy chooses victims."""
    for key in [key for key in keys if key not in inside]:
        if len(inside) == SLOTS:
            victim = policy.victim(flags(inside - {*keys}, LAYERS * EXPERTS), key)
            if victim is None:
                continue
            inside.remove(victim)
            policy.left(victim)
        inside.add(key)
        policy.arrived(key)


def asked(policy: Policy, seen: LayerView, rows: dict[int, int], inside: set[int]) -> None:
    """Call the decision's methods with a view."""
    if isinstance(policy, Assignment):
        policy.assign(seen, active(seen, rows))
    elif isinstance(policy, Routing):
        if policy.routes_passes:
            policy.begin_sequences(Prompts(seen.forward.sequences, None))
            rows_TH = np.ones((seen.forward.rows, MODEL.hidden_size), np.float32)
            policy.plan_pass(seen.forward, rows_TH if policy.reads_token_embeddings else None)
        policy.route(seen)
    elif isinstance(policy, Eviction):
        policy.used(seen.layer, rows)
        evicting(policy, [seen.layer * EXPERTS + expert for expert in rows], inside)
    elif isinstance(policy, Admission):
        for expert in active(seen, rows).absent:
            policy.admits(seen, expert)
        for fetch in (
            *policy.uploads(seen, active(seen, rows).absent),
            *policy.pass_ends("decode"),
        ):
            policy.uploaded(fetch.layer * EXPERTS + fetch.expert)
    elif hasattr(policy, "prefetch"):
        policy.opening("prefill", 0)
        policy.prefetch(seen, {})
        policy.prefetch(seen, {seen.next_layer: np.full((2, EXPERTS), 1 / EXPERTS)})
    else:
        policy.homes(MODEL, Budget(10**9, (10,) * LAYERS, 1, 1, 1, 1))
        policy.slots(MODEL, SLOTS)
        list(policy.place(MODEL, SLOTS, "global"))
        policy.after_prefill()
    predictor = getattr(policy, "predictor", None)
    if predictor is not None:
        predictor.op(seen)
        predictor.forecast(seen, Answers(), list(rows))


@lru_cache(None)
def all_that_it_looks_at(decision: str, name: str) -> frozenset[str]:
    """Return the attributes that a policy of the registry reads, in any of its variants."""
    found: set[str] = set()
    for options in ({}, *VARIANTS.get((decision, name), [])):
        found |= looks_at(make(decision, name, **quick(decision, name), **options))
    return frozenset(found)


SCORES = {"scores", "scores_TE"}


@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
def test_scores_are_read_by_those_that_say_so(decision, name):
    reads = bool(all_that_it_looks_at(decision, name) & SCORES)
    assert reads == make(decision, name).reads_scores


@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
def test_states_and_embeddings_are_read_by_those_that_say_so(decision, name):
    policy, found = make(decision, name), all_that_it_looks_at(decision, name)
    assert ("hidden_TH" in found) == policy.reads_hidden
    assert ("embedding_BH" in found) == policy.reads_embedding
    assert ("norm_T" in found) == policy.reads_token_norms


@pytest.mark.parametrize("name", POLICIES["route"])
def test_a_routing_reads_alpha_if_it_says_so(name):
    assert ("alpha" in all_that_it_looks_at("route", name)) == make("route", name).has_alpha


def test_beside_routing_only_smoes_prefetch_reads_alpha():
    readers = {
        f"{decision}={name}"
        for decision, name in EVERY_POLICY
        if decision != "route" and "alpha" in all_that_it_looks_at(decision, name)
    }
    assert readers == {"prefetch=top-score", "prefetch=first-predicted"}
    own = make("prefetch", "top-score", alpha=0.5)
    assert "alpha" not in looks_at(own)


# --------------------------------------------------------------------------- the check itself


@dataclass(kw_only=True)
class SaysNothing(ExactRouting):
    """Policy that reads everything and declares nothing."""

    def begin_sequences(self, prompts: Prompts) -> None:
        assert prompts.embedding_BH is not None

    def route(self, view: LayerView) -> Routed:
        assert view.alpha
        assert view.hidden_TH is not None
        return super().route(view)


@dataclass(kw_only=True)
class AsksActive(LoadAll):
    """Policy that reads scores through the active experts."""

    def assign(self, view: LayerView, active) -> Plan:
        assert active.best[min(active.rows)] > 0
        return super().assign(view, active)


def test_reading_in_secret_is_noticed():
    found = looks_at(SaysNothing())
    assert {"alpha", "hidden_TH", "embedding_BH"} <= found
    assert not found & SCORES
    assert looks_at(AsksActive()) & SCORES


def test_all_five_decisions_are_asked():
    assert {decision for decision, _ in EVERY_POLICY} == set(DECISIONS)


def trained_files(policy: Policy, text) -> list[str]:
    """Return the names of the files, hashes of their data, that hold what a policy learnt."""
    with TemporaryDirectory() as folder, collect_reads() as files:
        policy.calibrate([text], MODEL, Path(folder), lambda done, total: None)
        return [file.name for file in files]


@pytest.mark.parametrize(
    ("decision", "name"),
    [
        ("evict", "flashmoe"), ("prefetch", "expert-mlp"), ("prefetch", "stride"),
        ("route", "hash-function"),
    ],
)  # fmt: skip
def test_prompts_are_trained_on_by_those_that_say_so(decision, name):
    def policy() -> Policy:
        return policy_class(decision, name)(**quick(decision, name))

    text = routed_text(MODEL, 12, 4, policy().learns_from, seed=1)
    other = routed_text(MODEL, 12, 4, policy().learns_from, seed=2)
    mixed = {
        field.name: np.concatenate((getattr(other, field.name)[:4], array[4:]))
        for field in fields(text)
        if field.name.split("_")[-1].startswith("T")
        and isinstance(array := getattr(text, field.name), np.ndarray)
    }
    before, after = (trained_files(policy(), one) for one in (text, replace(text, **mixed)))
    assert len(before) == 1
    assert (before != after) == policy().trains_on_prompts
    assert trained_files(policy(), other) != before
