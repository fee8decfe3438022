"""The probe of arithmetic: a hash for every kind of operation, equal each time."""

import pytest
import torch

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
