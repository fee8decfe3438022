"""DAOP's speeds, energies and shares on runs by hand."""

from typing import Any

import pytest

from moebench.harness.reproduce import read
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures as m
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from tests.harness.reproduce.test_daop import energy, run


def test_runs_near_a_cache_ratio() -> None:
    runs = Runs([run("D1", "daop", ratio=ratio) for ratio in (0.25, 0.2599, 0.261, 0.5)])
    assert [one["spec"]["cache_ratio"] for one in m.at_ratio(runs, 0.25)] == [0.25, 0.2599]
    assert m.at_ratio(runs, None) is runs
    assert len(m.at_ratio(Runs([run("D1", "daop", ratio=0.01)]), 0.0)) == 0, "a hundredth is more"


def test_speeds_of_an_output() -> None:
    """4 s for the first token and 0.1 s for each of 511 or 127 more."""
    one = run("D1", "daop", ttft=4000, tpot=100)
    other = run("D2", "daop", ttft=0, tpot=100)
    far = run("D1", "fiddler", ttft=4000, tpot=200)
    runs = Runs([one, other, far])
    assert m.tokens_per_s(Runs([one]), 512) == pytest.approx(512 / 55.1)
    gain = (512 / 55.1) / (128 / 16.7) - 1
    none = (512 / 51.1) / (128 / 12.7) - 1
    assert m.gain_of_length("daop", runs) == pytest.approx(100 * (gain + none) / 2)
    assert m.speed("D1", "fiddler", 512)(runs) == pytest.approx(512 / 106.2)
    # Over both lengths: 255 more tokens, and 511 more, of which the longer gains more.
    assert m.greatest_over(("fiddler", "absent"), runs) == pytest.approx(106.2 / 55.1)
    assert m.greatest_over(("fiddler",), Runs([*runs, run("D2", "fiddler", tpot=500)])) == 5
    shared = m.of_shared_ratio(Runs([*runs, run("D1", "deepspeed-mii")]))
    assert {one["spec"]["system"] for one in shared} == {"daop", "fiddler"}


def test_energy_of_prefill_and_decode_by_lane() -> None:
    """Two prompts; the GPU's 80 J are 3/4 in decode, the host's 40 J all in prefill.

    Idle parts of 121 J are in decode for 5 of 6 s: each of five tokens takes a second.
    """
    one = energy("daop", 80.0, 40.0)
    one["spec"]["prompts"] = 2
    one["metrics"]["lanes"] = {"device": 8.0, "host": 5.0}
    idle, work = 121 / 2, 60 / 2
    each = idle / 6 + 20 / 2 + 40 / 2 + (idle * 5 / 6 + work) * 9 / 5
    assert m.tokens_per_kj(Runs([one]), 10) == pytest.approx(1e4 / each)
    both = Runs([one, energy("daop", 80.0, 0.0)])
    alone = 1e4 / m.tokens_per_kj(Runs([both[1]]), 10)
    assert m.tokens_per_kj(both, 10) == pytest.approx(1e4 / ((each + alone) / 2))
    with pytest.raises(MissingEvidenceError, match="no run has an energy"):
        m.tokens_per_kj(Runs([]), 10)


def test_efficiencies_against_others() -> None:
    def of(setting: str, system: str, gpu: float) -> Any:
        one = energy(system, gpu, 0.0)
        one["spec"]["setting"] = setting
        return one

    runs = Runs([of("D1", "daop", 80), of("D1", "fiddler", 800), of("D1", "moe-ondemand", 8),
                 of("D2", "daop", 80), of("D2", "fiddler", 80)])  # fmt: skip
    assert m.most_efficient(runs) == pytest.approx(1 / 3)
    ratio = m.efficiency("D1", "daop")(runs) / m.efficiency("D1", "fiddler")(runs)
    assert m.efficiency("D1", "daop")(runs) == pytest.approx(m.tokens_per_kj(Runs([runs[0]]), 256))
    assert m.efficiency_over_fiddler(runs) == pytest.approx((ratio + 1) / 2)


def test_components_of_table_1(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {m.MIGRATION: 12.0, m.DEVICE_BLOCK: 4.0, m.HOST_BLOCK: 9.0}

    def components(what: str, **of: str) -> list[dict[str, Any]]:
        assert of == {"source": "DAOP Table I"}
        return [{"charged": times[what]}]

    monkeypatch.setattr(read, "components", components)
    found = m.charged(m.HOST_BLOCK, times=2)(evidence)
    assert (found.value, found.badge) == (18, "estimate")
    assert m.charged(m.HOST_BLOCK)(evidence).value == 9
    over = m.migration_over_block(evidence)
    assert (over.value, over.badge) == (3, "estimate")
    for one in (found, over):
        assert one.conditions == "exact: a100@daop, as the cost model charges"
    moved = m.moved_over_weights()(evidence)
    assert moved.badge == "counted"
    assert moved.conditions == "exact; 16,384 of 352,321,536 bytes"


def test_shares_of_decode_by_system() -> None:
    def timed(system: str, link: float, host: float, stalls: dict[str, float]) -> Any:
        decode = {"lanes": {"h2d": link, "host": host}, "stall_ms": stalls}
        return run("D1", system, tpot=50, metrics={"decoded_tokens": 10, "decode": decode})

    runs = Runs([timed("daop", 100, 40, {"host": 10.0}), timed("daop", 200, 60, {}),
                 timed("fiddler", 500, 10, {"host": 10.0})])  # fmt: skip
    assert m.copying("daop")(runs) == pytest.approx(30)
    assert m.in_parallel("daop")(runs) == pytest.approx(90)
    assert m.in_parallel("fiddler")(runs) == 0


def test_figures_are_of_the_experiment_that_the_paper_shows(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Experiment] = []
    one = run("D1", "daop", prompts=3)
    one["spec"] |= {"new_tokens": 96, "routing": "drawn"}

    def runs(self: Evidence, *experiments: Experiment) -> Runs:
        asked.extend(experiments)
        return Runs([one])

    monkeypatch.setattr(Evidence, "runs", runs)
    for make in (m.of_timelines, m.by_ratio, m.at_setting):
        found = make(lambda runs: 7.0, "said")(evidence)
        assert (found.samples, found.badge) == ((7,), "estimate")
        assert found.conditions == "said; 3 prompts, 96 tokens decoded, drawn routing"
    assert asked == [e.TIMELINES, e.BY_RATIO, e.SPEED]
