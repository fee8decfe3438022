"""Fuzzing of output paths: unwritable ones are refused before anything is computed or changed."""

import csv
import json
from pathlib import Path

from hypothesis import strategies as st

from moebench.results.store import Store
from tests.fuzz_inputs import stores
from tests.fuzz_inputs.door import Case, Door, weighted
from tests.harness.commands import SMALL, Called

#: What writes something, and the option that says where.
WRITERS = {
    "--html": ("report",),
    "--csv": ("report",),
    "--latex": ("report",),
    "--timeline": ("run", "--system", "moe-ondemand", *SMALL),
    "--store": ("run", "--system", "moe-ondemand", *SMALL),
    "--out": ("trace", "synthesize", "--model", "mixtral-8x7b", "--like", "mixtral-8x7b",
              "--sequences", "1", "--prompt-tokens", "2", "--new-tokens", "2"),
}  # fmt: skip
RECORD = ("trace", "record", "--setting", "S3", "--workload", "arithmetic", "--prompts", "1",
          "--new-tokens", "2")  # fmt: skip
ACCURACY = ("accuracy", "--settings", "S3", "--workloads", "arithmetic", "--alphas", "0",
            "--prompts", "1", "--jobs", "1")  # fmt: skip

IN_THE_WAY = ("file/x", "file/x/y", "/proc/x", "/proc/1/x", "/dev/null/x", "", " ")
FOLDERS = ("folder", ".", "..", "/", "folder/")
FILES = ("file", "/dev/null")


def ready(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    (folder / "folder").mkdir()
    (folder / "folder" / "kept").write_text("kept")
    Store(folder / "s").put(json.loads(stores.document()))


@st.composite
def places(draw: st.DrawFn) -> Case:
    """Generate output paths that are blocked by a file or a folder."""
    option = draw(st.sampled_from(sorted(WRITERS)))
    files = option in ("--html", "--timeline")
    typed = draw(st.sampled_from((*IN_THE_WAY, *(FOLDERS if files else FILES))))
    base = WRITERS[option]
    if option == "--out" and draw(st.booleans()):
        base = draw(st.sampled_from([RECORD, ACCURACY]))
    if base is ACCURACY and typed == "file":
        typed = "folder"
    if base == ("report",):
        base = (*base, "--store", "s")
    if base is RECORD and typed == "/dev/null":
        typed = "file"
    arguments = (*base, f"{option}={typed}")
    return Case(arguments, ready, (option,) if typed.strip() else (), False,
                about=f"{base[0]} {option} {typed!r}")  # fmt: skip


FORMULAS = st.builds(
    "".join,
    st.tuples(st.sampled_from(["=", "+", "-", "@", "\t", "\r"]),
              st.text(alphabet="abA1!()\"',|\n", max_size=8)),
)  # fmt: skip


@st.composite
def formulas(draw: st.DrawFn) -> Case:
    """Generate names that a spreadsheet would execute, which tables must hold as text."""
    name = draw(FORMULAS)
    field = draw(st.sampled_from(["workload", "machine", "setting", "system"]))

    def prepare(folder: Path) -> None:
        document = json.loads(stores.document())
        document["spec"][field] = name
        Store(folder / "s").put(document)

    def right(called: Called) -> bool:
        with Path("out/runs.csv").open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        return not any(cell.startswith(("=", "@", "\t", "\r")) for cell in cells) and not any(
            cell.startswith(("+", "-")) and not _number(cell) for cell in cells
        )

    return Case(("report", "--csv", "out", "--store", "s"), prepare, (), True, right, "formula")


def _number(text: str) -> bool:
    return text[1:].replace(".", "").replace("e-", "").isdecimal()


DOOR = Door("outputs", weighted((4, places()), (1, formulas())), stores.document)
