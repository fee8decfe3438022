"""Sessions for evaluators: weights and a system; prompts arrive as requests."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from moebench.harness.evaluate.responder import Mode, Responder
from moebench.harness.run.learn import Learnable
from moebench.harness.run.rules import refuse, resolve
from moebench.harness.run.session import Session
from moebench.harness.run.weights import (
    OpenWeights,
    computing_system,
    open_weights,
    own_hashes,
    under,
)
from moebench.harness.stage.kinds import memory_of, open_stage
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.protocol import Model
from moebench.workloads.draw import PromptSet

MODES = get_args(Mode)

#: Tokens of the longest text where nothing else is asked for, and of an answer whose length a
#: request does not say.  Both are lm-eval's.
MAX_LENGTH, MAX_NEW_TOKENS = 2048, 256

#: Evaluators give no prompts, so nothing is drawn.
NO_PROMPTS = PromptSet(
    examples=(), source="an evaluator's own", split="test", seed=0, available=0, data_hash=""
)


@dataclass(slots=True, kw_only=True)
class EvaluatedSession(Session):
    """A run on the engine that answers an evaluator's requests.

    Attributes:
        max_length: tokens of the longest text that is read, new ones included; memory is planned
            for it.  Longer ones lose their beginning, as in lm-eval.
    """

    weights: OpenWeights
    data_dir: Path | None
    max_length: int
    responder: Responder = field(init=False)

    @property
    def mode(self) -> Mode:
        """Whether requests pass through decode."""
        return "prefill" if self.spec.scoring == "prefill" else "decode"

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text, new ones included."""
        return self.max_length

    def varied(self, spec: RunSpec) -> "EvaluatedSession":
        """Return the run of another spec on the same weights."""
        system, hashes = under(spec, self.hashes, self.data_dir)
        weights = replace(self.weights, shared=None, expert_dtype=spec.expert_dtype)
        return replace(self, spec=spec, system=system, hashes=hashes, weights=weights)

    def check_memory(self) -> None:
        """Refuse a run whose weights and longest text do not fit into memory.

        Raises:
            BudgetError, UsageError: it does not fit.
        """
        memory_of(self.spec, self.system, self.full, self.longest)

    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Return the routing of calibration texts that the lossless model generates."""
        return self.weights.learnable(self.spec, self.system, self.data_dir, scratch, progress)

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Open the stage of the machine that the spec names, with memory for the longest text."""
        note = f"an evaluator asked; memory is planned for texts of up to {self.max_length} tokens"
        request = self.weights.request(
            self.spec, self.system, self.longest, self._model, scratch, keep_timeline, note
        )
        return open_stage(request, stack)

    def _model(self, decoder: Decoder | None) -> Model:
        """Return the model that the engine calls: the given decoder, or one with all experts."""
        model: Model | None = decoder
        if decoder is None:
            decoder, found = self.weights.resident(self.spec.scoring, self.system)
            model = self.wrap(found)
        self.responder = Responder(
            self.weights, self.spec.batch, decoder, self.max_length, self.mode
        )
        assert model is not None
        return model

    def written(self, generation: Generation) -> list[list[int]]:
        """Return the generated tokens, without the tokens that decode was forced to take."""
        return self.responder.written.get(id(generation), [])

    def accuracy(self) -> dict[str, Any]:
        """Return agreement and KL, without scores, which the evaluator computes."""
        return self.responder.accuracy()

    def close(self) -> None:
        """Release the weights' files."""
        self.weights.checkpoint.close()


def resolve_evaluated(data_dir: Path | None, mode: str | None, **given: Any) -> RunSpec:
    """Resolve the options of `moebench run` to the spec of an evaluated run.

    Raises:
        UsageError: an option that makes no sense here; one line.
    """
    if mode not in (None, *MODES):
        raise UsageError(f"--mode {mode}: allowed: {', '.join(MODES)}")
    asked = {key: value for key, value in given.items() if value is not None}
    if "trace" in asked or asked.get("routing", "model") != "model":
        raise UsageError("an evaluator needs answers: a replay of routing computes none")
    refuse(asked, "evaluated")
    scoring = "prefill" if mode == "prefill" else "generation"
    own = {"scoring": scoring, "new_tokens": MAX_NEW_TOKENS, "prompts": asked.get("batch", 1),
           "plain_prompts": True}  # fmt: skip
    spec = resolve(data_dir, **own, **asked)
    if spec.native:
        raise UsageError(
            f"--system {spec.system}: a package that runs by itself is not asked by evaluators; "
            "see: moebench list systems"
        )
    return spec


def prepare_evaluated(
    spec: RunSpec, data_dir: Path | None, max_length: int | None = None
) -> EvaluatedSession:
    """Open the weights and build the system.

    Args:
        max_length: tokens of the longest text, new ones included; at most the model's positions.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    system, weights = computing_system(spec), open_weights(spec)
    positions = weights.checkpoint.shape.max_positions
    if max_length is not None and not 2 <= max_length <= positions:
        raise UsageError(f"--max-length {max_length}: allowed: 2 to {positions}, the model's own")
    return EvaluatedSession(
        spec=spec,
        system=system,
        full=weights.full,
        sample=NO_PROMPTS,
        hashes=weights.hashes | own_hashes(spec, system, data_dir) | {"data": ""},
        weights=weights,
        data_dir=data_dir,
        max_length=max_length or min(MAX_LENGTH, positions),
    )
