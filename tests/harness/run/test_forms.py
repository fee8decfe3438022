"""A run of mixed precision against arithmetic of the test's own: bytes, times, KL, refusals."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from moebench.conformance import cases
from moebench.harness.conformance import cases as every_case
from moebench.harness.run.execute import Outcome, prepare
from moebench.harness.run.execute import run as run_cell
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.substrate.machines.profile import MACHINES, load_profile
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.formats import Quantised, unpack
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.shared import SharedWork
from tests.harness.commands import SMALL, call, refused
from tests.substrate.machines.test_measured_times import PROFILE as MEASURED

pytestmark = pytest.mark.usefixtures("tiny_models")

MIXED = "tests.systems.mixed:MixedPrecision"
MACHINE, NEW_TOKENS = "a6000", 8


@pytest.fixture
def ran(tmp_path: Path) -> tuple[LiveSession, Outcome]:
    spec = resolve(
        None, system=MIXED, model="mixtral-8x7b", machine=MACHINE, workload="arithmetic",
        prompts=2, new_tokens=NEW_TOKENS, cache_ratio=0.4,
    )  # fmt: skip
    session = prepare(spec, None)
    assert isinstance(session, LiveSession)
    return session, run_cell(session, tmp_path, keep_timeline=True)


def int4_bytes(shape: ModelShape) -> int:
    """Two numbers a byte; of each group of inputs in a row, a scale and a zero point in bf16."""
    total = 0
    for rows, inputs in (
        (2 * shape.expert_width, shape.hidden_size),
        (shape.hidden_size, shape.expert_width),
    ):
        group = next(n for n in (128, 64, 32, *range(31, 0, -1)) if inputs % n == 0)
        total += rows * inputs // 2 + rows * inputs // group * (2 + 2)
    return total


def test_bytes_and_times_are_those_of_the_forms(ran: tuple[LiveSession, Outcome]) -> None:
    session, outcome = ran
    shape, profile = session.full, load_profile(MACHINE, session.spec.software)
    params = 3 * shape.hidden_size * shape.expert_width
    sizes = [2 * params, int4_bytes(shape)]
    loads = [span for span in outcome.timeline.spans if span.op.kind is OpKind.LOAD]
    assert {span.op.form for span in loads} == {0, 1}
    link = profile.link
    rate = link.pinned_h2d.bytes_per_s * link.in_engine_efficiency.ratio / 1e9
    for span in loads:
        size = sizes[span.op.form]
        assert span.moved_bytes == size
        assert span.duration_ns == round(link.copy_fixed.ns + size / rate)
    moved = sum(sizes[span.op.form] for span in loads)
    assert outcome.document["metrics"]["bytes_h2d"] == moved
    # Computation: large reads at their share of the bandwidth, or operations, if these take longer.
    gpu = profile.gpu
    assert sizes[1] > 20_000_000
    bandwidth = gpu.bandwidth.bytes_per_s * gpu.large_read_efficiency.ratio / 1e9
    flops = gpu.tensor_bf16.flops_per_s * gpu.tensor_efficiency.ratio / 1e9
    low = [
        s for s in outcome.timeline.spans
        if s.op.kind is OpKind.EXPERT and s.op.form and s.lane is Lane.DEVICE
    ]  # fmt: skip
    assert low
    launch = profile.software.launches_expert.count * profile.software.launch.ns
    for span in low:
        each = [max(sizes[1] / bandwidth, 2 * params * n / flops) for n in span.op.rows]
        # What the control thread has not launched yet cannot have ended.
        assert round(sum(each)) <= span.duration_ns <= round(sum(each)) + launch * len(each)
    memory = outcome.document["memory"]
    slots = round(0.4 * len(shape.moe_layers) * shape.num_experts)
    low_slots = int(0.2 * slots * sizes[0]) // sizes[1]
    full_slots = (slots * sizes[0] - low_slots * sizes[1]) // sizes[0]
    assert memory["slot_bytes"] == full_slots * sizes[0] + low_slots * sizes[1]
    assert outcome.document["bound"]["ratio"] >= 1
    said = f"slots by form of record: {full_slots} of full"
    assert any(note.startswith(said) for note in outcome.document["notes"])


class SomeRounded:
    """A checkpoint's experts, rounded as int4 stores them where a set names pass, layer, expert."""

    def __init__(self, checkpoint: Checkpoint, low: set[tuple[int, int, int]]) -> None:
        self._checkpoint, self._low = checkpoint, low
        self._int4 = Quantised(checkpoint.shape, "int4")
        self.step = 0

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, ...]:
        record = self._checkpoint.expert_record(layer, expert, torch.float32)
        if (self.step, layer, expert) in self._low:
            record = self._int4.rounded(record)
        return unpack(self._checkpoint.shape, record)

    def stacked(self, layer: int, experts: Sequence[int]) -> None:
        return None

    def all_of(self, layer: int) -> None:
        return None


