"""`moebench validate --published` and `--add-row`, with a predictor that the test makes up."""

import json
from pathlib import Path

import pytest

from moebench.harness.cli import published as command
from moebench.harness.published import rows as rows_module
from moebench.harness.published.prediction import Prediction
from moebench.harness.published.score import summary
from tests.harness.commands import call, refused
from tests.harness.published.made import install, predicted, row, write

PUBLISHED = ("validate", "--published")
NONE_YET = "no predictor yet"


def unable(rows) -> list[Prediction]:
    """Return every figure without a prediction."""
    return [one._replace(predicted=None, low=None, high=None, reason=NONE_YET)
            for one in predicted(rows)]  # fmt: skip


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(
        Path("rows.csv"), {}, {"id": "a2", "decode_tok_s": "16", "prefill_tok_s": ""},
        {"id": "a3", "decode_tok_s": "", "prefill_tok_s": "", "decode_lo": "3"},
    )  # fmt: skip


def test_json_is_one_document_of_rows_and_summary(file, monkeypatch) -> None:
    def predict(rows):
        first, *others = predicted(rows, 2)
        return [first._replace(remarks=("faster than the memory",)), *others[:-1],
                others[-1]._replace(predicted=None, reason="no such GPU")]  # fmt: skip

    install(monkeypatch, predict=predict)
    called = call(*PUBLISHED, file, "--json")
    assert called.code == 0, called.err
    assert called.json["rows"] == [
        {"id": "a1", "phase": "decode", "measured": 8, "predicted": 16, "ratio": 2,
         "low": pytest.approx(16 / 1.5), "high": 24, "remarks": ["faster than the memory"]},
        {"id": "a1", "phase": "prefill", "measured": 100, "predicted": 200, "ratio": 2,
         "low": pytest.approx(200 / 1.5), "high": 300},
        {"id": "a2", "phase": "decode", "measured": 16, "reason": "no such GPU"},
        {"id": "a3", "phase": "decode", "measured": None, "reason": "only a bound was measured"},
    ]  # fmt: skip
    found = called.json["summary"]
    found.pop("left_out")
    rows = rows_module.read_rows(file)
    assert found == pytest.approx(summary(rows, predict(rows)))
    assert (found["absolute_rows"], found["median_error"]) == (2, pytest.approx(1))
    assert found["predicted_share"] == pytest.approx(2 / 3)


def test_shipped_rows_are_read_without_a_path(monkeypatch) -> None:
    install(monkeypatch, predict=unable)
    called = call(*PUBLISHED, "--json")
    assert called.code == 0, called.err
    assert len({one["id"] for one in called.json["rows"]}) == 384
    found = called.json["summary"]
    assert (found["absolute_rows"], found["prefill_absolute_rows"]) == (107, 74)
    assert (found["predicted_share"], found["median_error"]) == (0, None)


def test_absent_shipped_rows_are_refused(monkeypatch, tmp_path) -> None:
    install(monkeypatch, predict=unable)
    monkeypatch.setattr(rows_module, "FOLDER", tmp_path / "no")
    assert "--published: this installation has no rows" in refused(*PUBLISHED)


def test_left_out_errors_are_in_the_document_and_in_the_table(file, monkeypatch) -> None:
    install(monkeypatch, predict=predicted, left_out=lambda rows, _: predicted(rows, 4))
    found = call(*PUBLISHED, file, "--json").json["summary"]
    assert found["median_error"] == 0
    assert found["left_out"]["median_error"] == pytest.approx(3)
    assert set(found["left_out"]) == set(found) - {"left_out"}
    shown = call(*PUBLISHED, file)
    assert "decode: median error\t0.0%\t300.0%\t≤ 20 %" in shown.out
    assert "a1\tdecode\t8\t8\t1.00" in shown.out
    assert "a1\tdecode\t8\t32\t4.00" in call(*PUBLISHED, file, "--left-out").out


