"""Texts of answers: a configuration, its quality, and whether a model fits."""

from collections.abc import Sequence

from moebench.harness.advise.answer import LOSSLESS, Answer
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import Rules


def quality(config: Configuration, rules: Rules, question: Question) -> str:
    """Return what a configuration changes in the model's outputs."""
    lossy = []
    if config.kv not in (None, "f16", "bf16", "f32"):
        lossy.append(f"KV cache in {config.kv}")
    if config.experts_used and config.experts_used < question.shape.top_k:
        lossy.append(f"{config.experts_used} of {question.shape.top_k} experts a token")
    if lossy:
        return ", ".join(lossy)
    return LOSSLESS if rules.routed is None else f"{LOSSLESS}, weights in bf16"


def in_words(config: Configuration, question: Question) -> str:
    """Return a configuration as text: where experts are, rows, threads, formats."""
    shape, said = question.shape, list[str]()
    layers = len(shape.moe_layers)
    if config.whole_layers is not None and config.whole_layers < shape.num_layers:
        said.append(f"{config.whole_layers} of {shape.num_layers} whole layers on the device")
    elif not question.hardware.gpu:
        said.append("all on the processor")
    elif not config.host_layers:
        said.append("all on the device")
    elif config.host_layers >= layers:
        said.append("all experts on the host")
    else:
        said.append(f"experts of {config.host_layers} of {layers} layers on the host")
    if config.resident:
        said.append(f"{config.resident} of {shape.num_experts} experts a layer on the device too")
    said.append(f"{config.micro_batch} rows")
    if config.host_layers or not question.hardware.gpu:
        said.append(f"{config.threads} threads")
    if config.repacked:
        said.append("repacked")
    if config.kv not in (None, "f16"):
        said.append(f"KV cache {config.kv}")
    return ", ".join(said)


def verdict(question: Question, rows: Sequence[Answer], largest: int) -> str:
    """Return the sentence on whether the model fits, with the numbers that decide."""
    context = question.lengths.context
    free = [row for row in rows if row.fits == "fits" and not row.forced]
    paged = [row for row in rows if row.fits == "pages" and not row.forced]
    if free:
        row = free[0]
        return (f"fits with a context of {context:,} tokens: {row.device_gib:.1f} GiB on the "
                f"device, {row.host_gib:.1f} GiB in host memory")  # fmt: skip
    if paged:
        return paged[0].verdict
    if 0 < largest < context:
        return f"fits with a context of at most {largest:,} tokens, not with {context:,}"
    return "does not fit: see the reason of each engine"
