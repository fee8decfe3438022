"""What binds an answer: the shares of a decoded token's time by resource."""

from collections.abc import Iterator
from dataclasses import replace

from moebench.harness.advise.answer import Answer
from moebench.harness.advise.case import case_for
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES
from moebench.harness.published.case import Case
from moebench.harness.published.constants import fitted
from moebench.harness.published.predict import rate_of

#: By resource, what is made a tenth faster to see how much of the time is proportional to it.
STEP = 1.1


def bind(question: Question, row: Answer) -> None:
    """Find the shares of a decoded token's time that are proportional to each resource."""
    if row.fits == "pages":
        row.binds = "disk"
        return
    case = case_for(question, RULES[row.engine], row.configuration)
    values = dict(fitted().all_rows)
    before = 1 / rate_of(case, values, "decode")
    for name, faster in _faster(case, values):
        after = 1 / rate_of(*faster, "decode")
        share = (before - after) / before / (1 - 1 / STEP)
        row.shares[name] = max(0.0, round(share, 3))
    row.binds = max(row.shares, key=lambda name: row.shares[name])


def _faster(
    case: Case, values: dict[str, float]
) -> Iterator[tuple[str, tuple[Case, dict[str, float]]]]:
    """Yield the case with each resource a tenth faster."""

    def profile(*fields: str) -> Case:
        found = case.profile
        for name in fields:
            group, _, inner = name.partition(".")
            part = getattr(found, group)
            number = getattr(part, inner)
            changed = number.model_copy(update={"value": number.value * STEP, "range": None})
            found = found.model_copy(update={group: part.model_copy(update={inner: changed})})
        return replace(case, profile=found)

    def constants(*names: str, factor: float = STEP) -> dict[str, float]:
        return values | {name: values[name] * factor for name in names}

    if case.first > 0 and (case.engine.misses == "host" or case.on_host):
        yield "memory of the host", (profile("host.gemv_bandwidth"), values)
        if case.profile.host.core_rate is not None:
            yield "cores of the host", (profile("host.core_rate"), values)
    if not case.on_host:
        yield "memory of the device", (profile("gpu.bandwidth"), values)
        launches = constants("launch ggml", "launch python", "handoff us", factor=1 / STEP)
        yield "launches and hand-overs", (case, launches)
    if case.engine.misses == "link" and case.first > 0:
        yield "link", (profile("link.pinned_h2d", "host.gemv_bandwidth"), values)
