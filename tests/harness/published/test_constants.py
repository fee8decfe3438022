"""Constants of predictions are those of the table that the docs show, with their fits."""

import re
from pathlib import Path

from moebench.harness.published.constants import CONSTANTS, fitted

PAGE = (Path(__file__).parents[3] / "docs" / "published.md").read_text(encoding="utf-8")


def table() -> list[list[str]]:
    """Return the cells of the table of constants, by row."""
    after = PAGE.partition("| constant | components |")[2].splitlines()[2:]
    rows = []
    for line in after:
        if not line.startswith("| "):
            break
        rows.append(re.split(r" \| ", line.removeprefix("| ").removesuffix(" |")))
    return rows


def test_constants_of_components_are_those_of_the_docs() -> None:
    """Each with the factor by which it may be wrong and where it is from."""
    said = [
        [one.name, f"{one.value:g} (÷×{one.factor:g})", one.source] for one in CONSTANTS
    ]  # fmt: skip
    assert [[row[0], row[1], row[4]] for row in table()] == said


def test_fitted_values_are_those_of_the_docs() -> None:
    found = fitted()
    for name, _, value, across, _ in table():
        others = [values[name] for values in found.left_out.values()]
        assert value == f"{found.all_rows[name]:.3g}", name
        assert across == f"{min(others):.3g} to {max(others):.3g}", name
    machines = re.search(r"(\d+) of them\.  Each is also left out of a fit", PAGE)
    assert machines is not None
    assert len(found.left_out) == int(machines[1])
    errors = re.search(r"That is ([\d.]+) in\s+decode and ([\d.]+) in prefill", PAGE)
    assert errors is not None
    shown = (f"{found.own_error['decode']:.3g}", f"{found.own_error['prefill']:.3g}")
    assert errors.groups() == shown
