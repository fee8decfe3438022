"""`moebench calibrate` and `validate`: what is measured with what, and what is printed of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.cli import calibrate as command
from moebench.harness.machines import calibrate, validate
from moebench.harness.machines import profile as profiles
from moebench.substrate.machines import accelerator
from moebench.substrate.models.catalogue import scale_path
from tests.harness.commands import SCALE_MODEL, call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

POINT = {"rows": 4, "pairs": 8, "ns": 1_234_500.0, "spread": 0.126}

MEASURED: dict[str, Any] = {
    "description": "this computer",
    "calibration": {"error": {"source": "fitted to 9 operations"}},
    "measured": {
        "device": {"expert": [POINT, {**POINT, "pairs": None, "rows": 1}]},
        "host": {"expert": [{**POINT, "ns": 2e6}]},
        "hand_off_ns": 65_000.0, "repeats": 3,
    },
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a calibration was given; it measures nothing."""
    given: list[Any] = []
    monkeypatch.setattr(calibrate, "calibrate", lambda *what: given.append(what) or MEASURED)
    monkeypatch.setattr(
        profiles, "write_profile", lambda profile, out: out.write_text(yaml.safe_dump(profile))
    )
    return given


def test_a_calibration_writes_its_profile_and_prints_its_times(asked: list[Any]) -> None:
    called = call("calibrate", "--model", SCALE_MODEL, "--out", "here.yaml", "--store", "runs")
    assert called.code == 0, called.err
    checkpoint = scale_path(SCALE_MODEL)
    assert asked == [(checkpoint, None, Path("runs"), None, "fp32")]
    assert yaml.safe_load(Path("here.yaml").read_text()) == MEASURED
    assert [line.split("\t") for line in called.out.splitlines()] == [
        ["side", "operation", "rows", "pairs", "ms", "middle half"],
        ["device", "expert", "4", "8", "1.234", "13%"],
        ["device", "expert", "1", "", "1.234", "13%"],
        ["host", "expert", "4", "8", "2", "13%"],
        ["part", "ms"],
        ["hand off", "0.065"],
    ]
    assert called.err == (
        "fitted to 9 operations; profile in here.yaml: use it with --machine here.yaml --model "
        f"{checkpoint.resolve() / 'config.json'} --precision fp32\n"
    )


