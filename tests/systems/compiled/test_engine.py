"""Compiled replays equal those of the engine in Python: every span, event, sum and count."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.timeline import Timeline
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.compiled import engine as engine_module
from moebench.systems.compiled import library, twins
from moebench.systems.compiled.engine import CompiledEngine, compiled
from moebench.systems.compiled.twins import ASSIGN, EVICT, PREFETCH, decided, ours, why_not
from moebench.systems.options import build, options_of
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.registry import POLICIES, SYSTEMS, policy_class
from tests.substrate.engine.cases import Case, cases, examples
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.systems.compiled.runs import Refused, by_compiled_code, check_equal, outcome
from tests.systems.kinds import fits
from tests.systems.test_every_option import changes

pytestmark = pytest.mark.skipif(
    library.library() is None, reason="needs a C++ compiler: install g++, or set CXX"
)

ROOT = Path(__file__).parents[3]
SHAPE = small_shape(layers=5, experts=6, top_k=2, dense_layers=(0, 3), shared=True)
#: One text and three: a token of one has no expert twice.
BATCHES = ((3,), (2,)), ((4, 2, 3), (1, 1, 2))


def case_of(system: str, overrides: dict[str, str], batches=BATCHES[0], **changed) -> Case:
    costs = FlatCosts(
        prices(load=61, host=47, expert=9), launch_ns=3, submit_ns=2, sync_ns=4, decision_ns=1,
        waits=True,
    )  # fmt: skip
    whole = Case(
        shape=SHAPE, seed=5, system=system, overrides=overrides, slots=9, scope="global",
        batches=batches, passes=6, costs=costs, host_records=None,
    )  # fmt: skip
    return replace(whole, **changed)


def equal_where_possible(case: Case) -> bool:
    """Check a case, and return whether compiled code replays it."""
    try:
        return check_equal(case)
    except Refused:
        return False


# ----------------------------------------------------------------------------- by systems


#: Any popularity of experts, for systems that place by what they were calibrated on.
POPULARITY = json.dumps([[(3 * e + layer) % 7 for e in range(6)] for layer in range(5)])

#: Systems that compiled code cannot replay, and those that cannot run without training or prompts.
LEFT_TO_PYTHON = {
    "deepspeed", "deepspeed-mii", "flexgen", "promoe", "hobbit", "moe-lightning", "daop"
}  # fmt: skip
NOT_HERE = {"flashmoe", "finemoe", "belady", "swapmoe", "sida"}


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_systems_replay_is_the_same(system, batches):
    built = build(system)
    given = {} if "popularity" not in options_of(type(built.place)) else {
        "place.popularity": POPULARITY
    }  # fmt: skip
    case = case_of(system, given, batches, slots=14, scope=built.scope)
    assert equal_where_possible(case) == (system not in LEFT_TO_PYTHON | NOT_HERE)


# ----------------------------------------------------------------------------- by policies


def bases(decision: str, name: str) -> list[dict[str, str]]:
    """Compositions around a policy, with its neighbours compiled or in Python."""
    if decision == "assign":
        return [{}, {"evict": "lfu", "prefetch": "next-gate"}, {"evict": "arc"}]
    plain = {"assign": "balanced"}
    others = [{"assign": "bandwidth-split"}, {"assign": "host"}, {"assign": "load-or-compute"}]
    return [plain, plain | {"prefetch": "impact"}, *others]


@pytest.mark.parametrize(
    ("decision", "name"), [(d, n) for d in POLICIES for n in POLICIES[d] if d != "place"]
)
def test_a_policys_replay_is_the_same_beside_others(decision, name):
    tried = 0
    for base in bases(decision, name):
        overrides = {**base, decision: name}
        for batches in BATCHES:
            try:
                case = case_of("moe-ondemand", overrides, batches, slots=12)
                tried += equal_where_possible(case)
            except (UsageError, BudgetError):
                continue  # this base, or a device of this size, does not take it
    if not fits("moe-ondemand", decision, name):
        return
    assert tried or (decision, name) in ALONE, "no replay in compiled code was compared"


#: Policies whose replays are left to Python, and those that random routing is not enough for.
ALONE = {
    ("prefetch", "stride"), ("prefetch", "stacked-gates"), ("prefetch", "predicted-union"),
    ("prefetch", "first-predicted"), ("evict", "swap"), ("evict", "swap-placeholder"),
    ("admit", "important-swaps"), ("route", "predicted"), ("route", "hash-function"),
    ("assign", "micro-batches"), ("evict", "belady"), ("evict", "next-use"),
    ("evict", "guarded-next-use"), ("evict", "only-swapped"), ("evict", "only-named"),
    ("prefetch", "expert-map"),
}  # fmt: skip


def test_experts_that_are_copied_again_are_the_same():
    options = {
        "assign": "split-by-residence", "assign.min_rows": "1", "assign.chunk": "80",
        "assign.bandwidth": "1000",
    }  # fmt: skip
    case = case_of("moe-ondemand", options, ((200,), (170,)), slots=12)
    assert equal_where_possible(case)
    made = case.made_rig()
    plans = []
    assign = made.engine.system.assign.assign
    made.engine.system.assign.assign = lambda *given: plans.append(assign(*given)) or plans[-1]
    CompiledEngine(made.engine).generate([[0] * 200], 2)
    assert any(plan.again for plan in plans)


TWINS = [
    *[("assign", kind) for kind in ASSIGN], *[("evict", kind) for kind in EVICT],
    *[("prefetch", kind) for kind in PREFETCH],
]  # fmt: skip


def name_of(decision: str, kind: type) -> str:
    return next(name for name in POLICIES[decision] if policy_class(decision, name) is kind)


@pytest.mark.slow
@pytest.mark.parametrize(("decision", "kind"), TWINS)
def test_every_option_of_a_compiled_policy_is_known_to_its_twin(decision, kind):
    name = name_of(decision, kind)
    for key, value in [("", ""), *changes(kind, f"{decision}.")]:
        overrides = {"assign": "balanced", decision: name} | ({key: value} if key else {})
        for batches in BATCHES:
            case = case_of("moe-ondemand", overrides, batches, slots=12, seed=len(key))
            try:
                equal_where_possible(case)
            except BudgetError:
                continue  # more slots are kept empty than there are


@pytest.mark.parametrize(("decision", "kind"), TWINS)
def test_a_twin_is_used(decision, kind):
    name = name_of(decision, kind)
    system = build("moe-ondemand", {"assign": "host", decision: name})
    assert getattr(decided(system, SHAPE), decision) > 0


def test_what_a_twin_does_not_know_is_asked_in_python():
    class Changed(type(build("moe-ondemand").evict)):  # type: ignore[misc]
        pass

    system = build("moe-ondemand", {"evict": "lru"})
    assert decided(system, SHAPE).evict
    assert not decided(system, SHAPE).asks_layers
    system.evict = Changed()
    assert not decided(system, SHAPE).evict
    assert decided(system, SHAPE).asks_layers


# ----------------------------------------------------------------------------- at random


@pytest.mark.slow
@examples(60)
@given(case=cases(), lost=st.sampled_from([0.0, 0.3]), waits=st.booleans())
def test_random_replays_are_the_same(case, lost, waits):
    case.costs.lost_together, case.costs.waits_each_layer = lost, waits
    equal_where_possible(replace(case, host_records=None, homes=()))


@st.composite
def compositions(draw) -> Case:
    """Any policies of the registry with each other, on a device of any size."""
    chosen = {
        decision: draw(st.sampled_from(sorted(POLICIES[decision])))
        for decision in ("assign", "prefetch", "evict", "admit")
    }
    chosen["in_flight"] = draw(st.sampled_from(["wait", "host"]))
    chosen["host_together"] = draw(st.sampled_from(["True", "False"]))
    chosen["overlap"] = draw(st.sampled_from(["True", "True", "False"]))
    batches = draw(st.sampled_from(BATCHES))
    return case_of(
        "moe-ondemand", chosen, batches, slots=draw(st.integers(4, 18)),
        seed=draw(st.integers(0, 99)), scope=draw(st.sampled_from(["global", "layer"])),
    )  # fmt: skip


@pytest.mark.slow
@examples(150)
@given(case=compositions())
def test_random_compositions_are_the_same(case):
    # Some policies do not go together, and some devices are too small.
    with suppress(UsageError, BudgetError):
        equal_where_possible(case)


@pytest.mark.slow
@examples(25)
@given(case=cases(), waits=st.booleans())
def test_sums_do_not_depend_on_spans_that_are_dropped(case, waits):
    case.costs.waits_each_layer = waits
    case = replace(case, host_records=None, homes=())
    if why_not(case.made_rig().engine) is not None:
        return

    def sums(most_spans):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_module, "MOST_SPANS", most_spans)
            patch.setattr(Timeline, "kept_tokens", 0)
            return outcome(by_compiled_code, case)

    few, all_of_them = sums(0), sums(1 << 18)
    for found in (few, all_of_them):
        if not isinstance(found, str):
            del found["spans and events"]
    assert few == all_of_them


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("changed", "overrides", "reason"), [
    ({"host_records": 9}, {}, "experts are on the disk"),
    ({"homes": ("host",) * 5}, {}, "non-expert weights are not on the device"),
    ({}, {"synchronises": "true"}, "it waits for every layer"),
    ({}, {"reads_unfinished": "true"}, "it reads unfinished copies"),
    ({}, {"prefetch": "top-score", "prefetch.chunks": "2"}, "prefetches are in chunks"),
])  # fmt: skip
def test_what_compiled_code_cannot_do_is_left_to_python(changed, overrides, reason):
    case = case_of("moe-ondemand", overrides, **changed)
    made = case.made_rig()
    assert why_not(made.engine) == reason
    assert compiled(made.engine) is made.engine
    usual = case_of("moe-ondemand", {}).made_rig()
    assert why_not(usual.engine) is None
    assert isinstance(compiled(usual.engine), CompiledEngine)


def test_the_files_that_compiled_code_repeats_are_as_they_were():
    found = twins.digest()
    assert found == twins.DIGEST, (
        "a file of `twins.REPEATED` has changed: repeat the change in systems/compiled/*.cpp and "
        f"*.h if it changes results, and when these tests pass, set `twins.DIGEST` to {found}"
    )


def test_a_changed_file_is_left_to_python(monkeypatch, tmp_path):
    for name in twins.REPEATED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    assert twins.digest(tmp_path) == twins.digest()
    with (tmp_path / "systems/policies/evict.py").open("a") as file:
        file.write("# changed")
    assert twins.digest(tmp_path) != twins.digest()
    made = case_of("moe-ondemand", {}).made_rig()
    monkeypatch.setattr(engine_module, "repeated", lambda: False)
    assert compiled(made.engine) is made.engine


def test_a_users_own_policy_is_left_to_python():
    class Own(LeastRecentlyUsed):
        pass

    made = case_of("moe-ondemand", {}).made_rig()
    made.engine.system.evict = Own()
    assert compiled(made.engine) is made.engine


def test_a_policy_whose_method_was_replaced_is_left_to_python():
    assert isinstance(compiled(case_of("moe-ondemand", {}).made_rig().engine), CompiledEngine)
    made = case_of("moe-ondemand", {}).made_rig()
    made.engine.system.evict.victim = lambda allowed, incoming: None
    assert compiled(made.engine) is made.engine


def test_a_users_own_system_of_our_policies_is_compiled():
    class Found(MoEOnDemand):
        pass

    class Watching(MoEOnDemand):
        def observe(self, view):
            super().observe(view)

    assert ours(Found())
    assert not ours(Watching())


def test_a_recorded_text_cannot_be_stopped_early():
    engine = compiled(case_of("moe-ondemand", {}).made_rig().engine)
    with pytest.raises(AssertionError, match="a recorded text ends where it ended"):
        engine.generate([[0] * 3], 2, end=1)


@pytest.mark.parametrize("kind", [UsageError, KeyboardInterrupt])
def test_what_a_policy_raises_reaches_the_caller(monkeypatch, kind):
    made = case_of("moe-ondemand", {"evict": "arc"}).made_rig()

    def broken(allowed, incoming):
        raise kind("no expert is worth less than another")

    monkeypatch.setattr(made.engine.system.evict, "victim", broken)
    with pytest.raises(kind, match="no expert is worth less than another"):
        CompiledEngine(made.engine).generate([[0] * 3], 4)


def test_ctrl_c_between_tokens_ends_a_replay_without_questions(monkeypatch):
    def interrupted(name, done, total):
        if (name, done) == ("decode", 2):
            raise KeyboardInterrupt

    monkeypatch.setattr("moebench.systems.compiled.asked.report_phase", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CompiledEngine(case_of("moe-ondemand", {}).made_rig().engine).generate([[0] * 3], 6)


def test_a_plan_that_lacks_an_expert_is_refused(monkeypatch):
    made = case_of("moe-ondemand", {"assign": "bandwidth-split"}).made_rig()
    right = made.engine.system.assign.assign
    monkeypatch.setattr(
        made.engine.system.assign, "assign",
        lambda view, active: right(view, active)._replace(device=(), host=()),
    )  # fmt: skip
    with pytest.raises(UsageError, match="each must stand in the plan once"):
        CompiledEngine(made.engine).generate([[0] * 3], 4)


def test_a_change_of_one_number_is_noticed(monkeypatch):
    """The comparison itself: with another price of a record's copy, it fails."""
    case = case_of("moe-ondemand", {})
    check_equal(case)
    setup = CompiledEngine._setup

    def dearer(self):
        found = setup(self)
        found.record_ns += 1
        return found

    monkeypatch.setattr(CompiledEngine, "_setup", dearer)
    with pytest.raises(AssertionError):
        check_equal(case)