def test_the_guard_accepts_equal_errors_and_says_which_moved(file, monkeypatch, tmp_path) -> None:
    from moebench.harness.published import errors
    from moebench.results import published_errors

    rows = rows_module.read_rows(file)
    accepted = tmp_path / "errors.json"
    accepted.write_text(json.dumps(errors.document(rows, predicted(rows, 2), predicted(rows, 4))))
    monkeypatch.setattr(published_errors, "FILE", accepted)
    published_errors.shipped_errors.cache_clear()
    monkeypatch.setattr(rows_module, "FOLDER", file.parent)
    for factors, code, said in (
        ((2, 4), 0, "as accepted"),
        ((2.01, 4), 1, "in_sample.median_error: worse"),
        ((2, 5), 1, "left_out.median_error: worse"),
        ((1.5, 4), 4, "in_sample.median_error: better"),
    ):
        inside, outside = factors
        install(monkeypatch, predict=lambda rows, x=inside: predicted(rows, x),
                left_out=lambda rows, _, x=outside: predicted(rows, x))  # fmt: skip
        called = call(*PUBLISHED, "--check")
        assert (called.code, said in called.err) == (code, True), called.err
    published_errors.shipped_errors.cache_clear()
    assert "leave out rows.csv" in refused(*PUBLISHED, file, "--check")


def test_text_shows_summary_groups_worst_rows_and_reasons(file, monkeypatch) -> None:
    def predict(rows):
        return [
            one._replace(reason="no rule for it", predicted=None) if one.phase == "prefill"
            else one._replace(remarks=("threads not stated",))
            for one in predicted(rows, 2)
        ]  # fmt: skip

    install(monkeypatch, predict=predict)
    called = call(*PUBLISHED, file)
    lines = called.out.splitlines()
    assert "decode: 90th percentile\t× 2.00\t× 2.00\t≤ × 1.7" in lines
    assert "prefill: median error\t–\t–\t≤ 35 %" in lines
    assert "g\tdecode\t2\t100%\t1 of 1\t–" in lines
    machine = "RTX 3090 + Ryzen 9 5950X (someone)"
    assert f"a1\tdecode\t8\t16\t2.00\t10.67 to 24\t{machine}" in lines
    said = called.err.splitlines()
    assert "not predicted: no rule for it: a1 prefill" in said
    assert "not predicted: only a bound was measured: a3 decode" in said
    assert "remark: threads not stated: 2 figures" in said


def test_the_most_frequent_reason_is_first_and_names_three_figures(monkeypatch, tmp_path) -> None:
    ids = [{"id": f"b{n}", "prefill_tok_s": ""} for n in range(6)]
    file = write(tmp_path / "rows.csv", {"id": "b", "prefill_tok_s": ""}, *ids)

    def predict(rows):
        reasons = {"b": "a rare one", "b0": "a rare one", "b4": "another"}
        return [one._replace(reason=reasons.get(one.id, "the frequent one"), predicted=None)
                for one in predicted(rows)]  # fmt: skip

    install(monkeypatch, predict=predict)
    said = [line for line in call(*PUBLISHED, file).err.splitlines() if "not predicted" in line]
    assert said == [
        "not predicted: the frequent one: b1 decode, b2 decode, b3 decode and 1 more",
        "not predicted: a rare one: b decode, b0 decode", "not predicted: another: b4 decode",
    ]  # fmt: skip


def test_reasons_are_folded(monkeypatch) -> None:
    install(monkeypatch, predict=unable)
    (line,) = [one for one in call(*PUBLISHED).err.splitlines() if NONE_YET in one]
    assert line.startswith(f"not predicted: {NONE_YET}: ktdsv3-020-6e-2 decode, ")
    assert line.endswith("more")


