"""Multiple choice by likelihood: the continuations to score, and the prompt before them.

A workload's ``likelihood`` names the convention of the papers' harness (Gao et al. 2023,
lm-evaluation-harness); SMoE's sets, of which OpenCompass generates a letter, are scored by letters.

==========  ==============================================  =====================================
convention  prompt                                          continuations
==========  ==============================================  =====================================
letters     the prompt with its options, "Answer:"          " A", " B", ...
texts       the prompt without its options, "Answer:"       " " + option
endings     the bare prompt without its options             " " + option
blank       the sentence up to its blank "_"                " " + option + rest of the sentence,
                                                            of which only the rest counts
==========  ==============================================  =====================================

A few-shot example is a prompt of the same form followed by its right continuation.

The option with the highest log-likelihood is chosen; with ``per_byte``, the highest per byte of
UTF-8 (lm-eval's ``acc_norm``), which does not favour short options.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.example import LETTERS, Example, stem
from moebench.workloads.prompts import check_shots
from moebench.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Continuations:
    """A prompt and its possible continuations, one for each option.

    The first ``uncounted[i]`` characters of ``texts[i]`` are read by the model, but their
    log-likelihood is not added up (only ``blank`` has any; they end before a blank or a
    punctuation mark, so both parts can be tokenised alone).
    """

    prompt: str
    texts: tuple[str, ...]
    uncounted: tuple[int, ...]


def continuations(
    workload: Workload, example: Example, shots: Sequence[Example] = ()
) -> Continuations:
    """Return the prompt and the continuations whose likelihoods decide an example with options.

    Raises:
        UsageError: the example has no options, or is among its own few-shot examples.
        InputError: the example's text is not in the form that the convention needs.
    """
    check_shots(workload, example, shots)
    asked = _asked(workload, example)
    worked = [(_asked(workload, shot), _right(shot)) for shot in shots]
    answered = [one.prompt + one.texts[right] for one, right in worked]
    return Continuations("\n\n".join([*answered, asked.prompt]), asked.texts, asked.uncounted)


def choose(
    workload: Workload, texts: Sequence[str], log_likelihoods: Sequence[float],
    per_byte: bool | None = None,
) -> int:  # fmt: skip
    """Return the 0-based index of the likeliest option; the first of equal ones.

    Args:
        texts: the continuations, as ``continuations`` returns them.
        log_likelihoods: of each continuation, in nats, summed over the tokens that count.
        per_byte: overrides the workload's own ``per_byte``.
    """
    divide = workload.per_byte if per_byte is None else per_byte
    values = [
        value / len(text.removeprefix(" ").encode()) if divide else value
        for text, value in zip(texts, log_likelihoods, strict=True)
    ]
    return values.index(max(values))


def _right(example: Example) -> int:
    assert isinstance(example.answer, int)  # `_asked` has checked that it has options
    return example.answer


def _asked(workload: Workload, example: Example) -> Continuations:
    """Return one example's prompt and continuations without few-shot examples."""
    if workload.likelihood is None or example.choices is None:
        raise UsageError(
            f"workload {workload.name}: {example.id} has no options to score by likelihood; "
            "generate an answer instead"
        )
    options = example.choices
    nothing = (0,) * len(options)
    if workload.likelihood == "letters":
        letters = tuple(f" {letter}" for letter in LETTERS[: len(options)])
        return Continuations(_question(workload, example.prompt), letters, nothing)
    texts = tuple(f" {option}" for option in options)
    if workload.likelihood == "texts":
        return Continuations(_question(workload, stem(example)), texts, nothing)
    if workload.likelihood == "endings":
        return Continuations(stem(example), texts, nothing)
    before, blank, after = stem(example).partition("_")
    if not blank or not before.strip() or not after.strip():
        raise InputError(
            f'{example.id}: no blank "_" inside the sentence; allowed: words, "_", words'
        )
    filled = tuple(f"{text}{after}" for text in texts)
    return Continuations(before.rstrip(), filled, tuple(len(text) for text in texts))


def _question(workload: Workload, prompt: str) -> str:
    return workload.template.replace("{prompt}", prompt)
