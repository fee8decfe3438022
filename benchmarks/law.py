"""Measures the law of drawn routing on recordings of real models (`substrate.traces.law`).

    python -m benchmarks.law DATA_DIR

DATA_DIR holds recordings as ``traces/<model>__<workload>``.  They are read as targets are
(`harness.scale.targets.read_texts`): in windows of 256 tokens, up to where a text begins to loop.
Prints a line for each family (the median of its recordings), then the median of all families with
the lowest and highest:

- gini: Gini coefficient of an expert's use within a window;
- overlap 1: share of experts that a row and the one before have in common;
- used 64: share of experts that the first 64 rows of a window use;
- next, lasting: the numbers of the law with which two rows overlap, and 64 rows use, as many.
"""

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from moebench.harness.scale.targets import read_texts
from moebench.substrate.analysis.statistics import concentration_within, lag_overlap, used_share
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces import law
from moebench.substrate.traces.published import META, model_of

#: Rows whose distinct experts are counted.
ROWS = 64

COLUMNS = ("gini", "overlap 1", "used 64", "next", "lasting")


def solved(of: Callable[[float], float], wanted: float) -> float:
    """Return the correlation, 0 to 0.995, at which a monotonic function has a value; 4 decimals."""
    grid = np.linspace(0, 0.995, 2000)
    return round(float(grid[np.argmin([abs(of(one) - wanted) for one in grid])]), 4)


def figures(folder: Path) -> dict[str, float]:
    """Return the figures of a recording by column; those that it is too short for are left out."""
    texts = read_texts(folder)
    experts, top_k = texts.num_experts, texts.top_k
    windows = [RoutedSequence(w.ids_TLK, 0) for w in texts.windows if len(w.ids_TLK)]
    if not windows:
        return {}
    alike = float(lag_overlap(windows, 1).mean())
    used = used_share(windows, experts, ROWS)
    found = {
        "gini": concentration_within(windows, experts)["gini"],
        "overlap 1": alike, "used 64": used,
        "next": solved(lambda r: law.overlap(top_k, experts, r), alike),
        "lasting": solved(lambda r: law.used_share(ROWS, top_k, experts, r), used),
    }  # fmt: skip
    return {name: value for name, value in found.items() if not np.isnan(used) or name in
            ("gini", "overlap 1", "next")}  # fmt: skip


def main(data_dir: Path) -> None:
    """Print the table of all families in a data folder."""
    families: dict[str, list[dict[str, float]]] = defaultdict(list)
    for file in sorted((data_dir / "traces").glob(f"*/{META}")):
        name = model_of(file.parent).removesuffix("-chat").removesuffix("-instruct")
        families[name].append(figures(file.parent))
    lines = {
        name: {key: median(values) for key in COLUMNS
               if (values := [one[key] for one in each if key in one])}
        for name, each in families.items()
    }  # fmt: skip
    print("family", *COLUMNS, sep="\t")
    for name, line in lines.items():
        print(name, *(f"{line[key]:.3f}" if key in line else "-" for key in COLUMNS), sep="\t")
    columns = [sorted(line[key] for line in lines.values() if key in line) for key in COLUMNS]
    print("median", *(f"{median(one):.3f}" for one in columns), sep="\t")
    print("range", *(f"{one[0]:.3f}-{one[-1]:.3f}" for one in columns), sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
