"""Machines of parts as text: the YAML is the composed profile, in the catalogue's form."""

from typing import Any

import pytest
import yaml

from moebench.harness.machines import composed
from moebench.substrate.machines.compose import composed as data_of
from moebench.substrate.machines.parts import KINDS, parts, parts_of

TEXT = "rtx-3090+ryzen-9-5950x+ram=96"


def test_the_yaml_of_a_machine_is_its_profile() -> None:
    text = composed.as_yaml(TEXT)
    data = data_of(TEXT)
    assert yaml.safe_load(text) == data
    first, *rest = text.splitlines()
    assert first == f'# Made by: moebench machines compose "{data["name"]}"'
    for name in data:
        at = [n for n, line in enumerate(rest) if line.startswith(f"{name}:")]
        assert len(at) == 1
        if isinstance(data[name], dict):
            assert rest[at[0] - 1] == "", "a part begins after an empty line"
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_lines_of_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {
        "name": "a+b", "kind": "simple", "count": 2, "gpu": {
            "name": "RTX é", "cores": {"value": 3, "unit": "GB/s", "badge": "estimate",
                                       "source": "a: b"}, "pinned": True,
        },
    }  # fmt: skip
    monkeypatch.setattr(composed, "composed", lambda text: made | {"asked": text})
    assert composed.as_yaml("of these").splitlines() == [
        '# Made by: moebench machines compose "a+b"', 'name: "a+b"', "kind: simple", "count: 2",
        "", "gpu:", '  name: "RTX é"', "  cores:",
        '    {value: 3, unit: "GB/s", badge: estimate,', '     source: "a: b"}', "  pinned: true",
        'asked: "of these"',
    ]  # fmt: skip


def test_parts_have_a_row_each_in_the_order_of_their_kinds() -> None:
    rows = composed.part_rows()
    assert [row["part"] for row in rows] == [
        part.key for kind in KINDS for part in parts_of(kind)
    ]  # fmt: skip
    assert {row["part"] for row in rows} == set(parts())
    gpus = composed.part_rows("gpus")
    assert gpus == [row for row in rows if row["kind"] == "gpus"]
    (row,) = [row for row in gpus if row["part"] == "rtx-3090"]
    part = parts()["rtx-3090"]
    assert row == {
        "part": "rtx-3090", "kind": "gpus", "name": part.name, "what": part.summary(),
        "badge": part.badge, "estimated": [*part.estimated], "aliases": [*part.aliases],
        "source": part.source, "note": part.note,
    }  # fmt: skip
