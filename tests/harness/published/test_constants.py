"""The constants of predictions, and the values of the fit that ships."""

from pathlib import Path

from moebench.harness.published.constants import CONSTANTS, fitted

PAGE = Path(__file__).parents[3] / "docs" / "published.md"


def test_the_page_has_every_constant_its_factor_and_what_the_fits_made_of_it() -> None:
    shipped = fitted()
    expected = []
    for one in CONSTANTS:
        others = [values[one.name] for values in shipped.left_out.values()]
        expected.append(
            f"| {one.name} | {one.value:g} (÷×{one.factor:g}) | {shipped.all_rows[one.name]:.3g} | "
            f"{min(others):.3g} to {max(others):.3g} | {one.source} |"
        )
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if "(÷×" in line)
    assert lines[first : first + len(expected)] == expected
    assert not lines[first + len(expected)].startswith("|")
