"""`machines roofline`: the output, the figure, and what is refused."""

from pathlib import Path

import pytest

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
        line = refused("machines", "roofline", "--model", "mixtral-8x7b", "--machine", machine)
        assert f"a request of 418 + 128 tokens does not fit: {said}" in line


def test_a_machine_of_parts_has_an_answer() -> None:
    machine = "rtx-3090+ryzen-5950x"
    called = call("machines", "roofline", "--model", "qwen3-30b-a3b", "--machine", machine)
    assert called.code == 0
    assert "decode throughput" in called.out
