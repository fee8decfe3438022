"""What a workload is: where its questions come from, how they are put, how answers are scored."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Category = Literal[
    "exam", "language", "knowledge", "understanding", "reasoning", "commonsense", "chat",
    "language modelling",
]  # fmt: skip
Paper = Literal["SMoE", "DAOP", "DuoServe-MoE", "FlashMoE"]
#: How an answer is found in a model's text and compared; see ``workloads.scoring``.
Metric = Literal["exact_number", "choice", "text", "exact_text", "rouge", "perplexity", "none"]
#: What is scored where options are compared by likelihood; see ``workloads.likelihood``.
Likelihood = Literal["letters", "texts", "endings", "blank"]


class Workload(BaseModel):
    """A question set with the way its prompts are put and its answers are scored.

    Attributes:
        template: what a model reads, the question in place of ``{prompt}``.
        few_shot: examples before a question where no paper is followed.
        few_shot_in: the papers that use this workload, each with its number of examples: 0 where
            the paper states none.
        likelihood: how options are compared by likelihood; None for questions without options.
        per_byte: whether an option's log-likelihood is divided by its length (lm-eval's
            ``acc_norm``) before options are compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    category: Category
    #: Folders under the data folder whose files are joined in this order, or "generated".
    source: tuple[str, ...] | Literal["generated"]
    #: For questions without options; one with options is always scored as "choice".
    metric: Metric
    template: str = "Question: {prompt}\nAnswer:"
    few_shot: int = Field(default=0, ge=0)
    few_shot_in: dict[Paper, Annotated[int, Field(ge=0)]] = {}
    likelihood: Likelihood | None = None
    per_byte: bool = False
    #: Percent that guessing scores, where the options stand in the question's text alone.
    chance: float | None = None
    max_new_tokens: int = Field(ge=1)
    #: Where an answer ends, beside the end-of-text token: here, a model goes on to a new question.
    stop: tuple[str, ...] = ("\nQuestion:",)
    #: Whether calibration data and few-shot examples can come from a split of their own.
    train_split_available: bool = True

    @property
    def scored(self) -> bool:
        """Whether written answers are scored: not for chat prompts and plain text."""
        return self.metric not in ("none", "perplexity")
