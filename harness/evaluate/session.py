"""A run that an evaluator asks: weights and a system, ready to answer; the questions come later."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from moebench.harness.evaluate.responder import Mode, Responder
from moebench.harness.run import learn
from moebench.harness.run.identity import system_hash
from moebench.harness.run.rules import refuse, resolve
from moebench.harness.run.weights import Computing, computing_system, open_weights
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
class EvaluatedSession(Computing):
    """A run whose requests an evaluator makes.

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
        """Tokens of the longest text, new ones included."""
        return self.max_length

    def varied(self, spec: RunSpec) -> "EvaluatedSession":
        """The same weights under another spec."""
        return replace(self, **self.other(spec))

    def opened(self, decoder: Decoder) -> None:
        """Get ready to answer."""
        self.responder = Responder(self, decoder, self.max_length, self.mode)

    @property
    def note(self) -> str:
        """A sentence on the lengths of texts, for the document."""
        return f"an evaluator asked; memory is planned for texts of up to {self.max_length} tokens"

    def written(self, generation: Generation) -> list[list[int]]:
        """What the model wrote by itself, without what it was made to read."""
        return self.responder.written.get(id(generation), [])

    def accuracy(self) -> dict[str, Any]:
        """Agreement and KL; scores are the evaluator's."""
        return self.responder.accuracy()


def resolve_evaluated(data_dir: Path | None, mode: str | None, **given: Any) -> RunSpec:
    """The spec of a run that an evaluator asks; options are those of `moebench run`.

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
    system = computing_system(spec)
    full, checkpoint, texts, hashes = open_weights(spec)
    positions = checkpoint.shape.max_positions
    if max_length is not None and not 2 <= max_length <= positions:
        raise UsageError(f"--max-length {max_length}: allowed: 2 to {positions}, the model's own")
    own = {"system": system_hash(system), **learn.identity(spec, system, data_dir)}
    return EvaluatedSession(
        spec=spec,
        system=system,
        full=full,
        sample=NO_PROMPTS,
        hashes=hashes | own | {"data": ""},
        checkpoint=checkpoint,
        tokenizer=texts.tokenizer,
        end=texts.end,
        data_dir=data_dir,
        max_length=max_length or min(MAX_LENGTH, positions),
    )
