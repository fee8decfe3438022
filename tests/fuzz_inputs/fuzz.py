"""Try many cases of every door and print a table: ``python -m tests.fuzz_inputs.fuzz [CASES]``."""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz_inputs import (
    imports,
    models,
    outputs,
    own_systems,
    profiles,
    sockets,
    stores,
    sweeps,
    traces,
)
from tests.fuzz_inputs.door import Verdict, try_door

#: Each door, in the order of the table.
DOORS = (
    traces.DOOR, profiles.DOOR, sweeps.DOOR, models.DOOR, imports.DOOR, stores.DOOR,
    own_systems.DOOR, outputs.DOOR, sockets.DOOR,
)  # fmt: skip

#: How many of 100 cases each gets.
SHARES: dict[str, int] = {
    "traces": 17, "profiles": 8, "sweeps": 12, "models": 13, "imports": 10, "stores": 14,
    "own systems": 8, "outputs": 12, "sockets": 6,
}  # fmt: skip

COLUMNS = (
    Verdict.TRACEBACK, Verdict.SILENT, Verdict.UNCLEAR, Verdict.WRITTEN, Verdict.SHUT,
    Verdict.REFUSED, Verdict.RIGHT,
)  # fmt: skip


def main(cases: int, only: str | None = None) -> int:
    """Run the fuzzing and return 1 if any case went wrong."""
    bad = 0
    head = ["door", "cases", *map(str, COLUMNS), "seconds"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    details = []
    for door in DOORS:
        if only not in (None, door.name):
            continue
        began = time.monotonic()
        tried = try_door(door, cases if only else cases * SHARES[door.name] // 100)
        counts = [tried.verdicts[verdict] for verdict in COLUMNS]
        row = [door.name, sum(tried.verdicts.values()), *counts, round(time.monotonic() - began)]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        bad += len(tried.wrong)
        details += [(door.name, case, said) for case, said in tried.wrong.values()]
    for name, case, said in details[:60]:
        print(f"\n{name}: {case.about}: {' '.join(case.arguments)}\n  {said[:500]}")
    return 1 if bad else 0


def _with_tiny_models() -> None:
    """Restart the program with a catalogue of tiny models, whose runs take milliseconds."""
    from moebench.substrate.models import catalogue
    from tests.harness.tiny import make_catalogue

    folder = Path(tempfile.mkdtemp(prefix="doors-")) / "catalogue"
    make_catalogue(folder)
    os.environ[catalogue.FOLDER_VARIABLE] = str(folder)
    catalogue.MODELS, catalogue.SCALE = folder / "models", folder / "scale"


if __name__ == "__main__":
    _with_tiny_models()
    chosen = sys.argv[2] if len(sys.argv) > 2 else None
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, chosen))
