"""The conformance suite accepts correct systems and finds broken ones, on two tiny models."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from moebench.conformance import CASES, CHECKS, Case, Report, cases, check_system
from moebench.harness.conformance import bench as bench_module
from moebench.harness.conformance import suite
from moebench.harness.conformance.bench import bench_in
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.registry import SYSTEMS, variants_of
from tests.harness.conformance import broken

pytestmark = pytest.mark.usefixtures("tiny_models")

TINY = cases("qwen2-57b-a14b", "mixtral-8x7b")
FEW = [case for case in TINY if case.batch == 3 and case.budget == "tight"]
SUBJECTS = [(name, variant) for name in SYSTEMS for variant in variants_of(name)]


@pytest.fixture(scope="module")
def check(tiny_models, tmp_path_factory) -> partial[Report]:
    """Return a function that checks systems and writes their training data only once."""
    return partial(check_system, scratch=tmp_path_factory.mktemp("scratch"))


def test_cases_cover_batches_budgets_and_replays():
    assert len(CASES) == len(set(CASES)) == len(TINY) == 10
    for model in {case.model for case in CASES}:
        of = [case for case in CASES if case.model == model]
        assert {case.batch for case in of} == {1, 3}
        assert {case.budget for case in of} == {"tight", "loose"}
        assert {case.replayed for case in of} == {True, False}
    assert str(TINY[0]) == "qwen2-57b-a14b, batch 1, tight"
    assert str(TINY[4]) == "qwen2-57b-a14b, batch 3, tight, replayed"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), SUBJECTS)
def test_every_system_and_variant_conforms(check, name, variant):
    report = check(name, variant, TINY)
    assert report.failures == []
    assert report.ran
    assert {found.check for found in report.findings} == set(CHECKS)


def test_tight_and_loose_budgets_have_expected_slots(check):
    slots = {}
    for case in TINY[:4]:
        ran = bench_in(check.keywords["scratch"]).run("moe-ondemand", "published", case)
        slots[case] = ran.stage.slots
    assert {slots[c] for c in slots if c.budget == "tight"} == {8}  # 4 layers, top-2
    assert {slots[c] for c in slots if c.budget == "loose"} == {29}  # of 32


# ----------------------------------------------------------------------------- what is wrong


def failed(report: Report) -> dict[str, str]:
    """Return the failed checks with the first line of each failure."""
    found = [f for f in report.findings if f.state == "failed"]
    return {f.check: f.detail for f in reversed(found)}


@pytest.mark.parametrize(
    ("system", "where", "says"),
    [
        (broken.Substitutes, "runs", "SaysLossless says that it is lossless"),
        (broken.WritesOther, "lossless", "it wrote [["),
        (broken.Draws, "repeats", "the same run again went otherwise"),
        (broken.Raises, "runs", "ZeroDivisionError: integer division or modulo by zero (broken"),
        (broken.LosesAnOption, "options", "assign.most was set and does not arrive in Forgetful"),
    ],
)
def test_broken_system_fails_exactly_the_check_of_its_defect(check, system, where, says):
    report = check(system, cases=FEW)
    found = failed(report)
    assert set(found) == {where}, found
    assert says in found[where]
    assert "\n" not in found[where]
    assert all(says in line for line in report.failures)


def test_a_value_that_is_refused_must_be_named(check):
    found = failed(check(broken.Unnamed, cases=[]))
    assert found == {"options": "assign.share=0.75 is refused without its name"}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"ratio": 0.5, "programs": None}, "it is faster than its lower bound: 0.5 of it"),
        (
            {"ratio": 2, "programs": {"tpot_ms": 8.0}, "clairvoyant_ms": 9.0},
            "it is faster than the clairvoyant bound: 8.0 of 9.0 ms",
        ),
    ],
)
def test_an_invariant_that_does_not_hold_is_found(check, monkeypatch, found, says):
    monkeypatch.setattr(suite, "bound", lambda engine, generations, clairvoyant: found)
    assert failed(check("moe-ondemand", cases=FEW)) == {"invariants": says}


def test_a_run_whose_slots_are_not_accounted_for_is_found(check, monkeypatch):
    monkeypatch.setattr(bench_module, "watch_slots", lambda cache, timeline: [])
    found = failed(check("moe-ondemand", cases=FEW))
    assert set(found) == {"invariants"}
    assert "reads an expert that has no slot" in found["invariants"]


# ----------------------------------------------------------------------------- where there is none


def not_applicable(report: Report) -> dict[str, set[Case | None]]:
    """Return the cases that were not run, by reason."""
    found: dict[str, set[Case | None]] = {}
    for one in report.findings:
        if (one.check, one.state) == ("runs", "n/a"):
            found.setdefault(one.detail, set()).add(one.case)
    return found


def test_unsupported_batch_size_is_not_applicable(check):
    report = check(broken.OneAtATime, cases=TINY)
    assert report.failures == []
    reason = "defined for 1 sequence(s) at once, not 3"
    assert not_applicable(report) == {reason: {case for case in TINY if case.batch == 3}}


def test_system_without_any_supported_model_is_not_applicable(check):
    report = check(broken.Nowhere, cases=FEW)
    assert not report.ran
    assert not_applicable(report) == {"it has no kernels": set(FEW)}


def test_a_system_that_needs_a_larger_device(check):
    report = check(broken.Large, cases=TINY)
    assert report.failures == []
    tight = {case for case in TINY if case.budget == "tight"}
    assert not_applicable(report) == {"it needs 20 slots": tight}


@pytest.mark.slow
def test_a_system_that_must_know_what_comes_runs_on_replays(check):
    report = check(broken.KnowsAll, cases=TINY)
    assert report.failures == []
    assert not_applicable(report) == {}
    assert {f.state for f in report.findings if f.check == "lossless"} == {"ok"}


@pytest.mark.slow
def test_a_replay_says_what_it_cannot_answer(check):
    report = check("smoe", "shipped", cases=TINY)
    reasons = not_applicable(report)
    assert all("holds no predictions of kind shared" in reason for reason in reasons)
    assert set().union(*reasons.values()) == {case for case in TINY if case.replayed}


def test_system_with_experts_on_disk_conforms(check):
    report = check(broken.FromDisk, cases=FEW)
    assert report.failures == []


def test_a_system_that_claims_nothing_is_not_held_to_it(check):
    (found,) = [f for f in check("daop", cases=FEW[:1]).findings if f.check == "lossless"]
    assert (found.state, found.detail) == ("n/a", "it does not claim to be lossless")
    assert asdict(found)["case"] == asdict(FEW[0])


def test_check_of_unknown_name_or_non_system_is_refused(check):
    with pytest.raises(UnknownNameError):
        check("nosuch")
    with pytest.raises(UsageError, match="is not a System"):
        check(Path)
