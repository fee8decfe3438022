"""The options of a run: each field states one, and everything else is read from there."""

import shlex
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from moebench.harness.arguments import given_of
from moebench.harness.cli.list import Listing, markdown
from moebench.harness.cli.options import takes, takes_axes
from moebench.harness.run import repeat, rules
from moebench.harness.run.rules import refuse, resolve
from moebench.reports.compare.conditions import CONDITIONS, conditions
from moebench.results.spec import EVERY, OPTIONS, TYPED_ONLY, WHY, Kind, Option, RunSpec, options_of
from moebench.substrate.choices import Precision
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import BITS_PER_WEIGHT
from moebench.systems.options import build_any

ROOT = Path(__file__).parents[2]


def test_every_field_states_its_option() -> None:
    assert OPTIONS.keys() == RunSpec.model_fields.keys() | TYPED_ONLY.keys()
    for name, option in OPTIONS.items():
        assert option.name == name
        assert option.help.endswith("."), name
        assert ". " not in option.help, f"{name}: one sentence"
        assert option.plain in (str, int, float, bool, dict), name
        # Words alone may be typed or not; a negative form is one of a flag.
        assert not option.negatable or option.plain is bool
        assert not option.unit or option.plain is float


def test_a_field_without_an_option_is_refused() -> None:
    class Bare(RunSpec):
        quantum: int = 1

    with pytest.raises(TypeError, match=r"Bare.quantum: has no Option"):
        options_of(Bare)


def test_axes_and_flags_name_one_option_each() -> None:
    axes = [option.axis for option in OPTIONS.values() if option.axis]
    assert len(set(axes)) == len(axes)
    assert len({option.flag for option in OPTIONS.values()}) == len(OPTIONS)


def test_precisions_are_those_with_a_size() -> None:
    assert set(get_args(Precision)) == set(BITS_PER_WEIGHT)


def test_the_documentation_holds_the_table() -> None:
    """Else: `moebench list options --long`, into `docs/sweeps.md`."""
    assert markdown(Listing.options) in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


# ----------------------------------------------------------------------------- one more option


class More(RunSpec):
    quantum: Annotated[
        int, Field(gt=0),
        Option(help="Tokens of a step.", part="condition", axis="quanta", on=EVERY - {"trace"}),
    ] = 1  # fmt: skip


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Option:
    """An option that only this module has."""
    option = options_of(More)["quantum"]
    monkeypatch.setitem(OPTIONS, "quantum", option)
    return option


def test_a_new_field_is_an_option_and_an_axis(more: Option) -> None:
    received: list[dict[str, Any]] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @takes(*OPTIONS)
    def run(given: dict[str, Any]) -> None:
        received.append(given)

    @app.command()
    @takes_axes()
    def sweep(axes: dict[str, str]) -> None:
        received.append(axes)

    called = CliRunner().invoke(app, ["run", "--system", "smoe", "--quantum", "3"])
    assert called.exit_code == 0, called.output
    assert CliRunner().invoke(app, ["sweep", "--quanta", "1,2"]).exit_code == 0
    assert received == [{"system": "smoe", "quantum": 3}, {"quantum": "1,2"}]
    text = CliRunner().invoke(app, ["run", "--help"]).output
    assert "Tokens of a step [1]." in " ".join(text.split())


def test_a_new_field_is_a_condition_of_comparisons(more: Option) -> None:
    assert {one.name for one in conditions(OPTIONS.values())} == {
        "quantum", *(one.name for one in CONDITIONS)
    }  # fmt: skip
    (found,) = (one for one in conditions(OPTIONS.values()) if one.name == "quantum")
    assert found.default == "1"
    assert found.text(found.of({"spec": {"quantum": 4}})) == "4"
    assert found.text(found.of({"spec": {}})) == "1", "a run of an earlier version"


def test_a_new_field_is_refused_where_it_has_no_effect_and_repeated(more: Option) -> None:
    with pytest.raises(UsageError, match="--quantum and --trace: a trace has its own"):
        refuse({"system": "smoe", "quantum": 2}, "trace")
    refuse({"system": "smoe", "quantum": 2}, "drawn")
    assert repeat._options({"quantum": 2}) == ["--quantum", "2"]
    assert "| --quantum | quantum | --quanta | 1 | Tokens of a step. | trace |" in markdown(
        Listing.options
    )


# ----------------------------------------------------------------------------- kinds of run

TRACE = "qwen2-57b-a14b__arithmetic"

#: A run of each kind.
KINDS: dict[Kind, dict[str, Any]] = {
    "simulated": {"system": "smoe", "setting": "S3"},
    "local": {"system": "smoe", "setting": "S3", "machine": "local"},
    "card": {"system": "smoe", "setting": "S3", "machine": "local", "device": "cuda"},
    "native": {"system": "native-accelerate", "machine": "local", "model": "olmoe-1b-7b"},
    "computed": {"system": "smoe", "setting": "S3"},
    "trace": {"system": "moe-ondemand", "machine": "a6000", "trace": TRACE},
    "drawn": {"system": "smoe", "setting": "S3", "routing": "drawn"},
    "real": {"system": "smoe", "setting": "S3", "routing": "real"},
}