def test_page_and_table_are_written(file, monkeypatch) -> None:
    install(monkeypatch, predict=predicted)
    called = call(*PUBLISHED, file, "--html", "x.html", "--out", "x.json", "--json")
    assert called.code == 0, called.err
    assert Path("x.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads(Path("x.json").read_text()) == called.json
    for option in ("--html", "--out"):
        assert "no such folder" in refused(*PUBLISHED, file, option, "no/x")
        assert "this is a folder" in refused(*PUBLISHED, file, option, ".")


def test_damaged_rows_are_refused_before_the_predictor_is_loaded(file, monkeypatch) -> None:
    install(monkeypatch)  # without predict
    write(file, {"threads": "0"})
    assert "rows.csv:2: threads 0: cannot be" in refused(*PUBLISHED, file)
    assert "no.csv: no such file or folder" in refused(*PUBLISHED, "no.csv")


# ---------------------------------------------------------------- rows of one's own


def test_new_file_is_a_template_and_then_checked(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    called = call("validate", "--add-row", "mine.csv")
    assert called.code == 0
    assert "mine.csv: fill in the row" in called.err
    called = call("validate", "--add-row", "mine.csv")
    assert called.code == 1
    assert "line 2\tid; source; where; model; quant; system; gpu or cpu" in called.out
    write(Path("mine.csv"), {})
    called = call("validate", "--add-row", "mine.csv")
    assert (called.code, called.out.splitlines()) == (
        0, ["row\tmissing\tmissing for an absolute prediction",
            "line 2 (a1)\tcomplete\tall named"],
    )  # fmt: skip
    write(Path("mine.csv"), {}, {"id": "a2", "model": ""})
    called = call("validate", "--add-row", "mine.csv")
    assert (called.code, called.out.splitlines()[1:]) == (
        1, ["line 2 (a1)\tcomplete\tall named", "line 3 (a2)\tmodel\tall named"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says"),
    [("mine.txt", "ends in .csv"), ("no/mine.csv", "no such folder"), ("d.csv", "is a folder")],
)
def test_row_file_that_cannot_be_is_refused(name, says, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.csv").mkdir()
    assert says in refused("validate", "--add-row", name)
    assert not Path("mine.txt").exists()
    assert not Path("no").exists()


# ---------------------------------------------------------------- contradictions


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--systems", "daop"), ("--set", "daop.place=by-id"), ("--profile", "x.yaml"),
        ("--model", "mixtral-8x7b"), ("--weights", "x"), ("--emulated-link", "4GB/s"),
        ("--capacity", "0.25"), ("--workload", "facts"), ("--batch", "1"), ("--prompts", "4"),
        ("--new-tokens", "16"), ("--calibrate-texts", "4"), ("--repeats", "3"),
        ("--data-dir", "x"), ("--store", "x"),
    ],
)  # fmt: skip
def test_options_of_runs_are_refused_with_published_rows(options, file, monkeypatch) -> None:
    install(monkeypatch, predict=predicted)
    assert f"{options[0]}: not with --published" in refused(*PUBLISHED, file, *options)
    line = refused("validate", "--add-row", "new.csv", *options)
    assert f"{options[0]}: not with --add-row" in line
    assert not Path("new.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--machine", "local", "--published"), "No such option: --machine"),
        (("--left-out",), "--left-out: only for published rows; add --published"),
        (("--html", "x.html"), "--html: only for published rows; add --published"),
        (("rows.csv",), "ROWS: only for published rows; add --published"),
        (("--published", "--add-row", "x.csv"), "--add-row: checks one file"),
        (("--add-row", "x.csv", "--json"), "--json: not with --add-row"),
        (("--add-row", "x.csv", "rows.csv"), "ROWS: not with --add-row"),
        ((), "--profile: give a profile of moebench calibrate, or --published"),
        (("--json",), "--profile: give a profile"),
    ],
)
def test_contradicting_options_are_refused(arguments, says, file) -> None:
    assert says in refused("validate", *arguments)


# ---------------------------------------------------------------- words


