"""The claims of this module are those of the results that ship."""

from moebench.harness.reproduce.duoserve.claims_of_predictor import CLAIMS_OF_PREDICTOR
from tests.harness.reproduce.shipped import check


def test_claims_are_those_that_ship() -> None:
    check("duoserve", CLAIMS_OF_PREDICTOR)
