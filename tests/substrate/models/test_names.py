"""Ways to read a published name: the whole one, without owner, without endings, with a size."""

import pytest

from moebench.substrate.models.names import plain, spellings, without_owner


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen3_30B  A3B", "qwen3-30b-a3b"), (" -GLM 4.5_Air- ", "glm-4.5-air"),
        ("Kimi-K2 (384 experts) Base", "kimi-k2-base"), ("a (b) c (d)", "a-c"),
    ],
)  # fmt: skip
def test_spelling_that_does_not_matter(name: str, found: str) -> None:
    assert plain(name) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mistralai/Mixtral-8x7B", ("mistralai/mixtral-8x7b", "mixtral-8x7b")),
        ("a/b/c.1", ("a/b/c.1", "c.1")), ("DeepSeek-V3/R1", ("deepseek-v3/r1",)),
        ("Mixtral-8x7B", ("mixtral-8x7b",)),
    ],
)  # fmt: skip
def test_an_owner_stands_before_a_name_of_several_words(name: str, found: tuple[str, ...]) -> None:
    assert without_owner(name) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("DeepSeek-R1 671B", [("deepseek-r1-671b", None), ("deepseek-r1", 671.0)]),
        ("kimi-1T-Instruct", [
            ("kimi-1t-instruct", None), ("kimi-1t", None), ("kimi", 1000.0),
        ]),
        ("o/my-0.5B-Q4_K_M", [
            ("o/my-0.5b-q4-k-m", None), ("o/my-0.5b-q4-k", None), ("o/my-0.5b-q4", None),
            ("o/my-0.5b", None), ("o/my", 0.5), ("my-0.5b-q4-k-m", None), ("my-0.5b-q4-k", None),
            ("my-0.5b-q4", None), ("my-0.5b", None), ("my", 0.5),
        ]),
        ("qwen3-moe-a3b", [("qwen3-moe-a3b", None), ("qwen3-moe", None)]),  # "moe" is no ending
    ],
)  # fmt: skip
def test_endings_are_left_out_one_by_one(name: str, found: list[tuple[str, float | None]]) -> None:
    assert [tuple(one) for one in spellings(name)] == found
