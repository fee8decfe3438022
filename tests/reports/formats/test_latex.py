"""Headers of LaTeX tables: units under them, and long ones broken between words alone."""

import pytest

from moebench.reports.formats.latex import _heads, _stacked


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("system", ["system"]),
        ("twelve chars", ["twelve chars"]),  # 12 characters are one line
        ("hit ratio, complete", ["hit ratio,", "complete"]),
        # Neither a long word nor one with hyphens is divided.
        ("deterministically", ["deterministically"]),
        ("a deterministically b", ["a", "deterministically", "b"]),
        ("first-come-first-served", ["first-come-first-served"]),
        ("cache first-come-first", ["cache", "first-come-first"]),
    ],
)
@pytest.mark.parametrize("side", ["l", "r"])
def test_long_headers_are_broken_between_words(label: str, lines: list[str], side: str) -> None:
    found = _stacked(label, side)
    if len(lines) == 1:
        assert found == lines[0]
    else:
        assert found == "\\shortstack[" + side + "]{" + r"\\".join(lines) + "}"


def test_units_stand_in_a_line_of_their_own() -> None:
    one, two = _heads(["system", "TPOT (ms)", "hits (%)"], [False, True, True]).splitlines()
    assert one.split(" & ")[:2] == ["system", "TPOT"]
    assert two.split(" & ")[0].strip() == ""
    assert "ms" in two
    assert r"\%" in two
    assert "(" not in one + two
    assert len(_heads(["system", "runs"], [False, True]).splitlines()) == 1


def test_only_numbers_are_broken_to_the_right() -> None:
    (line,) = _heads(["a long header here", "a long header too"], [False, True]).splitlines()
    first, second = line.split(" & ")
    assert first.startswith(r"\shortstack[l]")
    assert second.startswith(r"\shortstack[r]")
