"""Prompts of a search, and places that it has not seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moebench.harness.search.held_out import GROUPS, held_out
from moebench.harness.search.question import VALIDATED, Question, Seeds, seeds_of
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import load

S1 = Question(name="S1", given={"setting": "S1"})


def examples(seed: int, batches: int, batch: int = 1, name: str = "passages") -> set[str]:
    return {repr(one) for one in load(workload(name), "test", batches * batch, seed).examples}


@pytest.mark.parametrize("batch", [1, 4])
def test_prompts_of_validation_are_none_of_the_search(batch: int) -> None:
    question = S1.with_("S1", batch=batch)
    seeds = seeds_of(question, 0)
    one, two = (examples(seed, 1, batch) for seed in seeds.search)
    new = examples(seeds.validation, VALIDATED, batch)
    assert len(one | two | new) == len(one) + len(two) + len(new)
    assert seeds.search[0] == 0


@pytest.mark.parametrize(("first", "batch"), [(0, 4), (5, 2)])
def test_seeds_are_the_first_that_draw_other_prompts(first: int, batch: int) -> None:
    """No earlier one does."""
    seeds = seeds_of(S1.with_("S1", batch=batch), first)
    one, two = seeds.search
    assert one == first
    read = examples(first, 1, batch)
    for seed in range(first + 1, two + 1):
        assert bool(read & examples(seed, 1, batch)) is (seed < two)
    read |= examples(two, 1, batch)
    for seed in range(two + 1, seeds.validation + 1):
        assert bool(read & examples(seed, VALIDATED, batch)) is (seed < seeds.validation)


def test_every_seed_draws_routing_of_its_own() -> None:
    drawn = {"model": "gpt-oss-20b", "machine": "rtx4090", "cache_ratio": 0.5}
    assert seeds_of(Question(name="b", given=drawn), 7) == Seeds((7, 8), 9)


def test_a_spec_has_whole_batches_of_the_question() -> None:
    one = Question(name="x", given={"setting": "S1", "batch": 3, "workload": "gsm8k"})
    spec = one.spec("smoe", {"evict": "lru"}, 2, 9, clairvoyant=True)
    assert (spec.system, spec.overrides.get("evict"), spec.prompts, spec.seed, spec.batch) == (
        "smoe", "lru", 6, 9, 3,
    )  # fmt: skip
    assert (spec.clairvoyant, spec.routing) == (True, "replayed")
    assert S1.batch == 1
    assert S1.with_("other", routing="model").routing == "model"
    assert S1.with_("other", batch=2) == Question(name="other", given={"setting": "S1", "batch": 2})


@pytest.mark.slow
def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"too few prompts for 7 batches of 512|prompts"):
        seeds_of(S1.with_("S1", batch=512), 0)


def test_routing_is_replayed_computed_or_drawn() -> None:
    assert S1.routing == "replayed"
    assert Question(name="S1", given={"setting": "S1"}, live=True).routing == "model"
    big = {"model": "gpt-oss-20b", "machine": "rtx4090", "cache_ratio": 0.5}
    assert Question(name="b", given=big).routing == "drawn"
    with pytest.raises(UsageError, match="no scale model of it ships"):
        _ = Question(name="b", given=big, live=True).routing


def test_held_out_places_differ_in_one_thing_each(tmp_path: Path) -> None:
    spec = S1.spec("moe-ondemand", {}, 1, 0)
    found = {one.name: one for one in held_out(S1, spec.model, spec.machine, spec.workload)}
    kinds = [name.split()[0] for name in found]
    assert kinds == ["workload", "machine", *(k for g in ("link", "host", "hand-off")
                                              for k in (g, g))]  # fmt: skip
    own = dict(load_profile(spec.machine).quantities())
    for name, fields in GROUPS.items():
        for factor in (0.7, 1.3):
            there = found[f"{name} × {factor}"].spec("moe-ondemand", {}, 1, 0)
            moved = dict(load_profile(there.machine).quantities())
            changed = {k for k in own if moved[k].value != own[k].value}
            assert changed <= {*fields}
            assert changed
            for field in changed:
                assert moved[field].value == pytest.approx(own[field].value * factor, rel=1e-3)
            assert there.workload == spec.workload


def test_the_machine_next_to_it_has_another_card() -> None:
    spec = S1.spec("moe-ondemand", {}, 1, 0)
    (name,) = [one.given["machine"]
               for one in held_out(S1, spec.model, spec.machine, spec.workload)
               if one.name.startswith("machine")]  # fmt: skip
    assert load_profile(name).gpu.name != load_profile(spec.machine).gpu.name


def test_it_is_the_next_one_on_which_the_composition_can_run() -> None:
    spec = S1.spec("moe-ondemand", {}, 1, 0)

    def machines(possible: Callable[[Question], bool]) -> list[str]:
        found = held_out(S1, spec.model, spec.machine, spec.workload, possible)
        return [one.given["machine"] for one in found if one.name.startswith("machine")]

    (nearest,) = machines(lambda question: True)
    (next_one,) = machines(lambda question: question.given["machine"] != nearest)
    assert next_one != nearest
    assert machines(lambda question: False) == []
