"""`make card` on a GPU that is a part of this computer's memory."""

import json
from pathlib import Path

import pytest

from benchmarks import card
from moebench.harness.machines import calibrate, copies, disk, survey
from moebench.harness.published.rows import Row, read_rows
from moebench.substrate.errors import BudgetError
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.models.catalogue import scale_path
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.substrate.machines.fake_card import FakeCard


class Clock:
    """Seconds that pass only when a step says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float, said: str = "done") -> str:
        self.now_s += seconds
        return said


@pytest.fixture
def steps() -> tuple[card.Steps, Clock, list[str]]:
    clock, said = Clock(), list[str]()
    return card.Steps(100, clock, said.append), clock, said


@pytest.fixture
def short(monkeypatch, tmp_path) -> Path:
    """A scale model in place of the wide one, and few trials, on a fake RTX 5070."""

    def opens() -> FakeCard:
        opened = FakeCard(free=8 * 10**10)
        opened.name = "NVIDIA GeForce RTX 5070"
        return opened

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(accelerator, "Cuda", opens)
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    monkeypatch.setattr(calibrate, "PROMPTS", (8, 24))
    monkeypatch.setattr(calibrate, "ROWS", (1, 4))
    monkeypatch.setattr(calibrate, "TRIALS", 3)
    monkeypatch.setattr(calibrate, "PAIRS", 1)
    monkeypatch.setattr(disk, "DISK_BYTES", 8 << 20)
    monkeypatch.setattr(copies, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(card, "SIZES", (4096, 65536))
    monkeypatch.setattr(card, "SYSTEMS", "moe-ondemand,hybrimoe,llamacpp")
    monkeypatch.setattr(survey, "ask", lambda command: None)
    return tmp_path


def test_a_step_prints_one_line_with_its_time(steps):
    run, clock, said = steps
    run.run("copies", 30, lambda: clock.passes(12.4, "at most 20 GB/s"))
    assert said == ["copies: at most 20 GB/s (12 s)"]
    assert (run.done, run.failed) == (["copies"], [])


def test_a_failed_step_is_named_and_the_others_go_on(steps):
    run, clock, said = steps

    def fails() -> str:
        clock.passes(3)
        raise BudgetError("no memory")

    run.run("calibrate", 10, fails)
    run.run("validate", 10, lambda: "done", needs="calibrate")
    run.run("rows", 10, lambda: "3 rows")
    assert said == [
        "calibrate: failed: no memory (3 s)",
        "validate: skipped: it needs the result of calibrate",
        "rows: 3 rows (0 s)",
    ]
    assert (run.done, run.failed) == (["rows"], ["calibrate"])


def test_a_defect_of_the_code_is_no_failed_step(steps):
    with pytest.raises(ZeroDivisionError):
        steps[0].run("rows", 1, lambda: str(1 / 0))


def test_a_step_that_does_not_fit_is_skipped_and_named(steps):
    run, clock, said = steps
    run.run("copies", 90, lambda: clock.passes(70))
    run.run("calibrate", 31, lambda: "done")
    run.run("rows", 30, lambda: "3 rows")
    assert said[1:] == [
        "calibrate: skipped: about 31 s do not fit into the 30 s that remain", "rows: 3 rows (0 s)",
    ]  # fmt: skip
    assert not run.failed


def test_parts_of_a_step_are_skipped_when_the_longest_one_would_not_fit(steps):
    run, clock, _ = steps
    skip = run.skipper(40)
    assert skip("smoe") == ""
    clock.passes(35)
    assert skip("daop") == ""
    clock.passes(20)
    assert skip("llamacpp") == ""
    clock.passes(15)
    assert skip("flashmoe") == "skipped: about 35 s do not fit into the 30 s that remain"
    assert skip("duoserve").startswith("skipped: about 35 s")


@pytest.mark.slow
def test_all_steps_on_a_fake_card(short, tiny_models, capsys):
    code = card.main(["out", "--weights", str(scale_path(SCALE_MODEL)), "--store", "store"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    assert [line.partition(":")[0] for line in lines] == [
        "model", "copies", "rows", "calibrate", "validate",
    ]  # fmt: skip
    found = json.loads(Path("out/copies.json").read_text())
    assert [(one["bytes"], one["memory"]) for one in found["rates"]] == [
        (4096, "pinned"), (4096, "pageable"), (65536, "pinned"), (65536, "pageable"),
    ]  # fmt: skip
    assert all(one["gb_s"] > 0 for one in found["rates"])
    profile = load_profile("out/profile.yaml")
    assert (profile.gpu.name, profile.badge) == ("NVIDIA GeForce RTX 5070", "calibrated")
    assert OpKind.EXPERT in profile.measured.host
    assert "bf16" in profile.measured.what
    table = json.loads(Path("out/fidelity.json").read_text())
    assert [row["system"] for row in table["rows"]] == ["moe-ondemand", "hybrimoe", "llamacpp"]
    ondemand = table["rows"][0]
    # The simulated run computes in fp32, so that an expert may be chosen that bf16 does not.
    assert ondemand["bytes"]["measured"] == pytest.approx(ondemand["bytes"]["simulated"], rel=0.1)
    assert table["profile_hash"] == profile.content_hash()
    rows = read_rows(Path("out"))
    assert {row.gpu for row in rows} == {"RTX 5070"}
    repeat = json.loads(Path("out/repeat.json").read_text())
    assert {one["id"] for one in repeat} == {row.id for row in rows}
    assert all(one["measured_tok_s"] > 0 for one in repeat)
    # moebench reads the folder: its rows, and its profile as a machine.
    called = call("validate", "--published", "out", "--json")
    assert called.code == 0, called.err
    ran = call("run", "--system", "moe-ondemand", "--setting", "S3", "--machine",
               "out/profile.yaml", "--prompts", "1", "--new-tokens", "2", "--json")  # fmt: skip
    assert ran.code == 0, ran.err


def test_too_little_time_skips_every_step(short, tiny_models, capsys):
    weights = ("--weights", str(scale_path(SCALE_MODEL)))
    Path("out").mkdir()
    Path("out/profile.yaml").write_text("of yesterday")
    assert card.main(["out", *weights, "--minutes", "0.001"]) == 0
    assert not list(Path("out").iterdir())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(": skipped: " in line for line in lines)


def test_a_failed_calibration_ends_with_exit_code_1(short, tiny_models, monkeypatch, capsys):
    monkeypatch.setattr(FakeCard, "pin", lambda self, memory: _refuse())
    weights = ("--weights", str(scale_path(SCALE_MODEL)))
    assert card.main(["out", *weights, "--store", "store"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("copies: failed: cannot be pinned")
    assert lines[3].startswith("calibrate: failed: cannot be pinned")
    assert lines[4] == "validate: skipped: it needs the result of calibrate"


def _refuse() -> None:
    raise BudgetError("cannot be pinned")


def test_without_cuda_one_line_and_exit_code_2(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(accelerator._cuda, "is_available", lambda: False)
    assert card.main(["out"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("benchmarks.card: needs a CUDA device; ")
    assert not Path("out").exists()


def test_a_file_in_place_of_the_folder_is_refused_in_one_line(short, capsys):
    Path("out").write_text("")
    assert card.main(["out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "benchmarks.card: out: File exists; give a folder"


def test_devices_and_their_precisions_are_checked(short, tiny_models):
    asked = ("calibrate", "--model", SCALE_MODEL, "--out", "x.yaml")
    line = refused(*asked, "--device", "cuda", "--emulated-link", "4GB/s")
    assert "a GPU is behind its own link" in line
    assert "allowed: cpu, cuda" in refused(*asked, "--device", "tpu")
    assert "--precision 4bit: not measured" in refused(
        *asked, "--device", "cuda", "--precision", "4bit"
    )
    assert "has fp32; add --device cuda" in refused(*asked, "--precision", "bf16")
    validates = ("validate", "--profile", "a6000", "--model", SCALE_MODEL, "--precision", "bf16")
    assert "has fp32; add --device cuda" in refused(*validates)


def row(flags: str, **more: object) -> Row:
    return Row(id="a", model="m", quant="Q4", system="llama.cpp", other_flags=flags, **more)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-ngl 99 --n-cpu-moe 8 -t 8 (default pinned)", "-ngl 99 --n-cpu-moe 8 -t 8 -p 5 -n 7"),
        ('-ot "a=CPU,b=CPU", 20 threads, FA', "-ot a=CPU,b=CPU -t 20 -p 5 -n 7"),
        ("-ngl 49 -ser 6,1", "-ngl 49 -ser 6,1 -t 20 -p 5 -n 7"),
        ("all routed experts on CPU; -mla 1", None),
        ("-ngl 37 -ot (fit derived)", None),
        ("-ot blk 14-93 ffn=CPU; -rtr", None),
        ("-ngl 94, ser 4,1 (drops experts)", None),
        ("--fit on, 20 threads", None),
        ("-ngl 99 -ncmoe N of 48", None),
        ('-ot "a=CPU', None),
        ("", None),
    ],
)
def test_the_command_of_a_row_has_the_flags_that_it_states(flags, expected):
    found = card.command(row(flags, threads=20, prompt_tokens=5, new_tokens=7))
    assert found == ("" if expected is None else f"llama-bench -m 'm Q4' {expected}")


def test_a_sweep_s_prompt_is_in_its_cache_already():
    found = card.command(row("-ngl 9", notes="llama-sweep-bench", ubatch=512, prompt_tokens=8192))
    assert found == "llama-sweep-bench -m 'm Q4' -ngl 9 -ub 512"


@pytest.mark.parametrize(
    ("name", "gpu", "count", "same"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 1, True),
        ("NVIDIA GeForce RTX 4090", "RTX 4090D", 1, False),
        ("NVIDIA GeForce RTX 3090", "RTX 3090 (220 W limit)", None, True),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 2, False),
        ("NVIDIA RTX A6000", "A6000", 1, True),
        ("NVIDIA H200", "", 0, False),
    ],
)
def test_rows_are_of_one_gpu_with_the_same_name(name, gpu, count, same):
    assert card.same_gpu(name, row("", gpu=gpu, n_gpu=count)) is same


def test_the_link_s_data_sheet_is_its_lanes():
    found = survey.Survey({"link": "PCIe 4.0 x16"}, {})
    assert survey.link_gb_s(found) == pytest.approx(31.504)
    assert survey.link_gb_s(survey.Survey({}, {})) is None
