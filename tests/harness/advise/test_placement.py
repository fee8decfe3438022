"""Layers on the host by flags of placement, counted by hand."""

import re
from collections.abc import Sequence

import pytest

from moebench.harness.advise.placement import Placed, Placement, Rule, _ranges


def pattern(text: str, host: bool = True) -> Rule:
    return Rule(re.compile(text), host)


ALL = range(6)


@pytest.mark.parametrize(
    ("rules", "below", "layers", "count", "remarks"),
    [
        ([], 0, ALL, 0, ()), ([pattern("exps")], 0, ALL, 6, ()),
        ([Rule(None)], 0, ALL, 6, ()), ([Rule(None, below=2)], 0, ALL, 2, ()),
        ([], 3, ALL, 3, ()), ([Rule(None, below=2)], 3, ALL, 3, ()),
        # The first rule that matches applies.
        ([pattern("exps", host=False), pattern("exps")], 0, ALL, 0, ()),
        ([pattern(r"blk\.[45]\.", host=False), pattern("exps")], 0, ALL, 4, ()),
        # Layers that are on the host as a whole are there whatever the rules say.
        ([pattern("exps", host=False)], 2, ALL, 2, ()),
        # Dense layers before the first MoE layer do not count.
        ([Rule(None, below=3)], 0, (1, 2, 3, 4), 2, ()),
        ([pattern("ffn_up_exps")], 0, ALL, 2,
         ("experts of layers 0-5 are divided between host and device; counted as 2 whole layers "
          "on the host",)),
        ([pattern("ffn_(up|down)_exps")], 0, ALL, 4,
         ("experts of layers 0-5 are divided between host and device; counted as 4 whole layers "
          "on the host",)),
        ([pattern(r"blk\.[2-4]\.ffn_.*exps")], 0, ALL, 3,
         ("experts of layers 2-4 are on the host; counted as the first 3",)),
        ([pattern(r"blk\.[135]\..*gate_exps"), pattern(r"blk\.3\.")], 0, ALL, 2,
         ("experts of layers 1, 5 are divided between host and device; counted as 2 whole layers "
          "on the host",
          "experts of layers 1, 3, 5 are on the host; counted as the first 2")),
    ],
)  # fmt: skip
def test_layers_on_the_host_are_counted(
    rules: list[Rule], below: int, layers: Sequence[int], count: int, remarks: tuple[str, ...]
) -> None:
    assert Placement(rules, below).place(layers) == Placed(count, remarks)


def test_a_rule_without_a_pattern_is_of_the_layers_before_one() -> None:
    rule = Rule(None, below=3)
    assert [layer for layer in ALL if rule.matches(layer, "up")] == [0, 1, 2]
    assert pattern(r"^blk\.12\.ffn_down_exps\.weight$").matches(12, "down")
    assert not pattern(r"blk\.1\.").matches(12, "down")


@pytest.mark.parametrize(
    ("layers", "text"),
    [([], ""), ([4], "4"), ([4, 5], "4-5"), ([1, 2, 3, 7, 9, 10], "1-3, 7, 9-10")],
)
def test_ranges_of_layers(layers: list[int], text: str) -> None:
    assert _ranges(layers) == text
