"""What explains where DuoServe-MoE's claims differ; written after measuring.

Numbers stand in counter-experiments, which are measured again with the claims.
"""

#: By the beginning of a claim's id.
_EXPLANATIONS: dict[str, str] = {}


def explanation(id: str) -> str:
    """That of the longest beginning of the id that has one; "" where there is none."""
    known = [key for key in _EXPLANATIONS if id == key or id.startswith(f"{key} ")]
    return _EXPLANATIONS[max(known, key=len)] if known else ""
