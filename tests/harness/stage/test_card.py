"""What fits on a card, in bytes and in words; `tests/harness/cli/test_card.py` runs systems."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.stage.card import DTYPES, OnCard, _check, _fit, _offered
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.accelerator import WORKSPACE_BYTES

GB = 10**9


def card(free: int = 20 * GB) -> Any:
    limits: list[int] = []
    return SimpleNamespace(name="Card 9", memory=lambda: (free, 24 * GB), limit=limits.append,
                           limits=limits, put=lambda tensor: ("put", tensor))  # fmt: skip


def spec(**more: Any) -> Any:
    base = {"precision": "bf16", "expert_dtype": None, "title": "mine", "device_memory_gib": None}
    return SimpleNamespace(**base | more)


def test_weights_are_copied_when_they_are_accessed() -> None:
    on_card = OnCard({"a": torch.ones(1), "b": torch.zeros(1)}, card())
    assert [*on_card] == ["a", "b"]
    assert len(on_card) == 2
    assert on_card["a"] == ("put", torch.ones(1))


def test_a_card_offers_what_is_free_or_less_on_request() -> None:
    free = (20 * GB - WORKSPACE_BYTES, "are free beside a workspace")
    assert _offered(spec(), card()) == free
    assert _offered(spec(), card(WORKSPACE_BYTES - 1)) == (0, free[1])
    asked = (3 << 29, "are allowed (--device-memory, or the setting's)")
    assert _offered(spec(device_memory_gib=1.5), card()) == asked
    assert _offered(spec(device_memory_gib=100), card()) == free


def test_what_fits_is_said_and_is_the_cards_limit() -> None:
    on = card()
    offer: Any = SimpleNamespace(count_bytes=5 * GB, why="are free")
    said = _fit(on, offer, {"slots": 3 * GB, "KV cache": 2 * GB})
    assert said == ("5 GB of its 24 GB used (slots 3 GB, KV cache 2 GB), 5 GB are free")
    assert on.limits == [5 * GB + WORKSPACE_BYTES]
    with pytest.raises(BudgetError) as caught:
        _fit(on, offer, {"slots": 3 * GB, "KV cache": 2_500_000_000})
    assert str(caught.value) == (
        "slots 3 GB, KV cache 2.5 GB are 5.5 GB; of the 24 GB of Card 9 5 GB are free; give a "
        "smaller --capacity or --slots, or a larger --device-memory"
    )
    assert len(on.limits) == 1


@pytest.mark.parametrize(
    ("options", "homes", "says"),
    [
        *(({"precision": one}, ("device",), None) for one in DTYPES),
        ({"precision": "4bit"}, ("device",), "--precision 4bit: a card computes with what it is "
         "given, and nothing is quantised; allowed with --device cuda: bf16, fp16, fp32"),
        ({"expert_dtype": "int8"}, ("device",), "--expert-dtype int8 and --device cuda: packed "
         "experts are computed on a processor only; allowed: --device cpu, or a simulated machine"),
        ({}, ("device", "host"), "--device cuda: mine leaves common weights to the host or streams "
         "them; allowed: a simulated machine, or --emulated-link 4GB/s with --device cpu"),
        ({}, ("stream", "stream"), "--device cuda: mine leaves common weights to the host or "
         "streams them; allowed: a simulated machine, or --emulated-link 4GB/s with --device cpu"),
    ],
)  # fmt: skip
def test_what_a_card_does_not_compute_with_is_refused(
    options: dict[str, Any], homes: tuple[str, ...], says: str | None
) -> None:
    memory: Any = SimpleNamespace(capacity=SimpleNamespace(homes=homes))
    if says is None:
        _check(spec(**options), memory)
        return
    with pytest.raises(UsageError) as caught:
        _check(spec(**options), memory)
    assert str(caught.value) == says


def test_a_card_computes_in_the_runs_own_type() -> None:
    assert {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32} == DTYPES
