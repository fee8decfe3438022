"""Batches up to 1,024 on a simulated machine: time grows at most linearly with the batch."""

from pathlib import Path

import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run.rules import resolve
from moebench.reports.sections.batches import exponents
from moebench.results.spec import MOST_BATCH
from tests.harness.commands import refused

#: The systems whose throughput at large batches is of interest: streaming, static, with a choice
#: between link and host, with substitution, in micro-batches.
SYSTEMS = ("deepspeed", "llamacpp", "fiddler", "smoe", "flexgen", "moe-lightning")

BATCHES = (1, 16, MOST_BATCH)


def tpot_ms(system: str, batch: int, folder: Path) -> float:
    spec = resolve(
        None, system=system, setting="F1", routing="drawn", workload="arithmetic", batch=batch,
        prompts=batch, new_tokens=3, cache_ratio=0.375, free_host_gb=40.0,
    )  # fmt: skip
    return float(run(prepare(spec, None), folder).document["metrics"]["tpot_ms"]["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_time_per_token_grows_at_most_linearly_with_the_batch(system: str, tmp_path: Path) -> None:
    took = [tpot_ms(system, batch, tmp_path) for batch in BATCHES]
    grows = exponents(dict(zip(BATCHES, took, strict=True)))
    assert max(grows.values()) <= 1, (system, took)


@pytest.mark.slow
def test_a_batch_beyond_the_largest_is_one_line() -> None:
    wanted = ("run", "--system", "flexgen", "--setting", "S3", "--routing", "drawn")
    line = refused(*wanted, "--batch", str(MOST_BATCH + 1))
    assert "--batch 1025: Input should be less than or equal to 1024" in line
    # Below it the memory decides: 1,024 sequences of 8,192 tokens.
    full = refused(*wanted, "--batch", str(MOST_BATCH), "--context", "8192")
    assert "device memory: KV cache needs" in full
