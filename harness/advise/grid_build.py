"""Builds the grid of the advice page: ``make advice``.

Each machine with each model is a part, which is stored as soon as it is done: a build that was
stopped goes on where it was.  A part is used again while the code that predicts is the same.  Parts
hold configurations, so that commands are written anew each time.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness import console
from moebench.harness.advise import ask
from moebench.harness.advise.answer import (
    GIB,
    LOSSLESS,
    PAGING,
    SAME_ENGINE,
    Answer,
    Answers,
    answers,
)
from moebench.harness.advise.commands import command
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.grid import (
    CONTEXT_MARK,
    FILE,
    MOST_ROWS,
    Grid,
    GridMachine,
    GridRow,
    Point,
    Ties,
    rounded,
    write_grid,
)
from moebench.harness.advise.grid_axes import BETWEEN, MODELS, contexts_of, machines
from moebench.harness.advise.interpolation import between, interpolation_error
from moebench.harness.advise.question import Hardware, Question
from moebench.harness.published.coverage import EIGHTY
from moebench.harness.run.code_cache import key_of
from moebench.results.published_errors import ratio_error
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.files import write_text

#: Folder of the parts, below the working directory.
PARTS = Path("build/advice")

#: One of `SAMPLED` parts also has the contexts in between, for the error of interpolation.
SAMPLED = 16

#: A context that stands for any other while a command is written: no other number is likely 7,936.
STAND_IN = 7936

#: What the rates are of: `ask.question` with a context alone.
LENGTHS = (
    "Rates are those of a full context: an answer of 512 tokens (of a quarter of a context below "
    "2,048), after a prompt that fills the rest.  With shorter texts, rates are higher."
)

_PACKAGE = Path(__file__).parents[2]
#: What an answer depends on, as patterns below the package.
_SOURCES = (
    *(f"harness/advise/{name}.py" for name in (
        "answer", "candidates", "case", "configuration", "memory", "question", "rules",
    )),
    "harness/published/*.py", "results/measured/*.json", "results/published_errors.py",
    "substrate/engine/*.py", "substrate/machines/*.py", "substrate/memory/*.py",
    "substrate/models/*.py", "substrate/catalogue/*.yaml", "substrate/catalogue/parts/*.yaml",
    "substrate/catalogue/software/*.yaml", "substrate/catalogue/models/*.json", "systems/**/*.py",
)  # fmt: skip

#: Where experts are more than `HOPELESS` times the host's memory, only `PAGED_BY` are asked.
HOPELESS, PAGED_BY = 2.0, ("llama.cpp",)
NOT_ASKED = "most of the model would be read from the disk for each token"

Ask = Callable[[Question, Sequence[str]], Answers]
Write = Callable[[Configuration, Question], tuple[str, str]]
Choice = tuple[GridMachine, Hardware]


class Job(NamedTuple):
    """A part of the grid: a model on a machine.

    Attributes:
        machine: index of the machine.
        asked: formats with contexts.
    """

    machine: int
    hardware: Hardware
    model: str
    asked: tuple[tuple[str, int], ...]

    def name(self, shown: GridMachine) -> str:
        """Return the name of the part's file."""
        words = f"{shown.card} {shown.memory} {self.model}".lower()
        return "".join(c if c.isalnum() or c in ".-" else "-" for c in words) + ".json"

    def key(self) -> str:
        """Return the hash of what was asked, and of the code that answers."""
        asked = [repr(question_of(self, *one)) for one in self.asked]
        rules = repr((HOPELESS, PAGED_BY, MOST_ROWS))
        return key_of(text.encode() for text in (*asked, rules, code()))


@cache
def code() -> str:
    """Return the hash of the code and data that rates depend on."""
    files = sorted({file for pattern in _SOURCES for file in _PACKAGE.glob(pattern)})
    return key_of(part for file in files for part in (file.name.encode(), file.read_bytes()))