def test_a_card_is_measured_in_bf16_unless_it_is_said(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "Cuda", lambda: "the card")
    (Path("weights")).mkdir()
    given = ("calibrate", "--weights", "weights", "--device", "cuda", "--out", "a.yaml", "--json")
    called = call(*given)
    assert called.out == json.dumps(MEASURED, sort_keys=True) + "\n"
    assert call(*given, "--precision", "fp16").code == 0
    assert call(*given[:3], "--emulated-link", "4GB/s", "--out", "b.yaml").code == 0
    assert [(weights, link, card, precision) for weights, link, _, card, precision in asked] == [
        (Path("weights"), None, "the card", "bf16"), (Path("weights"), None, "the card", "fp16"),
        (Path("weights"), 4.0, None, "fp32"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "tpu"), "--device tpu: allowed: cpu, cuda"),
        (("--device", "cuda", "--emulated-link", "4GB/s"), "--emulated-link: a GPU is behind"),
        (("--precision", "bf16"), "--precision bf16: the processor has fp32"),
        (("--weights", "x"), "give --weights DIR, or --model NAME"),
        (("--out", "."), "--out .: give a file in a folder that exists"),
        (("--out", "no/x.yaml"), "--out no/x.yaml: give a file in a folder that exists"),
        (("--out", "x.json"), "--out x.json: a profile's name ends in .yaml"),
        (("--out", "null.yaml"), "--out null.yaml: no plain file"),
        (("--store", "file"), "file is not a folder"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused_before_it_begins(
    options: tuple[str, ...], says: str, asked: list[Any]
) -> None:
    Path("file").write_text("")
    Path("null.yaml").symlink_to("/dev/null")
    assert says in refused("calibrate", "--model", SCALE_MODEL, "--out", "x.yaml", *options)
    assert asked == []


# ------------------------------------------------------------------------------ validate


def row(system: str, noisy: bool = False, moved: float = 2e9) -> dict[str, Any]:
    return {
        "system": system, "noisy": noisy, "spread": 0.021, "resident": [0.013, -0.02],
        "tpot_ms": {"measured": 10.0, "simulated": 10.5, "error": 0.05},
        "ttft_ms": {"measured": 100.0, "simulated": 90.0, "error": -0.1},
        "bytes": {"measured": 2e9, "simulated": moved},
        "hits": {"measured": 0.5, "simulated": 0.5},
    }  # fmt: skip


def document(**met: bool) -> dict[str, Any]:
    return {
        "profile": "here", "model": "m", "rows": [row("smoe"), row("daop", True, 3e9)],
        "not_possible": [{"system": "x", "reason": "needs more"}],
        "summary": {
            "met": {"tpot_mean": True, "tpot_worst": True, "ttft_worst": True, **met},
            "tpot_mean": 0.041, "tpot_worst": 0.052, "ttft_worst": 0.103, "rank_correlation": 0.9,
        },
    }  # fmt: skip


def test_a_validation_is_a_table_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    command._show(document())
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["system", "TPOT ms", "simulated", "error", "TTFT ms", "simulated", "error", "GB moved",
         "hits", "spread", "resident"],
        ["smoe", "10", "10.5", "+5.0%", "100", "90", "-10.0%", "2", "0.5", "2%", "+1% -2%"],
        ["daop (noisy)", "10", "10.5", "+5.0%", "100", "90", "-10.0%", "2 / 3", "0.5", "2%",
         "+1% -2%"],
    ]  # fmt: skip
    first, *_, last = err.splitlines()
    assert first == "not possible here: x: needs more"
    assert last == (
        "TPOT off by 4.1% in the mean and 5.2% at worst, TTFT by 10.3% at worst; rank correlation "
        "0.9; targets 5 %, 10 % and 10 %: met"
    )
    command._show(document(ttft_worst=False))
    assert capsys.readouterr().err.endswith(": not met\n")


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a validation was given; it runs nothing."""
    given: list[Any] = []
    monkeypatch.setattr(validate, "validate", lambda *what: given.append(what) or document())
    return given


def test_a_validation_of_named_systems_is_printed_and_written(validated: list[Any]) -> None:
    given = ("validate", "--profile", "a6000", "--model", SCALE_MODEL)
    called = call(
        *given, "--systems", "smoe,daop", "--set", "daop.place=by-id", "--repeats", "2",
        "--out", "table.json", "--store", "runs", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    request, store, _ = validated[0]
    assert called.json == document()
    text = Path("table.json").read_text()
    assert json.loads(text) == document()
    assert text.startswith('{\n "model"')
    assert text.endswith("}\n")
    assert store == Path("runs")
    given_ = {"cache_ratio": 0.25, "batch": 1, "prompts": 4, "new_tokens": 16}
    options = {"smoe": {}, "daop": {"place": "by-id"}}
    folder = scale_path(SCALE_MODEL)
    expected = validate.Request(Path("a6000"), folder, None, options, 2, given_, None)
    assert request == expected
    shown = call(*given)
    assert shown.out.startswith("system\tTPOT ms")
    request, store, _ = validated[1]
    assert list(request.systems) == command.SYSTEMS.split(",")
    assert (request.repeats, store) == (3, Path(".moebench"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--published", "--add-row", "x.csv"), "--add-row: checks one file and predicts nothing"),
        (("--published", "--systems", "smoe"), "--systems: not with --published, which runs no"),
        (("--add-row", "x.csv", "--json"), "--json: not with --add-row, which runs no system"),
        (("rows.csv",), "ROWS: only for published rows; add --published"),
        (("--html", "x.html"), "--html: only for published rows; add --published"),
        (("--left-out",), "--left-out: only for published rows"),
        ((), "--profile: give a profile of moebench calibrate, or --published"),
        (("--profile", "a6000", "--model", SCALE_MODEL, "--out", "."), "--out .: this is a folder"),
        (
            ("--profile", "a6000", "--model", SCALE_MODEL, "--systems", "smoe", "--set",
             "daop.place=by-id"),
            "--set daop.place=by-id: name the system, for example daop.place=by-id; systems here: "
            "smoe",
        ),
    ],
)  # fmt: skip
def test_a_validation_that_cannot_be_is_refused(
    options: tuple[str, ...], says: str, validated: list[Any]
) -> None:
    assert says in refused("validate", *options)
    assert validated == []
