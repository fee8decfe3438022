"""Training of scale models: a full-size model's routing topology with small widths.

A scale model keeps layers, MoE layers, experts, top-k, shared experts and gate kind of its
original exactly and shrinks widths and vocabulary only.  It is trained here from scratch on plain
text, on the train halves of question sets and on generated exercises, and stored in the Hugging
Face format of its family.  The run is deterministic for a seed and a number of threads, and goes
on from its last checkpoint when it was killed.

    python -m harness.training qwen2-57b-a14b --data-dir ../shared/data --out build/qwen2
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from harness.muon import Muon
from harness.training_text import training_text
from substrate.arch import ModelShape
from substrate.layers import Norm, gate_scores, gate_weights, rope_tables, rotate, swiglu
from substrate.naming import PROJECTIONS, common_tensors, expert_tensors

#: Widths of each scale model; everything else comes from the original's config.json.  Experts are
#: as wide as 13 MB of fp16 weights allow; a multiple of 4, which the grouped product needs.
SCALE_WIDTHS: dict[str, dict[str, object]] = {
    name: {"vocab_size": 1024, "max_position_embeddings": 2048, "rope_theta": 10000.0, **widths}
    for name, widths in {
        "deepseek-moe-16b": {
            "hidden_size": 56, "num_attention_heads": 4, "num_key_value_heads": 4,
            "moe_intermediate_size": 16, "intermediate_size": 128,
        },
        "xverse-moe-a4.2b": {
            "hidden_size": 56, "num_attention_heads": 4, "intermediate_size": 16,
        },
        "qwen2-57b-a14b": {
            "hidden_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2,
            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 128,
            "intermediate_size": 64,
        },
        "mixtral-8x7b": {
            "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1,
            "intermediate_size": 96,
        },
        "mixtral-8x22b": {
            "hidden_size": 56, "num_attention_heads": 4, "num_key_value_heads": 1,
            "intermediate_size": 64,
        },
        "phi-3.5-moe": {
            "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1,
            "intermediate_size": 48,
        },
        "olmoe-1b-7b": {
            "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
            "intermediate_size": 28,
        },
        "qwen3-30b-a3b": {
            "hidden_size": 56, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 14,
            "moe_intermediate_size": 4, "intermediate_size": 64,
        },
    }.items()
}  # fmt: skip


class Recipe(BaseModel):
    """How a scale model is trained; stored beside its weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    tokens: int = 4_000_000
    sequence_length: int = 256
    batch_size: int = 8
    learning_rate: float = 5e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    balance: float = 0.05
    balance_end: float = 0.02
    router_z: float = 1e-3
    exercise_share: float = 0.55
    checkpoint_every: int = 200


