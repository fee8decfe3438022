"""`moebench list`."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from moebench.harness.cli import list as catalogues
from moebench.substrate.models.catalogue import ANOTHER, model_shape, scale_names
from moebench.systems import description, registry
from moebench.systems.registry import SYSTEMS
from tests.harness.commands import SCALE_MODEL, call, refused

FIRST_COLUMN = {
    "systems": ("system", set(SYSTEMS)),
    "settings": ("setting", {"S1", "S2", "S3", "D1", "D2", "U1", "U2", "U3", "U4", "F1", "F2"}),
    "machines": ("machine", {"a6000", "a6000@daop", "rtx3080ti", "h200", "local"}),
    "workloads": ("workload", {"gsm8k", "arithmetic", "mmlu"}),
    "policies": ("name", {"lru", "expert-cache", "balanced", "by-id", "top-score"}),
    "models": ("model", {"mixtral-8x7b", "gpt-oss-20b", "deepseek-v3"}),
}


@pytest.mark.parametrize("what", FIRST_COLUMN)
def test_list(here: Path, what: str) -> None:
    key, names = FIRST_COLUMN[what]
    listed = call("list", what, "--json")
    assert (listed.code, listed.err) == (0, "")
    assert names <= {row[key] for row in listed.json}
    shown = call("list", what)
    assert (shown.code, shown.err) == (0, "")
    header, *rows = (line.split("\t") for line in shown.out.splitlines())
    assert key in header
    assert len(rows) == len(listed.json)
    assert {len(row) for row in rows} == {len(header)}
    assert all(cell for row in rows for cell in row[:2])
    assert list(here.iterdir()) == []


def test_list_settings_says_what_runs_at_once() -> None:
    rows = {row["setting"]: row for row in call("list", "settings", "--json").json}
    assert rows["S3"]["runs"] == "yes"
    assert rows["S3"]["model"] == SCALE_MODEL


def test_sizes_of_mixtral_are_those_of_its_matrices() -> None:
    """32 layers of 8 experts with 3 matrices of 4,096 × 14,336, two of them active."""
    (row,) = [
        one for one in call("list", "models", "--json").json if one["model"] == "mixtral-8x7b"
    ]
    expert = 3 * 4096 * 14_336
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024  # 8 of 32 heads have keys and values
    common = 32 * (attention + 8 * 4096 + 2 * 4096) + 2 * 32_000 * 4096 + 4096
    assert (row["layers"], row["experts"]) == (32, "8, top-2")
    assert row["expert_mb_bf16"] == f"{2 * expert / 1e6:.1f}"
    assert row["common_gb_bf16"] == f"{2 * common / 1e9:.2f}"
    assert row["params_b"] == f"{(common + 32 * 8 * expert) / 1e9:.2f}"
    active = common - 32_000 * 4096 + 32 * 2 * expert  # a token reads one row of the embedding
    assert row["active_b"] == f"{active / 1e9:.2f}"


def test_models_that_ship_a_scale_model_are_named() -> None:
    rows = {row["model"]: row["scale_model"] for row in call("list", "models", "--json").json}
    assert {name for name, ships in rows.items() if ships == "ships"} == set(scale_names())
    assert {ships for name, ships in rows.items() if name not in scale_names()} == {None}


# ------------------------------------------------------------------------------ other packages


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two systems of an installed package, one of which cannot be described, and a refused one."""
    usable = {name: SimpleNamespace(package="theirs", summary=f"does {name}") for name in "ba"}
    found = SimpleNamespace(usable=usable, refused={"c": "theirs c: broken"})
    monkeypatch.setattr(registry, "installed", lambda: found)
    own = description.description

    def described(name: str) -> Any:
        if name == "b":
            raise ValueError("b cannot be built")
        return replace(own("smoe"), system="theirs a")

    monkeypatch.setattr(description, "description", described)


@pytest.mark.usefixtures("package")
def test_systems_of_other_packages_come_last() -> None:
    listed = call("list", "systems", "--json")
    assert listed.err == "left out: theirs c: broken\n"
    assert listed.json[-2:] == [
        {"system": name, "what": f"of theirs: does {name}", "shipped": None, "earlier": None}
        for name in "ab"
    ]
    ours = listed.json[: len(SYSTEMS)]
    assert [row["system"] for row in ours] == sorted(SYSTEMS)
    assert {row["system"] for row in ours if row["shipped"]} == set(registry.SHIPPED)
    assert {row["system"] for row in ours if row["earlier"]} == set(registry.EARLIER)
    natives = listed.json[len(SYSTEMS) : -2]
    assert [row["system"] for row in natives] == sorted(registry.NATIVE)
    assert call("list", "machines").err == ""


