"""Text that is safe to show, for each format: names and notes in a store may come from anybody.

Every text is made `visible` where it is read from a store and where it is printed or written.  A
format's own special characters are escaped by one function each.
"""

import re
import unicodedata
from typing import Any

#: Characters that act instead of being seen: control characters (ESC begins a terminal's commands),
#: line and paragraph separators, invisible ones (soft hyphen, zero-width space, direction marks,
#: byte order mark, tags), and halves of surrogate pairs, which no encoding can write.  The joiners
#: U+200C and U+200D are parts of words and emoji and stay.
_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
#: The same in JSON as it is stored, where they may be written as escapes.
_ACTING_IN_JSON = re.compile(
    _ACTING.pattern + r"|\\[bfnrt]|\\u(?:00[01]|007|00[89a]|061|180|20[026]|d[89a-f]|fe|ff)",
    re.IGNORECASE,
)

#: First characters of a spreadsheet's formulas, in their common (NFKC) form.
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[-+][0-9.]+(e[-+]?[0-9]+)?")

_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"})


def visible(text: str) -> str:
    r"""Return a text with each acting character written as its escape, such as ``\x1b``."""
    return _ACTING.sub(_escape, text)


def visible_in(value: Any) -> Any:
    """Return a JSON value with all of its texts and keys made `visible`."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [visible_in(one) for one in value]
    if isinstance(value, dict):
        return {visible_in(key): visible_in(one) for key, one in value.items()}
    return value


def may_act(json_text: str) -> bool:
    """Return whether a JSON text may hold an acting character: False needs no `visible_in`."""
    return _ACTING_IN_JSON.search(json_text) is not None


def markdown(text: str) -> str:
    """Return a text without Markdown's formatting, links, tables and HTML, in one line."""
    return visible(text.replace("\n", " ")).translate(_MARKDOWN)


def spreadsheet(text: str) -> str:
    """Return a cell with an apostrophe before it if a spreadsheet could take it for a formula."""
    text = visible(text)
    return f"'{text}" if is_formula(text) else text


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet could take a cell for a formula: a signed number is none."""
    plain = unicodedata.normalize("NFKC", text).lstrip(" '")
    return plain.startswith(_FORMULA) and _NUMBER.fullmatch(text) is None


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    short = {0x09: r"\t", 0x0A: r"\n", 0x0D: r"\r"}
    if code >= 0x10000:
        return f"\\U{code:08x}"
    return short.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
