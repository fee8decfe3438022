"""Plain reference of DeepSeek-MoE v1 and XVERSE-MoE in fp64, one token and expert at a time."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

#: What the experts of a layer add to the state ``[H]`` of the token at a position.
Experts = Callable[[int, int, Tensor], Tensor]


class PlainModel:
    """A checkpoint with the formulas of its family, computed one token at a time."""

    def __init__(self, path: Path) -> None:
        self.config = config = json.loads((path / "config.json").read_text())
        self._w = {
            name: tensor.double()
            for file in path.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        deepseek = config["model_type"] == "deepseek"
        self._router = "gate" if deepseek else "router"
        self.top_k = config["num_experts_per_tok" if deepseek else "moe_top_k"]
        self._heads = config["num_attention_heads"]
        self._width = config["hidden_size"] // self._heads

    # ------------------------------------------------------------------ the parts of a layer

    def _rms(self, x: Tensor, name: str) -> Tensor:
        mean = x.pow(2).mean()
        return self._w[f"{name}.weight"] * x / (mean + self.config["rms_norm_eps"]).sqrt()

    def _block(self, x: Tensor, name: str) -> Tensor:
        gate, up, down = (self._w[f"{name}.{p}_proj.weight"] for p in ("gate", "up", "down"))
        g = gate @ x
        return down @ (g * g.sigmoid() * (up @ x))

    def _rope(self, x: Tensor, position: int) -> Tensor:
        out, half = x.clone(), self._width // 2
        for head in range(self._heads):
            for i in range(half):
                a = head * self._width + i
                b = a + half
                turn = self.config["rope_theta"] ** (-2 * i / self._width)
                angle = torch.tensor(position * turn, dtype=torch.float64)
                out[a] = x[a] * angle.cos() - x[b] * angle.sin()
                out[b] = x[b] * angle.cos() + x[a] * angle.sin()
        return out

    def normed(self, layer: int, x: Tensor) -> Tensor:
        """Return a state normalised as input of a layer's gate and experts."""
        return self._rms(x, f"model.layers.{layer}.post_attention_layernorm")

    def attention_normed(self, layer: int, x: Tensor) -> Tensor:
        """Return a state normalised as input of a layer's attention."""
        return self._rms(x, f"model.layers.{layer}.input_layernorm")

    def scores(self, layer: int, y: Tensor) -> Tensor:
        """Return a layer's gate scores of a normalised state ``[E]``."""
        return (self._w[f"model.layers.{layer}.mlp.{self._router}.weight"] @ y).softmax(0)

    def best(self, scores: Tensor) -> list[int]:
        """Return the ids of the top-k scores, best first."""
        return sorted(range(len(scores)), key=lambda e: -float(scores[e]))[: self.top_k]

    def weights(self, scores: Tensor, experts: Sequence[int]) -> dict[int, Tensor]:
        """Return the gate weight of each chosen expert."""
        total = sum(scores[e] for e in experts) if self.config["norm_topk_prob"] else 1.0
        return {e: scores[e] / total for e in experts}

    def expert(self, layer: int, expert: int, y: Tensor) -> Tensor:
        """Return a routed expert's output for a normalised state."""
        return self._block(y, f"model.layers.{layer}.mlp.experts.{expert}")

    def shared(self, layer: int, y: Tensor) -> Tensor:
        """Return the shared experts' output for a normalised state."""
        return self._block(y, f"model.layers.{layer}.mlp.shared_experts")

    def own(self, layer: int, position: int, x: Tensor) -> Tensor:
        """Return a layer's MoE output with the model's own routing."""
        y = self.normed(layer, x)
        scores = self.scores(layer, y)
        weights = self.weights(scores, self.best(scores))
        routed = sum(w * self.expert(layer, e, y) for e, w in weights.items())
        return routed + self.shared(layer, y)

    # ------------------------------------------------------------------ a text

    def embedded(self, tokens: Sequence[int]) -> Tensor:
        """Return token embeddings ``[len, H]``."""
        return torch.stack([self._w["model.embed_tokens.weight"][t] for t in tokens])

    def logits(self, tokens: Sequence[int], experts: Experts | None = None) -> Tensor:
        """Return logits ``[len, V]`` of a text; ``experts`` replaces the model's own routing."""
        xs = list(self.embedded(tokens))
        for layer in range(self.config["num_hidden_layers"]):
            self._attend(layer, xs)
            dense = layer < self.config.get("first_k_dense_replace", 0)
            for t, x in enumerate(xs):
                if dense:
                    xs[t] = x + self._block(self.normed(layer, x), f"model.layers.{layer}.mlp")
                else:
                    xs[t] = x + (experts or self.own)(layer, t, x)
        head = self._w["lm_head.weight"]
        return torch.stack([head @ self._rms(x, "model.norm") for x in xs])

    def _attend(self, layer: int, xs: list[Tensor]) -> None:
        prefix, width = f"model.layers.{layer}", self._width
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for t, x in enumerate(xs):
            y = self.attention_normed(layer, x)
            q, k, v = (self._w[f"{prefix}.self_attn.{n}_proj.weight"] @ y for n in "qkv")
            q = self._rope(q, t)
            keys.append(self._rope(k, t))
            values.append(v)
            mixed = []
            for h in range(self._heads):
                part = slice(h * width, (h + 1) * width)
                scores = torch.stack([q[part] @ key[part] for key in keys]) / width**0.5
                mixed.append(scores.softmax(0) @ torch.stack([value[part] for value in values]))
            xs[t] = x + self._w[f"{prefix}.self_attn.o_proj.weight"] @ torch.cat(mixed)
