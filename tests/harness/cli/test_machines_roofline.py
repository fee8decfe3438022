"""`machines roofline`: the output, the figure, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import machines_roofline as command
from moebench.substrate.errors import UsageError
from tests.harness.commands import call, refused

COMMAND = (
    "machines", "roofline", "--model", "mixtral-8x7b", "--machine", "t4@moe-lightning",
)  # fmt: skip


def table(*arguments: str) -> dict[str, str]:
    """Return the first and second column of the command's tables."""
    called = call(*COMMAND, *arguments)
    assert called.code == 0, called.err
    lines = (line.split("\t") for line in called.out.splitlines())
    return {first: second for first, second, *_ in lines}


def test_the_default_is_the_policy_of_the_papers_table_5() -> None:
    shown = table()
    assert shown["N, μ, q"] == "504, 36, 14"
    assert shown["T_layer"] == "0.1640 s (link)"
    assert shown["a layer: device"] == "0.1226 s"
    assert shown["a layer: host"] == "0.0106 s"
    assert shown["experts on the device, r_w"] == "0.0004"
    assert shown["P1"] == "46.6"


def test_json_has_the_same_numbers() -> None:
    document = call(*COMMAND, "--json").json
    assert document["policy"]["batch"] == 504
    assert round(document["turning_points"]["p1"]["batch"]) == 186
    assert document["layer_s"]["limit"] == "link"
    assert document["memory_bytes"]["device"] <= document["memory_bytes"]["device_limit"] * 1.000001
    assert document["roofs"]["gpu_flops"] == 65e12
    assert (document["prompt"], document["new"]) == (418, 128)


def test_a_given_policy_is_timed() -> None:
    shown = table("--batch", "36", "--micro-batch", "36", "--resident", "0.01")
    assert (shown["N, μ, q"], shown["experts on the device, r_w"]) == ("36, 36, 1", "0.0100")
    assert table("--batch", "504")["N, μ, q"] == "504, 28, 18"
    assert table("--micro-batch", "4")["N, μ, q"].split(", ")[1] == "4"
    assert table("--prompt", "77", "--tokens", "32")["N, μ, q"] == "3,608, 164, 22"
    on_host = table("--experts", "host", "--batch", "1", "--micro-batch", "1")
    assert (on_host["attention, experts"], on_host["a layer: link"]) == ("host, host", "0.0000 s")
    cached = table(
        "--attention", "device", "--cached", "1", "--batch", "4", "--micro-batch", "4"
    )  # fmt: skip
    assert (cached["KV cache on the device, r_c"], cached["a layer: host"]) == (
        "1.0000",
        "0.0000 s",
    )


def test_the_figure_has_roofs_and_operations(here: Path) -> None:
    called = call(*COMMAND, "--svg", "roofs.svg")
    assert (called.code, "roofs.svg: roofs of" in called.err) == (0, True)
    drawn = (here / "roofs.svg").read_text(encoding="utf-8")
    for said in ("P1", "P2", "FFN, N = 504", "FFN, μ = 36", "attention", "operational intensity"):
        assert said in drawn, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt", "0"), "--prompt 0: "),
        (("--tokens", "1"), "--tokens 1: "),
        (("--batch", "5000"), "hold at most 954 requests of 418 + 128 tokens"),
        (("--batch", "540", "--micro-batch", "36"), "at most 504 requests"),
        (("--batch", "505", "--micro-batch", "36"), "allowed: multiples of 36"),
        (("--micro-batch", "400"), "a micro-batch of 400 requests of 418 + 128 tokens does not"),
        (("--prompt", "100000"), "the device needs 34.2 GB or more and has 13.9 GB"),
        (("--attention", "device"), "add --batch N and --micro-batch M"),
        (("--experts", "host"), "add --batch N and --micro-batch M"),
        (("--cached", "0.5"), "add --attention device"),
        (("--resident", "0.5"), "--resident 0.5: add --batch N"),
        (("--batch", "36", "--micro-batch", "36", "--resident", "0.5"), "a share of 0 to 0.0193"),
        (("--batch", "1", "--micro-batch", "1", "--resident", "nan"), "a finite number"),
        (("--svg", "roofs.png"), "--svg roofs.png: allowed: a name that ends in .svg"),
        (("--model", "qwen2-57b-a14b"), "qwen2-57b-a14b on t4@moe-lightning: a request of"),
        (("--model", "gpt-oss-20b"), "has latent, windowed or linear attention"),
        (("--model", "dense.json"), "dense.json: "),
        (("--model", "no-such-model"), "unknown model"),
        (("--machine", "local"), "has no profile"),
        (("--machine", "strix-halo"), "share one memory"),
        (("--machine", "cpu-only"), "share one memory"),
        (("--machine", "box.yaml"), "box.yaml: "),
        (("--machine", "no-such-machine"), "unknown machine"),
    ],
    ids=" ".join,
)
def test_what_has_no_answer_is_refused_in_one_line(
    here: Path, arguments: tuple[str, ...], said: str
) -> None:
    dense = '{"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2}'
    (here / "dense.json").write_text(dense)
    (here / "box.yaml").write_text("name: box\n")
    assert said in refused(*COMMAND, *arguments)


