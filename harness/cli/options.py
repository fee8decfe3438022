"""Typer options of commands, built from the run options in `moebench.results.spec`.

A command that takes run options has the parameter ``given`` and names the options:

    @takes("system", "machine", "batch", batch=Changed(default=1, min=1))
    def command(given: dict[str, Any], store: STORE = DEFAULT_STORE) -> None:

It gets what was typed as `moebench.harness.run.rules.resolve` takes it.  Typer sees one parameter
for each option, in place of ``given``.
"""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from moebench.results.spec import OPTIONS, Option, flag_of

Command = Callable[..., Any]


class Changed(NamedTuple):
    """A command's own help, default or minimum for a run option.

    Attributes:
        help: "" keeps the option's.
        default: None leaves it to what is run.
        min: the least value.
    """

    help: str = ""
    default: Any = None
    min: float | None = None


UNCHANGED = Changed()


def takes(*names: str, **changed: Changed) -> Callable[[Command], Command]:
    """Decorate a command with run options; it receives the typed ones as ``given``.

    Args:
        names: of options, in the order of ``--help``.
        changed: by an option's name, what this command says of it.
    """
    mine = {name: parameter(OPTIONS[name], changed.get(name, UNCHANGED)) for name in names}

    def received(typed: Mapping[str, Any]) -> dict[str, Any]:
        from moebench.harness.arguments import given_of

        return given_of(typed)

    return _replacing("given", mine, received)


def takes_axes(**changed: Changed) -> Callable[[Command], Command]:
    """Decorate a command with an option for each sweep axis; it receives them as ``axes``."""
    mine = {
        name: Parameter(
            option.axis, Parameter.KEYWORD_ONLY, default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    *([flag_of(option.axis), flag_of(option.former[1])] if option.former else []),
                    help=changed.get(name, UNCHANGED).help or option.help,
                ),
            ],
        )
        for name, option in OPTIONS.items() if option.axis
    }  # fmt: skip
    return _replacing("axes", mine, lambda typed: {k: v for k, v in typed.items() if v is not None})


def parameter(option: Option, changed: Changed = UNCHANGED) -> Parameter:
    """Return a Typer parameter for a run option; None means "not given"."""
    kind: Any = option.plain
    words, default = [], changed.default
    if kind is bool:
        default = False
        words = [] if option.negatable else [option.flag]
    elif kind is dict:
        kind, words = list[str], [option.flag]
    elif option.former is not None:
        words = [option.flag, flag_of(option.former[0])]
    elif option.unit or option.word:
        kind = str
    elif option.path == "is":
        kind = Path
    counted = option.plain is int and option.default is not None
    shown = option.shown or (str(option.default) if counted else "")
    text = changed.help or option.help
    if default is None and shown:
        text = f"{text.removesuffix('.')} [{shown}]."
    if default is None and not option.needed:
        kind = kind | None
    return Parameter(
        "set_" if option.typed == "set" else option.typed or option.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is None and option.needed else default,
        annotation=Annotated[kind, typer.Option(*words, help=text, min=changed.min)],
    )


def _replacing(
    slot: str, mine: Mapping[str, Parameter], received: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Command], Command]:
    """Replace one parameter of a command by several, whose values it receives by name."""

    def decorate(command: Command) -> Command:
        own = {
            name: one.replace(kind=Parameter.KEYWORD_ONLY)
            for name, one in inspect.signature(command, eval_str=True).parameters.items()
        }
        place = list(own).index(slot)
        del own[slot]
        all_ = [*list(own.values())[:place], *mine.values(), *list(own.values())[place:]]

        def run(**typed: Any) -> Any:
            values = {name: typed.pop(one.name) for name, one in mine.items()}
            return command(**{slot: received(values)}, **typed)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = Signature(all_)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in all_}
        return run

    return decorate
