"""The decoder with gradients, and the losses that keep its router in use.

It computes what `substrate.models.decoder.Decoder` computes, on whole batches of equal lengths.

Shape letters: B sequences, S positions, T = B·S rows, H hidden, I expert width, E experts,
K chosen, V vocabulary.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moebench.harness.scale.start import initial, teach_copying
from moebench.substrate.models.layers import Norm, gate_scores, gate_weights, swiglu
from moebench.substrate.models.naming import PROJECTIONS, common_tensors, expert_tensors
from moebench.substrate.models.rotary import rope_tables, rotate
from moebench.substrate.models.shape import ModelShape

#: τ of the locality loss, in the units of a gate's logits, whose standard deviation is about 1.
SOFTNESS = 0.5


class TrainableDecoder(nn.Module):
    """The decoder with gradients; a layer's experts are stacked and run as one grouped product.

    Weights are drawn on the CPU whatever the device they move to, so a seed means one model.
    """

    def __init__(self, shape: ModelShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            ours: initial(ours, spec.dims, shape, generator)
            for ours, spec in common_tensors(shape).items()
        }
        e, h, i = shape.num_experts, shape.hidden_size, shape.expert_width
        for layer in shape.moe_layers:
            for name, dims in (("gate", (e, i, h)), ("up", (e, i, h)), ("down", (e, h, i))):
                ours = f"layers.{layer}.experts.{name}"
                tensors[ours] = initial(ours, dims, shape, generator)
        teach_copying(tensors, shape, generator)
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

    def stored(self) -> dict[str, Tensor]:
        """The weights under their family's Hugging Face names, fp16, on the CPU."""
        shape = self.shape
        tensors = {spec.stored: self[ours] for ours, spec in common_tensors(shape).items()}
        for layer in shape.moe_layers:
            for expert in range(shape.num_experts):
                for part, spec in expert_tensors(shape, layer, expert).items():
                    tensors[spec.stored] = self[f"layers.{layer}.experts.{part}"][expert]
        return {n: t.detach().to("cpu", torch.float16).contiguous() for n, t in tensors.items()}

    @torch.no_grad()
    def load_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Take weights that `stored` wrote.

        Raises:
            KeyError: one is missing.
            RuntimeError: one has another shape.
        """
        for ours, spec in common_tensors(self.shape).items():
            self[ours].copy_(tensors[spec.stored])
        for layer in self.shape.moe_layers:
            for expert in range(self.shape.num_experts):
                for part, spec in expert_tensors(self.shape, layer, expert).items():
                    self[f"layers.{layer}.experts.{part}"][expert].copy_(tensors[spec.stored])

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
        back = torch.empty_like(order).scatter_(
            0, order, torch.arange(len(order), device=order.device)
        )
        out = (outputs[back].view(-1, k, x_TH.shape[1]) * weights_TK[..., None]).sum(1)
        if shape.shared_width:
            shared = swiglu(x_TH, *(self[f"{p}.shared.{n}"] for n in PROJECTIONS))
            if shape.shared_gated:
                shared = shared * F.linear(x_TH, self[f"{p}.shared_gate"]).sigmoid()
            out = out + shared
        return out, logits_TE, ids_TK


def usage(shape: ModelShape, chosen: list[Tensor]) -> Tensor:
    """The share of a batch's tokens that chose each expert ``[L, E]``; K/E is an equal one."""
    counts = [torch.bincount(ids_TK.flatten(), minlength=shape.num_experts) for ids_TK in chosen]
    return torch.stack(counts) / len(chosen[0])


def balance_loss(gates: list[Tensor], usage_LE: Tensor) -> Tensor:
    """Load balancing of Switch Transformers: E · Σ (share of choices × mean probability)."""
    losses = []
    for logits_TE, usage_E in zip(gates, usage_LE, strict=True):
        share_E = usage_E / usage_E.sum()
        losses.append(len(share_E) * (share_E * logits_TE.softmax(-1).mean(0)).sum())
    mean: Tensor = torch.stack(losses).mean()
    return mean


def locality_loss(
    gates: list[Tensor], chosen: list[Tensor], usage_LE: Tensor, sequences: int, window: int
) -> Tensor:
    """How little a token prefers the experts that its sequence used last.

        −1/K · Σ_e m_t(e) · (u_past(e) / u(e) − 1)

    m_t(e) = sigmoid((logit_e − θ_t) / τ) says how nearly token t chooses expert e: θ_t lies between
    its last chosen and its first unchosen logit.  u_past is the share of the ``window`` tokens
    before (as many as there are) that chose e, u that of the whole batch; the mean over layers and
    tokens.  Choices at random score 0.  Gradients go through the logits in m_t alone: a token moves
    towards its past, not its past towards it.  Since the bracket is 0 on average for each expert,
    no expert becomes popular by following the past, and since m_t ends at 1, being surer of a
    chosen expert wins nothing.

    Args:
        gates: logits of each MoE layer ``[T, E]``, T rows of ``sequences`` equally long sequences.
        chosen: the ids ``[T, K]``.
        usage_LE: u, the share of the batch's tokens that chose each expert.
    """
    losses = []
    for logits_TE, ids_TK, usage_E in zip(gates, chosen, usage_LE, strict=True):
        experts, k = logits_TE.shape[1], ids_TK.shape[1]
        ranked = logits_TE.detach().topk(k + 1, dim=-1).values
        threshold_T1 = (ranked[:, k - 1 :].sum(1, keepdim=True)) / 2
        nearly = torch.sigmoid((logits_TE - threshold_T1) / SOFTNESS).view(sequences, -1, experts)
        used = torch.zeros_like(logits_TE).scatter_(1, ids_TK, 1.0).view(sequences, -1, experts)
        sums = F.pad(used.cumsum(1), (0, 0, 1, 0))  # of the tokens before each, and of all
        before = torch.arange(1, used.shape[1], device=used.device)
        first = (before - window).clamp(min=0)
        past = (sums[:, before] - sums[:, first]) / (before - first)[:, None]
        relative = past / usage_E.clamp(min=1 / len(ids_TK))
        losses.append(-(nearly[:, 1:] * (relative - 1)).sum(-1).mean() / k)
    mean: Tensor = torch.stack(losses).mean()
    return mean


def router_z_loss(gates: list[Tensor]) -> Tensor:
    """Mean squared log-partition of the gates (ST-MoE): keeps their logits from drifting."""
    return torch.stack([logits.logsumexp(-1).square().mean() for logits in gates]).mean()
