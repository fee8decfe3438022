"""The page on advice has the engines' versions and the rules that the code has."""

from pathlib import Path

from moebench.harness.advise.engines import options_table
from moebench.harness.advise.ranking import GAIN, SAME_ENGINE
from moebench.harness.advise.rules import RULES
from moebench.results.published_errors import ratio_error

PAGE = (Path(__file__).parents[3] / "docs" / "advice.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_options() -> None:
    assert options_table() in PAGE


def test_the_page_names_every_engine_and_the_errors() -> None:
    for name in RULES:
        assert name in PAGE
    words = " ".join(PAGE.split())
    assert f"× {ratio_error('decode'):.2f} in decode and × {ratio_error('prefill'):.1f}" in words
    assert f"that of repetitions, {SAME_ENGINE:.1f}" in words
    assert f"at least {GAIN - 1:.0%} faster".replace("%", " %") in words
