"""Comparison of ends to the nanosecond, for tests whose operations take a few nanoseconds."""

import pytest

from moebench.systems import hybrimoe, smoe_shipped
from moebench.systems.policies import assign, makespan


@pytest.fixture(autouse=True, scope="module")
def exact_ends():
    """Let no ends count as equal but equal ones."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (assign, hybrimoe, makespan, smoe_shipped):
            patch.setattr(module, "SAME_NS", 0)
        yield
        makespan.schedule.cache_clear()
