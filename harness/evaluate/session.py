"""Sessions for evaluators: weights and a system; prompts arrive as requests."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from moebench.harness.evaluate.responder import Mode, Responder
from moebench.harness.run.live import ComputingSession
from moebench.harness.run.rules import refuse, resolve
from moebench.harness.run.weights import computing_system, open_weights, own_hashes
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import UsageError
from moebench.substrate.models.decoder import Decoder
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
class EvaluatedSession(ComputingSession):
    """A run on the engine that answers an evaluator's requests.

    Attributes:
        max_length: tokens of the longest text that is read, new ones included; memory is planned
            for it.  Longer ones lose their beginning, as in lm-eval.
    """

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

    @property
    def note(self) -> str:
        """Note about the longest text."""
        return f"an evaluator asked; memory is planned for texts of up to {self.max_length} tokens"

    def attach(self, decoder: Decoder) -> None:
        """Answer requests with the decoder's logits."""
        self.responder = Responder(
            self.weights, self.spec.batch, decoder, self.max_length, self.mode
        )

    def written(self, generation: Generation) -> list[list[int]]:
        """Return the generated tokens, without the tokens that decode was forced to take."""
        return self.responder.written.get(id(generation), [])

    def accuracy(self) -> dict[str, Any]:
        """Return agreement and KL, without scores, which the evaluator computes."""
        return self.responder.accuracy()


def resolve_evaluated(data_dir: Path | None, mode: str | None, **given: Any) -> RunSpec:
    """Resolve the options of `moebench run` to the spec of an evaluated run.

    Raises UsageError: an option that makes no sense here; one line.
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
    """
    system, weights = computing_system(spec), open_weights(spec)
    positions = weights.checkpoint.shape.max_positions
    if max_length is not None and not 2 <= max_length <= positions:
        raise UsageError(f"--max-length {max_length}: allowed: 2 to {positions}, the model's own")
    return EvaluatedSession(
        spec=spec, system=system, full=weights.full, sample=NO_PROMPTS,
        hashes=weights.hashes | own_hashes(spec, system, data_dir) | {"data": ""}, weights=weights,
        data_dir=data_dir, max_length=max_length or min(MAX_LENGTH, positions),
    )  # fmt: skip
