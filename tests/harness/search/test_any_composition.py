"""Any composition writes the model's own text bit for bit, or says that it is lossy."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from moebench.harness import one_run
from moebench.harness.run.rules import resolve
from moebench.harness.search.composition import BASE, Space, refusal, space_of
from moebench.substrate.errors import MoeBenchError
from moebench.systems.options import build

pytestmark = pytest.mark.usefixtures("tiny_models")


class Draws:
    """A trial that draws everything at random."""

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(seed)

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        return self._draws.choice(choices)

    def suggest_int(self, name: str, low: int, high: int, log: bool) -> int:
        return self._draws.randint(low, high)

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        return self._draws.uniform(low, high)


def computed(sets: dict[str, str], scratch: Path) -> dict[str, Any] | None:
    """Return the accuracy part of a run that computes; None if the place refuses it."""
    try:
        spec = resolve(
            None, system=BASE, overrides=sets, setting="S3", workload="arithmetic", prompts=1,
            new_tokens=5, calibrate_texts=2,
        )  # fmt: skip
        with one_run.opened(spec, None) as session:
            found: dict[str, Any] = one_run.run(session, scratch).document["accuracy"]
            return found
    except MoeBenchError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_it_is_lossless_or_says_that_it_is_not(part: int, here: Path) -> None:
    space: Space = space_of(lambda sets: True, lossy=True, learned=False)
    counts: Counter[str] = Counter()
    for seed in range(part * 1000, part * 1000 + 32):
        trial: Any = Draws(seed)
        sets = space.suggest(trial)
        if seed % 4:  # few routings are exact
            kept = {k: v for k, v in sets.items() if k != "alpha" and not k.startswith("route")}
            sets = {**kept, "route": "exact"}
        if refusal(sets, lossy=True) is not None:
            continue
        found = computed(sets, here)
        if found is None:
            counts["refused"] += 1
            continue
        lossless = build(BASE, sets).lossless
        counts["lossless" if lossless else "lossy"] += 1
        if lossless:
            assert found["agreement"] == 1, sets
            assert found["kl"] == 0, sets
    assert counts["lossless"] >= 4, counts


def test_what_says_that_it_is_lossy_can_be(here: Path) -> None:
    """Otherwise the test above would hold for a system that calls everything lossy."""
    sets = {"route": "random"}
    assert not build(BASE, sets).lossless
    found = computed(sets, here)
    assert found is not None
    assert found["kl"] > 0
