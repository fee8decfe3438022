"""Measure a GPU in at most ten minutes, and write a folder that `moebench validate` reads.

    python -m benchmarks.card [DIR] [--weights DIR] [--store DIR] [--minutes 10]

`make card` writes build/card.  docs/machines.md describes the files.  Each step prints one line
with its time.  A failed step is named, and the others go on; a step that would not fit into the
remaining time is skipped and named.  Exit code: 0 done, 1 a step failed, 2 nothing can be measured.
"""

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.wide import make_wide
from moebench.harness.cli.calibrate import SYSTEMS
from moebench.harness.machines.calibrate import calibrate
from moebench.harness.machines.copies import copy_rate
from moebench.harness.machines.profile import write_profile
from moebench.harness.machines.survey import link_gb_s, survey
from moebench.harness.machines.validate import Request, validate
from moebench.harness.published.predict import predict_row
from moebench.harness.published.rows import COLUMNS, Row, read_rows, shipped
from moebench.results.csvfile import csv_text
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.files import write_text
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.accelerator import Accelerator
from moebench.substrate.machines.parts import matches, plain

#: Files of the folder.
FILES = (
    "copies.json", "rows.csv", "absolute.txt", "repeat.json", "profile.yaml", "fidelity.json",
)  # fmt: skip

#: Sizes of the copies whose rates are measured, in bytes.
SIZES = (64 << 10, 1 << 20, 4 << 20, 25 << 20, 256 << 20)

#: Most seconds that a step took on two cores of a CPU with the same model: of making the model, of
#: all copies, of calibration, and of one row or one system, before the first of these is timed.
EXPECTED_S = {"model": 30.0, "copies": 30.0, "calibrate": 180.0, "row": 1.0, "system": 60.0}

#: Flags of llama.cpp that llama-bench and llama-sweep-bench do not have.
NOT_BENCH = frozenset({"--fit", "--parallel", "--no-mmap"})

#: Precision of weights and computation.
PRECISION = "bf16"


