"""The page of all commands and their options."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from moebench.harness.cli.app import app
from moebench.harness.cli.command_page import COMMAND, commands, document
from moebench.harness.cli.parameters import argument, option
from tests.harness.commands import call

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"

Colour = StrEnum("Colour", "red green")


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(app), f"type: {COMMAND}"
    assert call("list", "commands", "--long").out == document(app)


def test_every_command_is_on_the_page_under_the_name_that_is_typed() -> None:
    names = [one.name for one in commands(app)]
    assert len(names) == len(set(names)) == document(app).count("\n## ")
    for name in names:
        called = call(*name.split(), "--help")
        assert called.code == 0, name
        assert called.out.startswith(f"Usage: moebench {name} "), name


def rows(command: Any) -> list[list[str]]:
    """Return the cells of the only command's rows, without padding."""
    own = typer.Typer()
    own.command("mine")(command)
    lines = [line for line in document(own).splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_rows_say_how_an_option_is_typed_its_values_and_its_default() -> None:
    def mine(
        context: typer.Context,
        out: Annotated[Path, argument("Folder.")],
        names: Annotated[list[str] | None, argument("Names.")] = None,
        new_tokens: Annotated[int, option("Tokens.", min=1, max=9)] = 4,
        share: Annotated[float | None, option("A share.", min=0.5)] = None,
        colour: Annotated[Colour, option("A colour.")] = Colour.green,
        how: Annotated[Literal["a", "b"], option("A way.")] = "a",
        all_: Annotated[bool, option("All.", "--all")] = False,
        fast: Annotated[bool, option("Fast.")] = True,
        states: Annotated[bool | None, option("States.", "--states/--none")] = None,
        jobs: Annotated[int, option("Jobs.", show_default="one per core")] = 7,
        old: Annotated[str, option("Two names.", "--old", "--older")] = "x|y",
    ) -> None:
        """Compute one table."""

    assert rows(mine) == [
        ["OUT", "path", "required", "Folder."],
        ["NAMES", "text, repeatable", "-", "Names."],
        ["`--new-tokens`", "whole number: at least 1, at most 9", "`4`", "Tokens."],
        ["`--share`", "number: at least 0.5", "-", "A share."],
        ["`--colour`", "`red`, `green`", "`green`", "A colour."],
        ["`--how`", "`a`, `b`", "`a`", "A way."],
        ["`--all`", "flag", "-", "All."],
        ["`--fast`, `--no-fast`", "flag", "`True`", "Fast."],
        ["`--states`, `--none`", "flag", "-", "States."],
        ["`--jobs`", "whole number", "one per core", "Jobs."],
        ["`--old`, `--older`", "text", "`x\\|y`", "Two names."],
    ]


def test_commands_of_groups_follow_those_of_the_application() -> None:
    def first_one() -> None:
        """Run one system.

        Its results are stored.
        """

    def second() -> None: ...

    own, group = typer.Typer(), typer.Typer()
    own.add_typer(group, name="group")
    group.command()(second)
    own.command()(first_one)
    assert [(one.name, one.what) for one in commands(own)] == [
        ("first-one", "Run one system."), ("group second", ""),
    ]  # fmt: skip
    assert "## first-one\n\nRun one system.\n\nIts results are stored.\n" in document(own)


def test_commands_are_listed_with_what_they_do() -> None:
    listed = json.loads(call("list", "commands", "--json").out)
    assert listed == [{"command": one.name, "what": one.what} for one in commands(app)]
    assert listed[0]["command"] == "run"
    shown = call("list", "commands").out
    assert all(one["what"] in shown for one in listed)