def test_a_model_and_a_machine_are_needed() -> None:
    assert "--model" in refused("machines", "roofline", "--machine", "a6000")
    assert "--machine" in refused("machines", "roofline", "--model", "mixtral-8x7b")


def test_a_host_too_small_for_the_experts_is_named(here: Path) -> None:
    for memory, said in (
        (100, "device and host together are too small for the experts"),
        (0.05, "the host needs 0.1 GB or more and has 0.0 GB"),
    ):
        machine = f"t4@moe-lightning+host.memory={memory}"
        asked = ("machines", "roofline", "--model", "mixtral-8x7b", "--machine", machine)
        for more in ((), ("--batch", "64")):
            assert f"a request of 418 + 128 tokens does not fit: {said}" in refused(*asked, *more)
        line = refused(*asked, "--batch", "64", "--micro-batch", "4")
        assert "a micro-batch of 4 requests of 418 + 128 tokens does not fit: " in line


def test_a_machine_of_parts_has_an_answer() -> None:
    machine = "rtx-3090+ryzen-5950x"
    called = call("machines", "roofline", "--model", "qwen3-30b-a3b", "--machine", machine)
    assert called.code == 0
    assert "decode throughput" in called.out


# ------------------------------------------------------------------------ words


def test_figures_are_shown_with_the_side_of_both_turning_points(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {
        "turning_points": {"p1": {"intensity": 46.64, "batch": 1186.4},
                           "p2": {"intensity": 99.5, "batch": 0.4}, "ffn": 99.4, "attention": 4.0},
        "policy": {"batch": 5040, "micro_batch": 36, "micro_batches": 140, "attention": "host",
                   "experts": "device", "resident": 0.12346, "cached": 0.5},
        "layer_s": {"link": 0.16399, "host": 0.01, "device": 0.12, "total": 0.164,
                    "limit": "link"},
        "memory_bytes": {"device": 12.345e9, "device_limit": 13.9e9, "host": 1e9,
                         "host_limit": 2e9},
        "model": "m", "machine": "box", "prompt": 418, "new": 128,
    }  # fmt: skip
    found: Any = SimpleNamespace(tokens_per_s=1234.56)
    command._show(document, found)
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == [
        ["point", "FLOP/B", "batch N", "below it, or where it is"],
        ["P1", "46.6", "1,186", "the host is faster than the device with moved data"],
        ["P2", "99.5", "0", "the link limits the device's FFN (μ = 36)"],
        ["FFN", "99.4", "5,040", "below P2"], ["attention", "4.0", "any", "below P1"],
        ["figure", "value"], ["N, μ, q", "5,040, 36, 140"], ["attention, experts", "host, device"],
        ["experts on the device, r_w", "0.1235"], ["KV cache on the device, r_c", "0.5000"],
        ["a layer: link", "0.1640 s"], ["a layer: host", "0.0100 s"],
        ["a layer: device", "0.1200 s"], ["T_layer", "0.1640 s (link)"],
        ["device memory", "12.35 of 13.90 GB that may be used"],
        ["host memory", "1.00 of 2.00 GB that may be used"],
        ["decode throughput", "1,234.6 tokens/s"],
    ]  # fmt: skip
    assert err == (
        "a bound by peak rates, not a run: m on box, 418 + 128 tokens, weights in bf16\n"
    )
    points = {"p1": {"intensity": 10.0}, "p2": {"intensity": 20.0}}
    sides = [command._side(intensity, points) for intensity in (9.9, 10.0, 19.9, 20.0)]
    assert sides == ["below P1", "below P2", "below P2", "above P2"]


class Case:
    """A machine that holds 40 requests, in micro-batches of at most 8, at shares of 0.1 to 0.9."""

    texts = SimpleNamespace(prompt=5, new=3)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def search(self) -> str:
        return "searched"

    def largest(self, micro_batch: int) -> str | None:
        return f"largest of {micro_batch}"

    def of_batch(self, batch: int) -> str | None:
        return f"batch of {batch}" if batch <= 40 else None

    def fits(self, policy: Any) -> bool:
        return policy.batch <= 40

    def most(self, policy: Any) -> int:
        self.asked.append(policy)
        return 40 // int(policy.micro_batch)

    def with_best_share(self, policy: Any) -> Any:
        return policy

    def shares(self, policy: Any) -> tuple[float, float]:
        return 0.12345678, 0.87654321

    def timed(self, policy: Any) -> Any:
        return policy


def asked(**more: Any) -> Any:
    plain = {"batch": None, "micro_batch": None, "attention": "host", "experts": "device",
             "resident": None, "cached": 0.0}  # fmt: skip
    return command.Asked(**{**plain, **more})


def test_open_parts_of_a_policy_are_searched() -> None:
    case: Any = Case()
    assert command._found(case, asked(), "here") == "searched"
    assert command._found(case, asked(micro_batch=4), "here") == "largest of 4"
    assert command._found(case, asked(batch=8), "here") == "batch of 8"
    best: Any = command._found(case, asked(batch=8, micro_batch=4), "here")
    assert (best.batch, best.micro_batch, best.attention_on_device) == (8, 4, False)
    assert (best.experts_on_device, best.cached) == (True, 0.0)
    given: Any = command._found(
        case, asked(batch=8, micro_batch=4, resident=0.5, attention="device", experts="host",
                    cached=0.25), "here",
    )  # fmt: skip
    assert (given.resident, given.cached) == (0.5, 0.25)
    assert (given.attention_on_device, given.experts_on_device) == (True, False)
    for resident in (0.12345678, 0.87654321):
        ends: Any = command._found(case, asked(batch=8, micro_batch=4, resident=resident), "here")
        assert ends.resident == resident


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cached": 0.5}, "--cached 0.5: attention on the host reads the KV cache there"),
        ({"attention": "device", "batch": 8}, "--attention device: is not searched"),
        ({"experts": "host", "micro_batch": 8}, "--experts host: is not searched"),
        ({"resident": 0.5, "batch": 8}, "--resident 0.5: add --batch N and --micro-batch M"),
        ({"batch": 41}, "--batch 41: the memories of here hold at most 40 requests of 5 + 3"),
        ({"batch": 44, "micro_batch": 4},
         "at most 40 requests of 5 \\+ 3 tokens, in micro-batches of 4"),
        ({"batch": 9, "micro_batch": 4}, "allowed: multiples of 4"),
        ({"batch": 8, "micro_batch": 4, "resident": 0.1}, "a share of 0.123457 to 0.876543"),
        ({"batch": 8, "micro_batch": 4, "resident": 0.9}, "a share of 0.123457 to 0.876543"),
    ],
)  # fmt: skip
def test_a_policy_that_contradicts_itself_is_refused(more: dict[str, Any], said: str) -> None:
    case: Any = Case()
    with pytest.raises(UsageError, match=said.replace("5 + 3", "5 \\+ 3")):
        command._found(case, asked(**more), "here")
