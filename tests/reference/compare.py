"""Compares the engine with the reference simulator, and checks laws on documents of all systems.

    python -m tests.reference.compare        # `make differential`

Prints each comparison, law and anomaly, and ends with exit code 1 if one is outside its tolerance.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from moebench.harness.cli.app import main as command
from tests.reference import laws
from tests.reference.cases import CATALOGUE, SETTINGS, cells, differences, engine, reference, wrong
from tests.reference.inputs import Trace

#: Prompts and tokens of each cell, and workloads whose routing is recorded.
PROMPTS, NEW_TOKENS, WORKLOADS = 6, 16, ("arithmetic", "passages")


def traces(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield each setting, workload and a trace of it, recorded in a folder."""
    shipped = {("S3", "arithmetic"): CATALOGUE / "traces" / "qwen2-57b-a14b__arithmetic"}
    for setting in SETTINGS:
        for workload in WORKLOADS:
            out = shipped.get((setting, workload), folder / f"{setting}-{workload}")
            if not out.exists():
                code = command([
                    "trace", "record", "--setting", setting, "--workload", workload, "--prompts",
                    str(PROMPTS), "--new-tokens", str(NEW_TOKENS), "--out", str(out),
                ])  # fmt: skip
                if code:
                    raise SystemExit(f"{setting} {workload}: no trace was recorded")
            yield setting, workload, out


def main() -> int:
    """Compare every cell, check every law, and return the exit code."""
    worst, compared, refused, failed = (0.0, ""), 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for setting, workload, folder in traces(Path(scratch)):
            trace = Trace(folder)
            for cell in cells([setting]):
                prompts = PROMPTS if setting != "S3" or workload != "arithmetic" else 3
                document = engine(cell, folder, prompts, NEW_TOKENS, Path(scratch) / "store")
                if "error" in document:
                    refused += 1
                    continue
                slots = document["spec"]["slots"]
                ours = reference(cell, trace, prompts, NEW_TOKENS, slots)
                found = differences(ours, document["metrics"])
                compared += 1
                tpot = max(abs(found["TPOT"]), abs(found["TTFT"]))
                worst = max(worst, (tpot, f"{cell} {workload}"))
                bad = wrong(found)
                failed += bool(bad)
                said = ", ".join(bad) or "agrees"
                print(f"{cell} {workload}: TPOT {found['TPOT']:+.1e}, {said}", flush=True)
        print(f"{compared} comparisons ({refused} cells do not exist), {failed} differ")
        print(f"largest difference of TPOT and TTFT: {worst[0]:.1e} ({worst[1]})")
        by_setting = {setting: trace for setting, _, trace in traces(Path(scratch))}
        broken = laws.check_all(by_setting, Path(scratch))
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
