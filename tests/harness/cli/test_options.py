"""Typer parameters of run options, and commands that receive them by name."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.testing import CliRunner

from moebench.harness.cli.options import Changed, parameter, takes, takes_axes
from moebench.results.spec import OPTIONS, flag_of


def told(name: str, **changed: Any) -> tuple[Any, Any, Any]:
    """Return type, default and Typer's description of an option's parameter."""
    found = parameter(OPTIONS[name], Changed(**changed))
    kind, info = get_args(found.annotation)
    return kind, found.default, info


def words(info: Any) -> tuple[str, ...]:
    """Return the names that an option was given, of which Typer keeps the first apart."""
    names = (info.default, *(info.param_decls or ()))
    return tuple(name for name in names if isinstance(name, str))


def test_an_option_that_is_not_given_is_none() -> None:
    kind, default, info = told("batch")
    assert (kind, default) == (int | None, None)
    assert info.help.endswith(f" [{OPTIONS['batch'].shown or OPTIONS['batch'].default}].")
    kind, default, info = told("batch", default=3, min=2, help="Mine.")
    assert (kind, default, info.help, info.min) == (int, 3, "Mine.", 2)
    kind, default, info = told("weights")
    assert (kind, default) == (Path | None, None)
    kind, default, info = told("overrides")
    assert (kind, default, words(info)) == (list[str] | None, None, ("--set",))
    assert parameter(OPTIONS["overrides"]).name == "set_"


def test_switches_and_needed_options() -> None:
    switches = [name for name, option in OPTIONS.items() if option.plain is bool]
    assert switches
    for name in switches:
        kind, default, info = told(name)
        assert (kind, default) == (bool, False)
        assert words(info) == (() if OPTIONS[name].negatable else (OPTIONS[name].flag,))
    needed = [name for name, option in OPTIONS.items() if option.needed]
    assert needed == ["system"]
    kind, default, _ = told("system")
    assert (kind, default) == (str, parameter(OPTIONS["system"]).empty)
    assert told("system", default="smoe")[:2] == (str, "smoe")


def test_words_and_former_names() -> None:
    former = {name: option for name, option in OPTIONS.items() if option.former is not None}
    assert former
    for name, option in former.items():
        assert option.former is not None
        assert words(told(name)[2]) == (option.flag, flag_of(option.former[0]))
    units = [name for name, option in OPTIONS.items() if option.unit]
    assert units
    assert all(told(name)[0] == str | None for name in units)


def called(command: Any, *typed: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 0, done.output
    return done


def test_a_command_receives_what_was_typed_by_name() -> None:
    received: list[Any] = []

    @takes("batch", "prompts", "seed", prompts=Changed(default=4))
    def command(
        first: Annotated[str, typer.Argument()], given: dict[str, Any], last: bool = False
    ) -> None:
        """Do it."""
        received.append((first, given, last))

    called(command, "x", "--batch", "2")
    called(command, "y", "--last", "--prompts", "1")
    assert received == [("x", {"batch": 2, "prompts": 4}, False), ("y", {"prompts": 1}, True)]
    assert (command.__name__, command.__doc__) == ("command", "Do it.")
    names = list(command.__signature__.parameters)  # type: ignore[attr-defined]
    assert names == ["first", "batch", "prompts", "seed", "last"]


def test_a_command_receives_the_axes_of_a_sweep() -> None:
    received: list[Any] = []

    @takes_axes(batch=Changed("Mine."))
    def command(axes: dict[str, Any]) -> None:
        received.append(axes)

    called(command, "--batches", "1,2", "--systems", "smoe")
    called(command)
    assert received == [{"batch": "1,2", "system": "smoe"}, {}]
    text = called(command, "--help").output
    assert "Mine." in text
    assert OPTIONS["system"].help.split()[0] in text


def test_help_of_an_axis_is_the_options_unless_it_is_changed() -> None:
    @takes_axes()
    def command(axes: dict[str, Any]) -> None: ...

    found = command.__signature__.parameters  # type: ignore[attr-defined]
    axes = {option.axis: option for option in OPTIONS.values() if option.axis}
    assert list(found) == list(axes)
    for name, option in axes.items():
        _, info = get_args(found[name].annotation)
        assert info.help == option.help
        expected = (flag_of(name), flag_of(option.former[1])) if option.former else ()
        assert words(info) == expected
