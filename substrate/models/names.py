"""Published names of models: spelling that does not matter, endings of variants, stated sizes.

"DeepSeek-R1 671B", "deepseek-ai/DeepSeek-R1" and "deepseek-r1-Q4_K_M" name one shape.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

#: A total such as ``671b`` or ``1t`` in a name, and the number of its unit in 10^9.
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bt])")
_UNIT = {"b": 1.0, "t": 1000.0}

#: Endings of names that leave the shape as it is: active size, date, training stage, format.
_ENDING = re.compile(
    r"a\d+(\.\d+)?b|\d{4}|v\d+\.\d+|instruct|it|chat|thinking|base|pt|qat|preview|hf|gguf|ud"
    r"|i?q\d\w*|k|s|m|l|xl|xs|xxs|r4|r8|bf16|fp16|f16|fp8|fp4|mxfp4|nvfp4|nf4|int4|int8|awq|gptq"
)


class Spelling(NamedTuple):
    """One way to read a name.

    Attributes:
        name: in lower case, with hyphens, and possibly without its endings.
        size_b: the total parameters in 10^9 that an omitted ending states, or None.
    """

    name: str
    size_b: float | None


def plain(name: str) -> str:
    """Return a name in lower case with hyphens, without remarks in parentheses."""
    text = re.sub(r"\([^()]*\)", " ", name.lower())
    return re.sub(r"[\s_-]+", "-", text).strip("-")


def without_owner(name: str) -> tuple[str, ...]:
    """Return a name in `plain` form, and without its owner if it has one (``owner/name``).

    In "DeepSeek-V3/R1" no owner is recognised: one word follows the slash.
    """
    whole = plain(name)
    own = whole.rpartition("/")[2]
    return (whole,) if own == whole or not re.search("[-.]", own) else (whole, own)


def spellings(name: str) -> Iterator[Spelling]:
    """Yield the ways to read a published name, from the whole name to the shortest one.

    The owner (``owner/name``) is omitted second, then one ending after the other.
    """
    for text in without_owner(name):
        size = None
        yield Spelling(text, size)
        while "-" in text:
            text, _, ending = text.rpartition("-")
            found = _SIZE.fullmatch(ending)
            if found is not None:
                size = float(found[1]) * _UNIT[found[2]]
            elif _ENDING.fullmatch(ending) is None:
                break
            yield Spelling(text, size)
