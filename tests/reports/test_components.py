"""The table of components as text and as data."""

from moebench.reports import components


def test_every_row_is_shown_with_its_charge() -> None:
    lines, documents = components.rows(), components.documents()
    assert len(lines) == len(documents) >= 25
    for line, document in zip(lines, documents, strict=True):
        shown = dict(zip(components.HEADERS, line.cells, strict=True))
        assert shown["component"] == document["what"]
        assert shown["ratio"] == f"{document['ratio']:.2f}"
        assert bool(shown["why"]) == (not line.agrees) == (not document["agrees"])


def test_figures_carry_their_units() -> None:
    shown = [dict(zip(components.HEADERS, line.cells, strict=True)) for line in components.rows()]
    (migration,) = (row for row in shown if row["published"] == "39.87 ms")
    assert (migration["charged"], migration["ratio"]) == ("39.86 ms", "1.00")
    orders = next(row for row in shown if row["published"] == "10 to 100")
    assert orders["charged"].replace(".", "").isdecimal()


def test_the_summary_counts() -> None:
    lines = components.rows()
    agree = sum(line.agrees for line in lines)
    assert components.summary(lines).startswith(f"{agree} of {len(lines)} within 15%")
    assert f"of the other {len(lines) - agree} " in components.summary(lines)
