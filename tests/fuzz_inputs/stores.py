"""Fuzzing of stores: documents, rows and files that were changed after writing."""

import json
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from moebench.results.store import Store
from tests.fuzz_inputs.door import Case, Door, weighted
from tests.harness.commands import Called, run

#: Read by every case; the bad run stands between two good ones.
BAD = "badbadbadbad"
READERS = (("report", "--json"), ("report",), ("report", "--csv", "out"), ("compare", "--json"),
           ("report", "--latex", "out"))  # fmt: skip


@cache
def document() -> str:
    """Return the document of a real run."""
    import os
    import tempfile

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return json.dumps(run("moe-ondemand"))
        finally:
            os.chdir(before)


def stored(text: Any, arguments: tuple[str, ...], good: bool | None, about: str) -> Case:
    """The good run's figures must be shown, and the bad one be named, or shown as well."""

    def prepare(folder: Path) -> None:
        store = Store(folder / ".moebench")
        one = json.loads(document())
        store.put(one)
        store.put(one | {"run_id": BAD})
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("UPDATE runs SET document = ? WHERE run_id = ?", (text, BAD))
            db.commit()

    def right(called: Called) -> bool:
        shown = called.out
        if "out" in arguments:
            shown = "".join(path.read_text() for path in Path("out").iterdir())
        name = json.loads(document())["run_id"]
        named = BAD in called.err and ".moebench" in called.err
        seen = name in shown or arguments[0] == "compare" or "--latex" in arguments
        return seen and (good is not False or (named and BAD not in shown))

    # Another condition than the good run's may be none to compare under.
    shut = None if good is None and arguments[0] == "compare" else True
    return Case(arguments, prepare, (), shut, right, about)


#: Commands that read the bad run alone: its figures, or one line.
BY_ID = (("show", BAD), ("show", BAD, "--json"), ("timeline", BAD), ("rm", BAD),
         ("gc", "--dry-run"), ("compare", BAD, BAD), ("report", "--html", "page.html"))  # fmt: skip

JUNK = st.one_of(
    st.sampled_from([None, True, 3, -1, "x", [], {}, [1], {"mean": "fast"}, 2**70, "", 1e300,
                     {"a": {"b": 1}}, float("nan"), float("inf")]),
    st.text(max_size=3),
)  # fmt: skip


def paths(value: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [above] if above else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths(inner, (*above, key))
    return found


def above(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the object that holds the value at a path."""
    for key in path[:-1]:
        document = document[key]
    return document


@st.composite
def fields(draw: st.DrawFn) -> Case:
    """Generate documents with a field of another type or value, or without it."""
    changed = json.loads(document()) | {"run_id": BAD}
    path = draw(st.sampled_from(paths(changed)))
    place = above(changed, path)
    if draw(st.booleans()):
        del place[path[-1]]
    else:
        place[path[-1]] = draw(JUNK)
    arguments = draw(st.sampled_from(READERS))
    return stored(json.dumps(changed), arguments, None, ".".join(path))


@st.composite
def by_id(draw: st.DrawFn) -> Case:
    """Generate damaged documents for the commands that read one run, or all that a store has."""
    changed = json.loads(document()) | {"run_id": BAD}
    path = draw(st.sampled_from(paths(changed)))
    place = above(changed, path)
    place[path[-1]] = draw(JUNK)
    text = draw(st.sampled_from([json.dumps(changed), json.dumps(place), "{}", "[]", "{", "null"]))
    case = stored(text, draw(st.sampled_from(BY_ID)), None, f"by id {'.'.join(path)}")
    return Case(case.arguments, case.prepare, (), None, about=case.about)


@st.composite
def texts(draw: st.DrawFn) -> Case:
    """Generate stored texts that are not documents."""
    text = draw(
        st.one_of(
            st.sampled_from(["", "{", "[]", "3", "null", "[" * 5000, '"x"', "{}", b"\xff\xfe", 7,
                             '{"run_id": "other"}', document()]),
            st.text(max_size=8),
        )
    )  # fmt: skip
    return stored(text, draw(st.sampled_from(READERS)), False, f"text {text!r:.20}")


@st.composite
def cells(draw: st.DrawFn) -> Case:
    """Generate cells with an invalid spec."""
    text = draw(st.one_of(st.sampled_from(["{", "[]", "null", '{"overrides": 3}', '{"batch": {}}',
                                           '{"system": [1]}', b"\xff", "[" * 5000, "{}"]),
                          st.text(max_size=4)))  # fmt: skip
    arguments = draw(
        st.sampled_from(
            [
                *READERS,
                (
                    "sweep",
                    "--systems",
                    "moe-ondemand",
                    "--settings",
                    "S3",
                    "--workloads",
                    "arithmetic",
                    "--dry-run",
                ),
            ]
        )
    )

    def prepare(folder: Path) -> None:
        store = Store(folder / ".moebench")
        store.put(json.loads(document()))
        store.fail("cellcell", {"system": "smoe"}, "an error", "its traceback")
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("UPDATE cells SET spec = ? WHERE cell_id = 'cellcell'", (text,))
            db.commit()

    return Case(arguments, prepare, (), True, about=f"cell {text!r:.20}")


@st.composite
def files(draw: st.DrawFn) -> Case:
    """Generate files at a store's path that are not stores, or of another program."""
    content = draw(st.one_of(st.sampled_from([b"\0" * 4096, b"no database" * 500, b"x"]),
                             st.binary(min_size=1, max_size=200)))  # fmt: skip
    arguments = draw(st.sampled_from(READERS))

    def prepare(folder: Path) -> None:
        (folder / ".moebench").mkdir()
        (folder / ".moebench" / "runs.sqlite").write_bytes(content)

    return Case(arguments, prepare, (".moebench",), False, about="file")


@st.composite
def cut_stores(draw: st.DrawFn) -> Case:
    """Generate databases with changed or truncated bytes."""
    place, cut = draw(st.floats(0, 0.999)), draw(st.booleans())
    byte = draw(st.integers(0, 255))

    def prepare(folder: Path) -> None:
        store = Store(folder / ".moebench")
        store.put(json.loads(document()))
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode = DELETE")
        whole = store.path.read_bytes()
        at = int(len(whole) * place)
        changed = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
        store.path.write_bytes(changed)

    return Case(draw(st.sampled_from(READERS)), prepare, (), None, about="cut store")


@st.composite
def names(draw: st.DrawFn) -> Case:
    """Generate invalid store paths."""
    places = ["", " ", "file", "file/below", "nowhere", "/proc/nowhere", "/dev/null"]
    running = ("run", "--system", "moe-ondemand", "--setting", "S3", "--prompts", "0")
    typed = draw(st.sampled_from(places))
    command = draw(st.sampled_from([("report",), ("compare",), running]))

    def prepare(folder: Path) -> None:
        (folder / "file").write_text("in the way")

    return Case((*command, f"--store={typed}"), prepare, (), False, about=f"--store {typed!r}")


DOOR = Door(
    "stores",
    weighted((8, fields()), (6, by_id()), (3, texts()), (2, cells()), (1, files()),
             (3, cut_stores()), (1, names())),
    document,
)  # fmt: skip
