"""A trainable decoder, and the losses on its router (balance, locality, z-loss).

Its outputs equal those of `substrate.models.decoder.Decoder`, for batches of equal lengths.

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
    """An MoE decoder with gradients; a layer's stacked experts run as one grouped product.

    Weights are always drawn on the CPU, so that a seed gives the same model on every device.
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
        """Return the tensor of this name, or None if the model family does not have it."""
        return cast(Tensor | None, self.tensors.get(name.replace(".", "/"), None))

    def forward(self, ids_BS: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return logits ``[B, S, V]``, and gate logits ``[T, E]``, ids ``[T, K]`` by MoE layer."""
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
        """Return fp16 copies of the weights on the CPU, by their family's Hugging Face names."""
        shape = self.shape
        tensors = {spec.stored: self[ours] for ours, spec in common_tensors(shape).items()}
        for layer in shape.moe_layers:
            for expert in range(shape.num_experts):
                for part, spec in expert_tensors(shape, layer, expert).items():
                    tensors[spec.stored] = self[f"layers.{layer}.experts.{part}"][expert]
        return {n: t.detach().to("cpu", torch.float16).contiguous() for n, t in tensors.items()}

    @torch.no_grad()
    def load_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights named and shaped like those that `stored` returns.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
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
        # Pad heads to a multiple of 16: the CPU kernel is a third faster with the same result.
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
        # Sort rows by expert, so that one grouped product computes all experts without dropping.
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
    """Return the share of a batch's tokens that chose each expert ``[L, E]``; its mean is K/E."""
    counts = [torch.bincount(ids_TK.flatten(), minlength=shape.num_experts) for ids_TK in chosen]
    return torch.stack(counts) / len(chosen[0])


def balance_loss(gates: list[Tensor], usage_LE: Tensor) -> Tensor:
    """Return Switch Transformers' balance loss, E · Σ (share of choices × mean probability)."""
    losses = []
    for logits_TE, usage_E in zip(gates, usage_LE, strict=True):
        share_E = usage_E / usage_E.sum()
        losses.append(len(share_E) * (share_E * logits_TE.softmax(-1).mean(0)).sum())
    mean: Tensor = torch.stack(losses).mean()
    return mean


def locality_loss(
    gates: list[Tensor], chosen: list[Tensor], usage_LE: Tensor, sequences: int, window: int
) -> Tensor:
    """Return a loss that is low if tokens choose the experts that their sequence used last.

        −1/K · Σ_e m_t(e) · (u_past(e) / u(e) − 1)

    m_t(e) = sigmoid((logit_e − θ_t) / τ) is a soft choice of expert e by token t: θ_t is midway
    between the lowest chosen and the highest unchosen logit.  u_past is the share of the preceding
    ``window`` tokens (fewer at the start) that chose e, u that of the whole batch; the loss is the
    mean over layers and tokens.  Random choices have loss 0.  Gradients flow through the logits in
    m_t only: a token moves towards its past, not its past towards it.  Since the bracket is 0 on
    average for each expert, no expert becomes popular by following the past, and since m_t ends at
    1, a larger logit of a chosen expert does not lower the loss.

    Args:
        gates: logits of each MoE layer ``[T, E]``, T rows of ``sequences`` equally long sequences.
        chosen: the chosen expert ids of each MoE layer ``[T, K]``.
        usage_LE: u, the share of the batch's tokens that chose each expert.
    """
    losses = []
    for logits_TE, ids_TK, usage_E in zip(gates, chosen, usage_LE, strict=True):
        experts, k = logits_TE.shape[1], ids_TK.shape[1]
        ranked = logits_TE.detach().topk(k + 1, dim=-1).values
        threshold_T1 = (ranked[:, k - 1 :].sum(1, keepdim=True)) / 2
        nearly = torch.sigmoid((logits_TE - threshold_T1) / SOFTNESS).view(sequences, -1, experts)
        used = torch.zeros_like(logits_TE).scatter_(1, ids_TK, 1.0).view(sequences, -1, experts)
        sums = F.pad(used.cumsum(1), (0, 0, 1, 0))  # of all preceding tokens, and of all tokens
        before = torch.arange(1, used.shape[1], device=used.device)
        first = (before - window).clamp(min=0)
        past = (sums[:, before] - sums[:, first]) / (before - first)[:, None]
        relative = past / usage_E.clamp(min=1 / len(ids_TK))
        losses.append(-(nearly[:, 1:] * (relative - 1)).sum(-1).mean() / k)
    mean: Tensor = torch.stack(losses).mean()
    return mean


def router_z_loss(gates: list[Tensor]) -> Tensor:
    """Return the z-loss of the gates (ST-MoE), which keeps their logits from drifting."""
    return torch.stack([logits.logsumexp(-1).square().mean() for logits in gates]).mean()
