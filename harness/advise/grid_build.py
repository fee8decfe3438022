"""Builds the grid of the advice page: ``make advice``.

A build that was stopped goes on where it was (`grid_parts`).
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.advise.answering import answers
from moebench.harness.advise.commands import command
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.grid import CONTEXT_MARK, FILE, Grid, GridRow, Point, Ties, write_grid
from moebench.harness.advise.grid_axes import BETWEEN, MODELS, machines
from moebench.harness.advise.grid_parts import Ask, Choice, Job, jobs, question_of, stored_parts
from moebench.harness.advise.interpolation import between, interpolation_error
from moebench.harness.advise.question import Question
from moebench.harness.advise.ranking import PAGING, SAME_ENGINE
from moebench.harness.published.coverage import EIGHTY
from moebench.results.published_errors import ratio_error
from moebench.substrate.errors import MoeBenchError

#: Folder of the parts, below the working directory.
PARTS = Path("build/advice")

#: A context that stands for any other while a command is written: no other number is likely 7,936.
STAND_IN = 7936

#: What the rates are of: `ask.question` with a context alone.
LENGTHS = (
    "Rates are those of a full context: an answer of 512 tokens (of a quarter of a context below "
    "2,048), after a prompt that fills the rest.  With shorter texts, rates are higher."
)

Write = Callable[[Configuration, Question], tuple[str, str]]


def build_grid(
    chosen: Sequence[Choice], models: Mapping[str, Sequence[str]], folder: Path = PARTS, *,
    processes: int | None = None, ask_for: Ask = answers, write: Write | None = None,
    step: Callable[[int, int], None] = lambda done, total: None, as_is: bool = False,
) -> Grid:  # fmt: skip
    """Return the grid of all machines with all models.

    Args:
        chosen: machines, each with its parts.
        models: formats by model.
        folder: of the parts.
        processes: None is one for each core.
        ask_for: returns the answers to a question.
        write: returns a configuration's commands and the notes on them; None is `commands`.
        step: called with the number of parts that are done, and of all.
        as_is: also use parts that other code computed.

    Raises MoeBenchError: a machine or model that cannot be asked for, or a full disk.
    """
    asked = jobs(chosen, models)
    files = [folder / job.name(chosen[job.machine][0]) for job in asked]
    parts = stored_parts(asked, files, ask_for, processes, step, as_is)
    points = [
        _point(job, one, write or commands)
        for job, part in zip(asked, parts, strict=True) for one in part
    ]  # fmt: skip
    kept = [point for point in points if point.context not in BETWEEN]
    return Grid(
        version=metadata.version("moebench"), lengths=LENGTHS,
        machines=tuple(shown for shown, _ in chosen), points=tuple(kept), between=BETWEEN,
        ties=Ties(ratio_error("decode"), ratio_error("prefill"), SAME_ENGINE,
                  math.exp(EIGHTY * PAGING)),
        errors=interpolation_error(_pairs(kept, points)),
    )  # fmt: skip


def _pairs(kept: Sequence[Point], points: Sequence[Point]) -> Iterator[Any]:
    """Yield what is interpolated, and the computed rows, at each context in between."""
    curves: dict[tuple[int, str, str], list[Point]] = {}
    for point in kept:
        curves.setdefault(point[:3], []).append(point)
    for point in points:
        if point.context in BETWEEN:
            curve = sorted(curves[point[:3]], key=lambda one: one.context)
            yield between(curve, point.context), point.rows


def _point(job: Job, part: dict[str, Any], write: Write) -> Point:
    """Return a point, with the commands of its rows."""
    asked, rows = question_of(job, part["quant"], part["context"]), []
    for row in part["rows"]:
        fields = {name: row[name] for name in GridRow._fields if name in row}
        config = {**row["configuration"], "other": tuple(row["configuration"]["other"])}
        text, notes = _any_context(Configuration(**config), asked, write)
        rows.append(GridRow(**fields, command=text, notes=notes))
    verdict = part["verdict"]
    return Point(
        machine=job.machine, model=job.model, quant=part["quant"], context=part["context"],
        fits=any(row["fits"] == "fits" for row in part["rows"]),
        verdict=f"{verdict[:1].upper()}{verdict[1:]}.", largest_context=part["largest"] or None,
        left_out="\n".join(f"{name}: {why}" for name, why in part["left_out"].items()),
        rows=tuple(rows),
    )  # fmt: skip


# ------------------------------------------------------------------------------ commands


def commands(config: Configuration, question: Question) -> tuple[str, str]:
    """Return a configuration's command lines and the notes on them; "" where there are none."""
    try:
        found = command(config, question)
    except MoeBenchError as error:
        return "", str(error)
    return "\n".join(found.lines), "\n".join(filter(None, (found.version, *found.notes)))


def _any_context(config: Configuration, asked: Question, write: Write) -> tuple[str, str]:
    """Return commands in which the mark stands for the context, if that is all it changes."""
    text, notes = write(config, asked)
    lengths = asked.lengths._replace(context=STAND_IN)
    marked = write(config, replace(asked, lengths=lengths))[0].replace(str(STAND_IN), CONTEXT_MARK)
    filled = marked.replace(CONTEXT_MARK, str(asked.lengths.context))
    return (marked if filled == text else text), notes


# ------------------------------------------------------------------------------ make advice


def main(arguments: Sequence[str]) -> int:
    """Build the grid that ships, or one in another file."""
    parser = argparse.ArgumentParser(
        "python -m moebench.harness.advise.grid_build", description=__doc__
    )
    parser.add_argument("out", nargs="?", type=Path, default=FILE, help=f"file to write [{FILE}]")
    parser.add_argument("--parts", type=Path, default=PARTS, help=f"folder of parts [{PARTS}]")
    parser.add_argument("--processes", type=int, help="processes [one for each core]")
    parser.add_argument("--as-is", action="store_true", help="use parts of other code as they are")
    given = parser.parse_args(arguments)
    try:
        with console.progress("grid of advice") as step:
            grid = build_grid(machines(), MODELS, given.parts, processes=given.processes, step=step,
                              as_is=given.as_is)  # fmt: skip
        write_grid(given.out, grid)
    except MoeBenchError as error:
        print(error, file=sys.stderr)
        return 1
    size = given.out.stat().st_size
    console.say(f"wrote {given.out}: {len(grid.points):,} points, {size / 1e6:.2f} MB")
    for one in grid.errors:
        console.say(f"error of interpolated {one.phase}: median {one.median:.2%}, 90 % below "
                    f"{one.p90:.2%}, at most {one.largest:.2%} of {one.figures}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
