"""What a system reads follows from its policies: from any of them."""

import pytest

from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import UsageError
from moebench.systems.options import build


@pytest.mark.parametrize(
    ("flag", "sets"),
    [
        ("reads_hidden", {"prefetch": "stride"}),
        ("reads_embedding", {"prefetch": "expert-map"}),
        ("reads_token_embeddings", {"route": "hash-function"}),
        ("reads_token_norms", {"admit": "important-swaps"}),
        ("reads_weight_norms", {"admit": "important-swaps"}),
    ],
)
def test_a_system_reads_what_one_of_its_policies_reads(flag: str, sets: dict[str, str]) -> None:
    assert not getattr(build("moe-ondemand"), flag)
    system = build("moe-ondemand", sets)
    assert getattr(system, flag)
    assert [name for name, policy in system.policies.items() if getattr(policy, flag)] == [*sets]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ({"evict": "score"},
         "evict is LowestAverageScore, which knows one form of records, but HOBBIT has 2; allowed: "
         "a policy with takes_forms = True, such as --set evict=lru"),
        ({"assign": "micro-batches"},
         "assign is InMicroBatches, which divides passes and copies whole records in pages, but "
         "there are 2 forms of records; allowed: another assignment, or a system and a placement "
         "with one form"),
    ],
)  # fmt: skip
def test_policies_of_one_form_are_refused_beside_two(sets: dict[str, str], says: str) -> None:
    assert len(build("hobbit").forms) == 2
    with pytest.raises(UsageError) as caught:
        build("hobbit", sets)
    assert str(caught.value) == says
    assert len(build("moe-ondemand", sets).forms) == 1


def test_every_policy_is_told_of_a_batchs_beginning_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = build("moe-ondemand")
    told: list[tuple[object, ...]] = []
    for name, policy in system.policies.items():
        monkeypatch.setattr(
            policy, "begin_sequences", lambda prompts, name=name: told.append((name, prompts))
        )
        monkeypatch.setattr(policy, "end_sequences", lambda name=name: told.append((name,)))
    prompts = Prompts((3, 2), None)
    system.begin_sequences(prompts)
    system.end_sequences()
    names = [*system.policies]
    assert told == [*((name, prompts) for name in names), *((name,) for name in names)]
    assert len(names) == 6
