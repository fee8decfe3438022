"""Answers for systems of this project: simulated runs of the model on the machine's parts.

Their time is that of a run with drawn routing at the question's context.  Its interval is the error
of published rates of the system's kind, or else the largest of such machines.  The KL of a system
with loss is measured on the scale model, where one ships.
"""

from pathlib import Path

from moebench.harness.advise.answer import GIB, LOSSLESS, Answer, Rate
from moebench.harness.advise.commands import run_options
from moebench.harness.advise.config import OURS
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Question
from moebench.harness.api.run import run
from moebench.results.document import Document, dig
from moebench.results.published_errors import rate_error
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import scale_names
from moebench.substrate.models.gguf_shape import is_gguf


def system_answer(question: Question, system: str, store: Path) -> Answer:
    """Return a system's answer; its run is stored, or taken from the store.

    Raises MoeBenchError: the system does not run there, and why.
    """
    if question.hardware.profile is not None or is_gguf(question.model):
        raise UsageError("a system of this project needs parts and a model's name")
    options = run_options(question, system)
    document = run(system, store=store, interval=False, **options).documents[0]
    error = rate_error(system, load_profile(options["machine"], options["software"]))
    rate = question.batch * 1e3 / document["metrics"]["tpot_ms"]["mean"]
    device = dig(document, "memory.offered_device_bytes") or 0.0
    host = question.shape.routed_params * question.bits.routed / 8
    return Answer(
        engine=OURS + system, configuration=Configuration(engine=OURS + system),
        config=f"simulated with {options['software']} software",
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
    computed = {name: value for name, value in run_options(question, system).items()
                if name not in ("routing", "context")}  # fmt: skip
    live = run(system, store=store, interval=False, **computed).documents[0]
    return f"lossy: {live['accuracy']['kl']:.2g} nats of KL a token on the scale model"
