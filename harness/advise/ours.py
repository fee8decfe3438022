"""Answers for systems of this project: simulated runs of the model on the machine's parts.

Their time is that of a run with drawn routing at the question's context.  Its interval is the error
of published rates of the system's kind, or else the largest of such machines.  The KL of a system
with loss is measured on the scale model, where one ships.
"""

from pathlib import Path

from moebench.harness.advise.answer import GIB, LOSSLESS, Answer, Rate
from moebench.harness.advise.ask import machine_text
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Question
from moebench.harness.api.run import run
from moebench.results.document import Document, dig
from moebench.results.published_errors import rate_error
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import scale_names

#: Kinds of software by systems; others run as their papers' code does, on Hugging Face modules.
SOFTWARE = {
    "llamacpp": "ggml", "llamacpp-moe-cache": "ggml", "llamacpp-capped-lru": "ggml",
    "pinned-profile": "ggml", "qvac-lru": "ggml", "ktransformers": "kt", "kt-kernel": "kt",
    "exllamav3-mcs": "python-graphs", "freetoken": "python-graphs", "lfru": "python-graphs",
    "hybrimoe": "python-graphs", "dali": "python-graphs", "hobbit": "ggml",
}  # fmt: skip

#: Prompts and new tokens of a run: a cache begins the second text with what the first one left.
PROMPTS, NEW = 2, 32


def system_answer(question: Question, system: str, store: Path) -> Answer:
    """Return a system's answer; its run is stored, or taken from the store.

    Raises MoeBenchError: the system does not run there, and why.
    """
    if question.hardware.profile is not None or question.model.endswith(".gguf"):
        raise UsageError(f"--engines {system}: a system of this project needs parts and a model's "
                         "name")  # fmt: skip
    machine = machine_text(question.hardware)
    software = SOFTWARE.get(system, "hf-eager")
    document = run(
        system, store=store, model=question.model, machine=machine, software=software,
        quant=question.quant, batch=question.batch, routing="drawn", prompts=PROMPTS,
        new_tokens=NEW, context=question.lengths.prompt, interval=False,
    ).documents[0]  # fmt: skip
    error = rate_error(system, load_profile(machine, software))
    rate = question.batch * 1e3 / document["metrics"]["tpot_ms"]["mean"]
    device = dig(document, "memory.offered_device_bytes") or 0.0
    host = question.shape.routed_params * question.bits.routed / 8
    return Answer(
        engine=system, configuration=Configuration(engine=system),
        config=f"simulated, {software}",
        decode=Rate(rate, rate / error.factor, rate * error.factor),
        prefill=None, ttft_s=None, request_s=question.lengths.new * question.batch / rate,
        device_gib=float(device) / GIB, host_gib=host / GIB, disk_gib=0.0,
        quality=_quality(question, system, document, store), verdict="fits", fits="fits",
        checked=error.checked, remarks=tuple(document["notes"]),
    )  # fmt: skip


def _quality(question: Question, system: str, document: Document, store: Path) -> str:
    if document["lossless"]:
        return LOSSLESS
    if question.model not in scale_names():
        return "lossy; no scale model of it ships, so its KL is not known"
    live = run(system, store=store, model=question.model,
               machine=machine_text(question.hardware), quant=question.quant, prompts=PROMPTS,
               new_tokens=NEW, interval=False).documents[0]  # fmt: skip
    return f"lossy: {live['accuracy']['kl']:.2g} nats of KL a token on the scale model"
