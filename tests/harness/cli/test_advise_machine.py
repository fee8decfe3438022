"""`moebench advise` on a machine: the JSON contract, the text, and one line for bad input."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import moebench
from moebench.harness.cli.advise_machine import _ends, show
from tests.harness.commands import call, refused

PARTS = ("--gpu", "rtx-3090", "--cpu", "ryzen-5950x", "--ram", "64")
MODEL = ("--model", "gpt-oss-120b")

#: Keys of an answer that other tools read.
KEYS = {
    "engine", "config", "configuration", "command", "version", "notes", "decode_tok_s", "low",
    "high", "prefill_tok_s", "prefill_low", "prefill_high", "ttft_s", "request_s", "memory",
    "quality", "binds", "shares", "verdict", "fits", "checked", "tied", "forced", "remarks",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def advise(*arguments: str) -> Any:
    called = call("advise", *MODEL, *PARTS, *arguments, "--json")
    assert called.code == 0, called.err
    return called.json


@pytest.mark.slow
def test_an_answer_has_engines_rates_memory_and_commands() -> None:
    found = advise()
    assert found["question"]["machine"] == "rtx-3090+ryzen-9-5950x+ram=64"
    assert found["question"]["quant"] == "mxfp4"
    assert "DDR4-3200 on every channel" in found["question"]["assumed"]
    assert found["verdict"].startswith("fits with a context of 8,192 tokens: ")
    assert found["largest_context"] == 131072
    engines = [one["engine"] for one in found["answers"]]
    assert {"llama.cpp", "ik_llama.cpp", "kt-kernel", "exllamav3", "freetoken"} <= set(engines)
    for one in found["answers"]:
        assert one.keys() == KEYS
        assert one["low"] < one["decode_tok_s"] < one["high"]
        assert one["command"]
        assert one["memory"].keys() == {"device_gib", "host_gib", "disk_gib"}
    (llama,) = [one for one in found["answers"] if one["engine"] == "llama.cpp"]
    words = llama["command"][0].split()
    layers = llama["configuration"]["host_layers"]
    assert words[:3] == ["llama-server", "-m", "gpt-oss-120b-mxfp4.gguf"]
    assert words[words.index("--n-cpu-moe") + 1] == str(layers)
    assert words[words.index("-c") + 1] == "8192"
    assert 20 < layers < 30, "11 of 36 layers' experts of 1.6 GiB each fit beside the rest"


@pytest.mark.slow
def test_the_same_question_is_answered_from_what_is_kept() -> None:
    first = advise("--engines", "llama.cpp")
    (kept,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("advice/*.json")
    document = json.loads(kept.read_text())
    document["verdict"] = "kept"
    kept.write_text(json.dumps(document))
    assert advise("--engines", "llama.cpp")["verdict"] == "kept"
    assert advise("--engines", "llama.cpp", "--fresh") == first
    assert advise("--engines", "llama.cpp", "--context", "16k")["verdict"] != "kept"


@pytest.mark.slow
def test_a_forced_configuration_is_among_the_rows() -> None:
    typed = "llama.cpp -ngl 99 --n-cpu-moe 28 -ub 2048 -t 8 -ctk q8_0 -ctv q8_0 --no-mmap"
    found = advise("--config", typed)["answers"]
    (row,) = [one for one in found if one["forced"]]
    assert row["engine"] == "llama.cpp"
    assert row["configuration"] | {"mapped": False} == {
        "engine": "llama.cpp", "host_layers": 28, "micro_batch": 2048, "threads": 8, "kv": "q8_0",
        "mapped": False,
    }  # fmt: skip
    assert row["quality"] == "KV cache in q8_0"


@pytest.mark.slow
def test_an_engines_rates_are_asked_at_the_stated_lengths() -> None:
    short = advise("--engines", "llama.cpp", "--prompt", "500", "--tokens", "100")
    long = advise("--engines", "llama.cpp", "--prompt", "60000", "--tokens", "100",
                  "--context", "64k")  # fmt: skip
    assert (long["question"]["prompt"], long["question"]["new"]) == (60000, 100)
    assert long["question"]["context"] == 65536
    before, after = short["answers"][0], long["answers"][0]
    assert after["decode_tok_s"] < before["decode_tok_s"]
    assert after["ttft_s"] == pytest.approx(60000 / after["prefill_tok_s"])


@pytest.mark.slow
def test_purchases_are_listed_with_their_gain() -> None:
    found = advise("--engines", "llama.cpp", "--buy")["buy"]
    assert found == sorted(found, key=lambda one: -one["gain_tok_s"]["value"])
    assert {"card with 8 GB more", "a second such disk"} <= {one["what"] for one in found}


@pytest.mark.slow
def test_the_text_names_the_rows_the_commands_and_what_was_assumed() -> None:
    called = call("advise", *MODEL, *PARTS, "--engines", "llama.cpp,kt-kernel", "--buy")
    assert called.code == 0
    assert called.out.startswith("gpt-oss-120b in mxfp4 on rtx-3090+ryzen-9-5950x+ram=64, 2,048 + "
                                 "512 tokens: fits with a context of 8,192 tokens")  # fmt: skip
    assert "--n-cpu-moe" in called.out
    assert "sglang" in called.out
    assert "purchase\tdecode tok/s gained" in called.out
    assert "assumed, as the question does not say it: DDR4-3200 on every channel" in called.err
    assert "not checked: too few rates of this kind" in called.err


def test_what_does_not_fit_says_the_number_and_ends_with_1() -> None:
    called = call("advise", "--model", "glm-4.5-air", "--gpu", "rtx-3060-12gb", "--cpu",
                  "ryzen-5-5600", "--ram", "128", "--context", "128k", "--lossless")  # fmt: skip
    assert called.code == 1
    assert "fits with a context of at most" in called.out
    assert "left out: llama.cpp: without routed experts it needs" in called.err


@pytest.mark.slow
def test_a_system_of_moebench_is_a_simulated_run() -> None:
    called = call("advise", "--model", "qwen3-30b-a3b", "--gpu", "rtx-3060-12gb", "--cpu",
                  "ryzen-5-5600", "--ram", "64", "--engines", "llama.cpp,moebench:fiddler",
                  "--json")  # fmt: skip
    assert called.code == 0, called.err
    rows = {one["engine"]: one for one in called.json["answers"]}
    assert rows["moebench:fiddler"]["command"][0].startswith(
        "moebench run --system fiddler --model "
    )
    assert rows["moebench:fiddler"]["prefill_tok_s"] is None
    assert rows["moebench:fiddler"]["quality"] == "lossless"
    assert not rows["moebench:fiddler"]["checked"]
    again = call(*rows["moebench:fiddler"]["command"][0].split()[1:], "--no-interval", "--json")
    assert again.code == 0, again.err
    tpot_ms = again.json["metrics"]["tpot_ms"]["mean"]
    assert rows["moebench:fiddler"]["decode_tok_s"] == pytest.approx(1e3 / tpot_ms)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing asked: give --model NAME"),
        (("--gpu", "rtx-3090"), "nothing asked: give --model NAME"),
        ((*MODEL, "--gpu", "rtx-3091"), "--gpu 'rtx-3091': unknown; nearest: "),
        ((*MODEL, *PARTS, "--ram", "64MB"), "--ram '64MB': allowed: GB or GiB"),
        (("--model", "gpt-oss-500b", *PARTS), "unknown model 'gpt-oss-500b'"),
        (("--model", "none.gguf", *PARTS), "none.gguf"),
        ((*MODEL, *PARTS, "--context", "256q"), "--context '256q': allowed: tokens"),
        (("--model", "mixtral-8x7b", *PARTS, "--context", "64k"), "32,768 positions at most"),
        ((*MODEL, *PARTS, "--engines", "llama.cp,vlm"), "engine"),
        ((*MODEL, *PARTS, "--engines", "llama.cpp,,"), "--engines"),
        ((*MODEL, *PARTS, "--config", "llama.cpp --n-cpu-mo 3"), "--n-cpu-mo"),
        ((*MODEL, *PARTS, "--config", "fast"), "fast"),
        ((*MODEL, *PARTS, "--batch", "0"), "--batch 0"),
        ((*MODEL, *PARTS, "--tpot-ms", "5"), "--gpu: not with a budget; leave out one of both"),
        ((*MODEL, *PARTS, "--setting", "S3"), "--setting: only for a budget; give --tpot-ms MS"),
        ((*MODEL, "--machine", "somewhere"), "--machine somewhere: advice needs parts"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("advise", *arguments)


@pytest.mark.slow
def test_python_gives_the_document_of_the_command() -> None:
    found = moebench.advise("gpt-oss-120b", gpu="rtx-3090", cpu="ryzen-5950x", ram=64,
                            engines=["llama.cpp"], config="llama.cpp -ncmoe 30")  # fmt: skip
    assert found.document == advise("--engines", "llama.cpp", "--config", "llama.cpp -ncmoe 30")
    assert len(found.frame()) == len(found.answers)
    assert {"engine", "decode_tok_s", "device_gib"} <= set(found.frame().columns)


# ------------------------------------------------------------------------------ by hand


def answer(engine: str, **more: Any) -> dict[str, Any]:
    return {
        "engine": engine, "config": "all on the device", "decode_tok_s": 12.345, "low": 10.0,
        "high": 1234.5, "prefill_tok_s": 99.96, "prefill_low": 50.0, "prefill_high": 200.0,
        "ttft_s": 1.234, "request_s": 100.4, "quality": "lossless", "binds": "link",
        "memory": {"device_gib": 20.25, "host_gib": 0.0, "disk_gib": 1.0},
        "shares": {"link": 0.514}, "forced": False, "tied": False, "checked": True,
        "fits": "fits", "verdict": "fits", "remarks": [], "notes": [], "version": f"{engine} 1",
        "command": [f"run {engine}"], **more,
    }  # fmt: skip


def document(*answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "question": {"model": "m", "quant": "q", "machine": "box", "prompt": 2048, "new": 512,
                     "assumed": "", "sources": {}},
        "verdict": "fits", "answers": list(answers), "left_out": {}, **more,
    }  # fmt: skip


HEAD = "m in q on box, 2,048 + 512 tokens: fits"


def shown(
    capsys: pytest.CaptureFixture[str], found: dict[str, Any], cached: bool = False
) -> tuple[list[str], list[str]]:
    show(found, cached)
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err.splitlines()


def test_the_text_of_two_answers(capsys: pytest.CaptureFixture[str]) -> None:
    odd = answer(
        "b", checked=False, tied=True, forced=True, fits="pages", verdict="it pages",
        prefill_tok_s=None, ttft_s=None, shares={}, command=["one", "two"],
    )  # fmt: skip
    out, said = shown(capsys, document(odd, answer("a")))
    assert out[0] == HEAD
    assert [line.split("\t") for line in out[2:4]] == [
        ["1", "b", "all on the device", "12.3 (10 to 1,234)", "–", "–", "100",
         "20.2 + 0.0 + 1.0", "lossless", "link",
         "as asked; tied with 1; not checked; it pages"],
        ["2", "a", "all on the device", "12.3 (10 to 1,234)", "100 (50 to 200)", "1.23", "100",
         "20.2 + 0.0 + 1.0", "lossless", "link (51%)", ""],
    ]  # fmt: skip
    assert out[4:] == [
        "The best whose kind was compared with published rates: 2", "Commands:", "  1  one",
        "  1  two", "  2  run a",
    ]  # fmt: skip
    assert said == [
        "b: b 1", "a: a 1",
        "not checked: too few rates of this kind of run were published; the interval is the widest "
        "of such machines",
    ]  # fmt: skip
    out, _ = shown(capsys, document(answer("a"), odd))
    assert out[4] == "Commands:"


def test_notes_are_of_the_engines_that_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        answer("a", remarks=["all", "mine"], version="v"), answer("a", remarks=["all", "mine"],
                                                                  version="v"),
        answer("b", notes=["all"], version="v"), left_out={"c": "does not run"},
    )  # fmt: skip
    found["question"] |= {"assumed": "a disk", "sources": {"cpu": "lscpu"}}
    _, said = shown(capsys, found, cached=True)
    assert said == [
        "assumed, as the question does not say it: a disk", "cpu: read from lscpu", "all",
        "a: mine", "v", "left out: c: does not run",
        "from a stored answer to the same question; --fresh computes it again",
    ]  # fmt: skip
    out, said = shown(capsys, document(left_out={"c": "no"}))
    assert (out, said) == ([HEAD], ["left out: c: no"])


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.5, "+0.5 (-1 to 2)"), (0.0, "0 (-1 to 2)"), (-0.5, "-0.5 (-1 to 2)"),
     (99.96, "+100 (-1 to 2)"), (99.4, "+99.4 (-1 to 2)"), (100.4, "+100 (-1 to 2)"),
     (-1234.5, "-1,234 (-1 to 2)"), (0.01234, "+0.0123 (-1 to 2)")],
)  # fmt: skip
def test_a_gain_has_three_digits_and_a_sign_if_it_is_one(value: float, said: str) -> None:
    assert _ends({"value": value, "low": -1.0, "high": 2.0}, "+") == said
    assert _ends({"value": value, "low": -1.0, "high": 2.0}) == said.removeprefix("+")


def test_gains_of_purchases_have_signs(capsys: pytest.CaptureFixture[str]) -> None:
    gain = {"value": 3.21, "low": -1.0, "high": 5.0}
    bought = [{"what": "a disk", "gain_tok_s": gain, "prefill_gain_tok_s": None, "engine": "a",
               "config": "x"},
              {"what": "a card", "gain_tok_s": gain | {"value": -2.0},
               "prefill_gain_tok_s": gain | {"value": 0.0}, "engine": "b",
               "config": "y"}]  # fmt: skip
    out, _ = shown(capsys, document(buy=bought))
    assert [line.split("\t") for line in out[2:]] == [
        ["a disk", "+3.21 (-1 to 5)", "–", "a: x"],
        ["a card", "-2 (-1 to 5)", "0 (-1 to 5)", "b: y"],
    ]