def jobs(chosen: Sequence[Choice], models: Mapping[str, Sequence[str]]) -> list[Job]:
    """Return the parts of a grid; some also ask for the contexts in between."""
    found: list[Job] = []
    for at, (_, hardware) in enumerate(chosen):
        for model, quants in models.items():
            contexts = contexts_of(model)
            if len(found) % SAMPLED == at % SAMPLED:
                contexts += [one for one in BETWEEN if contexts[0] < one < contexts[-1]]
            asked = tuple((quant, context) for quant in quants for context in contexts)
            found.append(Job(at, hardware, model, asked))
    return found


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
    keys = [job.key() for job in asked]
    found = [_read(file, None if as_is else key) for file, key in zip(files, keys, strict=True)]
    todo = [at for at, part in enumerate(found) if part is None]
    step(len(asked) - len(todo), len(asked))
    with closing(_answered([asked[at] for at in todo], ask_for, processes)) as answered:
        for done, (at, part) in enumerate(answered, len(asked) - len(todo) + 1):
            found[todo[at]] = part
            write_text(files[todo[at]], json.dumps({"key": keys[todo[at]], "points": part}))
            step(done, len(asked))
    points = [
        _point(job, one, write or commands)
        for job, part in zip(asked, found, strict=True) for one in part or ()
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


# ------------------------------------------------------------------------------ parts


def _read(file: Path, key: str | None) -> list[dict[str, Any]] | None:
    """Return a part's points; None if it is absent, damaged, or of another key."""
    try:
        found = json.loads(file.read_bytes())
        points: list[dict[str, Any]] = found["points"]
        return points if key is None or found["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answered(
    todo: Sequence[Job], ask_for: Ask, processes: int | None
) -> Generator[tuple[int, list[dict[str, Any]]], None, None]:
    """Yield the index of each part with its points, as they are done."""
    if processes == 1 or len(todo) < 2:
        yield from ((at, _part(job, ask_for)) for at, job in enumerate(todo))
        return
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        futures = {pool.submit(_part, job, ask_for): at for at, job in enumerate(todo)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def question_of(job: Job, quant: str, context: int) -> Question:
    """Return the question of a point, as ``moebench advise --context`` asks it."""
    return ask.question(model=job.model, quant=quant, hardware=job.hardware, context=str(context))


def _part(job: Job, ask_for: Ask) -> list[dict[str, Any]]:
    """Return the points of a part as JSON values."""
    points = []
    for quant, context in job.asked:
        asked = question_of(job, quant, context)
        engines = PAGED_BY if _hopeless(asked) else ()
        try:
            found = ask_for(asked, engines)
        except MoeBenchError as error:
            said = {"verdict": f"not predicted: {error}", "largest": 0, "left_out": {}, "rows": []}
        else:
            left_out = found.left_out | ({"other engines": NOT_ASKED} if engines else {})
            said = {
                "verdict": found.verdict, "largest": found.largest_context,
                "left_out": left_out, "rows": [*map(_row, found.rows[:MOST_ROWS])],
            }  # fmt: skip
        points.append({"quant": quant, "context": context, **said})
    return points


def _hopeless(asked: Question) -> bool:
    """Return whether the experts are far larger than the memory of the host."""
    experts = asked.shape.routed_params * asked.bits.routed / 8
    return experts > HOPELESS * GIB * (asked.hardware.ram_gib or math.inf)


def _row(one: Answer) -> dict[str, Any]:
    """Return an answer as JSON values, with the fields of a `GridRow` but its command."""
    prefill = one.prefill or (None, None, None)
    return {
        "configuration": asdict(one.configuration), "fits": one.fits,
        "engine": one.engine, "config": one.config,
        **dict(zip(("decode", "decode_low", "decode_high"), map(rounded, one.decode), strict=True)),
        **dict(zip(("prefill", "prefill_low", "prefill_high"), map(rounded, prefill), strict=True)),
        "device_gib": rounded(one.device_gib), "host_gib": rounded(one.host_gib),
        "disk_gib": rounded(one.disk_gib), "quality": one.quality, "binds": one.binds,
        "verdict": one.verdict, "remarks": "\n".join(one.remarks),
        "lossless": one.quality.startswith(LOSSLESS), "checked": one.checked,
    }  # fmt: skip


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