@pytest.mark.usefixtures("package")
def test_one_that_cannot_be_described_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("moebench.harness.console.say_refused", lambda: None)
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            (found,) = catalogues._of_other_packages()
    assert found.system == "theirs a"
    assert out.getvalue() == "left out: b cannot be built\n"


# ------------------------------------------------------------------------------ in full


@pytest.mark.parametrize(("what", "first"), [("options", "option"), ("metrics", "figure")])
def test_options_and_metrics_are_tables_of_the_documentation(what: str, first: str) -> None:
    rows = call("list", what, "--json").json
    lines = call("list", what, "--long").out.splitlines()
    assert set(lines[0][2:-2].split(" | ")) == set(rows[0])
    assert lines[0].startswith(f"| {first} | ")
    assert lines[1] == f"|{' --- |' * len(rows[0])}"
    assert len(lines) == 2 + len(rows)
    text = "-" if rows[0][first] is None else rows[0][first]
    assert lines[2].startswith(f"| {text} | ")
    assert f"list {what} --long --json: allowed: systems" in refused(
        "list", what, "--long", "--json"
    )


@pytest.mark.slow
def test_systems_in_full_are_those_of_the_list() -> None:
    documents = call("list", "systems", "--long", "--json").json
    assert list(dict.fromkeys(one["system"] for one in documents)) == [
        row["system"] for row in call("list", "systems", "--json").json
    ]
    text = call("list", "systems", "--long").out
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "allowed: systems, policies, options, metrics" in refused("list", "machines", "--long")


@pytest.mark.parametrize("what", ["policies", "commands", "machines"])
def test_only_systems_in_full_are_json_too(what: str) -> None:
    line = refused("list", what, "--long", "--json")
    assert line == f"moebench: list {what} --long --json: allowed: systems"
    others = refused("list", "machines", "--long")
    assert "list machines --long: allowed: systems, policies, options, metrics, commands" in others


def test_a_terminal_is_told_how_to_use_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    terminal = Console(file=printed, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr("moebench.harness.console.stdout", lambda: terminal)
    assert call("list", "models").code == 0
    assert printed.getvalue() == f"{ANOTHER}\n"
    assert call("list", "settings").code == 0
    assert printed.getvalue() == f"{ANOTHER}\n"


def test_numbers_of_models_and_software_have_units() -> None:
    rows = {row["model"]: row for row in call("list", "models", "--json").json}
    shape = model_shape("mixtral-8x7b")
    row = rows["mixtral-8x7b"]
    assert (row["layers"], row["experts"]) == (32, "8, top-2")
    assert float(row["params_b"]) == pytest.approx(46.7, abs=0.05)
    # Two of eight experts of each layer, and no table of embeddings of 32,000 tokens.
    idle = 32 * 6 * 3 * 4096 * 14336 + 32000 * 4096
    assert float(row["active_b"]) == pytest.approx((shape.total_params - idle) / 1e9, abs=0.006)
    assert float(row["expert_mb_bf16"]) == pytest.approx(3 * 4096 * 14336 * 2 / 1e6, abs=0.05)
    common = shape.total_params - 32 * 8 * 3 * 4096 * 14336
    assert float(row["common_gb_bf16"]) == pytest.approx(common * 2 / 1e9, abs=0.006)
    software = {row["software"]: row for row in call("list", "software", "--json").json}
    assert (software["hf-eager"]["layer_us"], software["hf-eager"]["expert_us"]) == (1000, 130)
    assert software["ggml"]["launch_us"] == 3
    (here,) = [r for r in call("list", "machines", "--json").json if r["machine"] == "local"]
    assert here == {"machine": "local", "badge": "measured",
                    "what": "this computer: CPU, memory and disk"}  # fmt: skip


def test_policies_have_their_options_and_what_they_need() -> None:
    rows = call("list", "policies", "--json").json
    assert all({"decision", "name", "what", "options", "needs", "space"} == {*row} for row in rows)
    shown = call("list", "policies").out.splitlines()
    assert shown[0].split("\t") == ["decision", "name", "what", "options"]
    assert all(row["what"] and "\n" not in row["what"] for row in rows)
    for row in rows:
        options = row["options"].split()
        assert all(text.startswith(f"{row['decision']}.") and "=" in text for text in options)
