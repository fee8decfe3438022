"""Error messages for wrong usage: which words are refused, and which options are named."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import app, usage_errors
from moebench.harness.cli.usage_errors import adapt_options, as_fields, check_typed, with_value
from moebench.substrate.errors import UsageError

assert app.app is usage_errors.program


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["run", "--alpha", "nan"], "--alpha nan: expected a finite number"),
        (["run", "--alpha= -Inf"], "--alpha  -Inf: expected a finite number"),
        (["advise", "--tpot-ms", "+infinity"], "--tpot-ms +infinity: expected a finite number"),
        (["run", "--system="], "--system '': expected a value after it"),
        (["run", "--system= "], "--system ' ': expected a value after it"),
        (["run", "--system", ""], "--system '': expected a value; see"),
        (["run", " "], "an argument ' ': expected a value; see"),
    ],
)
def test_words_without_a_value_are_refused(typed: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_typed(typed)
    assert str(caught.value).startswith(said)


def test_other_words_are_not_refused() -> None:
    for typed in (["run", "--system", "nan"], ["run", "--system=inf"], ["nan"], ["x=", "a"],
                  ["run", "--set", "a="], ["show", "inf"], []):  # fmt: skip
        check_typed(typed)


def error(*options: str) -> Any:
    return SimpleNamespace(param=SimpleNamespace(opts=options))


def test_the_typed_value_is_shown_once() -> None:
    said = "not a number"
    assert with_value(said, error("--n"), ["run", "--n", "x"]) == "--n x: not a number"
    assert with_value(said, error("--m", "--n"), ["--n=x"]) == "--n x: not a number"
    assert with_value("x is not one", error("--n"), ["--n", "x"]) == "x is not one"
    for typed in (["--n"], ["--m", "x"], []):
        assert with_value(said, error("--n"), typed) == said
    assert with_value(said, SimpleNamespace(), ["--n", "x"]) == said
    assert with_value(said, SimpleNamespace(param=None), ["--n", "x"]) == said


def test_options_of_other_commands_are_named_with_their_command() -> None:
    said = "--alpha 2: too large; give --weights DIR, or moebench models train --from X; then y"
    assert adapt_options(said, ["run", "--system", "smoe"]) == said
    assert adapt_options("give --prompts N", ["doctor"]) == "give --prompts (of moebench run) N"
    assert adapt_options("give --prompts N", ["doctor", "--prompts=3"]) == "give --prompts N"
    assert adapt_options("give --nosuch N", ["doctor"]) == "give --nosuch N"
    assert (
        adapt_options("--batch 3: no; --alpha", ["sweep", "x.yaml"]) == "--batches 3: no; --alphas"
    )
    assert adapt_options("give --weights", ["sweep"]) == "give weights (in the sweep's file)"
    assert adapt_options("give --weights", ["machines"]) == "give --weights"
    assert adapt_options("give --weights", []) == "give --weights"
    advised = "no; type: moebench run --weights DIR; or --weights"
    assert adapt_options(advised, ["doctor"]) == (
        "no; type: moebench run --weights DIR; or --weights (of moebench run)"
    )


def test_options_are_fields_in_a_file() -> None:
    said = "--batch 3 and --capacity: no; --set a=b; see moebench run --batch 1; --nosuch"
    assert as_fields(said) == (
        "`batch` 3 and `capacity`: no; `set` a=b; see moebench run --batch 1; --nosuch"
    )


def test_without_the_command_line_no_option_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_errors, "program", None)
    assert adapt_options("give --prompts N", ["doctor"]) == "give --prompts N"
    check_typed(["run", "--alpha", "nan"])


def test_numbers_with_decimals_are_known_in_every_version_of_typer() -> None:
    new = SimpleNamespace(type_descriptor=SimpleNamespace(annotation=float))
    whole = SimpleNamespace(type_descriptor=SimpleNamespace(annotation=int))
    assert usage_errors._is_float(new)
    assert not usage_errors._is_float(whole)
    assert usage_errors._is_float(SimpleNamespace(type=SimpleNamespace(name="float range")))
    assert not usage_errors._is_float(SimpleNamespace(type=SimpleNamespace(name="integer")))
    assert not usage_errors._is_float(SimpleNamespace())
