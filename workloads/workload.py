"""The `Workload` model: data source, prompt template, few-shot examples and metric."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Category = Literal[
    "exam", "language", "knowledge", "understanding", "reasoning", "commonsense", "chat",
    "language modelling",
]  # fmt: skip
Paper = Literal["SMoE", "DAOP", "DuoServe-MoE", "FlashMoE"]
#: How an answer is found in a generated text and compared; see ``workloads.scoring``.
Metric = Literal["exact_number", "choice", "text", "exact_text", "rouge", "perplexity", "none"]
#: The texts that are scored if options are compared by likelihood; see ``workloads.likelihood``.
Likelihood = Literal["letters", "texts", "endings", "blank"]


class Workload(BaseModel):
    """A data set with the template of its prompts and the metric of its answers.

    Attributes:
        template: the text that a model reads, with the prompt in place of ``{prompt}``.
        few_shot: number of few-shot examples where no paper is followed.
        few_shot_in: the papers that use this workload, each with its number of examples: 0 where
            the paper states none.
        likelihood: how options are compared by likelihood; None without options.
        per_byte: whether an option's log-likelihood is divided by its length (lm-eval's
            ``acc_norm``) before options are compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    category: Category
    #: Folders under the data folder whose files are joined in this order, or "generated".
    source: tuple[str, ...] | Literal["generated"]
    #: Metric of examples without options; an example with options is always scored as "choice".
    metric: Metric
    template: str = "Question: {prompt}\nAnswer:"
    few_shot: int = Field(default=0, ge=0)
    few_shot_in: dict[Paper, Annotated[int, Field(ge=0)]] = {}
    likelihood: Likelihood | None = None
    per_byte: bool = False
    #: Score of guessing in percent, if options are given in the prompt's text only.
    chance: float | None = None
    max_new_tokens: int = Field(ge=1)
    #: Strings that end an answer, as the end-of-text token does; the default begins a new question.
    stop: tuple[str, ...] = ("\nQuestion:",)
    #: Whether calibration data and few-shot examples can come from a split of their own.
    train_split_available: bool = True

    @property
    def scored(self) -> bool:
        """Whether generated answers are scored: false for chat prompts and plain text."""
        return self.metric not in ("none", "perplexity")
