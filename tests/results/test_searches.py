"""Stored searches: read as they were written, and left out in one line where they are damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.results.searches import FOLDER, read_searches

SEARCH: dict[str, Any] = {
    "search": "0123456789ab", "limit_kl": None, "trials": {"evaluated": 2, "stopped": 1},
    "history": [
        {"trial": 0, "values": [1.0], "system": "fiddler", "stopped": False},
        {"trial": 1, "values": [3.5], "system": None, "stopped": True},
        {"trial": 2, "values": [0.9], "system": None, "stopped": False},
    ],
    "places": [{
        "place": "S1", "verdict": "10.0% faster than fiddler on new prompts", "better": True,
        "best_published": "fiddler", "ratio": 0.9, "probability_faster": 0.6,
        "found": {"name": "trial 2", "set": {"evict": "lfru", "assign": "host"}},
        "validation": [
            {"name": "trial 2", "published": False, "tpot_ms": 9.0, "kl": None, "memory_gb": 8.0},
            {"name": "fiddler", "published": True, "tpot_ms": 10.0, "kl": None, "memory_gb": 8.5},
            {"name": "acc", "published": True, "refused": "too little memory"},
        ],
        "held_out": [
            {"place": "prompts", "found_ms": 9.0, "best": "fiddler", "best_ms": 10.0, "ratio": 0.9,
             "clear": True},
            {"place": "link × 0.7", "found_ms": 9.9, "best": "fiddler", "best_ms": 10.0,
             "ratio": 0.99, "clear": False},
            {"place": "machine a100", "refused": "it does not fit"},
        ],
        "bound": {"clairvoyant_ms": 7.0, "information_ms": 8.0, "programs": {"tokens": 3}},
        "ablation": [], "live": {}, "seeds": {},
    }],
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    (folder / FOLDER).mkdir(exist_ok=True)
    file = folder / FOLDER / "0123456789ab.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_search_is_read(tmp_path: Path) -> None:
    assert read_searches(tmp_path) == ([], [])
    written(tmp_path, json.dumps(SEARCH))
    (found,), damaged = read_searches(tmp_path)
    assert damaged == []
    assert found.model_dump()["history"] == SEARCH["history"]
    pair = SEARCH | {"history": [{"trial": 4, "values": [1.5, 0.25]}]}
    written(tmp_path, json.dumps(pair))
    (trial,) = read_searches(tmp_path)[0][0].history
    assert trial.model_dump() == {
        "trial": 4, "values": [1.5, 0.25], "system": None, "stopped": False
    }  # fmt: skip
    (place,) = found.places
    assert place.found is not None
    assert place.found.set == {"evict": "lfru", "assign": "host"}
    assert place.bound.information_ms == 8.0


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "[" * 100_000, '{"search": 1}',
        json.dumps(SEARCH | {"history": [{"trial": 0, "values": []}]}),
        json.dumps(SEARCH | {"history": [{"trial": 0, "values": [float("nan")]}]}),
        json.dumps(SEARCH | {"history": [{"trial": 0, "values": [1.0, 2.0, 3.0]}]}),
        json.dumps(SEARCH | {"places": 5}),
        json.dumps(SEARCH | {"trials": {"evaluated": "many"}}),
        json.dumps(SEARCH | {"places": [SEARCH["places"][0] | {"found": {"name": "x"}}]}),
    ],
)  # fmt: skip
def test_a_damaged_one_is_left_out_in_one_line(text: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    found, (line,) = read_searches(tmp_path)
    assert found == []
    assert str(file) in line
    assert "\n" not in line


def test_a_folder_in_its_place_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "a.json").mkdir(parents=True)
    found, (line,) = read_searches(tmp_path)
    assert found == []
    assert "not a stored search" in line


def test_a_trial_has_one_objective_or_two(tmp_path: Path) -> None:
    history = [{"trial": 0, "values": [1.0]}, {"trial": 1, "values": [1.0, 2.0]}]
    written(tmp_path, json.dumps(SEARCH | {"history": history}))
    (found,), damaged = read_searches(tmp_path)
    assert damaged == []
    assert [one.values for one in found.history] == [[1.0], [1.0, 2.0]]
