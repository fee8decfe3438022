"""Characters of an output that act in a terminal or a file, by Unicode's categories."""

import unicodedata


def acts(text: str) -> list[str]:
    """Return the characters of an output that are neither printable nor line feeds or tabs."""
    wrong = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in text if c not in "\n\t\u200c\u200d" and unicodedata.category(c) in wrong]
