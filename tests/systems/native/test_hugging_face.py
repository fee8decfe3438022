"""DeepSeek-MoE v1 as a Qwen2-MoE: Transformers' outputs equal those of its own graph."""

from pathlib import Path

import torch
import transformers

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.systems.native.hugging_face import deepseek_as_qwen2
from tests.substrate.models.checkpoints import make_checkpoint
from tests.substrate.models.plain import PlainModel

TEXT = [3, 17, 5, 44, 60, 0, 9, 9, 31, 2, 28]


@torch.inference_mode()
def test_deepseek_as_qwen2_agrees_with_a_plain_reference(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "deepseek", "deepseek")
    folder = deepseek_as_qwen2(Checkpoint(path), tmp_path / "written")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found, wanted = model(torch.tensor([TEXT])).logits[0], PlainModel(path).logits(TEXT)
    assert wanted.std() > 0.1
    assert (found - wanted).abs().max() < 1e-4
    before = (folder / "config.json").stat().st_mtime_ns
    assert deepseek_as_qwen2(Checkpoint(path), folder) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before, "it is reused"
