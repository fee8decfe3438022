"""Builds prompts: few-shot examples and the example to answer, separated by blank lines."""

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
    """Return the whole prompt, up to where the model's own text begins.

    ``shots`` precede it, in the given order, with their worked solutions (without calculator
    marks) and answers.  The prompt ends without a blank, so that the first generated token has
    its own.
    """
    check_shots(workload, example, shots)
    asked = workload.template.replace("{prompt}", example.prompt)
    return "\n\n".join([*(ask_and_answer(_readable(shot)) for shot in shots), asked])


def split_cue(prompt: str) -> tuple[str, str]:
    """Split a prompt into the prefilled part and the cue: ``prompt == prefilled + cue``.

    The cue is fed token by token through decode, so that even the answer's first token is computed
    by the decode path.  It is ``CUE`` where the prompt ends in it, else the last word with the
    blank before it.  A byte-level BPE with its usual pre-tokenizer starts a new piece there: the
    two parts' tokens are the whole's.  A prompt of one word has no prefilled part.
    """
    if prompt.endswith(CUE):
        at = len(prompt) - len(CUE)
    else:
        word = _LAST_WORD.search(prompt)
        at = word.start() if word else 0
    return prompt[:at], prompt[at:]


def check_shots(workload: Workload, example: Example, shots: Sequence[Example]) -> None:
    """Raise `UsageError` if an example is among its own few-shot examples, answer included."""
    if any(shot.prompt == example.prompt for shot in shots):
        raise UsageError(
            f"workload {workload.name}: {example.id} is among its own few-shot examples; "
            "draw them from another split, or leave it out"
        )


def without_calculator_marks(text: str) -> str:
    """Remove GSM8K's marks of calculator calls, such as ``<<48/2=24>>``; keep other ``<<``."""
    return _CALCULATOR_MARK.sub("", text)


def _readable(shot: Example) -> Example:
    if shot.solution is None:
        return shot
    return replace(shot, solution=without_calculator_marks(shot.solution))