def forward(decoder: Decoder, experts: SomeRounded, prompt: list[int], text: list[int]) -> Tensor:
    """Logits ``[steps, V]`` of the decoded steps of a text, pass by pass and without an engine."""
    decoder.begin([prompt], len(text), [text])
    for step in range(len(text)):
        experts.step = step
        decoder.embed("decode" if step else "prefill")
        for layer in range(decoder.shape.num_layers):
            decoder.attend(layer)
            gate = decoder.gate(layer)
            decoder.compute(layer, list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK)))
            decoder.combine(layer)
        decoder.head()
    return torch.cat(decoder.history[1:])


def test_kl_is_that_of_a_forward_pass_with_these_experts_rounded(
    ran: tuple[LiveSession, Outcome],
) -> None:
    session, outcome = ran
    low: list[set[tuple[int, int, int]]] = [set()]
    step = 0
    for span in outcome.timeline.spans:
        if span.op.kind is OpKind.EXPERT and span.op.form:
            low[-1] |= {(step, span.op.layer, expert) for expert in span.op.experts}
        if span.op.kind is OpKind.HEAD:
            step += 1
            if step == len(outcome.generations[len(low) - 1].tokens[0]):
                low.append(set())
                step = 0
    assert all(low[:2])
    exact, total, steps = SharedWork(session.weights.checkpoint), 0.0, 0
    with torch.inference_mode():
        for question, generation, rounded in zip(
            session.questions, outcome.generations, low, strict=False
        ):
            (text,) = generation.tokens
            experts = SomeRounded(session.weights.checkpoint, rounded)
            common = session.weights.checkpoint.common(torch.float32)
            decoder = Decoder(session.weights.checkpoint.shape, common, experts)
            own = forward(decoder, experts, question.prompt, text).double().log_softmax(-1)
            whole = exact.decoder().full_logits([[*question.prompt, *text[:-1]]])[0]
            right = whole[len(question.prompt) :].double().log_softmax(-1)
            total += float((right.exp() * (right - own)).sum())
            steps += len(text) - 1
    assert total / steps > 1e-6
    assert outcome.document["accuracy"]["kl"] == pytest.approx(total / steps, abs=2e-6, rel=1e-3)


def test_a_replay_charges_forms_and_says_that_its_text_does_not_follow() -> None:
    called = call("run", "--system", MIXED, *SMALL, "--routing", "drawn", "--json")
    assert called.code == 0, called.err
    (note,) = [note for note in called.json["notes"] if "does not follow" in note]
    assert note.startswith("records in other forms (int4) are charged; the trace does not follow")


@pytest.mark.parametrize("evict", ["arc", "mrs", "only-named", "staged-lru", "static"])
def test_an_eviction_that_knows_one_form_is_refused(evict: str) -> None:
    line = refused("run", "--system", MIXED, *SMALL, "--set", f"evict={evict}")
    assert "which knows one form of records, but MixedPrecision has 2" in line
    assert line.endswith("allowed: a policy with takes_forms = True, such as --set evict=lru")


@pytest.mark.slow
@pytest.mark.parametrize("evict", ["lru", "fifo", "lifo", "lfu"])
def test_an_eviction_that_takes_forms_runs(evict: str) -> None:
    called = call("run", "--system", MIXED, *SMALL, "--routing", "drawn", "--set", f"evict={evict}")
    assert called.code == 0, called.err


def test_machines_that_hold_whole_records_refuse_the_forms(tmp_path: Path) -> None:
    line = refused("run", "--system", MIXED, *SMALL, "--machine", "local")
    assert "--machine local: holds whole records only, but" in line
    assert "MixedPrecision has the form int4; allowed: a simulated machine" in line
    profile = tmp_path / "measured.yaml"
    fields = yaml.safe_load((MACHINES / "a6000.yaml").read_text())
    fields["measured"] = MEASURED.measured.model_dump(mode="json")
    profile.write_text(yaml.safe_dump(fields))
    line = refused("run", "--system", MIXED, *SMALL, "--machine", profile)
    assert f"--machine {profile}: holds whole records only, but" in line


@pytest.mark.slow
def test_it_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_case, "CASES", cases("qwen2-57b-a14b", "mixtral-8x7b"))
    called = call("doctor", "--system", MIXED)
    assert called.code == 0, called.out
    assert "FAILED" not in called.out
