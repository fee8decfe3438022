"""The claims of this module are those of the results that ship."""

from moebench.harness.reproduce.daop.claims_of_times import CLAIMS_OF_TIMES
from tests.harness.reproduce.shipped import check


def test_claims_are_those_that_ship() -> None:
    check("daop", CLAIMS_OF_TIMES)
