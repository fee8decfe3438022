"""The advice page: one HTML file that shows a grid's answers, without a network.

The page contains the grid, compressed, and small scripts; its security policy forbids all requests.
Texts of the grid are shown as text, never as markup.
"""

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from moebench.harness.advise.grid import Grid, to_columns
from moebench.reports.page.page import TEMPLATES, packed


def page(grid: Grid) -> str:
    """Return the page as one string; pure."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    errors = [
        {
            "phase": error.phase,
            "figures": error.figures,
            **{name: f"{100 * getattr(error, name):.2g} %" for name in error._fields[2:]},
        }
        for error in grid.errors
    ]
    return environment.get_template("advice.html.j2").render(
        version=grid.version,
        lengths=grid.lengths,
        between=_listed(grid.between),
        errors=errors,
        points=f"{len(grid.points):,}",
        machines=len(grid.machines),
        models=len({point.model for point in grid.points}),
        packed=packed(to_columns(grid)),
    )


def _listed(contexts: tuple[int, ...]) -> str:
    """Return numbers in words: "4,096, 16,384 and 65,536"."""
    *most, last = [f"{context:,}" for context in contexts] or [""]
    return f"{', '.join(most)} and {last}" if most else last
