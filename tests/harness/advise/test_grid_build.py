"""Building a grid: parts, commands for any context, and the error of interpolation."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import grid_build, grid_parts
from moebench.harness.advise.answer import Answer, Answers, Rate
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.grid import CONTEXT_MARK, Grid, read_grid
from moebench.harness.advise.grid_axes import BETWEEN, MODELS, contexts_of, machines
from moebench.harness.advise.grid_build import build_grid, commands
from moebench.harness.advise.grid_parts import Job, jobs, question_of
from moebench.harness.advise.question import Question
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import shape_names

CHOSEN = machines()[:2]
MODEL = {"qwen3-30b-a3b": ("q4_k_m",)}  # of 40,960 positions: three contexts


def rate(value: float) -> Rate:
    return Rate(value, 0.8 * value, 1.25 * value)


def answer(question: Question, **changed: object) -> Answer:
    """An answer whose rates fall with the context."""
    values = {
        "engine": "llama.cpp", "config": "in words", "decode": rate(1e5 / question.lengths.context),
        "configuration": Configuration(engine="llama.cpp", host_layers=3, other=("--a", "b")),
        "prefill": rate(1234.5), "ttft_s": 1.0, "request_s": 2.0, "device_gib": 10.0,
        "host_gib": 20.0, "disk_gib": 0.0, "quality": "lossless", "verdict": "fits", "fits": "fits",
        "checked": True, "binds": "link", "remarks": ("one", "two"),
    }  # fmt: skip
    return Answer(**values | changed)  # type: ignore[arg-type]


def asked(question: Question, engines: Sequence[str]) -> Answers:
    lossy = answer(question, engine="vllm", quality="KV cache in q8_0", prefill=None, fits="pages")
    return Answers(
        question=question, rows=[answer(question), lossy], verdict="fits: 10.0 GiB",
        largest_context=0, left_out={"freetoken": "needs more"},
    )  # fmt: skip


def written(config: Configuration, question: Question) -> tuple[str, str]:
    return f"run -c {question.lengths.context} -ub 2048 --n {config.host_layers}", "a note"


def built(folder: Path, **changed: object) -> Grid:
    values = {"processes": 1, "ask_for": asked, "write": written} | changed
    return build_grid(CHOSEN, MODEL, folder, **values)  # type: ignore[arg-type]


def test_a_grid_has_the_answers_of_all_machines(tmp_path: Path) -> None:
    grid = built(tmp_path)
    assert [(p.machine, p.context) for p in grid.points] == [
        (m, c) for m in (0, 1) for c in (2048, 8192, 32768)
    ]
    first, second = grid.points[0].rows
    assert (first.decode, first.decode_high, first.prefill) == (48.8, 61, 1230)
    assert first.remarks == "one\ntwo"
    assert (first.lossless, second.lossless, second.prefill) == (True, False, None)
    point = grid.points[0]
    assert (point.verdict, point.fits, point.largest_context) == ("Fits: 10.0 GiB.", True, None)
    assert point.left_out == "freetoken: needs more"
    assert grid.machines == tuple(shown for shown, _ in CHOSEN)


def test_a_command_serves_every_context(tmp_path: Path) -> None:
    rows = [point.rows[0] for point in built(tmp_path).points]
    assert {row.command for row in rows} == {f"run -c {CONTEXT_MARK} -ub 2048 --n 3"}
    assert rows[0].notes == "a note"

    def odd(config: Configuration, question: Question) -> tuple[str, str]:
        return f"run -c {question.lengths.context} -p {question.lengths.context // 2}", ""

    assert built(tmp_path, write=odd).points[0].rows[0].command == "run -c 2048 -p 1024"


def test_a_stopped_build_goes_on(tmp_path: Path) -> None:
    calls: list[Question] = []

    def dying(question: Question, engines: Sequence[str]) -> Answers:
        calls.append(question)
        if question.hardware == CHOSEN[1][1]:
            raise KeyboardInterrupt
        return asked(question, engines)

    with pytest.raises(KeyboardInterrupt):
        built(tmp_path, ask_for=dying)
    assert len([*tmp_path.glob("*.json")]) == 1
    calls.clear()
    steps: list[tuple[int, int]] = []

    def counted(question: Question, engines: Sequence[str]) -> Answers:
        calls.append(question)
        return asked(question, engines)

    grid = built(tmp_path, ask_for=counted, step=lambda *done: steps.append(done))
    assert {question.hardware.ram_gib for question in calls} == {CHOSEN[1][1].ram_gib}
    assert steps == [(1, 2), (2, 2)]
    assert grid == built(tmp_path / "whole")


def test_several_processes_build_the_same_grid(tmp_path: Path) -> None:
    assert built(tmp_path / "two", processes=2) == built(tmp_path / "one")


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"key": "of other code", "points": []}'])
def test_a_part_that_cannot_be_used_is_computed_again(tmp_path: Path, damage: str) -> None:
    whole = built(tmp_path)
    for file in tmp_path.glob("*.json"):
        file.write_text(damage)
    assert built(tmp_path) == whole


def test_parts_of_other_code_are_used_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = built(tmp_path)
    monkeypatch.setattr(grid_parts, "code", lambda: "other")

    def never(question: Question, engines: Sequence[str]) -> Answers:
        raise AssertionError(question)

    assert built(tmp_path, ask_for=never, as_is=True) == whole
    with pytest.raises(AssertionError):
        built(tmp_path, ask_for=never)


def test_what_cannot_be_asked_is_a_verdict(tmp_path: Path) -> None:
    def refuse(question: Question, engines: Sequence[str]) -> Answers:
        raise UsageError("no such machine")

    point = built(tmp_path, ask_for=refuse).points[0]
    assert (point.verdict, point.rows) == ("Not predicted: no such machine.", ())
    assert not point.fits


def test_the_error_of_interpolation_is_that_of_sampled_parts(tmp_path: Path) -> None:
    grid = built(tmp_path)
    decode, prefill = grid.errors
    # Both parts have 4,096 and 16,384; 1e5 / context falls by more than a line through it.
    assert (decode.phase, decode.figures, prefill.figures) == ("decode", 8, 4)
    assert 0.02 < decode.median <= decode.p90 <= decode.largest < 0.3
    assert prefill.largest == 0


def test_one_engine_is_asked_of_a_model_far_larger_than_the_memory(tmp_path: Path) -> None:
    engines: list[Sequence[str]] = []

    def noted(question: Question, names: Sequence[str]) -> Answers:
        engines.append(names)
        return asked(question, names)

    grid = build_grid(CHOSEN[:1], {"kimi-k2": ("q4_k_m",)}, tmp_path, processes=1, ask_for=noted,
                      write=written)  # fmt: skip
    assert {*engines} == {("llama.cpp",)}
    assert "other engines: most of the model would be read" in grid.points[0].left_out


def test_every_sixteenth_part_has_the_contexts_in_between() -> None:
    found = jobs(machines(), MODELS)
    sampled = [job for job in found if {context for _, context in job.asked} & {*BETWEEN}]
    assert len(found) / 20 < len(sampled) < len(found) / 10
    assert len({job.machine for job in sampled}) > 10
    assert len({job.name(machines()[job.machine][0]) for job in found}) == len(found)


def test_the_axes_are_at_least_twelve_models_and_fourteen_machines() -> None:
    shown = [machine for machine, _ in machines()]
    assert len(shown) == len({machine[:2] for machine in shown}) >= 14
    assert len(MODELS) == 12
    assert {*MODELS} <= {*shape_names()}
    assert contexts_of("qwen3-30b-a3b") == [2048, 8192, 32768]
    assert len(jobs(machines(), MODELS)) == len(shown) * 12


def test_every_machine_can_be_asked_about() -> None:
    for at, (_, hardware) in enumerate(machines()):
        found = question_of(Job(at, hardware, "gpt-oss-20b", ()), "mxfp4", 8192)
        text, notes = commands(Configuration(engine="llama.cpp", host_layers=0), found)
        assert "8192" in text
        assert "llama.cpp" in notes.splitlines()[0]
        room = found.lengths._replace(context=grid_build.STAND_IN)
        again, _ = commands(Configuration(engine="llama.cpp", host_layers=0),
                            replace(found, lengths=room))  # fmt: skip
        assert again.replace(str(grid_build.STAND_IN), "8192") == text


@pytest.mark.slow
def test_the_command_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid_build, "machines", lambda: machines()[-3:-2])
    monkeypatch.setattr(grid_build, "MODELS", {"gpt-oss-20b": ("mxfp4",)})
    out, parts = tmp_path / "out" / "g.json.gz", tmp_path / "parts"
    assert grid_build.main([str(out), "--parts", str(parts), "--processes", "1"]) == 0
    said = capsys.readouterr().err
    assert "4 points" in said
    assert "error of interpolated decode: median" in said
    grid = read_grid(out)
    assert all(point.rows for point in grid.points)
    assert len(json.loads(next(parts.glob("*.json")).read_text())["points"]) == 7
    (tmp_path / "file").write_text("")
    assert grid_build.main([str(tmp_path / "file" / "g.json"), "--parts", str(parts)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_writes_a_grid_and_says_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    grid = built(tmp_path / "parts")

    def build(*what: Any, **more: Any) -> Grid:
        more.pop("step")(1, 2)
        given.append((what[1:], more))
        return grid

    monkeypatch.setattr(grid_build, "build_grid", build)
    file = tmp_path / "grid.json.gz"
    assert grid_build.main([str(file), "--parts", "p", "--processes", "3", "--as-is"]) == 0
    assert given == [((MODELS, Path("p")), {"processes": 3, "as_is": True})]
    assert read_grid(file).points == grid.points
    said = capsys.readouterr().err.splitlines()
    size = file.stat().st_size / 1e6
    assert said[:2] == [
        "grid of advice: 1/2", f"wrote {file}: {len(grid.points)} points, {size:.2f} MB"
    ]  # fmt: skip
    first = grid.errors[0]
    assert said[2] == (
        f"error of interpolated decode: median {first.median:.2%}, 90 % below {first.p90:.2%}, at "
        f"most {first.largest:.2%} of {first.figures}"
    )

    def refuse(*what: Any, **more: Any) -> Grid:
        given.append((what[1:], more))
        raise UsageError("no such part")

    monkeypatch.setattr(grid_build, "build_grid", refuse)
    assert grid_build.main([str(tmp_path / "other")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "no such part"
    assert given[1][0] == (MODELS, grid_build.PARTS)
    assert (given[1][1]["processes"], given[1][1]["as_is"]) == (None, False)
    assert not (tmp_path / "other").exists()
    written: list[Path] = []
    monkeypatch.setattr(grid_build, "build_grid", build)
    monkeypatch.setattr(grid_build, "write_grid", lambda out, grid: written.append(out))
    assert grid_build.main([]) == 0
    assert written == [grid_build.FILE]


def test_commands_and_their_notes_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs(CHOSEN[:1], MODEL)[:1]
    question = question_of(job, "q4_k_m", 2048)
    found = SimpleNamespace(lines=("a", "b"), version="v1", notes=("c", ""))
    monkeypatch.setattr(grid_build, "command", lambda config, question: found)
    assert commands(Configuration(engine="llama.cpp"), question) == ("a\nb", "v1\nc")

    def refuse(config: Configuration, question: Question) -> None:
        raise UsageError("no command")

    monkeypatch.setattr(grid_build, "command", refuse)
    assert commands(Configuration(engine="llama.cpp"), question) == ("", "no command")


def test_names_of_parts_are_names_of_files() -> None:
    (job,) = jobs(CHOSEN[:1], MODEL)[:1]
    shown = CHOSEN[0][0]._replace(card="RTX 3090*2", memory="64 GB/DDR5")
    assert job.name(shown) == "rtx-3090-2-64-gb-ddr5-qwen3-30b-a3b.json"
