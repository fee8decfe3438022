"""DeepSeek-MoE v1 as a Qwen2-MoE: Transformers' outputs equal those of its own graph."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import transformers

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.systems.native.hugging_face import HuggingFaceSystem, Streaming, deepseek_as_qwen2
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


def test_a_converted_checkpoint_states_the_same_numbers(tmp_path: Path) -> None:
    """Fields of Qwen2-MoE's configuration, read again as a shape; there is no end of a text."""
    path = make_checkpoint(tmp_path / "deepseek", "deepseek")
    own = Checkpoint(path).shape
    folder = deepseek_as_qwen2(Checkpoint(path), tmp_path / "written")
    config = json.loads((folder / "config.json").read_text())
    found = Checkpoint(folder).shape
    for field in (
        "num_layers", "dense_layers", "num_experts", "top_k", "hidden_size", "vocab_size",
        "num_heads", "num_kv_heads", "expert_width", "shared_width", "gate", "norm_eps",
        "rope_theta", "tied_head", "max_positions", "dense_width",
    ):  # fmt: skip
        assert getattr(found, field) == getattr(own, field), field
    assert (config["model_type"], config["torch_dtype"]) == ("qwen2_moe", "float32")
    assert config["architectures"] == ["Qwen2MoeForCausalLM"]
    assert (config["eos_token_id"], config["bos_token_id"]) == (None, None)
    assert config["decoder_sparse_step"] == 1


class Fake(HuggingFaceSystem):
    """A system of no package, of at most two sequences."""

    paper = "none"
    requires: ClassVar[dict[str, str]] = {}
    max_batch = 2

    @property
    def libraries(self) -> tuple[str, ...]:
        return ()


def test_families_that_transformers_opens(tmp_path: Path) -> None:
    checkpoint = Checkpoint(make_checkpoint(tmp_path / "deepseek", "deepseek"))
    shape = checkpoint.shape
    assert Fake().why_not(shape, 2) is None
    assert "2 sequence at once, 3 were asked" in (Fake().why_not(shape, 3) or "")
    scaled = shape.model_copy(update={"routed_scaling_factor": 2.0})
    assert "does not scale routed experts" in (Fake().why_not(scaled, 1) or "")
    qwen2 = scaled.model_copy(update={"family": "qwen2_moe"})
    assert Fake().why_not(qwen2, 1) is None
    for family, said in (("xverse", "no class for XVERSE-MoE"), ("other", "opened with Tr.*other")):
        other = shape.model_copy(update={"family": family})
        assert re.search(said, Fake().why_not(other, 1) or ""), family
    plain = Checkpoint(make_checkpoint(tmp_path / "olmoe", "olmoe"))
    assert Fake().model_file(plain, "abc", tmp_path) == plain.path
    converted = Fake().model_file(checkpoint, "abc", tmp_path / "made")
    assert converted == tmp_path / "made" / "abc-qwen2_moe"
    assert (converted / "model.safetensors").is_file()


def test_a_batch_is_padded_on_the_left_and_streamed_without_its_prompt() -> None:
    given: dict[str, Any] = {}
    config = SimpleNamespace(max_length=20)

    class Model:
        generation_config = config

        def generate(self, ids: torch.Tensor, streamer: Any, **options: Any) -> None:
            assert torch.is_inference_mode_enabled()
            given.update(options, ids=ids.tolist(), mask=options["attention_mask"].tolist())
            streamer.put(ids)
            for step in (torch.tensor([[7], [8]]), torch.tensor([9, 10])):
                streamer.put(step)
            streamer.end()

    steps: list[Any] = []
    streaming = Streaming(Model(), ["fact"], synced_gpus=False)
    streaming.generate([(1, 2, 3), (4,)], 2, 5, steps.append)
    assert steps == [[7, 8], [9, 10]]
    assert (given["ids"], given["mask"]) == ([[1, 2, 3], [0, 0, 4]], [[1, 1, 1], [0, 0, 1]])
    chosen = {key: given[key] for key in ("max_new_tokens", "do_sample", "synced_gpus")}
    assert chosen == {"max_new_tokens": 2, "do_sample": False, "synced_gpus": False}
    assert (config.eos_token_id, config.pad_token_id) == (5, 0)
    assert (config.do_sample, config.max_length) == (False, None)
    assert streaming.facts == ["fact"]
