"""Sizes of a model and roofs of a machine, as the hierarchical roofline model takes them."""

from moebench.substrate.analysis.roofline import BYTES, Roofs, Sizes
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.models.shape import ModelShape


def sizes_of(shape: ModelShape, name: str) -> Sizes:
    """Return a model's sizes, without embedding, head, norms and routers, as the paper counts.

    Raises UsageError: its attention is not that of queries, keys and values over all tokens.
    """
    if shape.latent is not None or shape.bounds_context:
        raise UsageError(
            f"--model {name}: has latent, windowed or linear attention, which the paper's roofline "
            "model does not cover; allowed: models whose layers all attend to all tokens"
        )
    return plain_sizes(shape)


def plain_sizes(shape: ModelShape) -> Sizes:
    """Return a model's sizes as `sizes_of` does, where its attention is known to be covered."""
    attention = sum(shape.layer_attention_params(layer) for layer in range(shape.num_layers))
    dense = (len(shape.dense_layers) - len(shape.without_ffn)) * shape.dense_params
    shared = len(shape.moe_layers) * shape.shared_params
    return Sizes(
        layers=shape.num_layers,
        moe_layers=len(shape.moe_layers),
        hidden=shape.hidden_size,
        width=shape.expert_width,
        experts=shape.num_experts,
        top_k=shape.top_k,
        heads=shape.num_heads,
        query_width=shape.num_heads * shape.head_dim,
        kv_bytes=BYTES * shape.kv_values_per_token_layer,
        expert_bytes=BYTES * shape.num_experts * shape.expert_params,
        shared_bytes=BYTES * shape.shared_params,
        resident_bytes=BYTES * (attention + dense + shared),
    )


def roofs_of(profile: HardwareProfile) -> Roofs:
    """Return a machine's memories and peak rates; no efficiency lowers them.

    Raises UsageError: device and host share one memory, so that there is no link.
    """
    if profile.pool:
        raise UsageError(
            f"--machine {profile.name}: device and host share one memory, and the roofline model "
            "needs the link between two; allowed: a machine with a GPU that has its own memory"
        )
    return Roofs(
        gpu_bytes=profile.gpu.memory.bytes,
        host_bytes=profile.host.memory.bytes,
        gpu_bandwidth=profile.gpu.bandwidth.bytes_per_s,
        host_bandwidth=profile.host.gemv_bandwidth.bytes_per_s,
        link_bandwidth=profile.link.h2d(pinned=True).bytes_per_s,
        gpu_flops=profile.gpu.tensor_bf16.flops_per_s,
        host_flops=profile.host.peak_fp32.flops_per_s,
    )
