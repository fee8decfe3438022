"""Questions as token ids, as each way of scoring feeds them to the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.harness.run.texts import Texts
from moebench.results.spec import Scoring
from moebench.workloads.example import Example
from moebench.workloads.likelihood import continuations
from moebench.workloads.prompts import build_prompt, split_cue
from moebench.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Question:
    """One example as token ids.

    Attributes:
        prompt: what is prefilled.
        cue: how each continuation begins: the part of the prompt that decode reads.
        continuations: what decode is forced to take: the cue alone where the model writes its
            answer, the cue and an option's text where options are weighed.
        counted: for each continuation, the place of its first token whose likelihood counts.
        texts: the options' texts.
    """

    prompt: list[int]
    cue: list[int] = field(default_factory=list)
    continuations: tuple[list[int], ...] = ([],)
    counted: tuple[int, ...] = (0,)
    texts: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the prompt and its longest continuation."""
        return len(self.prompt) + max(map(len, self.continuations))


def question_of(
    scoring: Scoring, chosen: Workload, example: Example, shots: Sequence[Example], texts: Texts
) -> Question:
    """An example as its way of scoring feeds it; see `harness.run.answers`.

    A chat template is used where the model writes.  Where the likelihoods of given texts are asked
    for, they go on from the plain question.
    """
    if scoring == "fixed-length":
        return Question(texts.prompt(build_prompt(chosen, example, shots)))
    if scoring == "generation":
        prefilled, cue = texts.split(build_prompt(chosen, example, shots))
        return Question(prefilled, cue, (cue,))
    if chosen.metric == "perplexity":  # all of a text but its first token is its continuation
        first, *rest = texts.plain(example.prompt)
        return Question([first], [], (rest,), (0,), (example.prompt,))
    asked = continuations(chosen, example, shots)
    prompt, cue_text = (asked.prompt, "") if scoring == "prefill" else split_cue(asked.prompt)
    read = texts.further(cue_text)
    options = tuple([*read, *texts.further(text)] for text in asked.texts)
    counted = tuple(
        len(read) + len(texts.further(text[:uncounted]))
        for text, uncounted in zip(asked.texts, asked.uncounted, strict=True)
    )
    return Question(texts.plain(prompt), read, options, counted, asked.texts)