#: A value of each option that a kind of run refuses.
VALUES: dict[str, Any] = {
    "weights": "folder", "quant": "q4_0", "expert_dtype": "int4", "workload": "gsm8k",
    "allow_overcommit": True,
    "emulated_link_gb_s": 4.0, "page_cache": "keep", "device": "cpu", "seed": 0,
    "clairvoyant": True, "temperature": 0.7, "top_p": 0.9,
    "scoring": "generation", "few_shot": 1, "plain_prompts": True, "calibrate_from": "gsm8k",
    "calibrate_texts": 3, "context": 8, "routing": "drawn", "trace": TRACE,
    "reconstruct_scores": True, "alpha": 0.3,
}  # fmt: skip

REFUSED = [
    (kind, name) for kind in KINDS for name, option in OPTIONS.items() if kind not in option.on
]


def test_each_kind_says_why() -> None:
    assert WHY.keys() == {kind for option in OPTIONS.values() for kind in EVERY - option.on}
    assert {name for _, name in REFUSED} == VALUES.keys()


@pytest.mark.parametrize(("kind", "name"), REFUSED)
def test_an_option_without_effect_is_refused_by_name(kind: Kind, name: str) -> None:
    given = {**KINDS[kind], name: VALUES[name]}
    with pytest.raises(UsageError) as refused:
        resolve(None, **given)
    said = str(refused.value)
    assert said.startswith(OPTIONS[name].flag)
    assert said == WHY[kind].format(
        option=OPTIONS[name].flag, name=name, value=given[name], system=given["system"]
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "real"])
def test_an_option_with_effect_is_accepted(kind: Kind) -> None:
    resolve(None, **KINDS[kind])
    for name in VALUES:
        if kind in OPTIONS[name].on:
            refuse({**KINDS[kind], name: VALUES[name]}, kind)


@pytest.mark.parametrize("given", [{"allow_overcommit": False}, {"routing": "model"}])
def test_what_asks_for_nothing_is_no_reason_to_refuse(given: dict[str, Any]) -> None:
    assert resolve(None, **KINDS["native"], **given).native


# ----------------------------------------------------------------------------- what is typed


def test_what_is_typed_is_parsed_by_its_option() -> None:
    typed = {
        "system": "smoe", "weights": Path("w"), "device_memory_gib": "2GiB", "overrides": ["a=b"],
        "emulated_link_gb_s": "800MB/s", "batch": 2, "slots": None, "allow_overcommit": False,
    }  # fmt: skip
    assert given_of(typed) == {
        "system": "smoe", "weights": "w", "device_memory_gib": 2.0, "overrides": {"a": "b"},
        "emulated_link_gb_s": 0.8, "batch": 2,
    }  # fmt: skip
    assert given_of({"overrides": []}) == {}
    with pytest.raises(UsageError, match=r"--device-memory big: expected a size"):
        given_of({"device_memory_gib": "big"})


def test_the_repeated_command_spells_options_as_they_are_typed() -> None:
    spec = resolve(
        None, system="smoe", setting="S3", machine="local", emulated_link_gb_s=4.0,
        device_memory_gib=3.0, overrides={"evict": "lru"},
    )  # fmt: skip
    words = shlex.split(repeat.shortest(spec))
    assert words[words.index("--device-memory") + 1] == "3.0GiB"
    assert words[words.index("--emulated-link") + 1] == "4.0GB/s"
    assert "evict=lru" in words


def test_resolving_builds_the_system_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(name: str, *rest: Any) -> Any:
        built.append(name)
        return build_any(name, *rest)

    monkeypatch.setattr(rules, "build_any", counted)
    resolve(None, system="smoe", setting="S3", alpha=0.3)
    assert built == ["smoe"]


def test_defaults_and_names_are_those_of_stored_runs() -> None:
    """The hash of these is a run's id: they change only together with every id."""
    dumped = RunSpec(system="smoe", machine="a6000", model="m", workload="w").model_dump()
    assert dumped == {
        "system": "smoe", "variant": "published", "setting": None, "machine": "a6000",
        "software": "lean", "model": "m", "weights": None, "precision": "bf16",
        "expert_dtype": None, "workload": "w", "batch": 1, "prompts": 32, "new_tokens": 64,
        "cache_ratio": None, "slots": None, "allow_overcommit": False, "device_memory_gib": None,
        "free_host_gb": None, "emulated_link_gb_s": None, "page_cache": "bypass", "device": "cpu",
        "overrides": {}, "seed": 0, "scoring": "fixed-length", "few_shot": 0,
        "plain_prompts": False, "calibrate_from": None, "calibrate_texts": None,
        "routing": "model", "trace": None, "reconstruct_scores": False,
    }  # fmt: skip
    assert issubclass(RunSpec, BaseModel)
