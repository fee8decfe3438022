"""The shipped scale model: a lossless system writes the resident model's tokens."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from moebench.harness.run.inputs import prepare
from moebench.harness.run.shared import SharedWork
from moebench.harness.run.spec import resolve
from moebench.harness.run.stage import set_up
from moebench.systems.options import build

TOKENS = 12


def written(
    system: str, machine: str | None, scratch: Path, **given
) -> tuple[list[list[int]], torch.Tensor]:
    """What a system writes to two generated problems in S3, and the last one's logits."""
    spec = resolve(
        None, system=system, setting="S3", machine=machine, workload="arithmetic", prompts=2,
        new_tokens=TOKENS, allow_overcommit=True, **given,
    )  # fmt: skip
    inputs = prepare(spec, None)
    with ExitStack() as stack, torch.inference_mode():
        system_, shared = build(spec.system, spec.settings), SharedWork(inputs.checkpoint)
        stage = set_up(spec, system_, inputs, shared, scratch, False, stack)
        stage.start()
        prompts = [q.prompt for q in inputs.questions]
        tokens = [stage.engine.generate([p], TOKENS).tokens[0] for p in prompts]
        return tokens, torch.stack(stage.decoder.history)


@pytest.fixture(scope="module")
def resident(tmp_path_factory) -> tuple[list[list[int]], torch.Tensor]:
    return written("gpu-only", None, tmp_path_factory.mktemp("resident"))


@pytest.mark.parametrize("machine", [None, "local"])
@pytest.mark.parametrize(
    ("system", "given"),
    [("gpu-only", {}), ("moe-ondemand", {}), ("smoe", {"alpha": 0.0})],
)
def test_lossless_systems_write_the_resident_models_tokens(
    system, given, machine, tmp_path, resident
):
    """Prefetch, host assist and score eviction are on; α = 0 is exactly the model's top-k."""
    tokens, logits = written(system, machine, tmp_path, **given)
    assert tokens == resident[0]
    if machine is None:  # one and the same arithmetic: bit for bit
        assert torch.equal(logits, resident[1])


def test_substitution_changes_what_the_model_computes(tmp_path, resident):
    """So that the equality above can fail."""
    _, logits = written("smoe", None, tmp_path, alpha=0.6, cache_ratio=0.05)
    assert not torch.allclose(logits, resident[1], atol=1e-3)
