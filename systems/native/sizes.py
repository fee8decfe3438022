"""Parser of memory sizes in options: ``600MB``, ``1.5GB``."""

import re

from moebench.substrate.errors import UsageError

_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(option: str, text: str, *words: str) -> int:
    """Return the bytes of a size such as ``600MB``; raise `UsageError` if the text is no size.

    The error names the option, and the ``words`` that it allows as well.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B|B)", text.strip().upper())
    size = 0 if found is None else round(float(found[1]) * _UNITS[found[2]])
    if size <= 0:
        allowed = ", ".join(["a size such as 600MB or 1.5GB", *words, "null"])
        raise UsageError(f"{option} is {text}; allowed: {allowed}")
    return size
