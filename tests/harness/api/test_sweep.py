"""Plans of sweeps from Python: files, mappings, and axes of one value or several."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.api import sweep as module
from moebench.harness.run.rules import resolve
from moebench.substrate.errors import UsageError
from moebench.systems.baselines import MoEOnDemand

pytestmark = pytest.mark.usefixtures("tiny_models")

SMALL: dict[str, Any] = {"setting": "S3", "workload": "arithmetic", "prompts": 1}


def specs(plan: Any = None, **axes: Any) -> list[tuple[str, int]]:
    return [(one.system, one.seed) for one in module._specs(plan, axes, None)]


def test_axes_have_one_value_or_several() -> None:
    assert specs(**SMALL, system="smoe", seed=[0, 1]) == [("smoe", 0), ("smoe", 1)]
    found = specs(**SMALL, system=("smoe", MoEOnDemand), seed=range(2))
    assert found == [("smoe", 0), ("smoe", 1), ("moe-ondemand", 0), ("moe-ondemand", 1)]
    assert sorted(specs(**SMALL, system={"smoe", "daop"})) == [("daop", 0), ("smoe", 0)]
    assert list(module._values({"a": 1})) == [{"a": 1}]
    assert list(module._values("ab")) == ["ab"]
    assert list(module._values(iter([1]))) != [1], "an iterator is one value"
    assert module._plain(Path("w")) == "w"
    assert module._plain(MoEOnDemand) == "moe-ondemand"
    assert module._plain(int) is int
    assert module._plain(3) == 3


def test_a_plan_is_a_file_a_name_or_a_mapping() -> None:
    plan = {"common": SMALL, "product": {"system": ["smoe", "daop"]}}
    assert specs(plan) == [("smoe", 0), ("daop", 0)]
    Path("s.yaml").write_text(
        "common: {setting: S3, workload: arithmetic, prompts: 1}\nproduct: {system: smoe}\n"
    )
    expected = resolve(None, system="smoe", **SMALL)
    for name in ("s.yaml", Path("s.yaml")):
        assert module._specs(name, {}, None) == [expected]
    with pytest.raises(UsageError, match="sweep: a plan and system, seed: give one of them"):
        specs(plan, system="smoe", seed=1)
    with pytest.raises(UsageError, match="sweep: nothing is given; for example system="):
        specs()