def test_laws_and_crossings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """``fast start`` takes 10 + 2 x ms, ``flat`` 30 + x: they cross at 20 layers, measured."""
    rows = [
        row(f"{system}{n}", 1e3 / (start + slope * n), system=system, n_cpu_moe=n)
        for system, start, slope in (("fast start", 10, 2), ("flat", 30, 1)) for n in (0, 10, 40)
    ]  # fmt: skip
    # All are predicted as twice as slow, and the flat one besides as 100 ms slower.
    predictions = [
        one._replace(predicted=1e3 / (2e3 / one.measured + 100 * (one.id[:2] == "fl")))
        for one in predicted(rows)
    ]
    command._show_laws(rows, predictions)
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["group", "phase", "system", "x", "measured ms/token", "predicted"],
        ["g", "decode", "fast start", "layers on the host", "10 + 2 x", "20 + 4 x"],
        ["g", "decode", "flat", "layers on the host", "30 + 1 x", "160 + 2 x"],
    ]
    assert err == (
        "g, decode: fast start and flat over layers on the host cross at x = 20, predicted "
        "nowhere\n"
    )
    falling = [row(f"a{n}", 1e3 / (50 - n), n_cpu_moe=n) for n in (0, 10, 40)]
    command._show_laws(falling, predicted(falling))
    out, err = capsys.readouterr()
    assert "50 − 1 x" in out
    assert err == "", "one curve crosses none"
    laws = command._laws(rows, predictions)
    assert laws[0] == {
        "group": "g", "phase": "decode", "system": "fast start", "variable": "layers on the host",
        "measured": {"start": pytest.approx(10), "slope": pytest.approx(2)},
        "predicted": {"start": pytest.approx(20), "slope": pytest.approx(4)},
    }  # fmt: skip


def test_a_row_that_has_only_a_bound_is_a_figure_without_a_value() -> None:
    """One that a predictor names, and one with figures that it leaves out, are no such rows."""
    rows = [row("only a bound", decode_lo=3), row("named", decode_lo=3), row("left out", 8)]
    named = Prediction("named", "decode", 3, 3, 2, 4)
    found = command._rows(rows, [named])
    assert [(one["id"], one["measured"]) for one in found] == [("named", 3), ("only a bound", None)]


def test_ten_remarks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", 10), row("b", 20)]
    first, second = predicted(rows)
    many = tuple(f"remark {n}" for n in range(12))
    command._show_rows(rows, [first._replace(remarks=many), second._replace(remarks=many[:1])])
    said = [line for line in capsys.readouterr().err.splitlines() if "remark" in line]
    assert said[0] == "remark: remark 0: 2 figures"
    assert len(said) == 11
    assert said[-1] == "2 other remarks: see --json"
    command._show_rows(rows, [first._replace(remarks=many[:10]), second])
    assert "other remarks" not in capsys.readouterr().err


def test_figures_as_text() -> None:
    assert command._said(None, "%") == "–"
    assert command._said(0.1234, "%") == "12.3%"
    assert command._said(1.234, "x") == "× 1.23"
    assert command._said(7, "d") == "7"
    assert command._said(0.5, ".2f") == "0.50"
    one = predicted([row("a", 10)])[0]
    assert command._range(one) == "6.667 to 15"
    assert command._range(one._replace(low=None)) == command._range(one._replace(high=None)) == "–"
    bare = command._figure(one._replace(predicted=None))
    assert bare == {"id": "a", "phase": "decode", "measured": 10, "reason": "not predicted"}


def test_a_span_is_shown_by_system(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(f"n{n}", 1e3 / (10 + n), n_cpu_moe=n) for n in (0, 10, 40)]
    command._show_rows(rows, predicted(rows))
    lines = capsys.readouterr().out.splitlines()
    assert "g\tdecode\t3\t0%\t3 of 3\t1.00 s" in lines
    alone = [row("x", 5)]
    command._show_rows(alone, predicted(alone))
    assert "g\tdecode\t1\t0%\t–\t–" in capsys.readouterr().out.splitlines()
