"""A plan names and checks each cell as the cell's own session does, whatever it opened before."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.one_run import prepare
from moebench.harness.run.identity import run_id
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.plan import expand
from moebench.harness.sweep.planned import Planned
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.models import catalogue

pytestmark = pytest.mark.usefixtures("tiny_models")

SMALL = {"setting": "S3", "workload": "arithmetic", "prompts": 2, "new_tokens": 3}

#: Changes of a cell, each of another input; the last ones cannot run.
CHANGES: list[dict[str, Any]] = [
    {}, {"seed": 1}, {"workload": "facts"}, {"prompts": 4, "batch": 2}, {"new_tokens": 5},
    {"few_shot": 2}, {"scoring": "likelihood", "workload": "inflection"},
    {"scoring": "generation"}, {"machine": "h100"}, {"software": "lean"}, {"cache_ratio": 0.5},
    {"system": "smoe", "alpha": 0.1}, {"system": "smoe", "overrides": {"evict": "lru"}},
    {"system": "duoserve"}, {"system": "duoserve", "calibrate_from": "facts"},
    {"system": "duoserve", "calibrate_texts": 3}, {"setting": "D1"}, {"plain_prompts": True},
    {"routing": "drawn"}, {"machine": "local"},
    {"cache_ratio": 1.0, "allow_overcommit": False}, {"system": "belady"},
    {"system": "duoserve", "calibrate_from": "winogrande"},
]  # fmt: skip


def own_id(spec: RunSpec) -> str:
    try:
        return prepare(spec, None).run_id
    except MoeBenchError:
        return run_id(spec, inputs="unusable")


def own_problem(spec: RunSpec) -> str | None:
    try:
        prepare(spec, None).check_memory()
    except MoeBenchError as error:
        return str(error)
    return None


@pytest.mark.slow
@settings(max_examples=25)
@given(order=st.permutations(range(len(CHANGES))), pairs=st.booleans())
def test_a_cell_is_named_and_checked_as_by_its_own_session(order: list[int], pairs: bool) -> None:
    planned = Planned(None)
    for number, after in itertools.pairwise(order[:6]):
        change = CHANGES[number] | (CHANGES[after] if pairs else {})
        if "seed" in change and change.get("routing") == "drawn":
            continue
        try:
            spec = resolve(None, **{"system": "gpu-only"} | SMALL | change)
        except UsageError:  # two changes that exclude each other
            continue
        if spec.machine == "local":  # a measured run has an id of its own each time
            assert planned.cell_id(spec) == planned.cell_id(spec) != own_id(spec)
        else:
            assert planned.cell_id(spec) == own_id(spec)
        assert planned.problem(spec) == own_problem(spec)


def test_every_input_is_part_of_a_cell_s_name() -> None:
    planned = Planned(None)
    specs = [resolve(None, **{"system": "gpu-only"} | SMALL | change) for change in CHANGES]
    assert len({planned.cell_id(spec) for spec in specs}) == len(CHANGES)


def test_a_long_prompt_is_refused_for_its_own_cell_alone(tmp_path: Path) -> None:
    weights = tmp_path / "short"
    shutil.copytree(catalogue.scale_path("qwen2-57b-a14b"), weights)
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    planned = Planned(None)
    specs = [
        resolve(None, system="gpu-only", weights=str(weights), **SMALL | {"new_tokens": new})
        for new in (2, 39, 2)
    ]
    assert [planned.problem(spec) for spec in specs] == [own_problem(spec) for spec in specs]
    assert "positions; choose another workload" in str(planned.problem(specs[1]))


# ---------------------------------------------------------------------- the seeds of a product


def test_cells_that_differ_in_the_seed_are_those_that_are_resolved_alone() -> None:
    systems = ["gpu-only", {"system": "smoe", "alpha": 0.2}, {"system": "smoe", "seed": 5}]
    found = expand(
        {"common": SMALL, "product": {"system": systems, "seed": [0, 3, 7], "batch": [1, 2]}}, None
    )
    expected = [
        resolve(None, **SMALL | {"system": name, "seed": seed, "batch": batch} | alpha)
        for name, alpha in (("gpu-only", {}), ("smoe", {"alpha": 0.2}), ("smoe", {}))
        for seed in (0, 3, 7)
        for batch in (1, 2)
    ]
    assert found == expected
    assert all(type(spec.seed) is int for spec in found)


def test_a_seed_is_checked_wherever_it_stands() -> None:
    for seeds in ([0, -1], [0, 2**63], [1, 2, -5]):
        with pytest.raises(UsageError, match=r"--seed .*(greater|less) than"):
            expand({"common": SMALL | {"system": "gpu-only"}, "product": {"seed": seeds}}, None)


def test_a_replay_has_no_seed_whatever_came_before() -> None:
    plan = {"common": {"system": "smoe", "setting": "S3", "trace": "qwen2-57b-a14b__arithmetic"},
            "product": {"seed": [None, 3]}}  # fmt: skip
    with pytest.raises(UsageError, match="--seed"):
        expand(plan, None)


def test_systems_learn_from_weights_in_the_precision_of_their_own_cell() -> None:
    """Cells of one model share its weights, whichever of them is asked for first."""
    planned = Planned(None)
    for dtype in (None, "int8", None):
        spec = resolve(None, **SMALL, system="duoserve", expert_dtype=dtype)
        learning = planned.learning(spec)
        assert learning is not None
        assert learning.weights.expert_dtype == dtype
