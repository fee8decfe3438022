"""What a model reads: few-shot examples and the question, separated by blank lines."""

import re
from collections.abc import Sequence
from dataclasses import replace

from substrate.errors import UsageError
from workloads.catalogue import Workload
from workloads.example import Example, ask, ask_and_answer

_CALCULATOR_MARK = re.compile(r"<<[^<>\n=]*=[^<>\n]*>>")


def build_prompt(workload: Workload, example: Example, shots: Sequence[Example] = ()) -> str:
    """The whole prompt, up to where the model's own text begins.

    ``shots`` come first, in the given order, with their worked solutions (without calculator
    marks) and answers.  The prompt ends without a blank, so that the first generated token carries
    its own.

    Raises:
        UsageError: the question is among its own few-shot examples, answer included.
    """
    if any(shot.prompt == example.prompt for shot in shots):
        raise UsageError(
            f"workload {workload.name}: {example.id} is among its own few-shot examples; "
            "draw them from another split, or leave it out"
        )
    return "\n\n".join([*(ask_and_answer(_readable(shot)) for shot in shots), ask(example)])


def without_calculator_marks(text: str) -> str:
    """GSM8K marks its calculator calls as ``<<48/2=24>>``; a reader does not see them.

    Anything else that holds ``<<`` or ``>>`` (a shift in a programming answer) stays.
    """
    return _CALCULATOR_MARK.sub("", text)


def _readable(shot: Example) -> Example:
    if shot.solution is None:
        return shot
    return replace(shot, solution=without_calculator_marks(shot.solution))
