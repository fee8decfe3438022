"""Every listed name imports and builds, and listing them imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

from moebench.substrate.engine.system import System
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.options import build
from moebench.systems.registry import (
    DECISIONS,
    POLICIES,
    SYSTEMS,
    VARIANTS,
    make,
    name_of,
    policy_class,
    system_class,
    variants_of,
)
from tests.systems.kinds import KINDS, fits

EVERY_POLICY = [(decision, name) for decision in POLICIES for name in POLICIES[decision]]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system(name):
    system = build(name)
    assert type(system) is system_class(name)
    assert isinstance(system, System)
    assert list(system.policies) == list(DECISIONS) == list(KINDS)
    for decision, policy in system.policies.items():
        assert isinstance(policy, KINDS[decision])
        assert name_of(decision, policy) in POLICIES[decision]
    assert SYSTEMS[name][2]


@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
def test_every_policy(decision, name):
    policy = make(decision, name)
    assert isinstance(policy, KINDS[decision])
    assert type(policy) is policy_class(decision, name)
    assert name_of(decision, policy) == name


@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_can_borrow_every_policy(system, decision, name):
    if not fits(system, decision, name):
        refusal = (
            r"takes_forms = True|computes misses on the host|chooses one form for each expert"
            r"|divides passes"
        )
        with pytest.raises(UsageError, match=refusal):
            build(system, {decision: name})
        return
    borrowed = build(system, {decision: name})
    assert name_of(decision, borrowed.policies[decision]) == name


def test_who_is_lossless():
    assert build("gpu-only").all_resident
    assert [build(n).lossless for n in ("gpu-only", "moe-ondemand", "smoe")] == [True, True, False]
    assert build("smoe", {"alpha": "0"}).lossless


def test_unknown_policies():
    with pytest.raises(UnknownNameError, match=r"unknown evict policy .*nearest: lru"):
        make("evict", "lr")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import moebench.systems",
        "import moebench.systems.policies",
        "from moebench.systems import registry as r; [r.system_class(name) for name in r.SYSTEMS]",
        "from moebench.systems import options as o, registry as r; [o.build(n) for n in r.SYSTEMS]",
    ],
)
def test_no_torch(code):
    check = f"{code}\nimport sys\nassert 'torch' not in sys.modules, 'torch was imported'"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_variants_of_a_system_are_in_one_order() -> None:
    assert variants_of("lru") == ("published",)
    assert variants_of("smoe") == ("published", "shipped")
    assert variants_of("freetoken") == ("published", "earlier")
    for name in SYSTEMS:
        found = variants_of(name)
        assert found[0] == "published"
        assert set(found) == {variant for variant, listed in VARIANTS.items() if name in listed}


def test_policies_are_of_six_decisions_and_known_names() -> None:
    with pytest.raises(UnknownNameError, match="unknown decision 'evicts'; nearest: evict"):
        policy_class("evicts", "lru")
    with pytest.raises(UnknownNameError, match="unknown evict policy 'lruu'; nearest: lru"):
        policy_class("evict", "lruu")