class Steps:
    """Runs steps one after another within a time limit.

    Args:
        limit_s: seconds for all steps.
        clock: returns seconds from any start.
        say: prints a line.

    Attributes:
        done, failed: names of the steps that ended well, and that failed.
    """

    def __init__(
        self, limit_s: float, clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        self._clock, self._say = clock, say
        self._until = clock() + limit_s
        self.done: list[str] = []
        self.failed: list[str] = []

    def too_long(self, expected_s: float) -> str:
        """Return why work of the expected seconds is skipped, or "" if it fits."""
        left_s = max(0.0, self._until - self._clock())
        if expected_s <= left_s:
            return ""
        return f"skipped: about {expected_s:.0f} s do not fit into the {left_s:.0f} s that remain"

    def skipper(self, expected_s: float) -> Callable[[str], str]:
        """Return a function that is called before each part of a step; see `too_long`.

        A part is expected to take as long as the longest one before it.

        Args:
            expected_s: expected seconds of the first part.
        """
        ends: list[float] = []

        def skip(part: str) -> str:
            ends.append(self._clock())
            longest_s = max((b - a for a, b in pairwise(ends)), default=expected_s)
            return self.too_long(longest_s)

        return skip

    def run(self, name: str, expected_s: float, work: Callable[[], str], needs: str = "") -> None:
        """Run a step if it fits, and print its result and its time.

        Args:
            work: returns a line about its result.
            needs: name of the step without whose result this one cannot run.
        """
        if needs and needs not in self.done:
            self._say(f"{name}: skipped: it needs the result of {needs}")
            return
        if reason := self.too_long(expected_s):
            self._say(f"{name}: {reason}")
            return
        began = self._clock()
        try:
            said = work()
        except (MoeBenchError, OSError) as error:
            self.failed.append(name)
            said = f"failed: {error}"
        else:
            self.done.append(name)
        self._say(f"{name}: {said} ({self._clock() - began:.0f} s)")


# ------------------------------------------------------------------ the steps


def copies(card: Accelerator, folder: Path) -> str:
    """Write the rates of copies by size to copies.json, and return the best one in words."""
    link, nominal = survey().names.get("link"), link_gb_s(survey())
    rates = [
        {"bytes": size, "memory": memory, "gb_s": round(copy_rate(card, size, pinned), 3)}
        for size in SIZES
        for memory, pinned in (("pinned", True), ("pageable", False))
    ]
    best = max(rate["gb_s"] for rate in rates)
    share = None if nominal is None else round(best / nominal, 3)
    _write(folder / "copies.json", {
        "gpu": card.name, "link": link, "link_gb_s": nominal, "best_over_link": share,
        "rates": rates,
    })  # fmt: skip
    of = "no program names the link" if share is None else f"{share:.0%} of {link}"
    return f"at most {best:.3g} GB/s, {of}"


def rows(gpu: str, folder: Path) -> str:
    """Write the published rows that this GPU could repeat: rows.csv and repeat.json."""
    found = [row for row in read_rows(shipped()) if same_gpu(gpu, row)]
    if not found:
        return f"no published row has one {gpu}"
    cells = [[_cell(getattr(row, name)) for name in COLUMNS] for row in found]
    write_text(folder / "rows.csv", csv_text(COLUMNS, cells))
    write_text(folder / "absolute.txt", "".join(f"{row.id}\n" for row in found if row.listed))
    commands = {row.id: command(row) for row in found}
    _write(folder / "repeat.json", [
        {"id": one.id, "phase": one.phase, "measured_tok_s": one.measured,
         "predicted_tok_s": one.predicted, "reason": one.reason, "flags": row.other_flags,
         "command": commands[one.id]}
        for row in found for one in predict_row(row)
    ])  # fmt: skip
    stated = sum(bool(text) for text in commands.values())
    return f"{len(found)} rows have this GPU; a command repeats {stated} of them"


def same_gpu(name: str, row: Row) -> bool:
    """Return whether a row was measured on one GPU of this name."""
    own = re.split(r"[(,]", row.gpu)[0]
    if not own.strip() or row.n_gpu not in (1, None):
        return False
    return plain(name) == plain(own) or not {*matches(name)}.isdisjoint(matches(own))


def command(row: Row) -> str:
    """Return the command that repeats a row of llama.cpp, or "" if its flags do not state it.

    It has the flags at the beginning of ``other_flags``, and the threads and lengths of the
    columns.  ``-m`` names the model and its quantisation in place of a file.
    """
    engine = re.match(r"(ik_)?llama\.cpp(?!-moe-cache)", row.system)
    flags = re.match(r'(?:"[^"]*"|[^";(:,]|,(?! ))+', row.other_flags.strip())
    if engine is None or flags is None or not flags[0].startswith("-"):
        return ""
    try:
        words = shlex.split(flags[0])
    except ValueError:  # a quotation mark that is not closed
        return ""
    rest = row.other_flags[len(flags[0]) :]
    if NOT_BENCH.intersection(words) or re.search(r"\b(ser|rtr|fmoe|mla)\b", rest):
        return ""
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if not word.startswith("-") and not before.startswith("-"):  # words of a sentence
            return ""
        if (word == "-ot" and "=" not in after) or (before == "-ncmoe" and not word.isdigit()):
            return ""
    columns = {"-t": row.threads, "-ub": row.ubatch}
    if not row.sweeps:
        columns |= {"-p": row.prompt_tokens, "-n": row.new_tokens}
    for flag_name, value in columns.items():
        if value is not None and flag_name not in words:
            words += [flag_name, str(value)]
    program = "llama-sweep-bench" if row.sweeps else "llama-bench"
    return shlex.join([program, "-m", f"{row.model} {row.quant}".strip(), *words])


def profile(card: Accelerator, weights: Path, store: Path, folder: Path) -> str:
    """Calibrate on the GPU, write profile.yaml, and return the profile's error in words."""
    found = calibrate(weights, None, store, card, PRECISION)
    write_profile(found, folder / "profile.yaml")
    return str(found["calibration"]["error"]["source"]).partition(": ")[2]


def fidelity(weights: Path, store: Path, folder: Path, steps: Steps) -> str:
    """Write fidelity.json of the systems that fit into the time, and return the error in words."""
    given = {"device": "cuda", "precision": PRECISION, "cache_ratio": 0.25, "prompts": 2,
             "new_tokens": 16, "batch": 1, "calibrate_texts": 2}  # fmt: skip
    systems: dict[str, dict[str, str]] = {name: {} for name in SYSTEMS.split(",")}
    request = Request(folder / "profile.yaml", weights, None, systems, 1, given, None)
    table = validate(request, store, skip=steps.skipper(EXPECTED_S["system"]))
    _write(folder / "fidelity.json", table)
    left_out = [f"{one['system']}: {one['reason']}" for one in table["not_possible"]]
    summary = table["summary"]
    return "; ".join([
        f"TPOT of {len(table['rows'])} systems off by {summary['tpot_mean']:.1%} in the mean, "
        f"{summary['tpot_worst']:.1%} at worst", *left_out,
    ])  # fmt: skip


def _write(file: Path, content: Any) -> None:
    write_text(file, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def main(words: list[str] | None = None) -> int:
    """Run all steps and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.card", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/card"))
    parser.add_argument("--weights", type=Path, default=Path("build/wide"))
    parser.add_argument("--store", type=Path, default=Path("build/card-store"))
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args(words)
    try:
        card = accelerator.Cuda()
    except MoeBenchError as error:
        why = str(error).removeprefix("--device cuda: ").partition(";")[0]
        print(f"benchmarks.card: needs a CUDA device; {why}", file=sys.stderr)
        return 2
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:  # those of an earlier day would look like today's
            (given.folder / name).unlink(missing_ok=True)
    except OSError as error:
        print(f"benchmarks.card: {given.folder}: {error.strerror}; give a folder", file=sys.stderr)
        return 2
    folder, weights, store = given.folder, given.weights, given.store
    steps = Steps(60 * given.minutes)
    known = 1 + sum(same_gpu(card.name, row) for row in read_rows(shipped()))
    steps.run("model", EXPECTED_S["model"], lambda: str(make_wide(weights)))
    steps.run("copies", EXPECTED_S["copies"], lambda: copies(card, folder))
    steps.run("rows", EXPECTED_S["row"] * known, lambda: rows(card.name, folder))
    steps.run("calibrate", EXPECTED_S["calibrate"],
              lambda: profile(card, weights, store, folder), "model")  # fmt: skip
    steps.run("validate", EXPECTED_S["system"],
              lambda: fidelity(weights, store, folder, steps), "calibrate")  # fmt: skip
    return 1 if steps.failed else 0


if __name__ == "__main__":
    sys.exit(main())
