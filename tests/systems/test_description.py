"""Descriptions of systems from classes and docstrings, and the page in docs/ made from them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from moebench.substrate.models.catalogue import model_names
from moebench.systems import description
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.description import COMMAND, Description, described, document, natives
from moebench.systems.registry import NATIVE, POLICIES, VARIANTS

ROOT = Path(__file__).parents[2]

#: Baselines and bounds that no paper claims as its own.
PLAIN = {"belady", "gpu-only", "moe-ondemand"}

ALL = {f"{d.system} {d.variant}": d for d in described()}
PACKAGES = [*natives()]


def test_the_page_is_what_the_command_writes():
    assert (ROOT / "docs" / "systems.md").read_text(encoding="utf-8") == document(
        ALL.values(), PACKAGES
    ), f"type: {COMMAND}"


def test_every_system_and_variant_is_there():
    wanted = {f"{name} {variant}" for variant, names in VARIANTS.items() for name in names}
    assert set(ALL) == wanted


@pytest.mark.parametrize("found", ALL.values(), ids=ALL)
def test_each_says_where_it_is_from_and_where_it_deviates(found: Description):
    assert found.what
    assert found.paper or found.system in PLAIN, "set `paper` in its class"
    assert found.deviations or found.system in PLAIN, (
        "list them in the docstring, under a line that begins with Deviations"
    )
    assert all(found.decisions[d] in POLICIES[d] for d in POLICIES)
    assert all(text for text in found.rows.values())


def test_every_package_is_there_with_its_options_and_deviations():
    assert [d.system for d in PACKAGES] == sorted(NATIVE)
    for found in PACKAGES:
        assert found.what
        assert found.paper
        assert found.deviations
        assert found.options.keys() >= {"threads", "timeout_s", "memory_limit"}
        assert any("xverse-moe-a4.2b" in models for models in found.not_for.values())


def test_what_is_read_off_known_systems():
    smoe, daop, duoserve = (ALL[f"{n} published"] for n in ("smoe", "daop", "duoserve"))
    assert smoe.what.startswith("SMoE: prefetch important experts;")
    assert smoe.lossless == "no; with alpha=0"
    assert (duoserve.lossless, daop.lossless) == ("yes", "no")
    assert duoserve.calibration == {"prefetch": 64}
    assert duoserve.options == {"slots": "0"}
    assert duoserve.slots.endswith("at most 6 for deepseek-moe-16b, 2 for mixtral-8x7b")
    assert daop.host == "keeps experts and computes some"
    assert ALL["smoe shipped"].options == {
        "blocking_copies": "False", "synchronises": "True", "reads_unfinished": "True",
    }  # fmt: skip
    assert ALL["flashmoe published"].disk.endswith("one read at a time")
    assert ALL["gpu-only published"].what == "Everything resident, all on the device."
    (deviations,) = smoe.deviations.values()
    assert len(deviations) == 6
    assert deviations[1] == "Substitution happens in decode only; prefill is exact."


MODULE = """Mine: a sentence of
two lines.  More.

Deviations and readings, where
nobody says anything:

- One, that
  goes on.
- Two.
{tail}"""


@pytest.mark.parametrize("tail", ["", "\nWhat follows is no bullet.\n\n- Neither is this.\n"])
def test_how_a_docstring_is_read(tail: str):
    found = description._deviations([MODULE.format(tail=tail)])
    heading = "Deviations and readings, where nobody says anything:"
    assert found == {heading: ["One, that goes on.", "Two."]}


def test_what_is_not_modelled_counts_too():
    found = description._deviations([MODULE.format(tail="\nNot modelled:\n\n- Three.\n")])
    assert list(found.values()) == [["One, that goes on.", "Two."], ["Three."]]


def test_a_class_with_deviations_of_its_own_does_not_have_its_modules():
    own = "What it is.\n\nDeviations:\n\n- Its own."
    assert description._deviations([own, MODULE]) == {"Deviations:": ["Its own."]}
    assert description._deviations(["What it is.", "Nothing."]) == {}


@dataclass(kw_only=True)
class Limited(MoEOnDemand):
    max_batch = 2
    host_experts: int | None = 40

    def why_not(self, shape, batch):
        return "no kernels" if shape.family == "mixtral" else super().why_not(shape, batch)


def test_limits_are_said():
    found = description.description(f"{__name__}:Limited")
    assert found.rows["sequences at once"] == "2"
    assert found.disk == "all but 40 experts"
    assert set(found.not_for["no kernels"]) <= set(model_names())
    (missing,) = found.lists["It does not exist for:"]
    assert missing.endswith(": no kernels")
    assert "Notes of its runs (mixtral-8x7b, 64 slots):" not in found.lists
    assert found.what.startswith("Descriptions of systems from classes")  # it has no docstring
