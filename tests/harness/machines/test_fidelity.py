"""Calibration of this computer, and validation of the profile with systems, on a scale model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from moebench.harness.machines import calibrate, disk, validate
from moebench.harness.machines.profile import write_profile
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import OpKind
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.harness.machines.test_profile import profile as measured_profile


@pytest.fixture
def short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    monkeypatch.setattr(calibrate, "PROMPTS", (8, 24))
    monkeypatch.setattr(calibrate, "ROWS", (1, 4))
    monkeypatch.setattr(calibrate, "TRIALS", 3)
    monkeypatch.setattr(calibrate, "PAIRS", 1)
    monkeypatch.setattr(disk, "DISK_BYTES", 8 << 20)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("below", [(), ("--emulated-link", "2GB/s")])
def test_calibrated_profile_is_complete_and_validation_compares_systems(below, short, tiny_models):
    called = call("calibrate", "--model", SCALE_MODEL, *below, "--out", "here.yaml", "--json")
    assert called.code == 0, called.err
    written = json.loads(called.out)
    profile = load_profile("here.yaml")
    assert (profile.badge, profile.measured.what) == ("calibrated", written["measured"]["what"])
    assert profile.calibration.error.ratio >= 0
    assert profile.measured.beside_copies >= 1
    assert (profile.measured.read_alone_ns > 0) is not bool(below)
    kinds = {OpKind.ATTEND, OpKind.GATE, OpKind.EXPERT, OpKind.COMBINE, OpKind.HEAD}
    assert kinds <= set(profile.measured.device)
    assert (OpKind.EXPERT in profile.measured.host) is bool(below)
    assert {p.rows for p in profile.measured.device[OpKind.EXPERT]} == {1, 4}

    called = call(
        "validate", "--profile", "here.yaml", "--model", SCALE_MODEL, *below,
        "--systems", "moe-ondemand,flashmoe,hybrimoe", "--set", "flashmoe.evict=lru",
        "--set", "flashmoe.prefetch=none", "--prompts", "2", "--new-tokens", "4",
        "--repeats", "1", "--out", "fidelity.json", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    table = json.loads(called.out)
    assert table == json.loads((short / "fidelity.json").read_text())
    assert [row["system"] for row in table["rows"]][:2] == ["moe-ondemand", "flashmoe"]
    # Its host computes experts, which a machine without an emulated link cannot tell apart.
    refused = [one["system"] for one in table["not_possible"]]
    assert refused == ([] if below else ["hybrimoe"])
    table["rows"] = table["rows"][:2]
    for row in table["rows"]:
        # No decision depends on time here, so loads and hits are equal.
        assert row["bytes"]["measured"] == row["bytes"]["simulated"] > 0
        assert row["hits"]["measured"] == row["hits"]["simulated"] > 0
        assert row["agreement"] == 1.0
        for figure in ("tpot_ms", "ttft_ms"):
            one = row[figure]
            over = one["over_resident"]
            error = over["simulated"] / over["measured"] - 1
            assert one["error"] == pytest.approx(error, abs=0.01)  # of four digits
            assert one["measured"] > 0
        assert len(row["resident"]) == 1  # of each run
    assert table["profile_hash"] == profile.content_hash()


def alternated(own: list[int], resident: list[int]) -> validate.Alternated:
    """A run of one prompt; a token of the resident model follows each of its own."""
    document = {
        "metrics": {"bytes_h2d": 5, "bytes_disk": 2, "experts": {"decode": {"hits": 3}}},
        "accuracy": {"agreement": 1.0}, "measured": {"noisy": False},
    }  # fmt: skip
    times = (validate.Times(one[:1], one[1:]) for one in (own, resident))
    return validate.Alternated(document, *times)


def test_drift_of_the_computer_cancels_in_pairs_of_tokens():
    resident, system = [500, 100, 100, 100], [1000, 200, 300, 250]
    drift = (1.0, 1.5, 2.0, 0.8)
    drifted = [[ns * d for ns, d in zip(one, drift, strict=True)] for one in (system, resident)]
    runs = [alternated(system, resident), alternated(*drifted)]
    simulated = runs[0].document
    times = validate.Times([1100], [210, 310, 260])
    found = validate.row(runs, simulated, times, validate.Times([500], [100, 100, 100]))
    assert found["tpot_ms"]["over_resident"] == {"measured": 2.5, "simulated": 2.6}
    assert found["tpot_ms"]["error"] == pytest.approx(0.04)
    assert found["ttft_ms"]["error"] == pytest.approx(0.1)
    assert found["bytes"] == {"measured": 7, "simulated": 7}
    assert found["spread"] == 0


def test_slowdown_is_that_of_the_resident_model_s_median_token():
    runs = [alternated([900, 9, 9, 9], [1, 120, 130, 500])]
    assert validate.slowdown(runs, validate.Times([1], [100, 100, 100])) == pytest.approx(1.3)


def test_the_profile_of_now_computes_slower_over_the_same_link(tmp_path):
    file = tmp_path / "here.yaml"
    write_profile(measured_profile(4.0), file)
    before = load_profile(str(file)).measured
    with validate.profile_of_now(file, 1.25) as path:
        now = load_profile(str(path)).measured
    assert now.device[OpKind.EXPERT][1].ns == 1.25 * before.device[OpKind.EXPERT][1].ns
    assert (now.gap_ns, now.wake_ns) == (1.25 * before.gap_ns, 1.25 * before.wake_ns)
    assert (now.load_ns, now.load_after_ns) == (before.load_ns, before.load_after_ns)
    with validate.profile_of_now(file, 1.0) as path:
        assert path == file


def rows(*pairs: tuple[float, float]) -> list[dict]:
    return [
        {
            figure: {"measured": real, "simulated": guess, "error": guess / real - 1}
            for figure in ("tpot_ms", "ttft_ms")
        }
        for real, guess in pairs
    ]


def test_the_summary_names_mean_worst_and_rank():
    found = validate.summary(rows((100, 104), (200, 188), (50, 51)))
    assert found["tpot_mean"] == pytest.approx((0.04 + 0.06 + 0.02) / 3, abs=1e-4)
    assert found["tpot_worst"] == found["ttft_worst"] == pytest.approx(0.06)
    assert found["rank_correlation"] == 1.0
    assert found["met"] == {"tpot_mean": True, "tpot_worst": True, "ttft_worst": True}
    found = validate.summary(rows((100, 260), (200, 150)))
    assert found["rank_correlation"] == -1.0
    assert not any(found["met"].values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("calibrate", "--out", "x.yaml"), "give --weights DIR, or --model NAME"),
        (("calibrate", "--model", "nope", "--out", "x.yaml"), "no scale model of it ships"),
        (("calibrate", "--model", SCALE_MODEL, "--out", "x.txt"), "ends in .yaml"),
        (("calibrate", "--model", SCALE_MODEL, "--out", "no/x.yaml"), "in a folder that exists"),
        (
            ("calibrate", "--model", SCALE_MODEL, "--out", "x.yaml", "--emulated-link", "fast"),
            "expected a rate, for example 4GB/s",
        ),
        (("validate", "--profile", "no.yaml", "--model", SCALE_MODEL), "no.yaml: cannot be read"),
        (
            ("validate", "--profile", "a6000", "--model", SCALE_MODEL, "--systems", "smeo"),
            "unknown system 'smeo'",
        ),
        (
            ("validate", "--profile", "a6000", "--model", SCALE_MODEL, "--set", "evict=lru"),
            "name the system, for example daop.place=by-id",
        ),
    ],
)
def test_invalid_calibrate_and_validate_options_are_refused(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(*arguments)


def test_the_ranks_of_one_system_correlate_with_nothing():
    def row(measured, simulated, tpot=0.0, ttft=0.0):
        both = {"measured": measured, "simulated": simulated}
        return {"tpot_ms": {**both, "error": tpot}, "ttft_ms": {"error": ttft}}

    found = validate.summary([row(1.0, 2.0, -0.05, 0.1)])
    assert found["rank_correlation"] is None
    assert (found["tpot_mean"], found["tpot_worst"], found["ttft_worst"]) == (0.05, 0.05, 0.1)
    assert found["met"] == {"tpot_mean": True, "tpot_worst": True, "ttft_worst": True}
    assert found["targets"] == {"tpot_mean": 0.05, "tpot_worst": 0.1, "ttft_worst": 0.1}
    found = validate.summary([row(1, 1, 0.12, -0.2), row(2, 3, 0.02), row(3, 2)])
    assert (found["tpot_mean"], found["tpot_worst"], found["ttft_worst"]) == (0.0467, 0.12, 0.2)
    assert found["met"] == {"tpot_mean": True, "tpot_worst": False, "ttft_worst": False}
    assert found["rank_correlation"] == 0.5


def test_a_profile_without_measurements_or_drift_is_used_as_it_is(tmp_path):
    file = tmp_path / "here.yaml"
    write_profile(measured_profile(4.0), file)
    with validate.profile_of_now(file, 1) as path:
        assert path == file
    with validate.profile_of_now(Path("a6000"), 1.25) as path:
        assert path == Path("a6000")
    with validate.profile_of_now(file, 1.25) as path:
        assert path != file
    assert not path.exists()


def test_a_package_that_runs_by_itself_cannot_be_compared():
    session = SimpleNamespace(spec=SimpleNamespace(title="deepspeed"))
    with pytest.raises(UsageError, match="deepspeed runs without moebench's engine"):
        validate._live(session)


def test_times_are_of_batches_and_of_the_tokens_after():
    ones = [SimpleNamespace(ttft_ns=5, steps_ns=[1, 2]), SimpleNamespace(ttft_ns=7, steps_ns=[3])]
    assert validate.times_of(ones) == ([5, 7], [1, 2, 3])


def test_the_spread_is_of_runs_and_errors_are_of_medians():
    fast, slow = alternated([100, 20, 20, 20], [10] * 4), alternated([100, 30, 30, 30], [10] * 4)
    times = validate.Times([120], [25, 25, 25])
    found = validate.row([fast, slow], fast.document, times, validate.Times([10], [10, 10, 10]))
    assert found["spread"] == round((3 - 2) / 2.5, 4)
    assert found["tpot_ms"]["over_resident"] == {"measured": 2.5, "simulated": 2.5}
    assert found["tpot_ms"]["error"] == 0
    assert found["ttft_ms"]["error"] == pytest.approx(0.2)
    assert found["ttft_ms"]["measured"] == 100 / 1e6
    assert found["ttft_ms"]["simulated"] == 120 / 1e6
    assert (found["agreement"], found["noisy"]) == (1.0, False)
    assert found["hits"] == {"measured": 3, "simulated": 3}
