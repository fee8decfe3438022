"""What a model reads: few-shot examples and the question, separated by blank lines."""

import re
from collections.abc import Sequence
from dataclasses import replace

from moebench.substrate.errors import UsageError
from moebench.workloads.example import Example, ask_and_answer
from moebench.workloads.workload import Workload

#: Ends a prompt: the model's own text begins after it.
CUE = "\nAnswer:"
_CALCULATOR_MARK = re.compile(r"<<[^<>\n=]*=[^<>\n]*>>")
_LAST_WORD = re.compile(r"\s\S+\s*\Z")


def build_prompt(workload: Workload, example: Example, shots: Sequence[Example] = ()) -> str:
    """The whole prompt, up to where the model's own text begins.

    ``shots`` come first, in the given order, with their worked solutions (without calculator
    marks) and answers.  The prompt ends without a blank, so that the first generated token carries
    its own.

    Raises:
        UsageError: the question is among its own few-shot examples, answer included.
    """
    check_shots(workload, example, shots)
    asked = workload.template.replace("{prompt}", example.prompt)
    return "\n\n".join([*(ask_and_answer(_readable(shot)) for shot in shots), asked])


def split_cue(prompt: str) -> tuple[str, str]:
    """A prompt as what is prefilled and the cue: ``prompt == prefilled + cue``.

    The cue is fed token by token through decode, so that even the answer's first token comes out
    of the decode path.  It is ``CUE`` where the prompt ends in it, else the last word with the
    blank before it.  A byte-level BPE with its usual pre-tokenizer starts a new piece there: the
    two parts' tokens are the whole's.  A prompt of one word has nothing to prefill.
    """
    if prompt.endswith(CUE):
        at = len(prompt) - len(CUE)
    else:
        word = _LAST_WORD.search(prompt)
        at = word.start() if word else 0
    return prompt[:at], prompt[at:]


def check_shots(workload: Workload, example: Example, shots: Sequence[Example]) -> None:
    """Refuse a question whose answer stands above it.

    Raises:
        UsageError: the question is among its own few-shot examples.
    """
    if any(shot.prompt == example.prompt for shot in shots):
        raise UsageError(
            f"workload {workload.name}: {example.id} is among its own few-shot examples; "
            "draw them from another split, or leave it out"
        )


def without_calculator_marks(text: str) -> str:
    """GSM8K marks its calculator calls as ``<<48/2=24>>``; a reader does not see them.

    Anything else that holds ``<<`` or ``>>`` (a shift in a programming answer) stays.
    """
    return _CALCULATOR_MARK.sub("", text)


def _readable(shot: Example) -> Example:
    if shot.solution is None:
        return shot
    return replace(shot, solution=without_calculator_marks(shot.solution))
