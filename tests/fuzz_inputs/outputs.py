"""Fuzzing of output paths: unwritable ones are refused before anything is computed or changed."""

import csv
import json
from pathlib import Path

from hypothesis import strategies as st

from moebench.results.store import Store
from tests.fuzz_inputs import stores
from tests.fuzz_inputs.door import Case, Door, weighted
from tests.harness.acting import acts
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


#: Texts of every kind of character, acting ones and halves of surrogate pairs more often.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(
            "\x1b\x00\n\r\t\x9b\u2028\u202e\u200b\u061c\xad\U000e0041\ud800\udfff\\${}%&#<>\"'`|[]()!=+-@,;＝"
        ),
        st.characters(),
    ),
    max_size=12,
)
#: Every format that a stored text reaches.
FORMATS = (("report",), ("report", "--markdown"), ("report", "--html", "out.html"),
           ("report", "--csv", "out"), ("report", "--latex", "out"), ("compare",),
           ("report", "--figures", "out"), ("compare", "--markdown"), ("show", stores.BAD),
           ("timeline", stores.BAD, "--out", "out.json"))  # fmt: skip
#: Paths of a document's texts that are shown.
SHOWN = (("spec", "system"), ("spec", "setting"), ("spec", "model"), ("spec", "machine"),
         ("spec", "workload"), ("provenance", "commit"), ("badge",), ("notes",))  # fmt: skip


@st.composite
def hostile(draw: st.DrawFn) -> Case:
    """Generate stored texts that may act in a terminal or a file, for every format."""
    changed = json.loads(stores.document()) | {"run_id": stores.BAD}
    for *above, last in draw(st.lists(st.sampled_from(SHOWN), min_size=1, unique=True)):
        text = draw(TEXTS)
        (changed[above[0]] if above else changed)[last] = [text] if last == "notes" else text
    arguments = draw(st.sampled_from(FORMATS))

    def prepare(folder: Path) -> None:
        store = Store(folder / ".moebench")
        store.put(changed, [{"lane": "h2d", "kind": "load", "layer": 1, "experts": [2],
                             "start_us": 0.5, "end_us": 9.0}])  # fmt: skip

    def quiet(called: Called) -> bool:
        files = [file for file in Path().rglob("*") if file.suffix in SUFFIXES]
        texts = [called.out, called.err, *(file.read_text("utf-8") for file in files)]
        return not any(map(acts, texts))

    return Case(arguments, prepare, (), None, quiet, f"text in {' '.join(arguments)}")


SUFFIXES = (".html", ".csv", ".tex", ".json", ".svg")


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


DOOR = Door("outputs", weighted((6, hostile()), (3, places()), (1, formulas())), stores.document)
