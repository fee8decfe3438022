"""Tables of text: which columns are numbers, counts with nouns, and Markdown by hand."""

import pytest

from moebench.reports.text import TextTable, counted, markdown, text_table


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (2000, "2,000 runs")]
)
def test_a_count_has_its_noun(count: int, text: str) -> None:
    assert counted(count, "run") == text


@pytest.mark.parametrize(
    ("cells", "number"),
    [
        (["1", "2.5", "–"], True), (["-1", "+3", "−2"], True), (["n/a", ""], True),
        (["12 ± 3"], True), (["a1"], False), (["1", "x"], False), (["–x"], False),
        (["n/a?"], False),
    ],
)  # fmt: skip
def test_a_column_is_of_numbers_if_all_its_cells_are(cells: list[str], number: bool) -> None:
    table = text_table("t", ["a", "b"], [("name", cell) for cell in cells])
    assert table.numbers == [False, number]


def test_a_table_of_one_group() -> None:
    table = text_table("t", ["a"], [["1"], ["2"]], "said", ["note"])
    assert table == TextTable("t", ("a",), ((("1",), ("2",)),), "said", {}, ("note",))
    assert table.rows == [("1",), ("2",)]
    assert text_table("t", ["a"], []).rows == []
    assert (text_table("t", ["a"], []).said, text_table("t", ["a"], []).notes) == ("", ())


def test_markdown_by_hand() -> None:
    table = TextTable(
        "Times", ("system", "ms"), ((("a", "1"), ("b", "2")), (("c", "3"),)), "two groups",
        {(0, 0, 1): "best", (0, 1, 1): "second", (1, 0, 0): "best"}, ("One note.", "Another."),
    )  # fmt: skip
    assert markdown(table) == (
        "### Times\n\ntwo groups\n\n| system | ms |\n| --- | ---: |\n| a | **1** |\n| b | *2* |\n"
        "| **c** | 3 |\n\nOne note.\n\nAnother.\n"
    )
    plain = table._replace(said="", notes=(), marks={})
    assert markdown(plain).startswith("### Times\n\n| system | ms |\n")
    assert markdown(plain).endswith("| c | 3 |\n")
    assert "*" not in markdown(plain)
