"""The claims of this module are those of the results that ship."""

from moebench.harness.reproduce.smoe.against_others import CLAIMS
from tests.harness.reproduce.shipped import check


def test_claims_are_those_that_ship() -> None:
    check("smoe", CLAIMS)
