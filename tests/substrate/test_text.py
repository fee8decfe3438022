"""Text that is safe to show: acting characters, Markdown and formulas of spreadsheets."""

import json

import pytest

from moebench.substrate.text import is_formula, markdown, may_act, spreadsheet, visible, visible_in


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä €", "plain ä €"), ("a\tb\nc\rd", r"a\tb\nc\rd"), ("\x1b[31m", r"\x1b[31m"),
        ("\x00\x1f\x7f\x9f\xad", r"\x00\x1f\x7f\x9f\xad"), ("\u200b\u202e", r"\u200b\u202e"),
        ("\u061c\u2066\ufeff", r"\u061c\u2066\ufeff"), ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"), ("a\u200db\u200c", "a\u200db\u200c"), ("~\xa0", "~\xa0"),
    ],
)  # fmt: skip
def test_acting_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown
    assert visible_in({text: [text, 1, None, {"x": text}]}) == {
        shown: [shown, 1, None, {"x": shown}]
    }
    for stored in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert may_act(stored) or text == shown


def test_plain_json_needs_no_look() -> None:
    assert not may_act(json.dumps({"a": ["plain", 1.5, "größer\\"]}, ensure_ascii=False))
    assert may_act(r'"\u001B"')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b*c_d`e<f>g[h]\\", r"a\|b\*c\_d\`e\<f\>g\[h\]" + "\\\\"), ("a\nb", "a b"),
        ("\x1b", r"\\x1b"),
    ],
)  # fmt: skip
def test_markdown_is_escaped_in_one_line(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("=1+1", True), ("+a", True), ("-a", True), ("@sum", True), ("  =x", True), ("'=x", True),
        ("＝x", True), ("-1.5", False), ("+2e-05", False), ("-1e", True), ("a=1", False),
        ("", False), ("1-2", False), ("-1-1", True),
    ],
)  # fmt: skip
def test_formulas_get_an_apostrophe(text: str, formula: bool) -> None:
    assert is_formula(text) == formula
    assert spreadsheet(text) == ("'" + text if formula else text)


def test_a_cell_is_visible_too() -> None:
    assert spreadsheet("=\x07") == r"'=\x07"