class TrainableDecoder(nn.Module):
    """The decoder with gradients; a layer's experts are stacked and run as one grouped product."""

    def __init__(self, shape: ModelShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            ours: _initial(ours, spec.dims, shape, generator)
            for ours, spec in common_tensors(shape).items()
        }
        e, h, i = shape.num_experts, shape.hidden_size, shape.expert_width
        for layer in shape.moe_layers:
            for name, dims in (("gate", (e, i, h)), ("up", (e, i, h)), ("down", (e, h, i))):
                ours = f"layers.{layer}.experts.{name}"
                tensors[ours] = _initial(ours, dims, shape, generator)
        self.tensors = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(t) for name, t in tensors.items()}
        )

    def __getitem__(self, name: str) -> Tensor:
        return cast(Tensor, self.tensors[name.replace(".", "/")])

    def get(self, name: str) -> Tensor | None:
        """A tensor that some families do not have."""
        return cast(Tensor | None, self.tensors.get(name.replace(".", "/"), None))

    def forward(self, ids_BS: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits ``[B, S, V]``; for each MoE layer, gate logits ``[T, E]`` and ids ``[T, K]``."""
        shape = self.shape
        x = self["embed"][ids_BS]
        cos, sin = rope_tables(shape, torch.arange(ids_BS.shape[1], device=ids_BS.device))
        gates, chosen = [], []
        for layer in range(shape.num_layers):
            p = f"layers.{layer}"
            x = x + self._attention(p, self._norm(f"{p}.attention_norm", x), cos, sin)
            y = self._norm(f"{p}.mlp_norm", x)
            if layer in shape.dense_layers:
                x = x + swiglu(y, *(self[f"{p}.dense.{n}"] for n in PROJECTIONS))
                continue
            out, logits, ids = self._moe(p, y.flatten(0, 1))
            gates.append(logits)
            chosen.append(ids)
            x = x + out.view_as(x)
        x = self._norm("norm", x)
        head = self["embed"] if shape.tied_head else self["head"]
        return F.linear(x, head, self.get("head.bias")), gates, chosen

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return Norm(self.shape, self[name], self.get(f"{name}.bias"))(x)

    def _attention(self, p: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (b, n) = self.shape, x.shape[:2]
        q, k, v = (F.linear(x, self[f"{p}.{i}"], self.get(f"{p}.{i}.bias")) for i in "qkv")
        if s.qk_norm == "full":
            q = self._norm(f"{p}.q_norm", q)
            k = self._norm(f"{p}.k_norm", k)
        q = q.view(b, n, s.num_heads, s.head_dim).transpose(1, 2)
        k = k.view(b, n, s.num_kv_heads, s.head_dim).transpose(1, 2)
        v = v.view(b, n, s.num_kv_heads, s.head_dim).transpose(1, 2)
        if s.qk_norm == "head":
            q = self._norm(f"{p}.q_norm", q)
            k = self._norm(f"{p}.k_norm", k)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # Heads padded to a multiple of 16: the CPU kernel is a third faster, the result the same.
        q, k, v = (F.pad(t, (0, -s.head_dim % 16)) for t in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True, scale=s.head_dim**-0.5
        )
        out = out[..., : s.head_dim].transpose(1, 2).reshape(b, n, -1)
        return F.linear(out, self[f"{p}.o"], self.get(f"{p}.o.bias"))

    def _moe(self, p: str, x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, k = self.shape, self.shape.top_k
        logits_TE = F.linear(x_TH, self[f"{p}.router"])
        ids_TK = logits_TE.topk(k, dim=-1).indices
        weights_TK = gate_weights(shape, logits_TE, gate_scores(shape, logits_TE), ids_TK)
        # Rows sorted by expert: one grouped product serves all experts, no token is dropped.
        flat = ids_TK.flatten()
        order = flat.argsort(stable=True)
        ends = torch.bincount(flat, minlength=shape.num_experts).cumsum(0).to(torch.int32)
        rows = x_TH[order // k]
        gate, up, down = (self[f"{p}.experts.{n}"].transpose(1, 2) for n in PROJECTIONS)
        inner = F.silu(F.grouped_mm(rows, gate, offs=ends)) * F.grouped_mm(rows, up, offs=ends)
        outputs = F.grouped_mm(inner, down, offs=ends)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        out = (outputs[back].view(-1, k, x_TH.shape[1]) * weights_TK[..., None]).sum(1)
        if shape.shared_width:
            shared = swiglu(x_TH, *(self[f"{p}.shared.{n}"] for n in PROJECTIONS))
            if shape.shared_gated:
                shared = shared * F.linear(x_TH, self[f"{p}.shared_gate"]).sigmoid()
            out = out + shared
        return out, logits_TE, ids_TK


def _initial(name: str, dims: tuple[int, ...], shape: ModelShape, g: torch.Generator) -> Tensor:
    if name.endswith(".bias"):
        return torch.zeros(dims)
    if len(dims) == 1:
        return torch.ones(dims)
    if name in ("embed", "head"):
        return torch.randn(dims, generator=g) * (1.0 if name == "embed" else 0.02)
    scale = dims[-1] ** -0.5
    if name.endswith((".o", ".down")):
        scale /= math.sqrt(2 * shape.num_layers)
    drawn: Tensor = torch.randn(dims, generator=g) * scale
    return drawn


def balance_loss(shape: ModelShape, gates: list[Tensor], chosen: list[Tensor]) -> Tensor:
    """Load balancing of Switch Transformers: E · Σ (share of tokens × mean probability)."""
    losses = []
    for logits_TE, ids_TK in zip(gates, chosen, strict=True):
        share_E = torch.bincount(ids_TK.flatten(), minlength=shape.num_experts) / ids_TK.numel()
        losses.append(shape.num_experts * (share_E * logits_TE.softmax(-1).mean(0)).sum())
    mean: Tensor = torch.stack(losses).mean()
    return mean


def router_z_loss(gates: list[Tensor]) -> Tensor:
    """Mean squared log-partition of the gates (ST-MoE): keeps their logits from drifting."""
    return torch.stack([logits.logsumexp(-1).square().mean() for logits in gates]).mean()


# ----------------------------------------------------------------------------- the run


def scale_config(name: str, models_dir: Path) -> dict[str, object]:
    """The original's ``config.json`` with a scale model's widths."""
    config = json.loads((models_dir / f"{name}.json").read_text())
    return {**config, **SCALE_WIDTHS[name], "torch_dtype": "float16", "eos_token_id": 0}


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up, a plateau, and a linear descent to zero over the last third."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    return recipe.learning_rate * warm * min(1.0, 3 * (steps - step) / steps)


def train(name: str, models_dir: Path, data_dir: Path, out: Path, recipe: Recipe) -> None:
    """Train a scale model, resuming from ``out`` when a checkpoint is there.

    Writes ``config.json``, ``tokenizer.json``, ``model.safetensors`` and ``training.json``.
    """
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    config = scale_config(name, models_dir)
    shape = ModelShape.from_config(config)
    held_out = 64 * (recipe.sequence_length + 1)
    text = training_text(
        data_dir, shape.vocab_size, recipe.tokens, held_out, recipe.exercise_share, recipe.seed
    )
    text.tokenizer.save(str(out / "tokenizer.json"))
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    held, stream = text.held_out, text.stream
    print(f"{len(stream):,} training tokens, {len(held):,} held out", flush=True)

    model = TrainableDecoder(shape, recipe.seed)
    optimizers = _optimizers(model, recipe)
    steps = recipe.tokens // (recipe.sequence_length * recipe.batch_size)
    first = _resume(out, model, optimizers)
    clock = time.monotonic()
    for step in range(first, steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step, steps)
        batch = _batch(stream, recipe, step)
        logits, gates, chosen = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        done = step / steps
        balance = recipe.balance + (recipe.balance_end - recipe.balance) * done
        total = loss + balance * balance_loss(shape, gates, chosen)
        total = total + recipe.router_z * router_z_loss(gates)
        torch.autograd.backward(total)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0:
            rate = (step + 1 - first) * batch[:, 1:].numel() / (time.monotonic() - clock)
            print(f"step {step + 1}/{steps} loss {loss.item():.3f} {rate:.0f} tok/s", flush=True)
        if (step + 1) % recipe.checkpoint_every == 0 or step + 1 == steps:
            _save_checkpoint(out, model, optimizers, step + 1)
            export(model, out, {"recipe": recipe.model_dump(), "step": step + 1, "steps": steps}
                   | quality(model, held, stream, recipe))  # fmt: skip


def _optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and head; AdamW for the rest, routers included."""
    named = list(model.named_parameters())
    own = [p for n, p in named if p.ndim < 2 or n.rsplit("/")[-1] in ("embed", "head", "router")]
    rest = {id(p) for p in own}
    matrices = [p for _, p in named if id(p) not in rest]
    return [
        torch.optim.AdamW(own, betas=(0.9, 0.95), weight_decay=0.0),
        Muon(matrices, recipe.learning_rate, weight_decay=recipe.weight_decay),
    ]


def _batch(stream: np.ndarray, recipe: Recipe, step: int) -> Tensor:
    """Batch ``step``: windows of a permutation that is drawn anew each epoch."""
    window = recipe.sequence_length
    windows = (len(stream) - 1) // window
    rows = []
    for i in range(step * recipe.batch_size, (step + 1) * recipe.batch_size):
        epoch, place = divmod(i, windows)
        order = np.random.default_rng((recipe.seed, epoch)).permutation(windows)
        start = int(order[place]) * window
        rows.append(torch.from_numpy(stream[start : start + window + 1].astype(np.int64)))
    return torch.stack(rows)


@torch.no_grad()
def quality(model: TrainableDecoder, held: np.ndarray, stream: np.ndarray,
            recipe: Recipe) -> dict[str, object]:  # fmt: skip
    """Held-out loss beside a unigram's, and how evenly the experts are used."""
    window = recipe.sequence_length + 1
    rows = torch.from_numpy(held[: len(held) // window * window].astype(np.int64)).view(-1, window)
    losses, counts = [], torch.zeros(len(model.shape.moe_layers), model.shape.num_experts)
    for batch in torch.split(rows, recipe.batch_size):
        logits, _, chosen = model(batch[:, :-1])
        losses.append(
            F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        )
        for layer, ids in enumerate(chosen):
            counts[layer] += torch.bincount(ids.flatten(), minlength=model.shape.num_experts)
    share = counts / counts.sum(1, keepdim=True) * model.shape.num_experts
    frequency = np.bincount(stream, minlength=model.shape.vocab_size) + 1.0
    unigram = -np.log(frequency / frequency.sum())[rows[:, 1:].numpy()].mean()
    return {
        "held_out_loss": round(torch.cat(losses).mean().item(), 4),
        "unigram_loss": round(float(unigram), 4),
        "held_out_tokens": rows[:, 1:].numel(),
        "least_used_expert": round(share.min().item(), 4),
        "experts_below_a_tenth": int((share < 0.1).sum()),
        "most_used_expert": round(share.max().item(), 2),
    }


def export(model: TrainableDecoder, out: Path, report: dict[str, object]) -> None:
    """Write the weights in the family's Hugging Face layout, fp16, and what training measured."""
    shape = model.shape
    tensors = {spec.stored: model[ours] for ours, spec in common_tensors(shape).items()}
    for layer in shape.moe_layers:
        for expert in range(shape.num_experts):
            for part, spec in expert_tensors(shape, layer, expert).items():
                tensors[spec.stored] = model[f"layers.{layer}.experts.{part}"][expert]
    stored = {n: t.detach().to(torch.float16).contiguous() for n, t in tensors.items()}
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)


def _save_checkpoint(out: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer],
                     step: int) -> None:  # fmt: skip
    """Weights, moments and step in one file, put in place by a rename: a kill leaves the last."""
    state = {f"model.{k}": v for k, v in model.state_dict().items()}
    state["step"] = torch.tensor(step)
    for which, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{which}.{index}.{k}": v for k, v in moments.items()}
    half_written = out / "checkpoint.partial"
    save_file(state, half_written)
    half_written.replace(out / "checkpoint.safetensors")


def _resume(out: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Take up the last checkpoint; the step to go on with."""
    path = out / "checkpoint.safetensors"
    if not path.exists():
        return 0
    state = load_file(path)
    model.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("model.")})
    for which, optimizer in enumerate(optimizers):
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            if key.startswith(f"optimizer.{which}."):
                _, _, index, name = key.split(".")
                moments.setdefault(int(index), {})[name] = value
        frame = optimizer.state_dict()
        optimizer.load_state_dict({"state": moments, "param_groups": frame["param_groups"]})
    return int(state["step"])


def main() -> None:
    """The command line of this module; see its docstring."""
    parser = argparse.ArgumentParser(description="train a scale model")
    parser.add_argument("name", choices=sorted(SCALE_WIDTHS))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=Recipe().tokens)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models_dir = Path(__file__).parent.parent / "substrate" / "catalogue" / "models"
    recipe = Recipe(tokens=options.tokens)
    train(options.name, models_dir, options.data_dir, options.out, recipe)


if __name__ == "__main__":
    main()
