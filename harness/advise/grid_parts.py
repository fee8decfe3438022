"""Parts of the grid of the advice page: the answers about a model on a machine, each in a file.

A part is stored as soon as it is done, and used again while the code that predicts is the same.  It
holds configurations, so that commands can be written anew.
"""

import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.advise import ask
from moebench.harness.advise.answer import GIB, LOSSLESS, Answer, Answers
from moebench.harness.advise.grid import MOST_ROWS, GridMachine, rounded
from moebench.harness.advise.grid_axes import BETWEEN, contexts_of
from moebench.harness.advise.question import Hardware, Question
from moebench.harness.run.code_cache import key_of
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.files import write_text

#: One of `SAMPLED` parts also has the contexts in between, for the error of interpolation.
SAMPLED = 16

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


def stored_parts(
    asked: Sequence[Job], files: Sequence[Path], ask_for: Ask, processes: int | None,
    step: Callable[[int, int], None], as_is: bool,
) -> list[list[dict[str, Any]]]:  # fmt: skip
    """Return the points of each part, after computing and storing the missing ones.

    Args:
        files: where the parts are stored.
        as_is: also use parts that other code computed.
    """
    keys = [job.key() for job in asked]
    found = [_read(file, None if as_is else key) for file, key in zip(files, keys, strict=True)]
    todo = [at for at, part in enumerate(found) if part is None]
    step(len(asked) - len(todo), len(asked))
    with closing(_answered([asked[at] for at in todo], ask_for, processes)) as answered:
        for done, (at, part) in enumerate(answered, len(asked) - len(todo) + 1):
            found[todo[at]] = part
            write_text(files[todo[at]], json.dumps({"key": keys[todo[at]], "points": part}))
            step(done, len(asked))
    return [part for part in found if part is not None]


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
