"""Pre-gated MoE: its slots, what it fetches, and what it says of itself."""

from moebench.systems.options import build
from moebench.systems.pregated_moe import FetchChosen, PreGatedMoE
from tests.systems.views import cache, shape


def test_without_a_cache_two_layers_fit_and_nothing_stays() -> None:
    model = shape(6, 2, 3)
    system = PreGatedMoE()
    assert system.cache is False
    assert system.most_slots(model) == 12
    system.start(model, cache(model, 12))
    assert system.prefetch.keep is False  # type: ignore[attr-defined]
    assert system.assign.keep is False  # type: ignore[attr-defined]


def test_with_a_cache_all_slots_are_used_and_experts_stay() -> None:
    model = shape(6, 2, 3)
    system = build("pregated-moe", {"cache": "true"})
    assert isinstance(system, PreGatedMoE)
    assert system.most_slots(model) is None
    system.start(model, cache(model, 12))
    assert system.prefetch.keep is True  # type: ignore[attr-defined]
    assert system.assign.keep is True  # type: ignore[attr-defined]


def test_it_says_that_an_oracle_takes_the_place_of_its_gates() -> None:
    (said,) = PreGatedMoE().remarks(shape(6, 2, 3), 12)
    assert said.startswith("pregated-moe is timed with an oracle in place of its pre-gates")
    assert said.endswith("accuracy is not measured")


def test_its_prefetches_are_committed() -> None:
    assert FetchChosen().discipline == "committed"
    assert FetchChosen().keep is False
    assert isinstance(PreGatedMoE().prefetch, FetchChosen)
