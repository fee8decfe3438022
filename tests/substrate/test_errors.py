"""Messages about names that no catalogue holds, and which error is a kind of which."""

import pytest

from moebench.substrate.errors import (
    BudgetError,
    CheckpointError,
    InputError,
    IntegrityError,
    MoeBenchError,
    NotApplicableError,
    NotRecordedError,
    ProfileError,
    UnknownNameError,
    UsageError,
)


@pytest.mark.parametrize(
    ("name", "known", "hint", "says"),
    [
        ("SMoee", ["zeta", "smoe", "dsmoe"], "", "unknown system 'SMoee'; nearest: smoe, dsmoe"),
        ("q", ["zeta", "alpha"], "", "unknown system 'q'; known: alpha, zeta"),
        ("q", ["zeta"], "see there", "unknown system 'q'; known: zeta; see there"),
        ("abcd", ["abcd1", "abcd2", "abcd3", "abcd4"], "",
         "unknown system 'abcd'; nearest: abcd4, abcd3, abcd2"),
        # Alike in 4 of 10 letters, and in fewer.
        ("abxxx", ["abyyy", "ayyyy"], "", "unknown system 'abxxx'; nearest: abyyy"),
    ],
)  # fmt: skip
def test_an_unknown_name_offers_the_nearest_or_all(
    name: str, known: list[str], hint: str, says: str
) -> None:
    assert str(UnknownNameError("system", name, known, hint)) == says


def test_kinds_of_errors() -> None:
    kinds = {
        UnknownNameError: UsageError, NotApplicableError: UsageError, NotRecordedError: UsageError,
        CheckpointError: InputError, ProfileError: InputError, UsageError: MoeBenchError,
        InputError: MoeBenchError, BudgetError: MoeBenchError, IntegrityError: MoeBenchError,
    }  # fmt: skip
    for kind, base in kinds.items():
        assert kind.__base__ is base
