"""The probe of arithmetic: a hash for every kind of operation, equal each time."""

import pytest
import torch

from moebench.harness.guard import arithmetic
from moebench.harness.guard.arithmetic import probe

KINDS = {"product", "batched product", "norm", "exponential", "attention", "sum"}


def test_a_hash_for_each_kind_of_operation() -> None:
    before = torch.get_num_threads()
    first = probe(1)
    assert set(first) == KINDS
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in first.values())
    assert len(set(first.values())) == len(KINDS)
    assert probe(1) == first
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("name", "kind"), [("bmm", "batched product"), ("rsqrt", "norm")])
def test_an_operation_that_rounds_otherwise_changes_its_kind_alone(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, sound = probe(1), getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *given: torch.nextafter(sound(*given), torch.ones(())))
    assert {one for one in KINDS if probe(1)[one] != first[one]} == {kind}


@pytest.mark.parametrize("name", ["silu", "softmax", "log_softmax"])
def test_each_function_of_exponentials_is_part_of_the_probe(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, owner = probe(1), arithmetic.F if name == "silu" else torch.Tensor
    sound = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *of: torch.nextafter(sound(*of), torch.ones(())))
    assert {one for one in KINDS if probe(1)[one] != first[one]} == {"exponential"}


def test_values_are_the_quotients_of_small_integers() -> None:
    """The first is (104729 mod 1999 - 999) / 999, and its neighbours are 7919 apart."""
    values = arithmetic._values(2, 3)
    assert values.shape == (2, 3)
    whole = [(7919 * n + 104729) % 1999 - 999 for n in range(6)]
    assert values.flatten().tolist() == [torch.tensor(n / 999).item() for n in whole]
