"""One question: what every workload, few-shot template and metric speaks of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question with its reference answer, in the format of the evaluation data.

    ``choices`` is ``None`` for a free answer; then ``answer`` is the reference text and
    ``answers`` may hold accepted aliases.  Otherwise ``answer`` is a 0-based index.
    ``solution`` is a worked solution, where the data has one.
    """

    id: str
    prompt: str
    choices: tuple[str, ...] | None
    answer: str | int
    answers: tuple[str, ...] | None = None
    solution: str | None = None

    @property
    def answer_text(self) -> str:
        """The answer as a model would write it: the text itself, or the option's letter."""
        return self.answer if isinstance(self.answer, str) else chr(ord("A") + self.answer)


#: Separates documents in training and ends an answer; every scale model's tokenizer knows it.
END_OF_TEXT = "<|endoftext|>"


def ask(example: Example) -> str:
    """The prompt exactly as a model reads it, up to where its own text begins."""
    return f"Question: {example.prompt}\nAnswer:"


def ask_and_answer(example: Example) -> str:
    """The same with the worked solution and answer: a training document or a few-shot example."""
    if example.solution is None:
        return f"{ask(example)} {example.answer_text}"
    return f"{ask(example)} {example.solution}\n#### {example.answer_text}"
