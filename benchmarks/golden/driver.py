"""Runs moebench command lines in one process and records their documents and output.

    PYTHONPATH=CHECKOUT python driver.py JOBS.json OUT.json

It uses only moebench's command line, so that any version of moebench works.  Each job has a
``name`` and a ``kind``: ``document`` keeps the JSON document of the run ``argv`` and a hash of its
trace events, ``text`` the output and files of the command line ``name``.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import sys
import zlib
from pathlib import Path
from typing import Any

from moebench.harness.cli.app import main as moebench

#: Texts that differ between recordings of the same program, and their replacements.
VARIES = [
    (re.compile(r"\b[0-9a-f]{40}\b|\b[0-9a-f]{16}\b|\b[0-9a-f]{64}\b"), "<hash>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"), "<date>"),
    (re.compile(r"\b\d+(\.\d+)? (s|min|ms)( to go| left)?\b(?=.*(done|cells|left))"), "<time>"),
    (re.compile(r"(commit|wall_s|created|threads)(\s+)\S+"), r"\1\2<...>"),
]
VARYING_KEYS = {"commit", "wall_s", "created", "threads", "versions", "estimate_s"}
ID = re.compile(r"\b[0-9a-f]{12}\b")


def said(argv: list[str]) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = moebench(argv)
        except SystemExit as left:
            code = int(left.code or 0) if not isinstance(left.code, str) else 1
        except Exception as error:  # a traceback is a finding, not the end of the recording
            code, _ = -1, err.write(f"{type(error).__name__}: {error}")
    return code, out.getvalue(), err.getvalue()


class Ids:
    """Replaces run ids by numbers in the order in which they appear."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def plain(self, text: str) -> str:
        """Return a text without the parts that differ between recordings of one program."""
        for pattern, name in VARIES:
            text = pattern.sub(name, text)
        text = text.replace(os.getcwd(), "<here>")
        return ID.sub(lambda m: self.found.setdefault(m[0], f"<run {len(self.found) + 1}>"), text)

    def value(self, value: Any) -> Any:
        """Return a JSON value without the parts that differ between recordings of one program."""
        if isinstance(value, dict):
            return {self.plain(k): self.value(v) for k, v in value.items() if k not in VARYING_KEYS}
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.plain(value) if isinstance(value, str) else value

    def at(self, number: int) -> str:
        """Return the ``number``-th run id in order of appearance, counted from 1."""
        return [*self.found][number - 1]


def spans(file: Path) -> dict[str, Any]:
    """Return the number of events of a timeline, and a hash of them."""
    events = json.loads(file.read_text())["traceEvents"]
    text = json.dumps(events, sort_keys=True)
    return {"events": len(events), "hash": hashlib.sha256(text.encode()).hexdigest()}


def run_document(argv: list[str]) -> dict[str, Any]:
    """Return the document of a run and its spans, or its exit code and error."""
    trace = Path("trace-of-run.json")
    simulated = "local" not in argv
    more = ["--timeline", str(trace)] if simulated else []
    code, out, err = said([*argv, "--json", "--force", *more])
    if code:
        return {"exit": code, "said": Ids().plain(err)}
    found: dict[str, Any] = {"exit": 0, "document": json.loads(out)}
    if simulated:
        found["spans"] = spans(trace)
    return found


def files(folder: Path, ids: Ids) -> dict[str, str]:
    """Return the text of every file of a folder."""
    return {p.name: ids.plain(p.read_text(errors="replace")) for p in sorted(folder.glob("**/*.*"))}


def page(file: Path, ids: Ids) -> dict[str, Any]:
    """Return the text and the data of an HTML report page."""
    text = file.read_text()
    packed = re.findall(r'<script type="text/plain" id="(\w+)">([^<]*)</script>', text)
    data = {
        name: ids.value(json.loads(zlib.decompress(base64.b64decode(body))))
        for name, body in packed
    }
    bare = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.S)
    return {"text": ids.plain(re.sub(r"\s+", " ", bare)), "data": data}


def text_of(line: str, ids: Ids) -> dict[str, Any]:
    """Return the output of a command line and the content of the files that it writes."""
    argv = [ids.at(int(w[1:])) if re.fullmatch(r"@\d+", w) else w for w in shlex.split(line)]
    code, out, err = said(argv)
    printed = ids.value(json.loads(out)) if "--json" in argv and out else ids.plain(out)
    found: dict[str, Any] = {"exit": code, "out": printed}
    if code or not out:  # omit the progress of a successful run
        found["err"] = ids.plain(err)
    if "--html" in argv and not code:
        found["page"] = page(Path(argv[argv.index("--html") + 1]), ids)
    for option in ("--csv", "--latex"):
        if option in argv and not code:
            found[option] = files(Path(argv[argv.index(option) + 1]), ids)
    return found


def main(jobs: str, out: str) -> None:
    """Run all jobs and write their results to a file."""
    ids, found = Ids(), {}
    for job in json.loads(Path(jobs).read_text()):
        if job["kind"] == "document":
            found[job["name"]] = run_document(job["argv"])
        else:
            found[job["name"]] = text_of(job["name"], ids)
        print(job["name"], found[job["name"]]["exit"], file=sys.stderr, flush=True)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
