"""Every command of docs/questions.md is accepted by moebench, and the cheap ones are run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from moebench.harness.cli.app import app
from moebench.harness.cli.completion import NAMES
from moebench.substrate.machines.compose import canonical, is_composed
from moebench.substrate.models.catalogue import scale_path
from tests.harness.cli.test_readme import FEW, FROM_FEW, LEARN
from tests.harness.commands import SCALE_MODEL, call
from tests.moebench.test_surface import COMMANDS as ALL

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")

#: The base of all that Typer raises for wrong usage.
WRONG_USAGE: Any = typer.BadParameter.__base__

#: A question, then commands, the later ones after ", then" or a comma.
COMMAND = r"`moebench [^`]+`"
ROW = re.compile(rf"^\| [A-Z][^|]+\? \| ({COMMAND}(?:, (?:then )?{COMMAND})*) \|$", re.M)


def commands(page: str) -> Iterator[str]:
    """Yield each command of a page's tables, without its first word."""
    for row in ROW.findall(page):
        yield from re.findall(r"`moebench ([^`]+)`", row)


COMMANDS = list(commands(PAGE))

#: Names that a reader replaces, or that an earlier command or the README's example creates.
THEIRS = {"RUN", "TRACE", "DIR", "OUT", "desk.yaml", "mine:MySystem"}
#: Runs may also be named by their systems (`moebench compare`).
FREE = {"runs"}

#: What makes a command cheap enough to carry out; others are only parsed.
CHEAP: dict[str, tuple[str, ...]] = {
    "run": FEW, "list": (), "sweep": ("--dry-run",), "reproduce": ("--dry-run",),
    "machines init": (), "machines show": (), "machines diff": (), "machines components": (),
    "machines compose": (), "machines list": (), "models list": (),
}  # fmt: skip
#: Runs that need a package, a GPU, the network, a model that is not tiny, or a reader's own files.
NEEDS_MORE = {
    "native-llamacpp", "cuda", "hub:", "olmoe-1b-7b", "qwen2-57b-a14b__arithmetic", "TRACE",
    "mine:MySystem",
}  # fmt: skip


def parse(line: str) -> tuple[str, Any]:
    """Return a command's name and its context, as the command line parses it."""
    words, command = shlex.split(line), typer.main.get_command(app)
    name: list[str] = []
    while hasattr(command, "commands") and words[:1] != ["--version"]:
        name.append(words.pop(0))
        command = command.commands[name[-1]]
    assert not words or name, "--version is parsed by the program itself"
    return " ".join(name), command.make_context(name[-1], words)


def unknown(context: Any) -> list[str]:
    """Return the systems, settings, machines, ... of a command that no catalogue has."""
    found = []
    for name, value in context.params.items():
        if name in NAMES and name not in FREE and value:
            names = {*NAMES[name](context), *THEIRS}
            given = value if isinstance(value, list) else str(value).split(",")
            of_parts = name == "machine" and is_composed(value) and canonical(value)
            found += [] if of_parts else [one for one in given if one not in names]
    return found


@pytest.mark.slow
def test_the_page_answers_with_every_command() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "?" in line]
    assert len(rows) == len(ROW.findall(PAGE)) >= 60
    assert {parse(line)[0] for line in COMMANDS if line != "--version"} == set(ALL)


def test_the_readme_names_the_page() -> None:
    assert "(docs/questions.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_accepted(line: str) -> None:
    if line == "--version":
        assert call(line).out.startswith("moebench ")
        return
    _, context = parse(line)
    assert unknown(context) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("run --system smoe --seting S3", "--seting"),
        ("run --setting S3", "--system"),
        ("run --system smoe --batch two", "--batch"),
        ("list system", "system"),
        ("show", "run"),
    ],
)
def test_parsing_refuses_a_wrong_command(line: str, why: str) -> None:
    with pytest.raises(WRONG_USAGE) as found:
        parse(line)
    assert why in found.value.format_message()


def test_names_that_no_catalogue_has_are_found() -> None:
    line = "sweep --systems smoe,smoo --settings S3,S9"
    assert unknown(parse(line)[1]) == ["smoo", "S9"]
    with pytest.raises(KeyError, match="runn"):
        parse("runn --system smoe")


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_models")
@pytest.mark.parametrize(
    "line",
    [line for line in dict.fromkeys(COMMANDS)
     if any(f"{line} ".startswith(f"{cheap} ") for cheap in CHEAP)
     and not NEEDS_MORE & {*shlex.split(line)}],
)  # fmt: skip
def test_a_cheap_command_of_the_page_does_what_it_says(line: str) -> None:
    words = shlex.split(line)
    more = CHEAP.get(words[0], CHEAP.get(" ".join(words[:2]), ()))
    if "--seeds" in words or "--json" in words:
        more = tuple(word for word in more if word != "--no-interval")
    if "--batch" in words:
        more = (*more, "--prompts", "4")
    if {*LEARN} & {*words}:
        more = (*more, *FROM_FEW)
    words = [str(scale_path(SCALE_MODEL)) if word == "DIR" else word for word in words]
    called = call(*words, *more)
    assert called.code == 0, called.err
    assert called.out or "--dry-run" in more or words[1] == "init"
