"""The `Example` type: a prompt, its options and its reference answer; and its text for a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from moebench.substrate.errors import InputError

#: The letters of options, in their order.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt with its reference answer, in the format of the evaluation data.

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
        """The reference answer in a model's form: the text itself, or the option's letter."""
        return self.answer if isinstance(self.answer, str) else LETTERS[self.answer]


#: Separates documents in training and ends an answer; a token of every scale model's tokenizer.
END_OF_TEXT = "<|endoftext|>"


def ask(example: Example) -> str:
    """Return the prompt exactly as a model reads it, up to where its own text begins."""
    return f"Question: {example.prompt}\nAnswer:"


def ask_and_answer(example: Example) -> str:
    """Return the prompt with solution and answer: a training document or a few-shot example."""
    if example.solution is None:
        return f"{ask(example)} {example.answer_text}"
    return f"{ask(example)} {example.solution}\n#### {example.answer_text}"


def listed(options: Sequence[str]) -> str:
    """Return a prompt's final block of options, one ``\\nA. text`` line each."""
    lines = zip(LETTERS, options, strict=False)
    return "".join(f"\n{letter}. {text}" for letter, text in lines)


def stem(example: Example) -> str:
    """Return the prompt without its final block of options, in which it must end if it has any."""
    if example.choices is None:
        return example.prompt
    bare = example.prompt.removesuffix(listed(example.choices))
    if bare == example.prompt or not bare.strip():
        raise InputError(
            f"{example.id}: the prompt is not a question followed by its options; "
            'allowed: a question, then one line "A. text" for each of its choices in their order'
        )
    return bare
