"""All systems at equal memory: which cells there are, and the rows that are made of their runs."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import equal_memory
from moebench.harness.reproduce.equal_memory import CARDS, EQUAL_MEMORY, SETTINGS
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.settings import settings
from moebench.harness.sweep.execute import jobs_of


def test_every_setting_has_every_system(evidence: Evidence) -> None:
    asked = equal_memory.OF_SETTING + equal_memory.OF_CARD
    assert sorted(asked) == sorted(settings())
    specs = [spec for experiment in (SETTINGS, CARDS) for spec in evidence.specs(experiment)]
    places = {(spec.setting, spec.model, spec.machine) for spec in specs}
    assert len(places) == len(asked)
    # XVERSE-MoE has no GGUF file, so that llama.cpp has no S2.
    assert len(specs) == len(asked) * len(equal_memory.SYSTEMS) - 1
    assert ("llamacpp", "S2") not in {(spec.system, spec.setting) for spec in specs}


def test_whole_cards_have_no_limit_of_slots(evidence: Evidence) -> None:
    for spec in evidence.specs(CARDS):
        assert (spec.slots, spec.cache_ratio, spec.precision) == (None, None, "4bit")


def run(system: str, ms: float, gb: float, **spec: Any) -> dict[str, Any]:
    place = {"setting": "S3", "model": "qwen2-57b-a14b", "machine": "a6000", "variant": "published"}
    return {
        "run_id": system, "badge": "estimate", "lossless": system != "smoe",
        "spec": {**place, "system": system, "overrides": {}, **spec},
        "metrics": {"tpot_ms": {"mean": ms}, "peak_device_bytes": gb * 1e9},
    }  # fmt: skip


def test_rows_state_the_memory_that_the_place_has(evidence: Evidence) -> None:
    card = {"setting": None, "model": "mixtral-8x22b", "machine": "a5000@duoserve"}
    runs = Runs([run("smoe", 80, 45.5), run("duoserve", 90.456, 8), run("acc", 9, 23, **card)])
    first, second, third = equal_memory._rows(runs)
    assert (first["setting"], first["tpot_ms"], first["lossless"]) == ("S3", 80, False)
    assert (second["memory_gb"], second["tpot_ms"], second["lossless"]) == (45.5, 90.46, True)
    assert (third["setting"], third["memory_gb"]) == ("U3", 23)


@pytest.mark.slow
def test_a_system_that_cannot_run_has_no_row_and_no_run_at_all_is_said(
    evidence: Evidence, tmp_path: Path
) -> None:
    with pytest.raises(MissingEvidenceError, match="no cell could be run"):
        EQUAL_MEMORY.make(evidence)
    job, *_ = jobs_of(evidence.specs(SETTINGS), evidence.planned)
    spec = job.spec.model_dump()
    evidence.store.queue([(job.cell_id, spec)])
    found = run(job.spec.system, 80, 45.5) | {
        "run_id": job.cell_id, "spec": spec, "simulated": True,
        "provenance": {"created": "2026-01-01T00:00:00+00:00"},
    }  # fmt: skip
    evidence.store.put(found, cell=(job.cell_id, spec))
    assert [one["run_id"] for one in evidence.present(SETTINGS)] == [job.cell_id]


def test_the_table_holds_the_runs_of_settings_and_of_whole_cards(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its badge is the lower of both, and its words are of the first run."""
    sizes = {"prompts": 3, "new_tokens": 24, "software": "lean"}
    card = {"setting": None, "model": "mixtral-8x22b", "machine": "a5000@duoserve"}
    given = {
        SETTINGS.name: Runs([run("smoe", 80, 45.5, **sizes) | {"badge": "datasheet"}]),
        CARDS.name: Runs([run("acc", 9, 23, **card)]),
    }
    monkeypatch.setattr(Evidence, "present", lambda self, experiment: given[experiment.name])
    found = EQUAL_MEMORY.make(evidence)
    assert [(row["setting"], row["system"], row["memory_gb"]) for row in found.rows] == [
        ("S3", "smoe", 45.5), ("U3", "acc", 23),
    ]  # fmt: skip
    assert found.badge == "estimate"
    assert found.note.startswith("batch 1, 3 prompts of 24 new tokens, lean software; ")
    fields = [axis.field for axis in found.columns]
    assert sorted(fields) == sorted(found.rows[0])
    assert EQUAL_MEMORY.needs == (SETTINGS, CARDS)
