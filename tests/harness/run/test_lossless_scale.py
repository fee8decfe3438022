"""The shipped scale model: a lossless system writes the resident model's tokens."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from moebench.harness.one_run import prepare
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.substrate.models.decoder import Decoder

TOKENS = 8


def written(
    system: str, machine: str | None, scratch: Path, **given
) -> tuple[list[list[int]], torch.Tensor]:
    """What a system writes to two generated problems in S3, and the last one's logits."""
    spec = resolve(
        None, system=system, setting="S3", machine=machine, workload="arithmetic", prompts=2,
        new_tokens=TOKENS, allow_overcommit=True, **given,
    )  # fmt: skip
    session = prepare(spec, None)
    assert isinstance(session, LiveSession)
    with ExitStack() as stack, torch.inference_mode():
        stage = session.open(scratch, False, stack)
        stage.start()
        prompts = [q.prompt for q in session.questions]
        tokens = [stage.engine.generate([p], TOKENS).tokens[0] for p in prompts]
        decoder = stage.engine.model
        assert isinstance(decoder, Decoder)
        return tokens, torch.stack(decoder.history)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """Local machines read the same records: these are written once."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def resident(scratch) -> tuple[list[list[int]], torch.Tensor]:
    return written("gpu-only", None, scratch)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [None, "local"])
@pytest.mark.parametrize(
    ("system", "given"), [("gpu-only", {}), ("moe-ondemand", {}), ("smoe", {"alpha": 0.0})]
)
def test_lossless_systems_write_the_resident_models_tokens(
    system, given, machine, scratch, resident
):
    """Prefetch, host assist and score eviction are on; α = 0 is exactly the model's top-k."""
    tokens, logits = written(system, machine, scratch, **given)
    assert tokens == resident[0]
    if machine is None:  # one and the same arithmetic: bit for bit
        assert torch.equal(logits, resident[1])


@pytest.mark.slow
def test_substitution_changes_what_the_model_computes(scratch, resident):
    """So that the equality above can fail."""
    _, logits = written("smoe", None, scratch, alpha=0.6, cache_ratio=0.05)
    assert not torch.allclose(logits, resident[1], atol=1e-3)
