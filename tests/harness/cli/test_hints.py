"""Every command that the source advises can be typed: it exists, and has these options."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from moebench.harness.cli.app import app

ROOT = Path(__file__).parents[3]
PACKAGES = ("substrate", "systems", "workloads", "results", "reports", "harness")

#: A command ends with what ends a sentence, or with what its words stand in.
_COMMAND = re.compile(
    r"(?<![\w./'-])(?<!--model )moebench ((?:trace|models|machines) )?([a-z-]+)((?: [^\n;`]*)?)"
)
#: After the name of the program in prose: "moebench is", "moebench reads".
_END = re.compile(r"[,:)](?: |$)|\.(?: |$)| (?:shows|names|writes|keeps|lists|checks|says|with|"
                  r"removes|takes|takes|where|and|or|in place|is|has|gives|which|that|to|prints|"
                  r"measures|finds|again|as|for|into|cuts|beside)(?= |$)")  # fmt: skip


#: Words after the program's name where it is spoken of, and nothing is to be typed.
_PROSE = {
    "raises", "or", "reads", "compares", "has", "writes", "store", "wrote", "process", "runs", "at",
    "is",
}  # fmt: skip


_EVERYWHERE = ("--help", "--install-completion", "--show-completion")


@cache
def program() -> Any:
    return typer.main.get_command(app)


def docstrings(tree: ast.Module) -> dict[int, ast.expr]:
    """Return the docstrings of a module, by identity."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            (first, *_) = node.body
            assert isinstance(first, ast.Expr)
            found[id(first.value)] = first.value
    return found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every string of a file with its line; X stands for values that are filled in.

    Of a docstring, which may be prose about moebench, only what is in backticks.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = docstrings(tree)
    inside = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
        for part in node.values
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values]
            yield node.lineno, "".join(parts)
        elif id(node) not in inside and isinstance(text := getattr(node, "value", None), str):
            quoted = "; ".join(re.findall(r"`+([^`]+)`+", text)) if id(node) in prose else text
            yield node.lineno, quoted  # type: ignore[attr-defined]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of ours that a text names."""
    for found in _COMMAND.finditer(" ".join(text.split("\n\n")).replace("``", "`")):
        words = f"{found[1] or ''}{found[2]}{_END.split(found[3])[0]}"
        try:
            split = shlex.split(words.replace("'", ""))
        except ValueError:
            continue
        if split and split[0] not in _PROSE:
            yield [word.strip("[]()") for word in split]


def hints() -> list[tuple[str, list[str]]]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in texts(path):
                where = f"{path.relative_to(ROOT)}:{line}"
                found += [(where, words) for words in commands(text)]
    return found


def problem(words: list[str]) -> str | None:
    """Why a command cannot be typed so; None if it can."""
    command, rest = program(), list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name in _EVERYWHERE:
            return None
        for one in name.split("|"):
            if one not in command.commands:
                return f"no command {one}"
        command = command.commands[name.split("|")[0]]
    options = {opt: p for p in command.params for opt in (*p.opts, *p.secondary_opts)}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            continue
        name, equals, _ = word.partition("=")
        if name in _EVERYWHERE:
            return None
        if name not in options:
            return f"no option {name}"
        # A sentence may end with the name of an option.
        if not options[name].is_flag and not equals and rest and rest[0].startswith("--"):
            return f"no value after {name}"
    return None


@pytest.mark.slow
def test_every_hint_can_be_typed() -> None:
    found = hints()
    assert len(found) > 60
    wrong = [
        f"{where}: moebench {' '.join(words)}: {said}" for where, words in found
        if (said := problem(words)) is not None
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rnu"], "no command rnu"),
        (["trace", "info", "--frob"], "no option --frob"),
        (["run", "--system", "--setting", "S3"], "no value after --system"),
        (["sweep", "--allow-overcommit"], "no option --allow-overcommit"),
    ],
)
def test_what_cannot_be_typed_is_found(words: list[str], says: str) -> None:
    assert problem(words) == says
